"""Loops that numba compiles; imported by their callers on use, so that dense runs do not load numba."""

from __future__ import annotations

import numpy as np
from numba import njit

from pslab.tensors.entries import Array

BLOCK = 4096
ONE, WHICH = np.uint64(1), np.uint64(0x0001020304050607)
loop = njit(cache=True, nogil=True, fastmath={"reassoc", "nsz", "contract"})


@loop  # type: ignore[untyped-decorator]
def write_above(x: Array, added: Array | None, edge: float, indices: Array, values: Array | None) -> int:
    """Add `added` to x [n] in place, and find the entries with |x| > edge; return their number, which should be small.

    Their indices are written to `indices` [n] and their values to `values` [n]. `added` and `values` may be None.
    """
    count, marks = 0, np.zeros(BLOCK, np.uint8)
    words = marks.view(np.uint64)
    for begin in range(0, len(x), BLOCK):
        y = x[begin : begin + BLOCK]
        marks[len(y) :] = 0
        if added is not None:
            more = added[begin : begin + BLOCK]
            for i in range(len(y)):  # loops that the compiler vectorizes: see `python -m pslab bench selection`
                y[i] += more[i]
        for i in range(len(y)):
            marks[i] = abs(y[i]) > edge
        for number in range(len(words)):
            word = words[number]
            while word:  # take the lowest mark; the multiplication by WHICH moves its number into the top byte
                at = 8 * number + np.int64((word & (~word + ONE)) * WHICH >> np.uint64(56))
                indices[count] = begin + at
                if values is not None:
                    values[count] = y[at]
                count, word = count + 1, word & (word - ONE)
    return count


@loop  # type: ignore[untyped-decorator]
def sums(x: Array, edge: float, shift: float) -> tuple[int, float, float, float]:
    """Return four numbers: the count of the entries with |x| > edge, the sum of their |x|, and over all entries the
    sum of x - shift and the sum of its square."""
    count, above, total, squares = 0, 0.0, 0.0, 0.0
    for i in range(len(x)):
        y = np.float64(abs(x[i]))
        larger = y > edge
        count, above = count + int(larger), above + (y if larger else 0.0)
        total, squares = total + (x[i] - shift), squares + (x[i] - shift) * (np.float64(x[i]) - shift)
    return count, above, total, squares


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def write_gaps(indices: Array, out: Array) -> tuple[int, int]:
    """Write the gaps between increasing indices as LEB128 to `out`, which has 5 bytes for each index; return the number
    of bytes and the number of runs of consecutive indices."""
    size, after, runs = 0, 0, 0
    for index in indices:
        gap = index - after
        runs, after = runs + (gap > 0 or size == 0), index + 1
        while gap > 127:
            out[size] = gap & 127 | 128
            gap, size = gap >> 7, size + 1
        out[size] = gap
        size += 1
    return size, runs


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def read_gaps(body: Array, out: Array) -> int:
    """Read indices that `write_gaps` has written, as many as fit in `out`; return the number of indices in `body`."""
    count, index, shift, gap = 0, -1, 0, 0
    for byte in body:
        gap |= (np.int64(byte) & 127) << min(shift, 35)  # type: ignore[assignment]
        shift += 7
        if byte < 128:
            index += gap + 1
            if count < len(out):
                out[count] = index
            count, gap, shift = count + 1, 0, 0
    return count
