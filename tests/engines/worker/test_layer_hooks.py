"""Hooks: a layer is waited for before it is used, and ready once its gradient is complete, whatever the module."""

from __future__ import annotations

import gc
import itertools
import weakref
from typing import Any

import pytest
import torch
from tiny import Parts
from torch import nn

from pslab.engines.worker.layered import Layerwise
from pslab.tensors.workload.keyspace import Keyspace
from pslab.tensors.workload.models import CNN, MLP


def four() -> nn.Module:
    return nn.Linear(4, 4)


def backwards() -> nn.Module:
    """Its modules are called in another order than they are named, one of them twice, and one never."""
    return Parts(lambda m, x: m.second(m.first(m.first(x))), second=four(), never=four(), first=four())


def tied() -> nn.Module:
    """The output uses the embedding's weights."""
    return Parts(lambda m, x: m.middle(m.embedding(x)).mean(1) @ m.embedding.weight.T, embedding=nn.Embedding(5, 4),
                 middle=four())  # fmt: skip


def own_loss(module: Any, x: torch.Tensor) -> torch.Tensor:
    """One layer has a loss of its own, whose backward pass is within the forward pass."""
    h = module.block(x)
    h.pow(2).mean().backward(retain_graph=True)
    return module.head(h)


def moody() -> nn.Module:
    """Goes another way in every second pass."""
    turns = itertools.cycle(("one", "other"))
    return Parts(lambda m, x: getattr(m, next(turns))(x), one=four(), other=four())


def events(module: nn.Module, x: torch.Tensor, passes: int = 1) -> list[str]:
    """What is needed and ready, by the layers' names. A layer that is used before it was waited for fails."""
    keyspace = Keyspace.of(module)
    layerwise, seen = Layerwise(module, keyspace), list[str]()

    def run() -> torch.Tensor:
        return module(x).square().sum()

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
     (backwards(), torch.randn(2, 4), passed("never first second", "second first never")),
     (tied(), torch.tensor([[0, 1], [2, 3]]), passed("embedding middle", "middle embedding")),
     (Parts(own_loss, block=four(), head=four()), torch.randn(2, 4), passed("block head", "head block"))],
    ids=["chain", "normalizations", "order of calls", "shared weight", "local loss"],
)  # fmt: skip
def test_layers_are_needed_in_the_order_of_calls_and_ready_in_reverse(module, x, expected):
    assert events(module, x, passes=3) == expected * 3


def test_a_module_that_was_not_seen_waits_for_its_own_parameters():
    both = events(moody(), torch.randn(2, 4), passes=2)
    for seen in (both[:5], both[5:]):
        assert sorted(seen[:2]) == ["needs one", "needs other"]
        assert sorted(seen[3:]) == ["ready one", "ready other"]


def test_what_has_hooks_goes_with_its_last_owner():
    def used() -> weakref.ref[Layerwise]:
        module, x = backwards(), torch.ones(2, 4)
        layerwise = Layerwise(module, Keyspace.of(module))
        layerwise.learn(lambda: module(x))
        layerwise.forward_begins()
        module(x).sum().backward()
        return weakref.ref(layerwise)

    gone = used()
    gc.collect()
    assert gone() is None
