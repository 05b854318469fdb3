"""Linear layers computed by oneDNN, through the operation that torch's compiler uses. Torch's default is MKL."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pslab.config.products import CHOICE, MKL, ONEDNN
from pslab.errors import ConfigError


def check_products(library: str) -> None:
    """Refuse a library that this torch was built without.

    Raises:
        ConfigError: this torch has no oneDNN.
    """
    if library == ONEDNN and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        raise ConfigError(CHOICE, library, f"this torch ({torch.__version__}) has no oneDNN: set {CHOICE}={MKL}")


def use_onednn(module: nn.Module) -> None:
    """Let a module's layers compute by oneDNN if their class is exactly nn.Linear and they have a bias."""
    for layer in module.modules():
        if type(layer) is nn.Linear and "forward" not in vars(layer) and layer.bias is not None:
            vars(layer)["forward"] = _Forward(layer)


class _Forward:
    def __init__(self, layer: nn.Linear) -> None:
        self._layer = layer

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 2:
            return nn.functional.linear(x, self._layer.weight, self._layer.bias)
        return _differentiable(x, self._layer.weight, self._layer.bias)


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return x [batch, in] times the transposed weight [out, in], plus the bias [out]: [batch, out]."""
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        # with gradients enabled, the user differentiates these gradients, too
        product = _differentiable if torch.is_grad_enabled() else _product
        of_x = product(gradient, weight.t()) if ctx.needs_input_grad[0] else None
        of_bias = gradient.sum(0) if ctx.needs_input_grad[2] else None
        return of_x, product(gradient.t(), x.t()), of_bias


def _differentiable(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    product: torch.Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return product
