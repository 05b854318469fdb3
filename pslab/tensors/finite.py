"""Checks that all entries of a vector are finite."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from pslab.errors import PslabError


class NonFinite(PslabError):
    """NaN or infinite entries in a gradient, or in its sum with a stored vector; nothing was sent."""


def is_finite(t: torch.Tensor) -> bool:
    """Return whether all entries are finite. A finite sum proves it; only otherwise are the entries tested."""
    return math.isfinite(t.detach().sum().item()) or bool(torch.isfinite(t).all())


def are_finite(vectors: Sequence[torch.Tensor]) -> bool:
    """Return whether all entries of vectors on one device are finite; from a GPU one number is read for all vectors."""
    if not vectors or vectors[0].device.type == "cpu":
        return all(map(is_finite, vectors))
    total = torch.stack([v.detach().sum(dtype=torch.float64) for v in vectors]).sum()
    return math.isfinite(float(total)) or all(bool(torch.isfinite(v).all()) for v in vectors)


def checked_finite(v: torch.Tensor, what: str = "the gradient") -> torch.Tensor:
    """Return the vector, detached from autograd; `what` names it in the error.

    Raises:
        NonFinite: the vector contains NaN or infinity.
    """
    if not is_finite(v):
        raise NonFinite(f"{what} contains NaN or infinite entries: nothing was sent; use a smaller learning rate")
    return v.detach()
