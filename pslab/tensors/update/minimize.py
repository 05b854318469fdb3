"""L-BFGS with a budget of evaluations: what a worker's iteration takes is known before it starts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch

Objective = Callable[[torch.Tensor], tuple[float, torch.Tensor]]
PAIRS = 10  # of steps and changes of the gradient that are remembered
ENOUGH = 1e-4  # of the decrease that the gradient promises (Armijo's rule)
CURVED = 1e-10  # relative: less curvature is rounding


def minimized(objective: Objective, begin: torch.Tensor, evaluations: int) -> torch.Tensor:
    """The best point [size] that L-BFGS finds from `begin` with so many evaluations of the objective at most.

    Args:
        objective: its value and gradient at a point; the gradient is copied.

    Source: Liu and Nocedal (Mathematical Programming 1989); backtracking by halves.
    """
    point, pairs = begin, deque[tuple[torch.Tensor, torch.Tensor]](maxlen=PAIRS)
    value, slope = _copied(objective(point))
    used = 1
    while used < evaluations:
        direction = _direction(slope, pairs)
        fall = float(direction @ slope)
        if not fall < 0:
            break  # at the minimum, as far as numbers go
        length = 1.0 if pairs else 1.0 / max(1.0, float(slope.norm()))
        while used < evaluations:
            there = point + length * direction
            found, other = _copied(objective(there))
            used += 1
            if found <= value + ENOUGH * length * fall:
                break
            length /= 2
        else:
            break
        step, change = there - point, other - slope
        if float(step @ change) > CURVED * float(step.norm() * change.norm()):
            pairs.append((step, change))
        point, value, slope = there, found, other
    return point


def _copied(found: tuple[float, torch.Tensor]) -> tuple[float, torch.Tensor]:
    return found[0], found[1].clone()


def _direction(slope: torch.Tensor, pairs: deque[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Minus the inverse Hessian, as the pairs show it, times the gradient: the two loops."""
    q, shares = slope.neg(), list[tuple[float, float]]()
    for step, change in reversed(pairs):
        weight = 1.0 / float(step @ change)
        share = weight * float(step @ q)
        shares.append((weight, share))
        q = q - share * change
    if pairs:
        step, change = pairs[-1]
        q = q * (float(step @ change) / float(change @ change))
    for (step, change), (weight, share) in zip(pairs, reversed(shares), strict=True):
        q = q + (share - weight * float(change @ q)) * step
    return q
