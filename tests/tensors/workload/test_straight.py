"""Gradients that linear layers write where they belong have the bits of autograd's, but for the sign of zeros."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny
from torch import nn

from pslab.engines.experiment.job import Job, SharedDataset
from pslab.engines.experiment.layout import Layout
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.worker import gradient as gradients
from pslab.engines.worker.gradient import Computing, module_of
from pslab.lab.runs.resolve import resolve
from pslab.tensors.device import one_thread
from pslab.tensors.finite import is_finite
from pslab.tensors.workload.straight import Place, Straight

INPUTS = 7 * 7


class Plain(nn.Module):
    def __init__(self, hidden: int = 7, bias: bool = True) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(INPUTS, hidden, bias=bias), nn.Linear(hidden, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x.flatten(1)).relu())  # type: ignore[no-any-return]


class Twice(Plain):
    """A layer is used twice, and with sequences, too."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = nn.Linear(7, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.middle(self.middle(self.first(x.flatten(1)).tanh()).tanh())
        return self.last(self.middle(torch.stack([hidden, -hidden], 1)).sum(1))  # type: ignore[no-any-return]


class Unused(Plain):
    """A layer has no part in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(7, 3)


class Tied(Plain):
    """Two layers have one matrix, and a third one's is used beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(7, 7), nn.Linear(7, 7)
        self.other.weight = self.one.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.other(self.one(self.first(x.flatten(1))).relu())
        return self.last(hidden) + self.first.weight.square().mean() + hidden @ self.last.weight.t()  # type: ignore[no-any-return]


class Mixed(Plain):
    """Layers of other kinds between them, and one that draws numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.norm, self.drop = nn.Conv2d(1, 1, 3, padding=1), nn.BatchNorm1d(7), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.first(self.start(x.reshape(-1, 1, 7, 7)).flatten(1)))
        return self.last(self.drop(hidden).relu())  # type: ignore[no-any-return]


class Hooked(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.first.register_full_backward_hook(lambda module, inward, outward: None)


def penalty(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """It differentiates twice, but not in an evaluation, which has no gradients."""
    loss = nn.functional.cross_entropy(output, target)
    if not output.requires_grad:
        return loss
    (slope,) = torch.autograd.grad(loss, output, create_graph=True)
    return loss + slope.square().sum()


class Steep(Plain):
    """Its forward pass differentiates, and the backward pass differentiates that."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1).requires_grad_()
        found: torch.Tensor = super().forward(x)
        if not torch.is_grad_enabled():
            return found
        (slope,) = torch.autograd.grad(found.sum(), x, create_graph=True)
        return found + slope.square().sum()


class Attacked(Plain):
    """Its forward pass differentiates, and goes on with numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1).requires_grad_()
        if not torch.is_grad_enabled():
            return super().forward(x)
        (slope,) = torch.autograd.grad(super().forward(x).sum(), x)
        return super().forward(x + 0.1 * slope.sign())


def computing(run: object, buffers: int = 1) -> tuple[Computing, list[torch.Tensor]]:
    experiment = resolve(run)  # type: ignore[arg-type]
    data = Arena()
    layout = Layout.of(experiment)
    job = Job.of(experiment, layout, SharedDataset.store(data, experiment.dataset))
    places = [torch.full((layout.size,), float("nan"), dtype=layout.dtype) for _ in range(buffers)]
    weights = experiment.weights.clone()
    return Computing(job, 0, job.shelf.dataset(data), weights, places, module_of(job, experiment.device)), places


def both(monkeypatch: pytest.MonkeyPatch, **fields: object) -> tuple[Computing, Computing, list[torch.Tensor]]:
    """One that writes straight, and one that goes autograd's way; where each of them leaves its gradient."""
    run = tiny(**{"engine": "virtual", "cluster": "lab", **fields})
    straight, (own,) = computing(run)
    with monkeypatch.context() as patch:
        patch.setattr(gradients, "install", lambda *_, **__: [])
        ordinary, (other,) = computing(run)
    return straight, ordinary, [own, other]


@pytest.mark.parametrize("model", [Plain, Twice, Unused, Tied, Mixed, Hooked, Steep, Attacked])
@pytest.mark.parametrize("fields", [{}, {"loss": penalty}, {"dtype": "float64"}], ids=["", "penalty", "float64"])
def test_both_ways_leave_the_same_bits(model: Callable[[], nn.Module], fields: dict[str, object], monkeypatch):
    straight, ordinary, (own, other) = both(monkeypatch, model=model, **fields)
    for each in (straight, ordinary):
        each.warm_up()
    with one_thread():
        for step in range(4):
            assert straight.gradient(step, 0) == ordinary.gradient(step, 0)
            assert torch.equal(own, other)


@settings(max_examples=20, deadline=None)
@given(hidden=st.integers(1, 300), bias=st.booleans(), batch_size=st.integers(1, 40),
       dtype=st.sampled_from(["float32", "float64"]))  # fmt: skip
def test_layers_and_batches_of_any_size_have_the_same_bits(hidden: int, bias: bool, batch_size: int, dtype: str):
    with pytest.MonkeyPatch.context() as patch, one_thread():
        fields = {"model": lambda: Plain(hidden, bias), "batch_size": batch_size, "dtype": dtype, "workers": 1}
        straight, ordinary, (own, other) = both(patch, **fields)
        for step in range(2):
            straight.gradient(step, 0)
            ordinary.gradient(step, 0)
            assert torch.equal(own, other)


class Weighted(Plain):
    """Beside the layers it has a factor, whose gradient alone may be infinite."""

    def __init__(self, slope: float = 1.0) -> None:
        super().__init__()
        self.factor, self.slope = nn.Parameter(torch.zeros(1)), slope

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.factor * self.slope * (torch.arange(10) * self.slope)


@pytest.mark.parametrize("model", [Plain, Twice, Unused, Mixed, Weighted])
def test_of_a_gradient_that_was_computed_it_is_known_whether_it_is_finite(model: Callable[[], nn.Module]):
    found, (gradient,) = computing(tiny(engine="virtual", model=model, workers=1))
    for alone in (True, False):
        found.gradient(0, 0, alone=alone)
        assert found.finite(0)
    gradient[-1] = float("inf")  # of several gradients nothing is known
    assert not found.finite(0)


def test_where_a_layer_is_finite_the_rest_is_looked_at():
    found, (gradient,) = computing(tiny(engine="virtual", model=lambda: Weighted(1e30), workers=1))
    found.gradient(0, 0, alone=True)
    assert found._keyspace.parameters[0].name == "factor"
    assert is_finite(gradient[1:])
    assert not is_finite(gradient)
    assert not found.finite(0)


def test_what_a_layer_does_not_know_is_looked_at():
    found, (gradient,) = computing(tiny(engine="virtual", model=Twice, workers=1))
    found.gradient(0, 0, alone=True)
    gradient[-1] = float("nan")  # of the layer that is used twice
    assert not found.finite(0)


@settings(max_examples=200, deadline=None)
@given(powers=st.tuples(*[st.integers(-30, 38)] * 2), batch=st.integers(1, 9), poison=st.sampled_from([0, 1, None]),
       seed=st.integers(0, 9))  # fmt: skip
def test_a_layer_calls_no_gradient_finite_that_is_not(powers, batch, poison, seed):
    layer, draw = nn.Linear(5, 3), torch.Generator().manual_seed(seed)
    factors = [torch.randn(batch, size, generator=draw) * 10.0**power
               for size, power in zip((3, 5), powers, strict=True)]  # fmt: skip
    if poison is not None:
        factors[poison][0, 0] = float("nan")
    own, found = Place(torch.empty(3, 5), torch.empty(3)), Straight(layer)
    found.begin()
    found.note(*factors)
    found.end(own, asked=True)
    finite = is_finite(own.weight) and is_finite(own.bias)
    assert finite or not found.finite
    assert found.finite or poison is not None or max(powers) > 15
