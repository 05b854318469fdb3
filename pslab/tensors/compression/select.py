"""Selection: the largest entries of a vector, or all above a threshold; on the CPU by loops that numba compiles.

On a GPU torch selects the same entries: a threshold (float64) is raised by one part in 2**40 and rounded to the
vector's dtype before a comparison, and another order of summation changes a threshold by less. Selecting a given number
of entries does not wait for the GPU; selecting by a threshold does, to learn the number.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import numpy as np
import torch

from pslab.tensors.entries import Array

TIE = 2.0**-40
ENOUGH, LOWERED = 0.8, 10  # the share of the wanted entries that suffices; how often a threshold is lowered by it
SAMPLE, RARE = 1 << 12, 20
BLOCK = 1 << 20  # entries on a device that are summed up at once


def loops() -> Any:
    """Return the module of compiled loops."""
    return import_module("pslab.tensors.compression.loops")


def _exceeding(v: torch.Tensor, edge: float) -> torch.Tensor:
    """Return the indices of the entries with |v| > edge; `edge` is representable in v's dtype."""
    if v.device.type != "cpu":
        return (v.abs() > edge).nonzero().flatten()
    x, indices = v.detach().numpy(), np.empty(len(v), np.int64)
    return torch.from_numpy(indices[: loops().write_above(x, None, x.dtype.type(edge), indices, None)])


def top(v: torch.Tensor, k: int) -> torch.Tensor:
    """Return the sorted indices of the k largest |v|; of equal entries the first."""
    if not k:
        return torch.empty(0, dtype=torch.int64, device=v.device)
    if v.device.type != "cpu":
        size = v.abs().nan_to_num_(nan=math.inf, posinf=math.inf)  # a push with NaN, refused later, must select k, too
        edge = size.topk(k, sorted=False).values.min()
        more, equal = size > edge, size == edge
        chosen = more | (equal & (equal.cumsum(0) <= k - more.sum()))
        return torch.nonzero_static(chosen, size=k).flatten()
    candidates = _candidates(v, k)
    return candidates[torch.from_numpy(_largest(v[candidates].numpy(), k))]


def add_top(v: torch.Tensor, k: int, added: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Add `added` to v in place; return the sorted indices of the k largest |v| (of equal entries the first) and their
    values.

    On a CPU one loop adds and collects the candidates: a second pass over the memory takes as long as the addition.
    """
    if v.device.type == "cpu" and 0 < k * RARE < len(v):
        x, more = v.numpy(), added.numpy()
        stride = max(1, len(v) // SAMPLE)
        edge = _edge(x[::stride] + more[::stride], k / len(v))
        indices, values = np.empty(len(v), np.int64), np.empty(len(v), x.dtype)
        count = loops().write_above(x, more, edge, indices, values)
        if count >= k:
            chosen = _largest(values[:count], k)
            return torch.from_numpy(indices[chosen]), torch.from_numpy(values[chosen])
    else:
        v.add_(added)
    selected = top(v, k)
    return selected, v[selected]


def _largest(values: Array, k: int) -> Array:
    magnitudes = np.abs(values)
    edge = np.partition(magnitudes, len(magnitudes) - k)[len(magnitudes) - k]
    reach = np.flatnonzero(magnitudes >= edge)
    if len(reach) > k:  # of equal entries keep the first
        equal = np.flatnonzero(magnitudes[reach] == edge)
        reach = np.delete(reach, equal[k - len(reach) :])
    return reach


def _candidates(v: torch.Tensor, k: int) -> torch.Tensor:
    """Return sorted indices that include the k largest |v| and, usually, few others, as a sample estimates."""
    if 2 * k < len(v):
        sample = v.detach().numpy()[:: max(1, len(v) // SAMPLE)]
        for margin in (4, 16):  # standard deviations of the estimate
            indices = _exceeding(v, float(_edge(sample, k / len(v), margin)))
            if len(indices) >= k:
                return indices
    return torch.arange(len(v))


def _edge(sample: Array, fraction: float, margin: int = 4) -> Any:
    """Estimate from a sample a threshold that more than `fraction` of all magnitudes exceed."""
    magnitudes, expected = np.abs(sample), fraction * len(sample)
    rank = min(len(sample), math.ceil(expected + margin * math.sqrt(expected)) + margin)
    return np.partition(magnitudes, len(sample) - rank)[len(sample) - rank]


def above(v: torch.Tensor, threshold: float) -> torch.Tensor:
    """Return the indices of |v| > threshold."""
    return _exceeding(v, _rounded(threshold * (1 + TIE), v))


def reaching(v: torch.Tensor, threshold: float) -> torch.Tensor:
    """Return the indices of |v| >= threshold."""
    edge = torch.tensor(_rounded(threshold * (1 - TIE), v), dtype=v.dtype)
    return _exceeding(v, float(torch.nextafter(edge, edge.new_tensor(-1.0))))


def share(fraction: float, n: int) -> int:
    """Return fraction * n, rounded up: at least 1 if n >= 1, else 0.

    A product that exceeds an integer only by rounding errors counts as that integer.
    """
    exact = fraction * n
    whole = round(exact)
    return min(n, max(1, whole if math.isclose(exact, whole, rel_tol=1e-12) else math.ceil(exact)))


def sampled(v: torch.Tensor, k: int, first: int, stride: int, rank: int) -> torch.Tensor:
    """Return the indices of at most k entries with |v| at or above a threshold.

    The threshold is the rank-th largest |v| of a sample, lowered while fewer than 0.8 k entries reach it.
    """
    threshold = float(torch.topk(v[first::stride].abs(), rank, sorted=False).values.min())
    for _ in range(LOWERED + 1):
        edge = torch.tensor(threshold, dtype=v.dtype)
        indices = _exceeding(v, float(torch.nextafter(edge, edge.new_tensor(-1.0))))
        if len(indices) >= ENOUGH * k:
            break
        threshold *= ENOUGH
    return indices if len(indices) <= k else indices[top(v[indices], k)]


def sample_stride(n: int, fraction: float, part: float) -> int:
    """Return the stride of a sample of n entries, 1 or 8 i + 1.

    The sample contains at least the share `part` of the entries, and on average two of the entries to send.
    """
    enough = math.ceil(2 / fraction)
    if n <= enough:
        return 1
    wanted = max(share(part, n), enough)
    stride = math.ceil(n / wanted / 32) * 32 + 1
    while n // stride < wanted:
        stride -= 8
    return stride


def std(v: torch.Tensor) -> float:
    """Return the population standard deviation in float64; exactly 0 for a constant vector."""
    if not len(v):
        return 0.0
    if v.device.type == "cpu":
        x = v.detach().contiguous().numpy()
        _, _, total, squares = loops().sums(x, math.inf, float(x[0]))
    else:
        sums = v.new_zeros(2, dtype=torch.float64)
        for block in torch.split(v, BLOCK):  # by blocks, to limit the memory of the float64 copy
            moved = block.double() - v[0].double()
            sums += torch.stack([moved.sum(), moved.square_().sum()])
        total, squares = sums.tolist()
    return math.sqrt(max(0.0, squares / len(v) - (total / len(v)) ** 2))


def dynamic(v: torch.Tensor, passes: int) -> tuple[torch.Tensor, list[float]]:
    """Return the indices of the entries above the last dynamic threshold (or at it, if none is above), and all
    thresholds.

    A threshold is the mean of |v| over the entries above the threshold before it; the first one is over the entries
    that are not 0. There are `passes` thresholds, or fewer if no entry is above the last one.
    """
    thresholds = list[float]()
    if v.device.type == "cpu":
        edge = 0.0
        while len(thresholds) < passes:
            count, total, *_ = loops().sums(v.detach().contiguous().numpy(), edge, 0.0)
            if not count:
                break
            thresholds.append(total / count)
            edge = _rounded(thresholds[-1] * (1 + TIE), v)
    else:
        size, means = v.abs(), [v.new_zeros((), dtype=torch.float64)]
        for _ in range(passes):
            larger = size > (means[-1] * (1 + TIE)).to(v.dtype)
            mean = (size * larger).sum(dtype=torch.float64) / larger.sum()  # NaN if there are none
            means.append(torch.where(mean.isnan(), means[-1], mean))
        thresholds = [threshold for threshold in torch.stack(means).tolist() if threshold > 0]
    if not thresholds:
        return torch.empty(0, dtype=torch.int64, device=v.device), []
    indices = above(v, thresholds[-1])
    return (indices if len(indices) else reaching(v, thresholds[-1])), thresholds


def _rounded(threshold: float, v: torch.Tensor) -> float:
    return float(torch.tensor(threshold, dtype=v.dtype))
