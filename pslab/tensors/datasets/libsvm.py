"""Rows from a file in LIBSVM's format: ``label key:value key:value ...``, keys from 1 and increasing, ``#`` a comment.

Source: Chang and Lin (ACM TIST 2011)
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np

from pslab.config import sources
from pslab.config.parameters import check
from pslab.config.untrusted import read_bytes
from pslab.errors import ConfigError
from pslab.tensors.sparse import SparseRows, rows_of
from pslab.tensors.workload.data import Dataset, of_rows

TEST_SHARE = 5  # a fifth of the rows is for testing, selected by their text
LARGEST_KEY = 2**31 - 1
TEXT_TIMES = 4  # memory to read a file, in multiples of its size: bytes, characters, lines, numbers


@dataclass(frozen=True)
class Libsvm:
    """Rows of a file in LIBSVM's format: ``label key:value key:value ...``. Labels above 0 are 1, all others 0.

    Source: Chang and Lin (ACM TIST 2011)
    """

    path: Annotated[str, "a path, absolute, from ~, or from the working directory"]

    def __post_init__(self) -> None:
        check(self)

    def dataset(self, name: str, root: Path) -> Dataset:
        """Return the rows as a Dataset, the same object until the file changes."""
        file = Path(self.path).expanduser().absolute()
        return _dataset(file, str(sources.file(file)))


@lru_cache(maxsize=1)
def _dataset(path: Path, content: str) -> Dataset:
    return of_rows(load(path))


def load(path: Path | str) -> SparseRows:
    """Read the rows of a file; labels above 0 are 1, all others 0.

    Raises:
        ConfigError: the file cannot be read, or a line has another format; the message has the line's number.
    """
    rows, labels, test, most = [], list[bool](), list[bool](), 0
    try:
        lines = read_bytes(Path(path), TEXT_TIMES).decode("ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("data", str(path), f"cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].split()
        if not text:
            continue
        try:
            pairs = [(int(key), float(value)) for key, value in (word.split(":") for word in text[1:])]
            labels.append(float(text[0]) > 0)
        except ValueError:
            raise ConfigError("data", str(path), f"line {number} is not `label key:value ...`: {line[:60]!r}") from None
        keys = np.array([key for key, _ in pairs], np.int64)
        if len(keys) and (keys[0] < 1 or keys[-1] > LARGEST_KEY or (np.diff(keys) <= 0).any()):
            raise ConfigError("data", str(path), f"line {number}: keys must be from 1 and increase: {line[:60]!r}")
        most = max(most, int(keys[-1]) if len(keys) else 0)
        rows.append((keys - 1, np.array([value for _, value in pairs])))
        test.append(zlib.crc32(line.encode()) % TEST_SHARE == 0)
    if not rows:
        raise ConfigError("data", str(path), "has no rows: each line must be `label key:value ...`")
    return rows_of(Path(path).name, most, rows, np.array(labels), np.array(test))
