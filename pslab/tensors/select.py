"""Which entries of one layer are sent: the k largest, those above a threshold, and the thresholds of two rules.

Every function takes a vector v (n, float32 or float64, finite) and has two kernels that choose the same entries: NumPy
on one thread over blocks that stay in a core's cache, for the CPU, and plain torch for any other device. Indices come
sorted, as int64 on v's device.

A threshold is a float64 raised by one part in 2**40 and rounded to v's dtype before it is compared. That is more than
the order of a summation can change it, so the kernels agree even where entries lie exactly on a threshold.
"""

from __future__ import annotations

import math
from functools import lru_cache
from threading import local
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pslab.tensors.wire import set_bits, true_positions

Array = NDArray[Any]
Indices = NDArray[np.int64]

TIE = 2.0**-40
BLOCK = 1 << 17  # entries whose masks stay in a core's cache
SUMMED = 1 << 16  # entries whose float64 copy does
ROW = 1 << 12  # entries of one BLAS call: below the lengths from which BLAS starts threads
SMALL = 1 << 12  # entries that are not worth a sample
SPARSE = 0.05  # the density below which searching a bitmap is quicker than searching a mask


class _Scratch(local):
    """Buffers that a thread uses again from call to call."""

    def __init__(self) -> None:
        self.mask, self.below = np.empty(BLOCK + BLOCK // 8, np.bool_), np.empty(BLOCK, np.bool_)
        self.magnitudes = {dtype: np.empty(SUMMED, dtype) for dtype in (np.dtype("f4"), np.dtype("f8"))}
        self.copy, self.ones = np.empty(SUMMED), np.ones(ROW)


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


def dynamic(v: torch.Tensor, passes: int) -> tuple[torch.Tensor, list[float]]:
    """The indices of the entries above the last of the dynamic thresholds, and the thresholds.

    From 0, each pass takes the mean of |v| over the entries above the threshold as the next one; a pass that finds none
    leaves it. If nothing exceeds the last threshold, the entries that reach it are sent, so that a constant layer or one
    of a single entry is not starved. Zeros are never sent.
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
    edge = torch.topk(magnitudes, k, sorted=False).values.min()
    larger = (magnitudes > edge).nonzero().flatten()
    equal = (magnitudes == edge).nonzero().flatten()
    return torch.cat((larger, equal[: k - len(larger)])).sort().values


def above_torch(v: torch.Tensor, threshold: float) -> torch.Tensor:
    return (v.detach().abs() > _exceed(threshold, _dtype(v))).nonzero().flatten()


def std_torch(v: torch.Tensor) -> float:
    if not len(v):
        return 0.0
    shifted = v.detach().double()
    shifted = shifted - shifted[0]
    return math.sqrt(float((shifted - shifted.mean()).square().mean()))


def dynamic_torch(v: torch.Tensor, passes: int) -> tuple[torch.Tensor, list[float]]:
    magnitudes = v.detach().abs()
    last = magnitudes[magnitudes > 0].double()
    thresholds: list[float] = []
    while len(last) and len(thresholds) < passes:
        thresholds.append(min(float(last.mean()), float(last.max())))
        last = last[last > _exceed(thresholds[-1], _dtype(v))]
    if not thresholds:
        return torch.empty(0, dtype=torch.int64, device=v.device), thresholds
    found = above_torch(v, thresholds[-1])
    if not len(found):
        found = (magnitudes >= _reach(thresholds[-1], _dtype(v))).nonzero().flatten()
    return found, thresholds


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
                return found[_largest(np.abs(x[found]), k)]
            rank *= 2
    return _largest(np.abs(x), k)


def above_numpy(x: Array, threshold: float) -> Indices:
    edge = _exceed(threshold, x.dtype)
    dense = len(x) > SMALL and np.count_nonzero(np.abs(x[_places(len(x), 512)]) > edge) > SPARSE * 512
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


def dynamic_numpy(x: Array, passes: int) -> tuple[Indices, list[float]]:
    total, count = _magnitudes(x)
    if not count or not passes:
        return np.flatnonzero(x), []
    thresholds = [total / count]
    indices = above_numpy(x, thresholds[0])
    if not len(indices):
        return _search(x, np.nextafter(_reach(thresholds[0], x.dtype), x.dtype.type(-1)), dense=True), thresholds
    magnitudes = np.abs(x[indices])
    while len(thresholds) < passes:
        mean = float(np.add.reduce(magnitudes, dtype=np.float64)) / len(magnitudes)
        thresholds.append(min(mean, float(magnitudes.max())))
        left = np.flatnonzero(magnitudes > _exceed(thresholds[-1], x.dtype))
        if not len(left):
            return indices[magnitudes >= _reach(thresholds[-1], x.dtype)], thresholds
        indices, magnitudes = indices[left], magnitudes[left]
    return indices, thresholds


def _search(x: Array, edge: Any, dense: bool) -> Indices:
    """The indices of |x| > edge, a scalar of x's dtype. `dense` is a guess: it costs time, never an entry."""
    if len(x) <= SMALL:
        return np.flatnonzero(np.abs(x) > edge)
    bitmap, found = np.empty(0 if dense else -(-len(x) // 8), np.uint8), []
    for first in range(0, len(x), BLOCK):
        part = x[first : first + BLOCK]
        mask, below = _scratch.mask[: len(part)], _scratch.below[: len(part)]
        np.greater(part, edge, out=mask)
        np.less(part, -edge, out=below)
        np.logical_or(mask, below, out=mask)
        if dense:
            padding = len(part) // 8
            _scratch.mask[len(part) : len(part) + padding] = True
            at = true_positions(_scratch.mask[: len(part) + padding], len(part))
            at += first
            found.append(at)
        else:
            bitmap[first // 8 : -(-(first + len(part)) // 8)] = np.packbits(mask, bitorder="little")
    return np.concatenate(found) if dense else set_bits(bitmap)


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
        sample = np.sort(magnitudes[:: n // SMALL])
        expected = k * len(sample) / n
        low, high = len(sample) - _margin(expected), len(sample) - 2 * int(expected) + _margin(expected)
        floor, ceiling = sample[max(low, 0)], sample[min(high, len(sample) - 1)]
        between = magnitudes[np.flatnonzero((magnitudes >= floor) & (magnitudes <= ceiling))]
        rank = k - int(np.count_nonzero(magnitudes > ceiling))
        if 1 <= rank <= len(between):
            return np.partition(between, len(between) - rank)[len(between) - rank]
    return np.partition(magnitudes, n - k)[n - k]


def _moments(x: Array, shift: float) -> tuple[float, float]:
    """The sums of x - shift and of its square, in float64."""
    total = squares = 0.0
    for first in range(0, len(x), SUMMED):
        part = x[first : first + SUMMED]
        if shift or part.dtype != np.float64:
            copy = _scratch.copy[: len(part)]
            copy[...] = part
            if shift:
                copy -= shift
            part = copy
        total += _sum(part)
        whole = len(part) // ROW * ROW
        rows, rest = part[:whole].reshape(-1, ROW), part[whole:]
        squares += float(np.vecdot(rows, rows).sum() + np.vecdot(rest, rest))
    return total, squares


def _magnitudes(x: Array) -> tuple[float, int]:
    """The sum of |x| in float64, and how many entries are not zero."""
    total, count, buffer = 0.0, 0, _scratch.magnitudes[x.dtype]
    for first in range(0, len(x), SUMMED):
        part = x[first : first + SUMMED]
        magnitudes = np.abs(part, out=buffer[: len(part)])
        count += int(np.count_nonzero(magnitudes.view(f"i{x.itemsize}")))  # as whole numbers: several times quicker
        copy = _scratch.copy[: len(part)]
        copy[...] = magnitudes
        total += _sum(copy)
    return total, count


def _sum(x: Array) -> float:
    whole = len(x) // ROW * ROW
    return float(x[:whole].reshape(-1, ROW).dot(_scratch.ones).sum() + x[whole:].sum())


def _margin(expected: float) -> int:
    """A count that a sample with this expectation hardly exceeds."""
    return int(expected + 3 * math.sqrt(expected)) + 4


@lru_cache(maxsize=64)
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
