"""Positions of sparse entries: LEB128 of each gap to the index before, less one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslab.errors import FrameError

Array = NDArray[Any]
LIMITS = (7, 14, 21, 28)  # the bits that one byte, two bytes, ... hold


def size_bytes(indices: Array, n: int, most: int) -> int:
    """The bytes that these indices take; one more than `most` where they take more."""
    return most + 1 if len(indices) > most else _total(gaps_of(indices))


def sliced_bytes(slices: Sequence[slice], n: int) -> int:
    """The bytes that the indices of these slices take: one each, but for the first of a slice."""
    skipped = [s.start - before for s, before in zip(slices, [0, *(s.stop for s in slices)], strict=False)]
    return int(sum(s.stop - s.start for s in slices)) - len(slices) + _total(np.array(skipped, np.uint32))


def _total(gaps: NDArray[np.uint32]) -> int:
    return len(gaps) + sum(int(np.count_nonzero(gaps >= np.uint32(1 << bits))) for bits in LIMITS)


def gaps_of(indices: Array) -> NDArray[np.uint32]:
    """The number of entries that are skipped before each index."""
    gaps = np.empty(len(indices), np.uint32)
    gaps[:1] = indices[:1]
    np.subtract(indices[1:], indices[:-1], out=gaps[1:], casting="unsafe")
    gaps[1:] -= np.uint32(1)
    return gaps


def write(indices: Array, n: int) -> Array:
    """Encode increasing indices [k] as uint8."""
    gaps = gaps_of(indices)
    total = _total(gaps)
    if total == len(gaps):
        return gaps.astype(np.uint8)
    long = np.flatnonzero(gaps >= 128)
    extra = np.zeros(len(gaps), np.int64)  # bytes of each gap after its first
    for bits in LIMITS:
        extra[long] += gaps[long] >= np.uint32(1 << bits)
    at = np.arange(len(gaps)) + np.cumsum(extra) - extra
    coded = np.empty(total, np.uint8)
    coded[at] = gaps & np.uint32(127)
    rest, at = gaps[long], at[long]
    while len(rest):
        coded[at] |= 128
        rest, at = rest >> np.uint32(7), at + 1
        coded[at] = rest & np.uint32(127)
        left = np.flatnonzero(rest >= 128)
        rest, at = rest[left], at[left]
    return coded


def read(positions: Array, n: int, k: int) -> Array:
    """Decode k increasing indices (int64) below n.

    Raises:
        FrameError: bytes that `write` does not produce.
    """
    last = np.flatnonzero(positions < 128)  # the last byte of each number
    if len(last) != k or (k and last[-1] != len(positions) - 1) or (not k and len(positions)):
        raise FrameError(f"{len(positions)} bytes are not {k} complete varints")
    gaps = positions.astype(np.int64) if len(positions) == k else _long(positions, last, n)
    indices = np.cumsum(gaps + 1) - 1  # k * 2**31 at most: no overflow
    if k and indices[-1] >= n:
        raise FrameError(f"varints outside 0 to {n - 1}")
    return indices


def _long(positions: Array, last: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    first = np.empty_like(last)
    first[0], first[1:] = 0, last[:-1] + 1
    size = last - first
    if int(size.max()) > 4 or bool(((positions[last] == 0) & (size > 0)).any()):
        raise FrameError("a varint that is longer than necessary")
    gaps = (positions[first] & 127).astype(np.int64)
    more, step = np.flatnonzero(size), 1
    while len(more):
        gaps[more] |= (positions[first[more] + step] & 127).astype(np.int64) << (7 * step)
        step += 1
        more = more[size[more] >= step]
    if int(gaps.max()) >= n:
        raise FrameError(f"varints outside 0 to {n - 1}")
    return gaps
