"""Hooks: a layer is waited for before it is used, and ready once its gradient is complete, whatever the module."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

from pslab.engines.worker.layered import Layerwise
from pslab.tensors.workload.keyspace import Keyspace
from pslab.tensors.workload.models import CNN, MLP


class Backwards(nn.Module):
    """Its modules are called in another order than they are named, one of them twice, and one never."""

    def __init__(self) -> None:
        super().__init__()
        self.second, self.never, self.first = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(self.first(x)))


class Tied(nn.Module):
    """The output uses the embedding's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.middle = nn.Embedding(5, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.middle(self.embedding(x)).mean(1) @ self.embedding.weight.T


class Local(nn.Module):
    """One layer has a loss of its own, whose backward pass is within the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.block(x)
        h.pow(2).mean().backward(retain_graph=True)
        return self.head(h)


class Moody(nn.Module):
    """Goes another way in every second pass."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.calls = nn.Linear(4, 3), nn.Linear(4, 3), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.one(x) if self.calls % 2 else self.other(x)


def events(module: nn.Module, x: torch.Tensor, passes: int = 1) -> list[str]:
    """What is needed and ready, by the layers' names. A layer that is used before it was waited for fails."""
    keyspace = Keyspace.of(module)
    layerwise, seen = Layerwise(module, keyspace), list[str]()
    run: Callable[[], torch.Tensor] = lambda: module(x).square().sum()  # noqa: E731
    run().backward()
    layerwise.learn(run)
    names = [layer.name for layer in keyspace.layers]
    layerwise.needs = lambda layer: seen.append(f"needs {names[layer]}")
    layerwise.ready = lambda layer: seen.append(f"ready {names[layer]}")
    for _ in range(passes):
        layerwise.forward_begins()
        loss = run()
        layerwise.forward_ended()
        seen.append("--")
        loss.backward()
        layerwise.backward_ended()
    return seen


def passed(needs: str, ready: str) -> list[str]:
    return [*(f"needs {name}" for name in needs.split()), "--", *(f"ready {name}" for name in ready.split())]


@pytest.mark.parametrize(
    ("module", "x", "expected"),
    [(MLP(6, 4, 3), torch.ones(2, 6), passed("hidden1 hidden2 hidden3 output", "output hidden3 hidden2 hidden1")),
     (CNN(), torch.randn(2, 1, 28, 28), passed("conv1 norm1 conv2 norm2 output", "output norm2 conv2 norm1 conv1")),
     # what no pass was seen to use is waited for before all others
     (Backwards(), torch.randn(2, 4), passed("never first second", "second first never")),
     (Tied(), torch.tensor([[0, 1], [2, 3]]), passed("embedding middle", "middle embedding")),
     (Local(), torch.randn(2, 4), passed("block head", "head block"))],
    ids=["chain", "normalizations", "order of calls", "shared weight", "local loss"],
)  # fmt: skip
def test_layers_are_needed_in_the_order_of_calls_and_ready_in_reverse(module, x, expected):
    assert events(module, x, passes=3) == expected * 3


def test_a_module_that_was_not_seen_waits_for_its_own_parameters():
    both = events(Moody(), torch.randn(2, 4), passes=2)
    for seen in (both[:5], both[5:]):
        assert sorted(seen[:2]) == ["needs one", "needs other"]
        assert sorted(seen[3:]) == ["ready one", "ready other"]


def test_what_has_hooks_goes_with_its_last_owner():
    def used() -> weakref.ref[Layerwise]:
        module, x = Backwards(), torch.ones(2, 4)
        layerwise = Layerwise(module, Keyspace.of(module))
        layerwise.learn(lambda: module(x))
        layerwise.forward_begins()
        module(x).sum().backward()
        return weakref.ref(layerwise)

    gone = used()
    gc.collect()
    assert gone() is None
