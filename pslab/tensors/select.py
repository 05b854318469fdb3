"""Which entries of one layer are sent: the k largest, those above a threshold, and the thresholds of two rules.

Every function takes a vector v (n, float32 or float64, finite) and has two kernels that choose the same entries: NumPy
on one thread over blocks that stay in a core's cache, for the CPU, and plain torch for any other device. Indices come
sorted, as int64 on v's device.

A threshold is a float64 raised by one part in 2**40 and rounded to v's dtype before it is compared. That is more than
the order of a summation can change it, so the kernels agree even where entries lie exactly on a threshold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from threading import local
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pslab.tensors.wire import set_bits

Array = NDArray[Any]
Indices = NDArray[np.int64]

TIE = 2.0**-40
BLOCK = 1 << 17  # entries whose masks stay in a core's cache
ROW, ROWS = 1 << 12, 16  # rows are summed so many at a time; longer ones would start BLAS's threads
ROUGH, ROUGH_UP_TO = 2.0**-19, 1 << 22  # error of a float32 deviation; in a larger layer some entry is always that near
SMALL = 1 << 12  # entries that are not worth a sample
SPARSE = 0.06  # the density below which searching a bitmap is quicker than searching a mask


class _Scratch(local):
    """Buffers that a thread uses again from call to call."""

    def __init__(self) -> None:
        self.mask, self.below = np.empty(BLOCK + BLOCK // 8, np.bool_), np.empty(BLOCK, np.bool_)
        self.magnitudes = {dtype: np.empty((ROWS, ROW), dtype) for dtype in (np.dtype("f4"), np.dtype("f8"))}
        self.copy, self.ones, self.ones32 = np.empty((ROWS, ROW)), np.ones(ROW), np.ones(512, np.float32)


_scratch = _Scratch()


def top(v: torch.Tensor, k: int) -> torch.Tensor:
    """The indices of exactly k entries of largest |v|; of equal ones, those of lower index. 0 <= k <= n."""
    if not 0 <= k <= len(v):
        raise ValueError(f"k={k}: from 0 to the {len(v)} entries of the layer")
    return torch.from_numpy(top_numpy(_array(v), k)) if v.device.type == "cpu" else top_torch(v, k)


def above(v: torch.Tensor, threshold: float) -> torch.Tensor:
    """The indices of the entries with |v| > threshold."""
    return torch.from_numpy(above_numpy(_array(v), threshold)) if v.device.type == "cpu" else above_torch(v, threshold)


def std(v: torch.Tensor) -> float:
    """The population standard deviation (ddof 0), in float64; exactly 0 for a constant layer."""
    return std_numpy(_array(v)) if v.device.type == "cpu" else std_torch(v)


def deviation(v: torch.Tensor, sigmas: float) -> torch.Tensor:
    """The indices of the entries with |v| > sigmas * std(v); the mean is not subtracted from v."""
    if v.device.type == "cpu":
        return torch.from_numpy(deviation_numpy(_array(v), sigmas))
    return above_torch(v, sigmas * std_torch(v))


def dynamic(v: torch.Tensor, passes: int) -> tuple[torch.Tensor, list[float]]:
    """The indices of the entries above the last of the dynamic thresholds, and the thresholds.

    From 0, each pass takes the mean of |v| over the entries above the threshold as the next one; a pass that finds none
    leaves it. If nothing exceeds the last threshold, the entries that reach it are sent, so that a constant layer and
    one of a single entry are not starved. Zeros are never sent.
    """
    if v.device.type == "cpu":
        indices, thresholds = dynamic_numpy(_array(v), passes)
        return torch.from_numpy(indices), thresholds
    return dynamic_torch(v, passes)


# --- any device -----------------------------------------------------------------------------------------------------


def top_torch(v: torch.Tensor, k: int) -> torch.Tensor:
    if not k:
        return torch.empty(0, dtype=torch.int64, device=v.device)
    magnitudes = v.detach().abs()
    edge = torch.topk(magnitudes, k).values[-1]
    larger = (magnitudes > edge).nonzero().flatten()
    equal = (magnitudes == edge).nonzero().flatten()
    found: torch.Tensor = torch.cat((larger, equal[: k - len(larger)])).sort().values
    return found


def above_torch(v: torch.Tensor, threshold: float) -> torch.Tensor:
    return (v.detach().abs() > float(_exceed(threshold, _dtype(v)))).nonzero().flatten()


def std_torch(v: torch.Tensor) -> float:
    if not len(v):
        return 0.0
    shifted = v.detach().double()
    shifted = shifted - shifted[0]
    return math.sqrt(float((shifted - shifted.mean()).square().mean()))


def dynamic_torch(v: torch.Tensor, passes: int) -> tuple[torch.Tensor, list[float]]:
    magnitudes = v.detach().abs()
    thresholds = thresholds_torch(magnitudes, passes)
    if not thresholds:
        return torch.empty(0, dtype=torch.int64, device=v.device), []
    found = above_torch(v, thresholds[-1])
    if not len(found):
        found = (magnitudes >= float(_reach(thresholds[-1], _dtype(v)))).nonzero().flatten()
    return found, thresholds


def thresholds_torch(magnitudes: torch.Tensor, passes: int) -> list[float]:
    last = magnitudes[magnitudes > 0]
    thresholds: list[float] = []
    while len(last) and len(thresholds) < passes:
        thresholds.append(min(float(last.mean(dtype=torch.float64)), float(last.max())))
        last = last[last > float(_exceed(thresholds[-1], _dtype(magnitudes)))]
    return thresholds


# --- the CPU --------------------------------------------------------------------------------------------------------


def top_numpy(x: Array, k: int) -> Indices:
    n = len(x)
    if n > SMALL and k < n:
        size = min(max(n >> 8, SMALL), 1 << 16)
        sample, rank = np.abs(x[_places(n, size)]), _margin(k * size / n)
        while k and rank < size // 2:  # the sample's edge keeps a little more than k; if it does not, a lower one
            edge = np.partition(sample, size - rank)[size - rank]
            found = _search(x, np.nextafter(edge, x.dtype.type(-1)), dense=rank > SPARSE * size)
            if len(found) >= k:
                return found[_largest(np.abs(x.take(found)), k)]
            rank *= 2
    return _largest(np.abs(x), k)


def above_numpy(x: Array, threshold: float) -> Indices:
    edge = _exceed(threshold, x.dtype)
    dense = len(x) > SMALL and bool(np.mean(np.abs(x[_places(len(x), 512)]) > edge) > SPARSE)
    return _search(x, edge, dense)


def std_numpy(x: Array) -> float:
    shift, variance = 0.0, 0.0
    for attempt in range(4 if len(x) else 0):
        total, squares = _moments(x, shift)
        mean = total / len(x)
        variance = squares / len(x) - mean * mean
        if variance >= mean * mean:  # no more than a bit was cancelled
            break
        shift = shift + mean if attempt else float(x[0])  # by the first entry a constant layer is exactly 0
    return math.sqrt(max(variance, 0.0))


def deviation_numpy(x: Array, sigmas: float) -> Indices:
    """Sums in float32 bracket the threshold; they are made exact only if an entry lies in between."""
    if SMALL < len(x) <= ROUGH_UP_TO and x.dtype == np.float32 and (rough := _rough_std(x)):
        low, high = (sigmas * rough * (1 + error) for error in (-ROUGH, ROUGH))
        found = above_numpy(x, low)
        magnitudes = np.abs(x.take(found))
        if bool((magnitudes > _exceed(high, x.dtype)).all()):
            return found
        if low <= (exact := sigmas * std_numpy(x)) <= high:
            kept: Indices = found[magnitudes > _exceed(exact, x.dtype)]
            return kept
    return above_numpy(x, sigmas * std_numpy(x))


def dynamic_numpy(x: Array, passes: int) -> tuple[Indices, list[float]]:
    thresholds = thresholds_numpy(x, passes)
    if not thresholds:
        return np.empty(0, np.int64), []
    found = above_numpy(x, thresholds[-1])
    if not len(found):
        found = _search(x, np.nextafter(_reach(thresholds[-1], x.dtype), x.dtype.type(-1)))
    return found, thresholds


def thresholds_numpy(x: Array, passes: int) -> list[float]:
    total, count = _magnitudes(x)
    if not count or not passes:
        return []
    thresholds = [total / count]
    last: list[Array] = []
    while len(thresholds) < passes:
        edge = _exceed(thresholds[-1], x.dtype)
        last = (
            _parts_above(x, edge) if len(thresholds) == 1 else _merged([m.take(np.flatnonzero(m > edge)) for m in last])
        )
        if not (count := sum(map(len, last))):
            break
        mean = math.fsum(float(np.add.reduce(m, dtype=np.float64)) for m in last) / count
        thresholds.append(min(mean, max(float(m.max()) for m in last if len(m))))
    return thresholds


def _search(x: Array, edge: Any, dense: bool = False) -> Indices:
    """The indices of |x| > edge, a scalar of x's dtype. `dense` is a guess: it costs time, never an entry."""
    if len(x) <= SMALL:
        return np.flatnonzero(np.abs(x) > edge)
    if dense:
        parts = [_trues(len(mask)) for _, mask in _masks(x, edge)]
        for block, part in enumerate(parts):
            part += block * BLOCK
        return np.concatenate(parts)
    bitmap = np.empty(-(-len(x) // 8), np.uint8)
    for first, mask in _masks(x, edge):
        bitmap[first // 8 : -(-(first + len(mask)) // 8)] = np.packbits(mask, bitorder="little")
    return set_bits(bitmap)


def _masks(x: Array, edge: Any) -> Iterator[tuple[int, NDArray[np.bool_]]]:
    """Where |x| > edge, block by block; each mask is overwritten by the next."""
    for first in range(0, len(x), BLOCK):
        part = x[first : first + BLOCK]
        mask, below = _scratch.mask[: len(part)], _scratch.below[: len(part)]
        np.greater(part, edge, out=mask)
        np.less(part, -edge, out=below)
        yield first, np.logical_or(mask, below, out=mask)


def _trues(count: int) -> Indices:
    """The trues of the mask in the scratch.

    NumPy searches a mask with less than a tenth of trues one by one, and any other without a branch: at a few per cent
    the second way is several times quicker, and padding with trues has it taken.
    """
    padding = count // 8
    padded = _scratch.mask[: count + padding]
    padded[count:] = True
    found = np.flatnonzero(padded)
    return found[: len(found) - padding]


def _parts_above(x: Array, edge: Any) -> list[Array]:
    """The magnitudes above the edge, block by block."""
    return [np.abs(x[first : first + BLOCK].take(np.flatnonzero(mask))) for first, mask in _masks(x, edge)]


def _merged(parts: list[Array]) -> list[Array]:
    return [np.concatenate(parts)] if len(parts) > 1 and sum(map(len, parts)) < BLOCK else parts


def _largest(magnitudes: Array, k: int) -> Indices:
    """The positions of the k largest, of equal ones those that come first."""
    if not k:
        return np.empty(0, np.int64)
    edge = _kth(magnitudes, k)
    keep = magnitudes > edge
    equal = np.flatnonzero(magnitudes == edge)
    keep[equal[: k - np.count_nonzero(keep)]] = True
    return np.flatnonzero(keep)


def _kth(magnitudes: Array, k: int) -> Any:
    """The k-th largest. Of many, a sample brackets it, and only what lies between is partitioned."""
    n = len(magnitudes)
    if n > 8 * SMALL:
        sample = magnitudes[:: n // SMALL]
        expected = k * len(sample) / n
        slack = 3 * math.sqrt(expected * (1 - expected / len(sample))) + 4
        low = max(0, len(sample) - int(expected + slack))
        high = min(len(sample) - 1, len(sample) - int(expected - slack))
        sample = np.partition(sample, (low, high))
        floor, ceiling = sample[low] if low else 0, sample[high]
        between = magnitudes[np.flatnonzero((magnitudes >= floor) & (magnitudes <= ceiling))]
        rank = k - int(np.count_nonzero(magnitudes > ceiling))
        if 1 <= rank <= len(between):
            return np.partition(between, len(between) - rank)[len(between) - rank]
    return np.partition(magnitudes, n - k)[n - k]


def _rough_std(x: Array) -> float | None:
    """The standard deviation from float32 sums, at most ROUGH from the exact; None where that cannot be promised.

    BLAS adds up a dot product of 512 in 16 places or more: an error of 2.2e-6 at most of the squares, and a little more
    than half of it of their root, where the mean is small.
    """
    rows = x[: len(x) // 512 * 512].reshape(-1, 512)
    rest = x[rows.size :].astype(np.float64)
    square = float(np.vecdot(rows, rows).sum(dtype=np.float64) + np.vecdot(rest, rest)) / len(x)
    mean = float(np.vecdot(rows, _scratch.ones32).sum(dtype=np.float64) + rest.sum()) / len(x)
    return math.sqrt(square - mean * mean) if 1e-30 < square < 1e30 and mean * mean <= square / 16 else None


def _moments(x: Array, shift: float) -> tuple[float, float]:
    """The sums of x - shift and of its square, in float64."""
    rows, rest = _rows(x), x[len(x) // ROW * ROW :] - np.float64(shift)
    sums, squares = np.empty(len(rows)), np.empty(len(rows))
    for first in range(0, len(rows), ROWS):
        part = rows[first : first + ROWS]
        copy = part
        if shift or part.dtype != np.float64:
            copy = _scratch.copy[: len(part)]
            copy[...] = part
        if shift:
            copy -= shift
        np.dot(copy, _scratch.ones, out=sums[first : first + ROWS])
        np.vecdot(copy, copy, out=squares[first : first + ROWS])
    return float(sums.sum() + rest.sum()), float(squares.sum() + np.vecdot(rest, rest))


def _magnitudes(x: Array) -> tuple[float, int]:
    """The sum of |x| in float64, and how many entries are not zero."""
    rows, rest = _rows(x), np.abs(x[len(x) // ROW * ROW :])
    sums, count, scratch = np.empty(len(rows)), int(np.count_nonzero(rest)), _scratch.magnitudes[x.dtype]
    for first in range(0, len(rows), ROWS):
        part = rows[first : first + ROWS]
        magnitudes, copy = np.abs(part, out=scratch[: len(part)]), _scratch.copy[: len(part)]
        count += int(np.count_nonzero(magnitudes.view(f"i{x.itemsize}")))  # as whole numbers: several times quicker
        copy[...] = magnitudes
        np.dot(copy, _scratch.ones, out=sums[first : first + ROWS])
    return float(sums.sum() + np.add.reduce(rest, dtype=np.float64)), count


def _rows(x: Array) -> Array:
    return x[: len(x) // ROW * ROW].reshape(-1, ROW)


def _margin(expected: float) -> int:
    """A count that a sample with this expectation hardly exceeds."""
    return int(expected + 3 * math.sqrt(expected)) + 4


@lru_cache(maxsize=256)
def _places(n: int, size: int) -> Indices:
    """Places of a sample: random, since a stride meets the rows of a layer, but always the same."""
    return np.sort(np.random.default_rng(n).integers(0, n, size))


def _exceed(threshold: float, dtype: np.dtype[Any]) -> Any:
    """What an entry above the threshold is greater than, in its own dtype."""
    with np.errstate(over="ignore"):
        return dtype.type(threshold * (1 + TIE))


def _reach(threshold: float, dtype: np.dtype[Any]) -> Any:
    """What an entry that reaches the threshold is at least."""
    return dtype.type(threshold * (1 - TIE))


def _array(v: torch.Tensor) -> Array:
    array: Array = v.detach().contiguous().numpy()
    return array


def _dtype(v: torch.Tensor) -> np.dtype[Any]:
    return np.dtype(np.float64 if v.dtype == torch.float64 else np.float32)
