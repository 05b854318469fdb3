"""Gradients of linear layers, computed straight into the buffers that the server reads.

Autograd makes a gradient in memory of its own and adds it to what `.grad` holds: of the weights of a linear layer that
is three passes over memory more than the product itself. Layers that are exactly nn.Linear, without hooks, write
theirs; what else uses their parameters, such as a penalty in the loss, and all other layers go autograd's way. Both
leave the same bits, but for the sign of zeros, which changes no weight.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

ALIGNMENT = 64  # bytes, of all that torch allocates


class Straight:
    """The forward pass of one layer, and where its gradients go: `weight` [out, in] and `bias` [out], if it has one.
    An `ordinary` one goes autograd's way after all."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, layer: nn.Linear) -> None:
        self.layer, self.ordinary, self._written = layer, False, False

    def __deepcopy__(self, memo: Any) -> Straight:
        return self  # it holds nothing of a pass

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.layer.weight, self.layer.bias
        if self.ordinary or x.dim() != 2 or not torch.is_grad_enabled():
            return functional.linear(x, weight, bias)
        found: torch.Tensor = _Linear.apply(x, weight, bias, self)  # type: ignore[no-untyped-call]
        return found

    def begin(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """A pass begins, whose gradients go there; the parameters have none."""
        self.weight, self.bias, self._written = weight, bias, False

    def put(self, gradient: torch.Tensor, x: torch.Tensor) -> None:
        """The layer's output [batch, out] has this gradient, its input was `x` [batch, in]."""
        if self._written:  # a layer that is used again
            self.weight.add_(gradient.t().mm(x))
        elif self.weight.data_ptr() % ALIGNMENT:  # where a product lies changes the last bits of some
            self.weight.copy_(gradient.t().mm(x))
        else:
            torch.mm(gradient.t(), x, out=self.weight)
        if self.bias is not None:
            if self._written:
                self.bias.add_(gradient.sum(0))
            else:
                torch.sum(gradient, 0, out=self.bias)
        self._written = True

    def end(self) -> None:
        """The pass has ended: what autograd has found is added, and a layer that was not used has a gradient of 0."""
        for place, parameter in ((self.weight, self.layer.weight), (self.bias, self.layer.bias)):
            if place is None:
                continue
            if not self._written:
                place.zero_()
            if parameter.grad is not None:
                place.add_(parameter.grad)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, straight: Straight
    ) -> torch.Tensor:
        ctx.straight = straight
        ctx.save_for_backward(x, weight)
        return functional.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, None, None, None]:
        x, weight = ctx.saved_tensors
        ctx.straight.put(gradient, x)
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        if x.stride() == (1, len(x)):  # autograd's order for inputs in columns
            return weight.t().mm(gradient.t()).t(), None, None, None
        return gradient.mm(weight), None, None, None


def install(module: nn.Module) -> list[Straight]:
    """The layers of a module that write their gradients straight, which they do from now on."""
    shared = [id(parameter) for each in module.modules() for parameter in each.parameters(recurse=False)]
    found = list[Straight]()
    for layer in module.modules():
        own = list(layer.parameters(recurse=False))
        if isinstance(forward := vars(layer).get("forward"), Straight):  # of another worker of this process
            found += [] if forward.ordinary else [forward]
        elif isinstance(layer, nn.Linear) and _plain(layer, own) and all(shared.count(id(each)) == 1 for each in own):
            found.append(Straight(layer))
            vars(layer)["forward"] = found[-1]
    return found


def _plain(layer: nn.Linear, own: list[nn.Parameter]) -> bool:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if type(layer) is not nn.Linear or "forward" in vars(layer) or any(getattr(layer, each) for each in hooks):
        return False
    return all(each.requires_grad and not (each._backward_hooks or each._post_accumulate_grad_hooks) for each in own)
