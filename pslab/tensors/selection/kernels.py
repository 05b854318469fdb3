"""The loops of selection on the CPU, compiled by numba for this processor when the first vector is pruned.

Each loop goes through a vector once, block by block; a block stays in a core's first cache while it is used. A `room`
is the number of entries that an array holds; the array is SPARE entries longer, because full registers are written.
Sums are in float64 and in no fixed order, which changes them far less than `reference.TIE`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslab.tensors.compiling import Loops
from pslab.tensors.selection import blocks, simd
from pslab.tensors.selection.blocks import SPARE, Sum

Array = NDArray[Any]

BLOCK = 1 << 10
BINS = 1 << 11

loops = Loops(simd, blocks)
loop = loops.loop


@loop
def take(x: Array, momentum: Array, indices: Array, values: Array) -> None:
    """Move the entries at the indices to `values`; they become 0, and so do those of the momentum."""
    for j in range(len(indices)):
        values[j] = x[indices[j]]
        x[indices[j]] = 0
        if len(momentum):
            momentum[indices[j]] = 0


@loop
def search(parts: Sum, edge: Any, many: bool, indices: Array, magnitudes: Array, room: int) -> int:
    """Write the indices and magnitudes of |x| > edge. Returns their number, or -1 if they do not fit.
    Everything is added and summed that is to be, also then."""
    places = np.empty(BLOCK + SPARE, np.uint16)
    found = 0
    for first in range(0, len(parts[0]), BLOCK):
        y = blocks.added(parts, first, BLOCK)
        if found + len(y) > room:
            room = found = -1
            if not len(parts[1]) and not len(parts[5]):
                break
        elif many:
            found = blocks.many(y, edge, first, indices, magnitudes, found, places)
        else:
            found, _ = blocks.few(y, edge, edge, first, indices, magnitudes, found)
    return found


@loop
def moments(
    parts: Sum, shift: float, edge: Any, many: bool, indices: Array, magnitudes: Array, room: int
) -> tuple[float, float, int]:
    """The sums of x - shift and of its squares, and the result of `search`."""
    places = np.empty(BLOCK + SPARE, np.uint16)
    total = squares = total_lost = squares_lost = 0.0
    found = 0
    for first in range(0, len(parts[0]), BLOCK):
        y = blocks.added(parts, first, BLOCK)
        a, b = blocks.powers(y, shift) if shift else blocks.powers(y, 0.0)  # compiled without the subtraction
        total, total_lost = blocks.add(total, total_lost, a)
        squares, squares_lost = blocks.add(squares, squares_lost, b)
        if found + len(y) > room:
            room = found = -1
        elif many:
            found = blocks.many(y, edge, first, indices, magnitudes, found, places)
        else:
            found, _ = blocks.few(y, edge, edge, first, indices, magnitudes, found)
    return total + total_lost, squares + squares_lost, found


@loop
def sample(x: Array, out: Array) -> None:
    """One entry from each of len(out) equal stretches of x, at a pseudo-random place, whatever the period of x."""
    stretch, state = len(x) / len(out), np.uint64(len(x))
    for i in range(len(out)):
        state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)  # Knuth, MMIX
        place = np.int64((i + np.float64(state >> np.uint64(33)) * 2.0**-31) * stretch)
        out[i] = x[place if place < len(x) else len(x) - 1]


@loop
def tails(
    parts: Sum,
    edge: Any,
    bounds: tuple[Any, Any, Any, Any],
    indices: Array,
    lists: tuple[Array, Array, Array],
    rooms: tuple[int, int, int],
) -> tuple[float, int, float, int, int, int, int]:
    """The sum and count of |x| > edge and of |x| > low, and three lists for the thresholds that follow.

    The bounds are low <= high <= deep, and last. The lists hold the magnitudes of |x| > last, with their indices; those
    with low < |x| <= high; those with |x| > deep. Also returns the lists' lengths, -1 for one that does not fit.
    """
    low, high, deep, last = bounds
    magnitudes, band, rest = lists
    room, band_room, rest_room = rooms
    near, top = np.empty(2 * BLOCK + SPARE, magnitudes.dtype), magnitudes.dtype.type(np.inf)
    total = total_lost = low_total = low_lost = 0.0
    count = low_count = found = banded = rested = 0
    for first in range(0, len(parts[0]), 2 * BLOCK):
        y = blocks.added(parts, first, 2 * BLOCK)
        total, total_lost = blocks.add(total, total_lost, blocks.sum_above(y, edge) if edge else blocks.sum_all(y))
        if found + len(y) > room:
            room = found = -1
            count += blocks.count_above(y, edge)
        else:
            found, above = blocks.few(y, last, edge, first, indices, magnitudes, found)
            count += above
        length = blocks.between(y, low, top, near, 0)
        near[length : length + SPARE] = 0
        z = near[: (length + SPARE - 1) // SPARE * SPARE]  # full registers; the zeros exceed nothing
        low_total, low_lost = blocks.add(low_total, low_lost, blocks.sum_all(z))
        low_count += length
        if banded + length > band_room:
            band_room = banded = -1
        else:
            banded = blocks.between(z, low, high, band, banded)
        if rested + length > rest_room:
            rest_room = rested = -1
        else:
            rested = blocks.between(z, deep, top, rest, rested)
    return total + total_lost, count, low_total + low_lost, low_count, found, banded, rested


@loop
def tail(magnitudes: Array, edge: Any) -> tuple[float, int]:
    """The sum and count of the magnitudes above the edge. They are moved to the front; the rest is overwritten."""
    total, lost, found, top = 0.0, 0.0, 0, magnitudes.dtype.type(np.inf)
    for first in range(0, len(magnitudes), BLOCK):
        after = blocks.between(magnitudes[first : first + BLOCK], edge, top, magnitudes, found)
        total, lost = blocks.add(total, lost, blocks.sum_all(magnitudes[found:after]))
        found = after
    return total + lost, found


@loop
def spread(magnitudes: Array, edge: Any) -> tuple[int, float, float]:
    """Of the magnitudes above the edge: the count, the mean, and the relative standard error of the mean."""
    count, total, squares = 0, 0.0, 0.0
    for magnitude in magnitudes:
        if magnitude > edge:
            count += 1
            total += np.float64(magnitude)
            squares += np.float64(magnitude) * np.float64(magnitude)
    if not total:
        return count, 0.0, 0.0
    mean = total / count
    variance = max(squares / count - mean * mean, 0.0)
    return count, mean, np.sqrt(variance / count) / mean


@loop
def keep(indices: Array, magnitudes: Array, edge: Any, out: Array) -> int:
    """Write the indices whose magnitudes exceed the edge to `out`; returns their number."""
    found = 0
    for j in range(len(indices)):
        out[found] = indices[j]
        found += magnitudes[j] > edge
    return found


@loop
def kth(bits: Array, k: int) -> int:
    """The k-th largest of magnitudes given as integers, found by their leading bits, then by the bits that follow."""
    counts = np.empty(BINS, np.int64)
    while True:
        low = high = bits[0]
        for b in bits:
            low, high = min(low, b), max(high, b)
        shift = 0
        while (high - low) >> shift >= BINS:
            shift += 1
        counts[:] = 0
        for b in bits:
            counts[(b - low) >> shift] += 1
        place = BINS - 1
        while k > counts[place]:
            k -= counts[place]
            place -= 1
        if not shift:
            return int(low + place)
        inside, found = np.empty(counts[place] + 1, bits.dtype), 0
        for b in bits:
            inside[found] = b
            found += (b - low) >> shift == place
        bits = inside[:found]


@loop
def largest(indices: Array, bits: Array, edge: int, out: Array) -> None:
    """Fill `out`, except for its last place, with the indices of the largest magnitudes, down to the edge.

    Of the magnitudes that equal the edge the first are taken.
    """
    above = reach = 0
    for b in bits:
        above += int(b > edge)
        reach += int(b >= edge)
    k, found = len(out) - 1, 0
    if reach == k:
        for j in range(len(bits)):
            out[found] = indices[j]
            found += bits[j] >= edge
        return
    equal = k - above
    for j in range(len(bits)):
        tie = (bits[j] == edge) & (equal > 0)
        equal -= tie
        out[found] = indices[j]
        found += (bits[j] > edge) | tie


def warm(dtype: np.dtype[Any]) -> None:
    """Compile every loop for vectors of this dtype, or load what an earlier process has compiled."""
    loops.warm(str(dtype), lambda: _call_all(dtype))


def _call_all(dtype: np.dtype[Any]) -> None:
    x, at, one = np.ones(2 * SPARE, dtype), np.zeros(2 * SPARE, np.int64), dtype.type(1)
    bits = x.view(f"i{x.itemsize}")
    parts = x, x[:0], x[:0], one, False, np.zeros(1)
    take(x.copy(), x[:0], at[:0], x)
    search(parts, one, True, at, x.copy(), SPARE)
    moments(parts, 0.0, one, True, at, x.copy(), SPARE)
    sample(x, x.copy())
    tails(parts, one, (one, one, one, one), at, (x.copy(), x.copy(), x.copy()), (SPARE, SPARE, SPARE))
    tail(x.copy(), one)
    spread(x, one)
    keep(at, x, one, at.copy())
    largest(at, bits, bits.dtype.type(kth(bits, 1)), at.copy())
