"""Products of matrices by the library that a run uses (see `pslab.config.products`)."""

from __future__ import annotations

import torch
from torch.nn import functional

from pslab.config.products import CHOICE, MKL, ONEDNN
from pslab.errors import ConfigError


def check_products(library: str) -> None:
    """Refuse a library that this torch was built without.

    Raises:
        ConfigError: it was.
    """
    if library == ONEDNN and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        raise ConfigError(CHOICE, library, f"this torch ({torch.__version__}) has no oneDNN: set {CHOICE}={MKL}")


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, library: str) -> torch.Tensor:
    """x [batch, in] times the transposed weight [out, in], and the bias [out]: [batch, out]."""
    if library == MKL:
        return functional.linear(x, weight, bias)
    found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found


def product(a: torch.Tensor, b: torch.Tensor, library: str) -> torch.Tensor:
    """a [m, k] times b [k, n]: [m, n]."""
    return a.mm(b) if library == MKL else linear(a, b.t(), None, library)
