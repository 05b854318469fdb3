"""The language reference of the interpreter as bytes: real text for a language model, without a download.

The text is read in place (licence: PSF 2). Each release of Python with another text is another data set, with another
name.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from pslab.config import sources
from pslab.config.parameters import Bounds, check
from pslab.errors import ConfigError
from pslab.tensors.workload.data import Dataset

WINDOW = 64  # bytes of an example
BLOCK = 2048  # bytes; the last of every BLOCKS blocks is for testing
BLOCKS = 10
SIZE = Bounds(at_least=1, at_most=10**9)


@dataclass(frozen=True)
class Text:
    """The language reference of Python in windows of 64 bytes, in which a model predicts each next byte.

    Every tenth block of 2 KiB is for testing, and no byte is in both parts. With CPython 3.11.7: 6,581 windows to train
    and 703 to test, 107 distinct bytes. The name has the text's hash, because releases of Python differ in the text.

    Raises:
        ConfigError: the text has fewer windows than `train` or `test`, or the interpreter does not have the text.
    """

    train: Annotated[int | None, SIZE, "the number of training windows; none: all windows"] = None
    test: Annotated[int | None, SIZE, "the number of test windows; none: all windows"] = None

    def __post_init__(self) -> None:
        check(self)

    def dataset(self, name: str, root: Path) -> Dataset:
        """Return bytes [N, 64] uint8 as tokens, and the next bytes [N, 64] int64; the same object each time."""
        return _read(name, self, sources.language_reference())


@lru_cache(maxsize=2)
def _read(given: str, chosen: Text, content: bytes) -> Dataset:
    text = np.frombuffer(content, np.uint8)
    test = np.arange(len(text)) // BLOCK % BLOCKS == BLOCKS - 1
    train_x, train_y = _windows(given, "train", text[~test], chosen.train)
    test_x, test_y = _windows(given, "test", text[test], chosen.test)
    name = f"text-{hashlib.sha256(content).hexdigest()[:8]}"
    return Dataset(name, train_x, train_y, test_x, test_y, mean=None, std=1.0, classes=256)


def _windows(given: str, part: str, text: np.ndarray, wanted: int | None) -> tuple[Tensor, Tensor]:
    """Return the first `wanted` windows without overlap as inputs, and as targets the windows one byte later."""
    count = (len(text) - 1) // WINDOW
    if wanted is not None and wanted > count:
        problem = f"{part}={wanted}: the text has {count} windows of {WINDOW} bytes to {part} with"
        raise ConfigError("data", given, f"{problem}; use at most {count}, or omit {part} for all windows")
    size = (count if wanted is None else wanted) * WINDOW
    x, y = (torch.from_numpy(text[begin : begin + size].copy()).view(-1, WINDOW) for begin in (0, 1))
    return x, y.long()
