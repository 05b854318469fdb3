"""Positions of consecutive entries: the starts of all runs as u32, then their lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslab.errors import FrameError

Array = NDArray[Any]
RUN_BYTES = 8  # of one run
CHUNK = 1 << 15  # entries that are counted at a time
FEW = 64  # below so many runs, they are expanded one by one


def size_bytes(indices: Array, n: int, most: int) -> int:
    """The bytes that these indices take; some number above `most` where they take more."""
    return RUN_BYTES * count(indices, most // RUN_BYTES)


def sliced_bytes(slices: Sequence[slice], n: int) -> int:
    """The bytes that the indices of these slices take."""
    return RUN_BYTES * len(slices)


def count(indices: Array, most: int) -> int:
    """The number of runs in increasing indices; some number above `most` where there are more."""
    found = min(1, len(indices))
    for start in range(0, len(indices) - 1, CHUNK):
        piece = indices[start : start + CHUNK + 1]
        found += int(np.count_nonzero(piece[1:] - piece[:-1] != 1))
        if found > most:
            break
    return found


def write(indices: Array, n: int) -> Array:
    """Encode increasing indices [k] as u32."""
    if not len(indices):
        return np.empty(0, np.uint8)
    first = np.concatenate(([0], np.flatnonzero(indices[1:] - indices[:-1] != 1) + 1))
    return np.concatenate((indices[first], np.diff(first, append=len(indices)))).astype("<u4")


def read(positions: Array, n: int, k: int) -> Array:
    """Decode k increasing indices (int64) below n; the memory needed is bounded by k.

    Raises:
        FrameError: bytes that `write` does not produce.
    """
    if len(positions) % RUN_BYTES:
        raise FrameError(f"{len(positions)} bytes are not a whole number of runs of {RUN_BYTES}")
    starts, lengths = np.frombuffer(positions, "<u4").reshape(2, -1).astype(np.int64)
    ends = starts + lengths
    if int(lengths.sum()) != k:
        raise FrameError(f"runs of {lengths.sum()} entries for {k} values")
    if bool((lengths == 0).any()) or bool((ends[:-1] >= starts[1:]).any()) or (k and ends[-1] > n):
        raise FrameError(f"runs that are empty, touch each other or lie outside 0 to {n - 1}")
    if len(starts) < FEW:
        return np.concatenate([np.arange(0), *map(np.arange, starts, ends)])
    indices: Array = np.arange(k) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
    return indices
