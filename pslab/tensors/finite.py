"""Whether all entries of a vector are finite, and the refusal of one that has others."""

from __future__ import annotations

import math

import torch

from pslab.errors import PslabError


class NonFinite(PslabError):
    """NaN or infinite entries, in a gradient or in what it makes of a memory: nothing is sent."""


def is_finite(t: torch.Tensor) -> bool:
    """Whether all entries are finite. One sum tells, unless the sum itself overflows."""
    return math.isfinite(t.detach().sum().item()) or bool(torch.isfinite(t).all())


def checked_finite(v: torch.Tensor, what: str = "the gradient") -> torch.Tensor:
    """The vector, detached.

    Raises:
        NonFinite: it contains NaN or infinity.
    """
    if not is_finite(v):
        raise NonFinite(f"{what} contains NaN or infinite entries: nothing was sent")
    return v.detach()
