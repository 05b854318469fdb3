"""Selection in plain torch: for any device, and the reference for the compiled loops of the CPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

TIE = 2.0**-40  # relative: more than the order of a summation changes a threshold
ENOUGH, LOWERED = 0.8, 10  # the share of the wanted entries that suffices; how often a threshold is lowered by it


def top(v: torch.Tensor, k: int) -> torch.Tensor:
    """As `select.top`."""
    if not k:
        return torch.empty(0, dtype=torch.int64, device=v.device)
    magnitudes = v.detach().abs()
    edge = torch.topk(magnitudes, k).values[-1]
    larger = (magnitudes > edge).nonzero().flatten()
    equal = (magnitudes == edge).nonzero().flatten()
    found: torch.Tensor = torch.cat((larger, equal[: k - len(larger)])).sort().values
    return found


def above(v: torch.Tensor, threshold: float) -> torch.Tensor:
    """As `select.above`."""
    return (v.detach().abs() > float(exceed(threshold, dtype_of(v)))).nonzero().flatten()


def reaching(v: torch.Tensor, threshold: float) -> torch.Tensor:
    """As `select.reaching`."""
    return (v.detach().abs() >= float(reach(threshold, dtype_of(v)))).nonzero().flatten()


def sampled(v: torch.Tensor, k: int, first: int, stride: int, rank: int) -> torch.Tensor:
    """As `select.sampled`: the threshold is the rank-th largest of a sample."""
    magnitudes = v.detach().abs()
    threshold = float(torch.topk(magnitudes[first::stride], rank).values[-1])
    for _ in range(LOWERED):
        if int((magnitudes >= float(cast_to(threshold, dtype_of(v)))).sum()) >= ENOUGH * k:
            break
        threshold *= ENOUGH
    found = (magnitudes >= float(cast_to(threshold, dtype_of(v)))).nonzero().flatten()
    return found if len(found) <= k else found[top(v[found], k)]


def std(v: torch.Tensor) -> float:
    """As `select.std`."""
    if not len(v):
        return 0.0
    shifted = v.detach().double()
    shifted = shifted - shifted[0]
    return math.sqrt(float((shifted - shifted.mean()).square().mean()))


def dynamic(v: torch.Tensor, passes: int) -> tuple[torch.Tensor, list[float]]:
    """As `select.dynamic`."""
    magnitudes = v.detach().abs()
    thresholds = dynamic_thresholds(magnitudes, passes)
    if not thresholds:
        return torch.empty(0, dtype=torch.int64, device=v.device), []
    found = above(v, thresholds[-1])
    if not len(found):
        found = reaching(v, thresholds[-1])
    return found, thresholds


def dynamic_thresholds(magnitudes: torch.Tensor, passes: int) -> list[float]:
    """At most `passes` thresholds, each the mean of the magnitudes above the one before; the first, of those not 0."""
    last = magnitudes[magnitudes > 0]
    thresholds: list[float] = []
    while len(last) and len(thresholds) < passes:
        thresholds.append(min(float(last.mean(dtype=torch.float64)), float(last.max())))
        last = last[last > float(exceed(thresholds[-1], dtype_of(magnitudes)))]
    return thresholds


def exceed(threshold: float, dtype: np.dtype[Any]) -> Any:
    """The number in the entries' dtype that an entry above the threshold is greater than."""
    return cast_to(threshold * (1 + TIE), dtype)


def reach(threshold: float, dtype: np.dtype[Any]) -> Any:
    """The number in the entries' dtype that an entry reaching the threshold is not less than."""
    return cast_to(threshold * (1 - TIE), dtype)


def cast_to(value: float, dtype: np.dtype[Any]) -> Any:
    """The value rounded to the dtype; infinite if it is too large."""
    with np.errstate(over="ignore"):
        return dtype.type(value)


def dtype_of(v: torch.Tensor) -> np.dtype[Any]:
    """The NumPy dtype of a vector."""
    return np.dtype(np.float64 if v.dtype == torch.float64 else np.float32)
