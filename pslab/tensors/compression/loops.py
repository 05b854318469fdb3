"""Loops that numba compiles: loaded by the functions that call them, so that dense runs do not load numba."""

from __future__ import annotations

import numpy as np
from numba import njit

from pslab.tensors.entries import Array

BLOCK = 4096
loop = njit(cache=True, nogil=True, fastmath={"reassoc", "nsz", "contract"})


@loop  # type: ignore[untyped-decorator]
def add_above(x: Array, added: Array, edge: float, indices: Array, values: Array) -> int:
    """Add to x [n]; write the indices and values of |x| > edge, which should be few, to `indices` and `values` [n];
    return their number."""
    count, marks = 0, np.zeros(BLOCK, np.uint8)
    words = marks.view(np.uint64)
    for begin in range(0, len(x), BLOCK):
        y, more = x[begin : begin + BLOCK], added[begin : begin + BLOCK]
        marks[len(y) :] = 0
        for i in range(len(y)):  # loops that the compiler vectorizes: see `python -m pslab bench selection`
            y[i] += more[i]
        for i in range(len(y)):
            marks[i] = abs(y[i]) > edge
        for word in range(len(words)):
            if words[word]:
                for i in range(8 * word, min(8 * word + 8, len(y))):  # without a branch: a marked one stays
                    indices[count], values[count] = begin + i, y[i]
                    count += marks[i]
    return count


@loop  # type: ignore[untyped-decorator]
def sums(x: Array, edge: float, shift: float) -> tuple[int, float, float, float]:
    """Return the number of |x| > edge and the sum of these |x|; the sums of x - shift and of its square."""
    count, above, total, squares = 0, 0.0, 0.0, 0.0
    for i in range(len(x)):
        y = np.float64(abs(x[i]))
        larger = y > edge
        count, above = count + int(larger), above + (y if larger else 0.0)
        total, squares = total + (x[i] - shift), squares + (x[i] - shift) * (np.float64(x[i]) - shift)
    return count, above, total, squares


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def write_gaps(indices: Array, out: Array) -> tuple[int, int]:
    """Write the gaps as LEB128 to `out`, which has 5 bytes for each: how many bytes, and how many runs there are."""
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
    """Read as many indices as `out` holds; how many there are."""
    found, index, shift, gap = 0, -1, 0, 0
    for byte in body:
        gap |= (np.int64(byte) & 127) << min(shift, 35)  # type: ignore[assignment]
        shift += 7
        if byte < 128:
            index += gap + 1
            if found < len(out):
                out[found] = index
            found, gap, shift = found + 1, 0, 0
    return found
