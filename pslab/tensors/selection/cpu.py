"""Selection on the CPU, on one thread and in as few passes over the memory as an exact answer takes.

A sample bounds a threshold. One pass then collects the few entries above the lower bound, together with the sums that
determine the threshold; the rest works on these few entries. A bound that proves wrong costs another pass, but never
an entry.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from pslab.tensors.selection import reference, scan
from pslab.tensors.selection.reference import ENOUGH, LOWERED, cast_to, exceed, reach
from pslab.tensors.selection.scan import Array, Found, Indices, Sum

SMALL = 1 << 13  # vectors up to this length are not sampled
FEW = 16  # up to so many entries give no useful standard error
NORMAL = 1e-290, 1e290  # sums of squares outside lose digits in float64


def top(x: Sum, k: int) -> Indices:
    """The indices of the k largest |x|; of equal ones the first. 0 <= k <= n."""
    if not k:
        return np.empty(0, np.int64)
    found = _most(x, k) if len(x) > SMALL and k < len(x) else None
    if found is None:
        return scan.largest(*scan.search_all(x, x.dtype.type(-1), 1.0), k)[0]
    (indices, magnitudes), low = found
    chosen, edge = scan.largest(indices, magnitudes, k)
    more = min(1.0, scan.MORE * k / max(1, len(indices) - k))  # of the entries between both edges
    x.guess = x.dtype.type(edge + more * (low - edge)), (1 + scan.MORE) * k / len(x)
    return chosen


def _most(x: Sum, k: int) -> tuple[Found, Any] | None:
    """The k largest and a few more, and the edge that they exceed; None if far more or fewer exceed those tried."""
    if x.guess is not None:
        edge, share = x.guess
        found = scan.search(x, edge, share, scan.room(len(x), 3 * k, len(x)))
        if found is not None and len(found[0]) >= k:
            return found, edge
    sample = np.abs(scan.sample(x))
    expected = k * len(sample) / len(x)
    rank = int(expected + 3 * math.sqrt(expected)) + 4
    while rank < len(sample) // 2:  # the edge of the sample should keep a little more than k; else it is lowered
        edge = scan.below(scan.kth(sample, rank))
        found = scan.search(x, edge, rank / len(sample), scan.room(len(x), rank, len(sample)))
        if found is None:
            break
        if len(found[0]) >= k:
            return found, edge
        rank *= 2
    return None


def above(x: Sum, edge: Any) -> Indices:
    """The indices of |x| > edge, a scalar of x's dtype."""
    share, found = 1.0, None
    if len(x) > SMALL:
        sample = scan.sample(x)
        count = int(np.count_nonzero(np.abs(sample) > edge))
        share = count / len(sample)
        found = scan.search(x, edge, share, scan.room(len(x), count, len(sample)))
    return (found or scan.search_all(x, edge, share))[0].copy()


def reaching(x: Sum, edge: Any) -> Indices:
    """The indices of |x| >= edge, a scalar of x's dtype."""
    return above(x, scan.below(edge))


def sampled(x: Sum, k: int, first: int, stride: int, rank: int) -> Indices:
    """At most k of the largest: those that reach the rank-th largest of a sample, lowered while too few do."""
    threshold = float(scan.kth(np.abs(x.drawn(lambda entries: entries[first::stride])), rank))
    for lowered in range(LOWERED + 1):
        edge, share = scan.below(cast_to(threshold, x.dtype)), k / len(x)
        found = scan.search(x, edge, share, scan.room(len(x), 2 * k, len(x))) or scan.search_all(x, edge, share)
        if lowered == LOWERED or len(found[0]) >= ENOUGH * k:
            break
        threshold *= ENOUGH
    return scan.largest(*found, k)[0] if len(found[0]) > k else found[0].copy()


def std(x: Sum) -> float:
    """The population standard deviation; exactly 0 for a constant vector."""
    return _deviation(x, *_moments(x, 0.0)) if len(x) else 0.0


def deviation(x: Sum, sigmas: float) -> Indices:
    """The indices of |x| > sigmas * std(x). The sums for the deviation and a first search share one pass."""
    if len(x) <= SMALL:
        return above(x, exceed(sigmas * std(x), x.dtype))
    low, share = _guessed(x, sigmas)
    dtype, many = x.dtype, share > scan.MANY
    room = scan.room(len(x), math.ceil(share * scan.DRAWN[0]), scan.DRAWN[0])
    indices, magnitudes = scan.arrays(dtype, room)
    total, squares, found = x.read(scan.loops(dtype).moments, 0.0, low, many, indices, magnitudes, room)
    edge = exceed(sigmas * _deviation(x, total, squares), dtype)
    held = found >= 0 and low <= edge
    chosen = scan.kept(indices[:found], magnitudes[:found], edge) if held else above(x, edge)
    x.guess = dtype.type(scan.LOWER) * edge, 1.25 * len(chosen) / len(x)
    return chosen


def _guessed(x: Sum, sigmas: float) -> tuple[Any, float]:
    """A lower bound of the threshold that rarely fails, and the share of the entries above it."""
    if x.guess is not None:
        return x.guess
    sample = scan.sample(x)
    low = cast_to(sigmas * _low_deviation(sample), x.dtype)
    return low, int(np.count_nonzero(np.abs(sample) > low)) / len(sample)


def dynamic(x: Sum, passes: int) -> tuple[Indices, list[float]]:
    """The indices above the last threshold, or those that reach it if none is above, and the thresholds."""
    thresholds, found = _thresholds(x, passes)
    if not all(map(math.isfinite, thresholds)):  # a sum of large float64 overflowed
        thresholds, found = reference.dynamic_thresholds(torch.from_numpy(np.abs(x.settled())), passes), None
    if not thresholds:
        return np.empty(0, np.int64), []
    edge = exceed(thresholds[-1], x.dtype)
    indices = above(x, edge) if found is None else scan.kept(*found, edge)
    return (indices if len(indices) else reaching(x, reach(thresholds[-1], x.dtype))), thresholds


# --- the standard deviation -------------------------------------------------------------------------------------------


def _moments(x: Sum, shift: float) -> tuple[float, float]:
    """The sums of x - shift and of its squares."""
    nothing = x.dtype.type(np.inf), False, *scan.arrays(x.dtype, 0), -1
    total, squares, _ = x.read(scan.loops(x.dtype).moments, shift, *nothing)
    return total, squares


def _deviation(x: Sum, total: float, squares: float) -> float:
    """The standard deviation from the sums of x and of its squares, which are computed again if too much cancels."""
    shift, variance = 0.0, 0.0
    for attempt in range(4):
        mean = total / len(x)
        variance = squares / len(x) - mean * mean
        if variance >= mean * mean:  # at most one bit was cancelled
            break
        shift = shift + mean if attempt else float(x.settled()[0])  # shifted by an entry, a constant vector is 0
        total, squares = _moments(x, shift)
    if squares and not NORMAL[0] < squares / len(x) < NORMAL[1]:
        return reference.std(torch.from_numpy(x.settled()))
    return math.sqrt(max(variance, 0.0))


def _low_deviation(sample: Array) -> float:
    """A lower bound of the standard deviation that rarely fails; infinite if the sample gives none."""
    with np.errstate(all="ignore"):
        squares, mean = np.square(sample), float(sample.mean(dtype=np.float64))
    _, square, error = scan.loops(sample.dtype).spread(squares, sample.dtype.type(-1))
    variance = float(square) - mean * mean
    if not (variance > 0 and (bound := 1 - scan.SURE * float(error) * float(square) / (2 * variance)) > 0):
        return math.inf
    return math.sqrt(variance) * bound


# --- the dynamic thresholds -------------------------------------------------------------------------------------------


def _thresholds(x: Sum, passes: int) -> tuple[list[float], Found | None]:
    """The thresholds, and the entries above the last one if the sample predicts that they are few.

    Where the bounds from the sample hold, one pass over x finds two thresholds and the magnitudes for the next ones.
    """
    loop, dtype, edge, thresholds = scan.loops(x.dtype), x.dtype, x.dtype.type(0), list[float]()
    if len(x) <= SMALL:
        return _from_rest(np.abs(x.settled()), edge, thresholds, passes), None
    sample = np.abs(scan.sample(x))
    while len(thresholds) < passes:
        low, high, deep, last = _bounds(sample, edge, passes - len(thresholds))
        rooms = tuple(scan.room_for(x, sample, *limits) for limits in ((last, np.inf), (low, high), (deep, np.inf)))
        indices, magnitudes = scan.arrays(dtype, rooms[0])
        band, rest = scan.scratch.array("band", dtype, rooms[1]), scan.scratch.array("rest", dtype, rooms[2])
        total, count, low_total, low_count, found, banded, rested = x.read(
            loop.tails, edge, (low, high, deep, last), indices, (magnitudes, band, rest), rooms
        )
        if not count:
            break
        thresholds.append(total / count)
        edge = exceed(thresholds[-1], dtype)
        if len(thresholds) == passes or banded < 0 or not low <= edge <= high:
            continue
        below, _ = loop.tail(band[:banded], low)
        total, count = loop.tail(band[:banded], edge)  # of the band, only what exceeds the edge counts
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
    """The thresholds that follow from the magnitudes above the last one; `rest` is overwritten."""
    thresholds = thresholds.copy()
    while len(thresholds) < passes:
        total, found = scan.loops(rest.dtype).tail(rest, edge)
        if not found:
            break
        rest = rest[:found]
        thresholds.append(total / found)
        edge = exceed(thresholds[-1], rest.dtype)
    return thresholds


def _bounds(sample: Array, edge: Any, passes: int) -> tuple[Any, Any, Any, Any]:
    """From the sample: bounds of the threshold after the edge, a lower bound of the next one, and of the last one.

    The bound of the last is infinite where entries above it are many; all are where the sample has too few entries.
    """
    spread, dtype, none = scan.loops(sample.dtype).spread, sample.dtype, sample.dtype.type(np.inf)
    _, mean, error = spread(sample, edge)
    count, next_mean, next_error = spread(sample, cast_to(mean, dtype))
    if not count or not scan.SURE * (error + next_error) < 1:
        return none, none, none, none
    low, high = (cast_to(mean * (1 + sure * error), dtype) for sure in (-scan.SURE, scan.SURE))
    deep = max(high, cast_to(next_mean * (1 - scan.SURE * (error / 2 + next_error)), dtype))
    left = sample.copy()
    for _ in range(passes - 1):
        total, count = scan.loops(dtype).tail(left, cast_to(mean, dtype))
        left, mean = left[:count], total / max(count, 1)
    _, mean, error = spread(left, edge)
    last = cast_to(mean * (1 - 1.2 * scan.SURE * error), dtype)  # it inherits part of the errors before it
    few = len(left) > FEW and 0 < np.count_nonzero(sample > last) <= scan.MANY * len(sample)
    return low, high, deep, last if few else none
