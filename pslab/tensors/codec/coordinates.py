"""Positions of sparse entries: each index as i32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslab.errors import FrameError

Array = NDArray[Any]


def increasing(indices: Array, n: int) -> bool:
    """Whether the indices increase strictly and lie in 0 to n - 1."""
    if not len(indices):
        return True
    return bool(indices[0] >= 0 and indices[-1] < n and (indices[1:] > indices[:-1]).all())


def size_bytes(indices: Array, n: int, most: int) -> int:
    """The bytes that these indices take."""
    return 4 * len(indices)


def sliced_bytes(slices: Sequence[slice], n: int) -> int:
    """The bytes that the indices of these slices take."""
    return 4 * int(sum(s.stop - s.start for s in slices))


def write(indices: Array, n: int) -> Array:
    """Encode increasing indices [k] as i32."""
    return indices.astype("<i4")


def read(positions: Array, n: int, k: int) -> Array:
    """Decode k increasing indices (int64) below n.

    Raises:
        FrameError: bytes that `write` does not produce.
    """
    if len(positions) != 4 * k:
        raise FrameError(f"{k} coordinates take {4 * k} bytes, not {len(positions)}")
    indices = np.frombuffer(positions, "<i4")
    if not increasing(indices, n):
        raise FrameError(f"coordinates that do not increase or lie outside 0 to {n - 1}")
    return indices.astype(np.int64)
