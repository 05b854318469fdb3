"""Positions of sparse entries: one bit per entry of the vector, lowest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslab.errors import FrameError

Array = NDArray[Any]
CHUNK = 1 << 17  # bytes of a bitmap that are searched at a time
UNPACKED = 10  # with more than one bit set in so many, unpacking all of them and searching the mask is faster


def size_bytes(indices: Array, n: int, most: int) -> int:
    """The bytes of the bitmap, whatever the indices."""
    return -(-n // 8)


def sliced_bytes(slices: Sequence[slice], n: int) -> int:
    """The bytes of the bitmap, whatever the slices."""
    return -(-n // 8)


def write(indices: Array, n: int) -> Array:
    """Encode increasing indices [k] as uint8."""
    mask = np.zeros(n, np.bool_)
    mask[indices] = True
    return np.packbits(mask, bitorder="little")


def read(positions: Array, n: int, k: int) -> Array:
    """Decode k increasing indices (int64) below n.

    Raises:
        FrameError: bytes that `write` does not produce.
    """
    if len(positions) != -(-n // 8):
        raise FrameError(f"a bitmap of {n} entries takes {-(-n // 8)} bytes, not {len(positions)}")
    if n % 8 and positions[-1] >> (n % 8):
        raise FrameError("a bitmap with bits set beyond its last entry")
    if (count := int(np.bitwise_count(positions).sum(dtype=np.int64))) != k:
        raise FrameError(f"a bitmap with {count} bits set for {k} values")
    return set_bits(positions)


def set_bits(bitmap: Array) -> NDArray[np.int64]:
    """The positions of the set bits of a bitmap (uint8, lowest bit first), increasing."""
    if len(bitmap) <= CHUNK:
        return _set_bits(bitmap)
    return np.concatenate([_set_bits(bitmap[i : i + CHUNK]) + i * 8 for i in range(0, len(bitmap), CHUNK)])


def _set_bits(bitmap: Array) -> NDArray[np.int64]:
    words = np.zeros(-(-len(bitmap) // 8) * 2, "<u4")
    words.view(np.uint8)[: len(bitmap)] = bitmap
    if int(np.bitwise_count(words.view("<u8")).sum(dtype=np.int64)) > len(bitmap) * 8 // UNPACKED:
        return np.flatnonzero(np.unpackbits(bitmap, bitorder="little").view(np.bool_))
    word = np.flatnonzero(words != 0)  # few words have a bit set, and few bytes of these: only they are unpacked
    octets = words[word].view(np.uint8)
    byte = np.flatnonzero(octets != 0)
    bit = np.flatnonzero(np.unpackbits(octets[byte], bitorder="little").view(np.bool_))
    found: NDArray[np.int64] = ((word[byte >> 2] << 5) + ((byte & 3) << 3))[bit >> 3] + (bit & 7)
    return found
