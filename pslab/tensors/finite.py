"""Whether all entries of a vector are finite, and the refusal of one that has others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from pslab.errors import PslabError


class NonFinite(PslabError):
    """NaN or infinite entries, in a gradient or in what it makes of a memory: nothing is sent."""


def is_finite(t: torch.Tensor) -> bool:
    """Whether all entries are finite. One sum tells, unless the sum itself overflows."""
    return math.isfinite(t.detach().sum().item()) or bool(torch.isfinite(t).all())


def are_finite(vectors: Sequence[torch.Tensor]) -> bool:
    """Whether all entries of vectors on one device are finite: one number tells of all, if it is not the CPU."""
    if not vectors or vectors[0].device.type == "cpu":
        return all(map(is_finite, vectors))
    total = torch.stack([v.detach().sum(dtype=torch.float64) for v in vectors]).sum()
    return math.isfinite(float(total)) or all(bool(torch.isfinite(v).all()) for v in vectors)


def checked_finite(v: torch.Tensor, what: str = "the gradient") -> torch.Tensor:
    """The vector, detached.

    Raises:
        NonFinite: it contains NaN or infinity.
    """
    if not is_finite(v):
        raise NonFinite(f"{what} contains NaN or infinite entries: nothing was sent")
    return v.detach()
