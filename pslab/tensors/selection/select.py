"""Selection of the entries of one layer that are sent: the k largest, or those above a threshold.

Every function takes a vector v ([n] float32 or float64, finite), on the CPU perhaps a `Sum`, to which what is still to
be added may have been afterwards. It returns sorted indices (int64, on v's device). Each has two implementations that
select the same entries: compiled loops for the CPU (`cpu`, one thread) and plain torch for other devices (`reference`).

Before a comparison, a threshold (float64) is raised by one part in 2**40 and rounded to v's dtype. The order of a
summation changes it by less, so both implementations agree even where entries lie exactly on a threshold.
"""

from __future__ import annotations

import math
from typing import TypeGuard

import numpy as np
import torch

from pslab.tensors.selection import cpu, reference
from pslab.tensors.selection.scan import Sum, loops

Vector = torch.Tensor | Sum


def top(v: Vector, k: int) -> torch.Tensor:
    """The indices of the k largest |v|; of equal ones, those with lower indices.

    Raises:
        ValueError: k is not from 0 to n.
    """
    if not 0 <= k <= len(v):
        raise ValueError(f"k={k} must be from 0 to the {len(v)} entries of the layer")
    return reference.top(v, k) if _elsewhere(v) else torch.from_numpy(cpu.top(Sum.of(v), k))


def above(v: Vector, threshold: float) -> torch.Tensor:
    """The indices of the entries with |v| > threshold."""
    if _elsewhere(v):
        return reference.above(v, threshold)
    x = Sum.of(v)
    return torch.from_numpy(cpu.above(x, reference.exceed(threshold, x.dtype)))


def reaching(v: Vector, threshold: float) -> torch.Tensor:
    """The indices of the entries with |v| >= threshold."""
    if _elsewhere(v):
        return reference.reaching(v, threshold)
    x = Sum.of(v)
    return torch.from_numpy(cpu.reaching(x, reference.reach(threshold, x.dtype)))


def share(fraction: float, n: int) -> int:
    """fraction * n entries, rounded up: at least one of n >= 1 entries, none of none.

    A product that exceeds an integer only by rounding errors is taken as that integer.
    """
    exact = fraction * n
    whole = round(exact)
    return min(n, max(1, whole if math.isclose(exact, whole, rel_tol=1e-12) else math.ceil(exact)))


def sampled(v: Vector, fraction: float, part: float, draw: int) -> torch.Tensor:
    """The indices of about k = share(fraction, n) of the largest |v|: 0.8 k to k where ten trials find so many.

    The sample is every `stride`-th entry, starting with number draw % stride; it gives a threshold. While fewer than
    0.8 k entries reach it, the threshold is multiplied by 0.8, at most ten times. Of more than k entries the k largest
    are taken. For a short vector the sample is the whole vector, and the selection is exact. After the code of Lin et
    al., "Deep Gradient Compression" (ICLR 2018).

    Args:
        part: the smallest share of the entries that the sample may have
        draw: a random integer
    """
    n, k = len(v), share(fraction, len(v))
    stride = sample_stride(n, fraction, part)
    if stride == 1:
        return top(v, k)
    first, rank = draw % stride, share(fraction, n // stride)
    if _elsewhere(v):
        return reference.sampled(v, k, first, stride, rank)
    return torch.from_numpy(cpu.sampled(Sum.of(v), k, first, stride, rank))


def sample_stride(n: int, fraction: float, part: float) -> int:
    """The stride of a sample that contains at least two of the entries to send, and `part` of all: 1 or 8 i + 1."""
    enough = math.ceil(2 / fraction)
    if n <= enough:
        return 1
    wanted = max(share(part, n), enough)
    stride = math.ceil(n / wanted / 32) * 32 + 1
    while n // stride < wanted:
        stride -= 8
    return stride


def std(v: Vector) -> float:
    """The population standard deviation (ddof 0) in float64; exactly 0 for a constant vector."""
    return reference.std(v) if _elsewhere(v) else cpu.std(Sum.of(v))


def deviation(v: Vector, sigmas: float) -> torch.Tensor:
    """The indices of the entries with |v| > sigmas * std(v). The mean is not subtracted from v."""
    if _elsewhere(v):
        return reference.above(v, sigmas * reference.std(v))
    return torch.from_numpy(cpu.deviation(Sum.of(v), sigmas))


def dynamic(v: Vector, passes: int) -> tuple[torch.Tensor, list[float]]:
    """The indices of the entries above the last of the dynamic thresholds, and the thresholds (at most `passes`).

    The first threshold is 0. Each pass takes the mean of |v| over the entries above the last threshold as the next one,
    while there are such entries. If no entry exceeds the last threshold, those that reach it are selected, so that a
    constant layer or one of a single entry still sends something. Zeros are never selected.
    """
    if _elsewhere(v):
        return reference.dynamic(v, passes)
    indices, thresholds = cpu.dynamic(Sum.of(v), passes)
    return torch.from_numpy(indices), thresholds


def prepare(dtype: torch.dtype) -> None:
    """Compile or load the loops for vectors of this dtype now, and not in the first call."""
    if dtype in (torch.float32, torch.float64):
        loops(np.dtype(str(dtype).removeprefix("torch.")))


def magnitudes(v: Vector, indices: torch.Tensor) -> torch.Tensor:
    """|v| at some indices."""
    return (v if isinstance(v, torch.Tensor) else torch.from_numpy(v.settled()))[indices].abs()


def _elsewhere(v: Vector) -> TypeGuard[torch.Tensor]:
    """Whether it lies on another device than the CPU."""
    return isinstance(v, torch.Tensor) and v.device.type != "cpu"

