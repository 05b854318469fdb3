"""Selection on the CPU, on one thread and in as few passes over the memory as an exact answer takes.

A sample says between which bounds a threshold lies. One pass then collects the few entries above the lower bound along
with the sums that the threshold follows from, and the rest is done on the few. A bound that proves wrong costs a pass,
never an entry.
"""

from __future__ import annotations

import math
from functools import cache
from threading import local
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pslab.tensors.selection import reference
from pslab.tensors.selection.reference import ENOUGH, LOWERED, cast_to, exceed, reach

Array = NDArray[Any]
Indices = NDArray[np.int64]
Found = tuple[Indices, Array]  # indices and their magnitudes

SMALL = 1 << 13  # entries that are not worth a sample
DRAWN = 1 << 12, 1 << 14  # entries that are drawn, at least and at most
FEW = 16  # entries that give no standard error
MANY = 0.03  # the density above which entries are better moved in whole registers than found one by one
SURE = 4.0  # standard errors between a sample's figure and its bounds
KEPT_BYTES = 1 << 28  # a scratch array that is larger is not kept
SPARE, BLOCK = 64, 1 << 11  # kernels', which is imported late: what its arrays have beyond their room, a block
NORMAL = 1e-290, 1e290  # sums of squares beyond lose digits in float64


class _Scratch(local):
    """Arrays that a thread uses again from call to call: fresh memory costs more than a pass over it."""

    def __init__(self) -> None:
        self.arrays: dict[tuple[str, Any], Array] = {}

    def array(self, name: str, dtype: Any, room: int) -> Array:
        """An array for `room` entries and what the loops need to spare."""
        size = room + SPARE
        if size * np.dtype(dtype).itemsize > KEPT_BYTES:
            return np.empty(size, dtype)
        found = self.arrays.get((name, dtype))
        if found is None or len(found) < size:
            found = self.arrays[name, dtype] = np.empty(size + size // 4, dtype)
        return found


_scratch = _Scratch()


@cache
def loops(dtype: np.dtype[Any]) -> ModuleType:
    """The compiled loops, ready for vectors of this dtype."""
    from pslab.tensors.selection import (
        kernels,  # not before it is needed: numba's import alone takes a third of a second
    )

    kernels.warm(dtype)
    return kernels


# --- the rules --------------------------------------------------------------------------------------------------------


def top(x: Array, k: int) -> Indices:
    """The indices of the k largest; of equal ones the first. 0 <= k <= n."""
    if not k:
        return np.empty(0, np.int64)
    if len(x) > SMALL and k < len(x):
        drawn = np.abs(_drawn(x))
        expected = k * len(drawn) / len(x)
        rank = int(expected + 3 * math.sqrt(expected)) + 4
        while rank < len(drawn) // 2:  # the sample's edge keeps a little more than k; if it does not, a lower one
            bits = _bits(drawn)
            edge = _below(np.array(loops(x.dtype).kth(bits, rank), bits.dtype).view(x.dtype)[()])
            found = _search(x, edge, rank / len(drawn), _room(len(x), rank, len(drawn)))
            if found is None:
                break
            if len(found[0]) >= k:
                return _largest(*found, k)
            rank *= 2
    return _largest(*_search_all(x, x.dtype.type(-1), 1.0), k)


def above(x: Array, edge: Any) -> Indices:
    """The indices of |x| > edge, a scalar of x's dtype."""
    share, found = 1.0, None
    if len(x) > SMALL:
        drawn = _drawn(x)
        count = int(np.count_nonzero(np.abs(drawn) > edge))
        share = count / len(drawn)
        found = _search(x, edge, share, _room(len(x), count, len(drawn)))
    return (found or _search_all(x, edge, share))[0].copy()


def reaching(x: Array, edge: Any) -> Indices:
    """The indices of |x| >= edge, a scalar of x's dtype."""
    return above(x, _below(edge))


def sampled(x: Array, k: int, first: int, stride: int, rank: int) -> Indices:
    """At most k of the largest: those that reach the rank-th largest of a sample, lowered while they are too few."""
    drawn = _bits(np.abs(x[first::stride]))
    threshold = float(np.array(loops(x.dtype).kth(drawn, rank), drawn.dtype).view(x.dtype))
    for lowered in range(LOWERED + 1):
        edge, share = _below(cast_to(threshold, x.dtype)), k / len(x)
        found = _search(x, edge, share, _room(len(x), 2 * k, len(x))) or _search_all(x, edge, share)
        if lowered == LOWERED or len(found[0]) >= ENOUGH * k:
            break
        threshold *= ENOUGH
    return _largest(*found, k) if len(found[0]) > k else found[0].copy()


def std(x: Array) -> float:
    """The population standard deviation; exactly 0 for a constant vector."""
    return _deviation(x, *_moments(x, 0.0)) if len(x) else 0.0


def deviation(x: Array, sigmas: float) -> Indices:
    """The indices of |x| > sigmas * std(x): the sums for the deviation and a first search share one pass."""
    if len(x) <= SMALL:
        return above(x, exceed(sigmas * std(x), x.dtype))
    drawn, dtype = _drawn(x), x.dtype
    low = cast_to(sigmas * _low_deviation(drawn), dtype)
    count = int(np.count_nonzero(np.abs(drawn) > low))
    room = _room(len(x), count, len(drawn))
    indices, magnitudes = _arrays(dtype, room)
    total, squares, found = loops(dtype).moments(x, 0.0, low, count > MANY * len(drawn), indices, magnitudes, room)
    edge = exceed(sigmas * _deviation(x, total, squares), dtype)
    if found < 0 or not low <= edge:
        return above(x, edge)
    return _kept(indices[:found], magnitudes[:found], edge)


def dynamic(x: Array, passes: int) -> tuple[Indices, list[float]]:
    """The indices above the last of the thresholds, or those that reach it if there are none, and the thresholds."""
    thresholds, found = _thresholds(x, passes)
    if not all(map(math.isfinite, thresholds)):  # a sum of large float64 overflows
        thresholds, found = reference.dynamic_thresholds(torch.from_numpy(np.abs(x)), passes), None
    if not thresholds:
        return np.empty(0, np.int64), []
    edge = exceed(thresholds[-1], x.dtype)
    indices = above(x, edge) if found is None else _kept(*found, edge)
    return (indices if len(indices) else reaching(x, reach(thresholds[-1], x.dtype))), thresholds


# --- the deviation ----------------------------------------------------------------------------------------------------


def _moments(x: Array, shift: float) -> tuple[float, float]:
    """The sums of x - shift and of its square."""
    total, squares, _ = loops(x.dtype).moments(x, shift, x.dtype.type(np.inf), False, *_arrays(x.dtype, 0), -1)
    return total, squares


def _deviation(x: Array, total: float, squares: float) -> float:
    """The standard deviation from the sums of x and of its square; they are made again if too much cancels out."""
    shift, variance = 0.0, 0.0
    for attempt in range(4):
        mean = total / len(x)
        variance = squares / len(x) - mean * mean
        if variance >= mean * mean:  # no more than a bit was cancelled
            break
        shift = shift + mean if attempt else float(x[0])  # by the first entry a constant vector is exactly 0
        total, squares = _moments(x, shift)
    if squares and not NORMAL[0] < squares / len(x) < NORMAL[1]:
        return reference.std(torch.from_numpy(x))
    return math.sqrt(max(variance, 0.0))


def _low_deviation(drawn: Array) -> float:
    """A bound that the standard deviation is hardly below; infinite if the sample gives none."""
    with np.errstate(all="ignore"):
        squares, mean = np.square(drawn), float(drawn.mean(dtype=np.float64))
    _, square, error = loops(drawn.dtype).spread(squares, drawn.dtype.type(-1))
    variance = float(square) - mean * mean
    if not (variance > 0 and (bound := 1 - SURE * float(error) * float(square) / (2 * variance)) > 0):
        return math.inf
    return math.sqrt(variance) * bound


# --- the dynamic thresholds -------------------------------------------------------------------------------------------


def _thresholds(x: Array, passes: int) -> tuple[list[float], Found | None]:
    """The thresholds, and the entries above the last if the sample says that these are few.

    A pass over x finds two thresholds and the magnitudes for those that follow, as far as the sample's bounds hold.
    """
    loop, dtype, edge, thresholds = loops(x.dtype), x.dtype, x.dtype.type(0), list[float]()
    if len(x) <= SMALL:
        return _from_rest(np.abs(x), edge, thresholds, passes), None
    drawn = np.abs(_drawn(x))
    while len(thresholds) < passes:
        low, high, deep, last = _bounds(drawn, edge, passes - len(thresholds))
        rooms = tuple(_room_for(x, drawn, *limits) for limits in ((last, np.inf), (low, high), (deep, np.inf)))
        indices, magnitudes = _arrays(dtype, rooms[0])
        band, rest = _scratch.array("band", dtype, rooms[1]), _scratch.array("rest", dtype, rooms[2])
        total, count, low_total, low_count, found, banded, rested = loop.tails(
            x, edge, (low, high, deep, last), indices, (magnitudes, band, rest), rooms
        )
        if not count:
            break
        thresholds.append(total / count)
        edge = exceed(thresholds[-1], dtype)
        if len(thresholds) == passes or banded < 0 or not low <= edge <= high:
            continue
        below, _ = loop.tail(band[:banded], low)
        total, count = loop.tail(band[:banded], edge)  # of the band, what does not exceed the edge goes
        if not (count := low_count - banded + count):
            break
        thresholds.append((low_total - below + total) / count)
        edge = exceed(thresholds[-1], dtype)
        if rested >= 0 and deep <= edge:
            thresholds = _from_rest(rest[:rested], edge, thresholds, passes)
            held = found > 0 and last <= exceed(thresholds[-1], dtype)
            return thresholds, (indices[:found], magnitudes[:found]) if held else None
    return thresholds, None


def _from_rest(rest: Array, edge: Any, thresholds: list[float], passes: int) -> list[float]:
    """The thresholds that follow from the magnitudes above the last one, which are lost."""
    thresholds = thresholds.copy()
    while len(thresholds) < passes:
        total, found = loops(rest.dtype).tail(rest, edge)
        if not found:
            break
        rest = rest[:found]
        thresholds.append(total / found)
        edge = exceed(thresholds[-1], rest.dtype)
    return thresholds


def _bounds(drawn: Array, edge: Any, passes: int) -> tuple[Any, Any, Any, Any]:
    """From the sample: two bounds of the threshold after the edge, a lower one of the next, and one of the last.

    The last is infinite, and so are all if there are too few entries to tell.
    """
    spread, dtype, none = loops(drawn.dtype).spread, drawn.dtype, drawn.dtype.type(np.inf)
    _, mean, error = spread(drawn, edge)
    count, next_mean, next_error = spread(drawn, cast_to(mean, dtype))
    if not count or not SURE * (error + next_error) < 1:
        return none, none, none, none
    low, high = (cast_to(mean * (1 + sure * error), dtype) for sure in (-SURE, SURE))
    deep = max(high, cast_to(next_mean * (1 - SURE * (error / 2 + next_error)), dtype))
    left = drawn.copy()
    for _ in range(passes - 1):
        total, count = loops(dtype).tail(left, cast_to(mean, dtype))
        left, mean = left[:count], total / max(count, 1)
    _, mean, error = spread(left, edge)
    last = cast_to(mean * (1 - 1.2 * SURE * error), dtype)  # it has a part of the errors before it
    few = len(left) > FEW and 0 < np.count_nonzero(drawn > last) <= MANY * len(drawn)
    return low, high, deep, last if few else none


# --- search -----------------------------------------------------------------------------------------------------------


def _search(x: Array, edge: Any, share: float, room: int) -> Found | None:
    """The entries with |x| > edge, in the scratch; None if they are more than `room`, which allows for one block."""
    indices, magnitudes = _arrays(x.dtype, room)
    found = loops(x.dtype).search(x, edge, share > MANY, indices, magnitudes, room)
    return None if found < 0 else (indices[:found], magnitudes[:found])


def _search_all(x: Array, edge: Any, share: float) -> Found:
    found = _search(x, edge, share, len(x))
    assert found is not None  # there is room for everything
    return found


def _arrays(dtype: np.dtype[Any], room: int) -> Found:
    return _scratch.array("indices", np.int64, room), _scratch.array("magnitudes", dtype, room)


def _room_for(x: Array, drawn: Array, low: Any, high: Any) -> int:
    """Room for the entries with low < |x| <= high, as the sample of magnitudes has them."""
    return _room(len(x), int(np.count_nonzero((drawn > low) & (drawn <= high))), len(drawn))


def _room(n: int, count: int, size: int) -> int:
    """Room for what a sample of this size has `count` of."""
    return min(n, int(n / size * (count + SURE * math.sqrt(count) + SURE)) + BLOCK)


def _drawn(x: Array) -> Array:
    """A sample of x in its order; the same for the same x."""
    size = min(max(len(x) >> 10, DRAWN[0]), DRAWN[1])
    out = _scratch.array("drawn", x.dtype, size)[:size]
    loops(x.dtype).sample(x, out)
    return out


def _kept(indices: Indices, magnitudes: Array, edge: Any) -> Indices:
    """The indices whose magnitudes exceed the edge."""
    out = np.empty(len(indices) + 1, np.int64)
    return out[: loops(magnitudes.dtype).keep(indices, magnitudes, edge, out)]


def _largest(indices: Indices, magnitudes: Array, k: int) -> Indices:
    """The indices of the k largest magnitudes, of equal ones the first."""
    loop, bits, out = loops(magnitudes.dtype), _bits(magnitudes), np.empty(k + 1, np.int64)
    loop.largest(indices, bits, bits.dtype.type(loop.kth(bits, k)), out)
    return out[:k]


def _bits(magnitudes: Array) -> Array:
    """Magnitudes as whole numbers, which have the same order."""
    return magnitudes.view(f"i{magnitudes.itemsize}")


def _below(edge: Any) -> Any:
    """The next smaller value, so that what exceeds it reaches the edge."""
    return np.nextafter(edge, edge.dtype.type(-1))
