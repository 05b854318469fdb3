"""Where entries belong that lie next to each other: the start of each run as u32, then the length of each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslab.errors import FrameError

Array = NDArray[Any]
RUN_BYTES = 8  # that one run takes
CHUNK = 1 << 15  # entries that are counted at a time
FEW = 64  # runs that are made one by one


def count(indices: Array, most: int) -> int:
    """How many runs increasing indices make; more than `most`, if they are more."""
    found = min(1, len(indices))
    for begin in range(0, len(indices) - 1, CHUNK):
        piece = indices[begin : begin + CHUNK + 1]
        found += int(np.count_nonzero(piece[1:] - piece[:-1] != 1))
        if found > most:
            break
    return found


def write(indices: Array, n: int) -> Array:
    """The bytes of increasing indices."""
    if not len(indices):
        return np.empty(0, np.uint8)
    first = np.concatenate(([0], np.flatnonzero(indices[1:] - indices[:-1] != 1) + 1))
    return np.concatenate((indices[first], np.diff(first, append=len(indices)))).astype("<u4")


def read(places: Array, n: int, k: int) -> Array:
    """The k indices below n of these bytes; FrameError if they are none. Memory is bounded by k."""
    if len(places) % RUN_BYTES:
        raise FrameError(f"{len(places)} bytes that are no whole runs of {RUN_BYTES}")
    starts, lengths = np.frombuffer(places, "<u4").reshape(2, -1).astype(np.int64)
    ends = starts + lengths
    if int(lengths.sum()) != k:
        raise FrameError(f"runs of {lengths.sum()} entries for {k} values")
    if bool((lengths == 0).any()) or bool((ends[:-1] >= starts[1:]).any()) or (k and ends[-1] > n):
        raise FrameError(f"runs that are empty, touch each other or leave 0 to {n - 1}")
    if len(starts) < FEW:
        return np.concatenate([np.arange(0), *map(np.arange, starts, ends)])
    indices: Array = np.arange(k) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
    return indices
