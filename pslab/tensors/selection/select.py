"""Which entries of one layer are sent: the k largest, those above a threshold, and the thresholds of two rules.

Every function takes a vector v (n, float32 or float64, finite) and has two versions that choose the same entries: loops
compiled for the CPU, on one thread, and plain torch for any other device. Indices come sorted, as int64 on v's device.

A threshold is a float64 raised by one part in 2**40 and rounded to v's dtype before it is compared. That is more than
the order of a summation can change it, so the versions agree even where entries lie exactly on a threshold.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pslab.tensors.selection import cpu, reference


def top(v: torch.Tensor, k: int) -> torch.Tensor:
    """The indices of exactly k entries of largest |v|; of equal ones, those of lower index. 0 <= k <= n."""
    if not 0 <= k <= len(v):
        raise ValueError(f"k={k}: from 0 to the {len(v)} entries of the layer")
    return torch.from_numpy(cpu.top(_array(v), k)) if _on_cpu(v) else reference.top(v, k)


def above(v: torch.Tensor, threshold: float) -> torch.Tensor:
    """The indices of the entries with |v| > threshold."""
    if not _on_cpu(v):
        return reference.above(v, threshold)
    x = _array(v)
    return torch.from_numpy(cpu.above(x, reference.exceed(threshold, x.dtype)))


def reaching(v: torch.Tensor, threshold: float) -> torch.Tensor:
    """The indices of the entries with |v| >= threshold."""
    if not _on_cpu(v):
        return reference.reaching(v, threshold)
    x = _array(v)
    return torch.from_numpy(cpu.reaching(x, reference.reach(threshold, x.dtype)))


def share(fraction: float, n: int) -> int:
    """The whole number of entries, at least one, that is the fraction of n, rounded up. 0 of none.

    A product that only rounding lifts above a whole number is that number.
    """
    exact = fraction * n
    whole = round(exact)
    return min(n, max(1, whole if math.isclose(exact, whole, rel_tol=1e-12) else math.ceil(exact)))


def sampled(v: torch.Tensor, fraction: float, part: float, draw: int) -> torch.Tensor:
    """The indices of about k = share(fraction, n) of the largest |v|: from 0.8 k to k where ten trials give so many.

    Every `stride`-th entry, from draw % stride on, gives a threshold; while fewer than 0.8 k reach it, it is taken
    times 0.8, at most ten times. Of more than k, the k largest are taken. Of a short vector all entries are the sample,
    and the answer is exact. Lin et al. (ICLR 2018), after the authors' code.

    Args:
        part: the share of the entries that is the sample, at least
        draw: a whole number by chance
    """
    n, k = len(v), share(fraction, len(v))
    stride = sample_stride(n, fraction, part)
    if stride == 1:
        return top(v, k)
    first, rank = draw % stride, share(fraction, n // stride)
    if not _on_cpu(v):
        return reference.sampled(v, k, first, stride, rank)
    return torch.from_numpy(cpu.sampled(_array(v), k, first, stride, rank))


def sample_stride(n: int, fraction: float, part: float) -> int:
    """Every so many entries one is drawn: at least two that are sent, and `part` of all. 1, or one more than eights."""
    enough = math.ceil(2 / fraction)
    if n <= enough:
        return 1
    wanted = max(share(part, n), enough)
    stride = math.ceil(n / wanted / 32) * 32 + 1
    while n // stride < wanted:
        stride -= 8
    return stride


def std(v: torch.Tensor) -> float:
    """The population standard deviation (ddof 0), in float64; exactly 0 for a constant layer."""
    return cpu.std(_array(v)) if _on_cpu(v) else reference.std(v)


def deviation(v: torch.Tensor, sigmas: float) -> torch.Tensor:
    """The indices of the entries with |v| > sigmas * std(v); the mean is not subtracted from v."""
    if _on_cpu(v):
        return torch.from_numpy(cpu.deviation(_array(v), sigmas))
    return reference.above(v, sigmas * reference.std(v))


def dynamic(v: torch.Tensor, passes: int) -> tuple[torch.Tensor, list[float]]:
    """The indices of the entries above the last of the dynamic thresholds, and the thresholds.

    From 0, each pass takes the mean of |v| over the entries above the threshold as the next one; a pass that finds none
    leaves it. If nothing exceeds the last threshold, the entries that reach it are sent, so that a constant layer and
    one of a single entry are not starved. Zeros are never sent.
    """
    if _on_cpu(v):
        indices, thresholds = cpu.dynamic(_array(v), passes)
        return torch.from_numpy(indices), thresholds
    return reference.dynamic(v, passes)


def prepare(dtype: torch.dtype) -> None:
    """Loads what the CPU's functions need for vectors of this dtype, which their first call would otherwise do."""
    if dtype in (torch.float32, torch.float64):
        cpu.loops(np.dtype(str(dtype).removeprefix("torch.")))


def _on_cpu(v: torch.Tensor) -> bool:
    return v.device.type == "cpu"


def _array(v: torch.Tensor) -> NDArray[Any]:
    array: NDArray[Any] = v.detach().contiguous().numpy()
    return array
