"""What the loops do with one block y of a vector: search it, move entries, sum them. Only compiled code calls these.

Arrays that are written are SPARE entries longer than their contents, because full registers are written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pslab.tensors.selection import simd

Array = NDArray[Any]
Part = TypeVar("Part", bound=Callable[..., Any])
Sum = tuple[Array, Array, Array, Any, bool, Array]  # what `scan.Sum.read` hands to a loop

SPARE = 64
SUMS = {"reassoc", "nsz", "contract"}  # what a compiler must be allowed to do to sum in the lanes of a register


def part(function: Part) -> Part:
    """Compile a function into the loops that call it."""
    return cast(Part, njit(fastmath=SUMS)(function))


def in_order(function: Part) -> Part:
    """The same, keeping every operation in its order."""
    return cast(Part, njit(function))


@part
def total_of(y: Array) -> Any:
    """The sum of the entries, in their own dtype: a number unless they, or their sum, are none."""
    total = y.dtype.type(0)
    for i in range(len(y)):
        total += y[i]
    return total


@in_order
def added(parts: Sum, first: int, size: int) -> Array:
    """The block that begins at `first`, once what is to be added to it has been; its sum goes into a total, if any."""
    x, gradient, momentum, m, nesterov, total = parts
    y = x[first : first + size]
    if len(gradient):
        g = gradient[first : first + size]
        if len(momentum):
            u = momentum[first : first + size]
            if nesterov:
                for i in range(len(y)):
                    u[i] = (u[i] + g[i]) * m
                    y[i] += u[i] + g[i]
            else:
                for i in range(len(y)):
                    u[i] = u[i] * m + g[i]
                    y[i] += u[i]
        else:
            for i in range(len(y)):
                y[i] += g[i]
    if len(total):
        total[0] += total_of(y)
    return y


@part
def few(y: Array, edge: Any, floor: Any, first: int, indices: Array, magnitudes: Array, found: int) -> tuple[int, int]:
    """Find the entries above the edge where they are few: two per word are written without checking their number.

    Also counts |y| > floor; where the count is not used, the compiler removes it.
    """
    start, count = found, 0
    for i in range(0, len(y) - 63, 64):
        count += simd.ones(simd.above(y, i, floor))
        word = simd.above(y, i, edge)
        after = found + simd.ones(word)
        indices[found] = first + i + simd.lowest(word)
        word &= word - np.uint64(1)
        indices[found + 1] = first + i + simd.lowest(word)
        word &= word - np.uint64(1)
        found += 2
        while word:
            indices[found] = first + i + simd.lowest(word)
            word &= word - np.uint64(1)
            found += 1
        found = after
    for i in range(len(y) // 64 * 64, len(y)):
        indices[found] = first + i
        found += abs(y[i]) > edge
        count += abs(y[i]) > floor
    for j in range(start, found):
        magnitudes[j] = abs(y[indices[j] - first])
    return found, count


@part
def many(y: Array, edge: Any, first: int, indices: Array, magnitudes: Array, found: int, places: Array) -> int:
    """Find the entries above the edge where they are many: moved in registers, at the same speed for any number."""
    top, width, k, m = y.dtype.type(np.inf), 64 // y.itemsize, 0, found
    whole = len(y) // 64 * 64 if simd.SQUEEZES else 0
    for i in range(0, whole, 64):
        k = simd.squeeze(y, i, edge, top, places, k)
        k = simd.squeeze(y, i + 32, edge, top, places, k)
        for j in range(i, i + 64, width):
            m = simd.squeeze(y, j, edge, top, magnitudes, m)
    for i in range(whole, len(y)):
        places[k], magnitudes[m] = i, abs(y[i])
        k, m = k + (abs(y[i]) > edge), m + (abs(y[i]) > edge)
    target = indices[found:m]
    for j in range(len(target)):
        target[j] = first + np.int64(places[j])
    return m


@part
def between(y: Array, low: Any, high: Any, out: Array, found: int) -> int:
    """Move the magnitudes with low < |y| <= high to out[found:], which may be y itself."""
    width = 64 // y.itemsize
    whole = len(y) // width * width if simd.SQUEEZES else 0
    for i in range(0, whole, width):
        found = simd.squeeze(y, i, low, high, out, found)
    for i in range(whole, len(y)):
        magnitude = abs(y[i])
        out[found] = magnitude
        found += (magnitude > low) & (magnitude <= high)
    return found


@part
def sum_all(y: Array) -> float:
    """The sum of |y|."""
    total = 0.0
    for i in range(len(y)):
        total += np.float64(abs(y[i]))
    return total


@part
def sum_above(y: Array, edge: Any) -> float:
    """The sum of the magnitudes above the edge."""
    total = 0.0
    for i in range(len(y)):
        magnitude = abs(y[i])
        total += np.float64(magnitude if magnitude > edge else y.dtype.type(0))
    return total


@part
def count_above(y: Array, edge: Any) -> int:
    """The number of magnitudes above the edge."""
    count = 0
    for i in range(0, len(y) - 63, 64):
        count += simd.ones(simd.above(y, i, edge))
    for i in range(len(y) // 64 * 64, len(y)):
        count += abs(y[i]) > edge
    return count


@in_order
def add(total: float, lost: float, term: float) -> tuple[float, float]:
    """Add a block's sum to the total; `lost` accumulates the rounding errors (Knuth's two-sum)."""
    after = total + term
    part = after - total
    return after, lost + ((total - (after - part)) + (term - part))


@part
def powers(y: Array, shift: float) -> tuple[float, float]:
    """The sums of y - shift and of its squares."""
    total = squares = 0.0
    for i in range(len(y)):
        entry = np.float64(y[i]) - shift
        total += entry
        squares += entry * entry
    return total, squares
