"""Products of linear layers by oneDNN, which torch brings: what its own compiler calls. MKL is torch's own choice."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pslab.config.products import CHOICE, MKL, ONEDNN
from pslab.errors import ConfigError


def check_products(library: str) -> None:
    """Refuse a library that this torch was built without.

    Raises:
        ConfigError: it was.
    """
    if library == ONEDNN and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        raise ConfigError(CHOICE, library, f"this torch ({torch.__version__}) has no oneDNN: set {CHOICE}={MKL}")


def use_onednn(module: nn.Module) -> None:
    """Let the layers of a module that are exactly nn.Linear, and have a bias, multiply by oneDNN from now on."""
    for layer in module.modules():
        if type(layer) is nn.Linear and "forward" not in vars(layer) and layer.bias is not None:
            vars(layer)["forward"] = _Forward(layer)


class _Forward:
    """The forward pass of one layer."""

    def __init__(self, layer: nn.Linear) -> None:
        self._layer = layer

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 2:
            return nn.functional.linear(x, self._layer.weight, self._layer.bias)
        product: torch.Tensor = _Linear.apply(x, self._layer.weight, self._layer.bias)  # type: ignore[no-untyped-call]
        return product


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [batch, in] times the transposed weight [out, in], and the bias [out]: [batch, out]."""
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # the user differentiates this gradient, which oneDNN's products do not support
            return gradient @ weight, gradient.t() @ x, gradient.sum(0)
        of_x = _product(gradient, weight.t()) if ctx.needs_input_grad[0] else None
        return of_x, _product(gradient.t(), x.t()), gradient.sum(0)
