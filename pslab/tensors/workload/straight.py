"""Gradients of linear layers, computed straight into the buffers that the server reads, or into what a rule sums up.

Autograd makes a gradient in memory of its own and adds it to what `.grad` holds: of the weights of a linear layer that
is three passes over memory more than the product itself. Layers that are exactly nn.Linear, without hooks, note their
products in the backward pass and do them at its end, where they belong; what else uses their parameters, such as a
penalty in the loss, and all other layers go autograd's way. Both leave the same bits, but for the sign of zeros, which
changes no weight.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from pslab.config.products import MKL
from pslab.tensors.products import linear, product

ALIGNMENT = 64  # bytes, of all that torch allocates
SMALL = 1 << 12  # of fewer entries a pass costs nothing


class Place(NamedTuple):
    """Where the gradients of a layer go: of its weight [out, in], and of its bias [out], if it has one. They are added
    to `factor` times what lies there."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    factor: float = 0.0


class Straight:
    """The forward pass of one layer, and the products of its backward pass. One that is `handed` hands them to
    autograd, for whoever waits for each parameter's gradient. An `ordinary` one goes autograd's way after all."""

    finite = False  #: whether the last gradient that was written is finite for sure, if that was asked

    def __init__(self, layer: nn.Linear, library: str = MKL, handed: bool = False) -> None:
        self.layer, self.library, self.handed, self.ordinary = layer, library, handed, False
        self._products: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __deepcopy__(self, memo: Any) -> Straight:
        return self  # it holds nothing beyond a pass

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.layer.weight, self.layer.bias
        if self.ordinary or x.dim() != 2:
            return functional.linear(x, weight, bias)
        if not torch.is_grad_enabled():
            return linear(x, weight, bias, self.library)
        found: torch.Tensor = _Linear.apply(x, weight, bias, self)  # type: ignore[no-untyped-call]
        return found

    def begin(self) -> None:
        """The backward pass begins; the parameters have no gradients."""
        self._products = []

    def note(self, gradient: torch.Tensor, x: torch.Tensor) -> None:
        """The layer's output [batch, out] has this gradient, its input was `x` [batch, in]."""
        self._products.append((gradient, x.detach()))

    @torch.no_grad()
    def end(self, own: Place, sums: Place | None = None, *, asked: bool = False) -> bool:
        """The backward pass has ended: the gradient is written to its `own` place, or added to the `sums`, if that
        leaves the bits of adding it afterwards; whether it was added. If that is `asked`, `finite` says what can be
        known of it without reading it."""
        products, self._products = self._products, []
        parameters = [(own.weight, self.layer.weight), *([] if own.bias is None else [(own.bias, self.layer.bias)])]
        alone = len(products) == 1 and all(parameter.grad is None for _, parameter in parameters)
        if sums is not None and alone and self.may_add(*products[0], sums):
            _add(sums, *products[0], self.library)
            return True
        self.finite = asked and alone and _is_bounded(*products[0])
        for number, factors in enumerate(products):
            _write(own, *factors, self.library, again=number > 0)
        for place, parameter in parameters:
            if not products:
                place.zero_()
            if parameter.grad is not None:  # what autograd has found
                place.add_(parameter.grad)
        return False


    def may_add(self, gradient: torch.Tensor, x: torch.Tensor, sums: Place) -> bool:
        """Whether the product that is added to the sums has the bits of one that is added to them afterwards."""
        return self.library != MKL or (_usual(gradient, x) and sums_alike(len(gradient), sums))


def _is_bounded(gradient: torch.Tensor, x: torch.Tensor) -> bool:
    """Whether no entry of the gradients of weight and bias can overflow, nor a sum on the way to it: by Cauchy and
    Schwarz none is larger than the product of the factors' norms."""
    norm, inputs = (float(torch.linalg.vector_norm(each)) for each in (gradient, x))
    return norm * max(inputs, math.sqrt(len(x))) < torch.finfo(x.dtype).max / 4  # the norms are rounded


def _add(place: Place, gradient: torch.Tensor, x: torch.Tensor, library: str) -> None:
    if library == MKL:
        place.weight.addmm_(gradient.t(), x, beta=place.factor)
    else:
        place.weight.mul_(place.factor).add_(product(gradient.t(), x, library))
    if place.bias is not None:
        place.bias.mul_(place.factor).add_(gradient.sum(0))


def _write(place: Place, gradient: torch.Tensor, x: torch.Tensor, library: str, *, again: bool) -> None:
    if again:  # the layer was used before
        place.weight.add_(product(gradient.t(), x, library))
    elif library != MKL or place.weight.data_ptr() % ALIGNMENT:  # where a product lies changes the last bits of some
        place.weight.copy_(product(gradient.t(), x, library))
    else:
        torch.mm(gradient.t(), x, out=place.weight)
    if place.bias is None:
        return
    if again:
        place.bias.add_(gradient.sum(0))
    else:
        torch.sum(gradient, 0, out=place.bias)


def _usual(gradient: torch.Tensor, x: torch.Tensor) -> bool:
    """Whether a product's factors lie as those with which `sums_alike` tries it."""
    return all(each.is_contiguous() and not each.data_ptr() % ALIGNMENT for each in (gradient, x))


def sums_alike(batch: int, sums: Place) -> bool:
    """Whether a product of so many rows that is added as it is computed has the bits of one that is added afterwards.

    Where a library sums up in registers to the end, it does: with float32 and batches up to about 200. It is tried out.
    """
    weight = sums.weight
    if weight.numel() < SMALL:
        return False
    lies = weight.data_ptr() % ALIGNMENT
    return _tried(batch, weight.shape, weight.dtype, lies, sums.factor, torch.get_num_threads())


@cache
def _tried(
    batch: int, shape: tuple[int, int], dtype: torch.dtype, offset_bytes: int, factor: float, threads: int
) -> bool:
    (outputs, inputs), draw = shape, torch.Generator().manual_seed(0)
    gradient, x, row = (torch.randn(*size, generator=draw, dtype=dtype)
                        for size in ((batch, outputs), (batch, inputs), (inputs,)))  # fmt: skip
    room = torch.empty(outputs * inputs + ALIGNMENT, dtype=dtype)
    begin = (offset_bytes - room.data_ptr() % ALIGNMENT) % ALIGNMENT // dtype.itemsize
    within = room[begin : begin + outputs * inputs].view(shape).copy_(row.expand(shape))
    within.addmm_(gradient.t(), x, beta=factor)
    return torch.equal(within, gradient.t().mm(x).add_(row * factor))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, straight: Straight
    ) -> torch.Tensor:
        ctx.straight = straight
        ctx.save_for_backward(x, weight)
        return linear(x, weight, bias, straight.library)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (x, weight), straight = ctx.saved_tensors, ctx.straight
        of_weight = of_bias = of_x = None
        if straight.handed:
            of_weight = product(gradient.t(), x, straight.library)
            of_bias = gradient.sum(0) if ctx.needs_input_grad[2] else None
        else:
            straight.note(gradient, x)
        if ctx.needs_input_grad[0]:
            in_columns = x.stride() == (1, len(x))  # autograd's order for them
            of_x = (weight.t().mm(gradient.t()).t() if in_columns
                    else product(gradient, weight, straight.library))  # fmt: skip
        return of_x, of_weight, of_bias, None


def install(module: nn.Module, library: str = MKL, handed: bool = False) -> list[Straight]:
    """The layers of a module that write their gradients straight, or hand them to autograd, which they do from now on,
    with this library's products."""
    shared = [id(parameter) for each in module.modules() for parameter in each.parameters(recurse=False)]
    found = list[Straight]()
    for layer in module.modules():
        own = list(layer.parameters(recurse=False))
        if isinstance(forward := vars(layer).get("forward"), Straight):  # of another worker of this process
            found += [] if forward.ordinary else [forward]
        elif isinstance(layer, nn.Linear) and _plain(layer, own) and all(shared.count(id(each)) == 1 for each in own):
            found.append(Straight(layer, library, handed))
            vars(layer)["forward"] = found[-1]
    return found


def _plain(layer: nn.Linear, own: list[nn.Parameter]) -> bool:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if type(layer) is not nn.Linear or "forward" in vars(layer) or any(getattr(layer, each) for each in hooks):
        return False
    if vars(layer)["_parameters"].keys() != {"weight", "bias"}:
        return False
    return all(each.requires_grad and not (each._backward_hooks or each._post_accumulate_grad_hooks) for each in own)
