"""MNIST, read from its four idx files, which may be gzipped."""

from __future__ import annotations

import functools
import gzip
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, cast

import numpy as np
import torch
from torch import Tensor

from pslab.config.parameters import Bounds, check
from pslab.errors import ConfigError
from pslab.tensors.workload.data import Dataset

RAW = Path("MNIST", "raw")
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
TRAIN, TEST, SIDE = 60_000, 10_000, 28
MEAN, STD = 0.1307, 0.3081  # of the training pixels, rounded as usual
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Mnist:
    """MNIST (LeCun et al., 1998): its first `train` training and `test` test examples, in the order of its files."""

    train: Annotated[int, Bounds(at_least=1, at_most=TRAIN), "the number of training examples"] = TRAIN
    test: Annotated[int, Bounds(at_least=1, at_most=TEST), "the number of test examples"] = TEST

    def __post_init__(self) -> None:
        check(self)

    def dataset(self, name: str, root: Path) -> Dataset:
        """Return the examples from the files in root/MNIST/raw; the same object until the files change.

        Raises:
            ConfigError: a file is missing or broken.
        """
        raw = root / RAW
        return _read(name, self, _stamps(raw))


def read_idx(path: Path, shape: Sequence[int]) -> Tensor:
    """Read the bytes of an idx file, gzipped or not, as [n, *shape[1:]] uint8 with n from 1 to shape[0].

    At most the memory for `shape` is used, even if the file's header states a larger shape.

    Raises:
        ConfigError: the file cannot be read, or has another shape.
    """
    try:
        with path.open("rb") as file:
            stream = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
            return _read_stream(cast(BinaryIO, stream), path, tuple(shape))
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError("data", str(path), f"cannot be read: {type(error).__name__}: {error}") from error


def _read_stream(stream: BinaryIO, path: Path, shape: tuple[int, ...]) -> Tensor:
    header = stream.read(4 + 4 * len(shape))
    magic = bytes([0, 0, 8, len(shape)])  # 8: unsigned bytes
    if len(header) < 4 + 4 * len(shape) or header[:4] != magic:
        problem = f"starts with {header[:4].hex(' ')}, but must have a header of {4 + 4 * len(shape)} bytes that "
        problem += f"starts with {magic.hex(' ')}: download the file again"
        raise ConfigError("data", str(path), problem)
    sizes = tuple(int(n) for n in np.frombuffer(header, ">u4", offset=4))
    if not 1 <= sizes[0] <= shape[0] or sizes[1:] != shape[1:]:
        problem = f"its shape is {list(sizes)}, not {list(shape)} or with fewer examples: download the file again"
        raise ConfigError("data", str(path), problem)
    wanted, body = math.prod(sizes), bytearray()
    while len(body) <= wanted and (chunk := stream.read(min(CHUNK_BYTES, wanted + 1 - len(body)))):
        body += chunk
    if len(body) != wanted:
        more = "more" if len(body) > wanted else f"only {len(body)}"
        problem = f"must have {wanted} bytes after its header, but has {more}: download the file again"
        raise ConfigError("data", str(path), problem)
    return torch.frombuffer(body, dtype=torch.uint8).view(sizes)


def _stamps(raw: Path) -> tuple[tuple[str, int, int], ...]:
    """Return (path, size, time of modification) of the four files; ConfigError if one is missing."""
    files = {name: next((p for p in (raw / name, raw / f"{name}.gz") if p.is_file()), None) for name in FILES}
    if missing := [name for name, path in files.items() if path is None]:
        problem = (f"looked in {raw.absolute()} for {', '.join(missing)} (also with .gz): put the files there, name "
                   "another folder in PSLAB_DATA (the one that contains MNIST/raw), or use 'torchvision:MNIST', which "
                   "downloads them")  # fmt: skip
        raise ConfigError("data", "mnist", problem)
    return tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files.values() if path)


@functools.lru_cache(maxsize=4)
def _read(name: str, chosen: Mnist, stamps: tuple[tuple[str, int, int], ...]) -> Dataset:
    images, labels, test_images, test_labels = (Path(path) for path, _, _ in stamps)
    train_x, train_y = _part(name, images, labels, TRAIN, chosen.train)
    test_x, test_y = _part(name, test_images, test_labels, TEST, chosen.test)
    return Dataset(name, train_x, train_y, test_x, test_y, MEAN, STD, 10)


def _part(name: str, images: Path, labels: Path, limit: int, wanted: int) -> tuple[Tensor, Tensor]:
    """Return the first `wanted` examples of two files: [wanted, 1, 28, 28] uint8 and [wanted] int64."""
    x, y = read_idx(images, (limit, SIDE, SIDE)), read_idx(labels, (limit,))
    if len(x) != len(y):
        problem = f"{images} has {len(x)} images, but {labels} has {len(y)} labels: download both files again"
        raise ConfigError("data", name, problem)
    if len(x) < wanted:
        problem = f"{images} has {len(x)} images, fewer than {wanted}: set train or test to at most {len(x)}"
        raise ConfigError("data", name, problem)
    # copy the wanted images, so that the memory of the others is freed
    x = x if wanted == len(x) else x[:wanted].clone()
    return x.unsqueeze(1), y[:wanted].long()
