"""Hooks: a layer is waited for before it is used, and ready once its gradient is complete, whatever the module."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

from pslab.engines.worker.layer_hooks import Layerwise
from pslab.tensors.workload.keyspace import Keyspace
from pslab.tensors.workload.models import CNN, MLP


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.output = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(self.attention(x, x, x, need_weights=False)[0].mean(1))


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
    layerwise, said = Layerwise(module, keyspace), list[str]()
    run: Callable[[], torch.Tensor] = lambda: module(x).square().sum()  # noqa: E731
    run().backward()
    layerwise.learn(run)
    names = [layer.name for layer in keyspace.layers]
    layerwise.needs = lambda layer: said.append(f"needs {names[layer]}")
    layerwise.ready = lambda layer: said.append(f"ready {names[layer]}")
    for _ in range(passes):
        layerwise.forward_begins()
        loss = run()
        layerwise.forward_ended()
        said.append("--")
        loss.backward()
        layerwise.backward_ended()
    return said


def test_layers_of_a_chain_are_needed_in_order_and_ready_in_reverse():
    said = events(MLP(6, 4, 3), torch.ones(2, 6))
    assert said[:4] == ["needs hidden1", "needs hidden2", "needs hidden3", "needs output"]
    assert said[5:] == ["ready output", "ready hidden3", "ready hidden2", "ready hidden1"]


def test_normalizations_are_layers_too():
    said = events(CNN(), torch.randn(2, 1, 28, 28))
    assert said[:5] == [f"needs {name}" for name in ("conv1", "norm1", "conv2", "norm2", "output")]
    assert said[6] == "ready output"
    assert said[-1] == "ready conv1"
    assert len(said) == 11


def test_a_projection_without_a_hook_is_waited_for_by_its_user():
    said = events(Attention(), torch.randn(2, 3, 8))
    assert set(said[:2]) == {"needs attention", "needs attention.out_proj"}
    assert said[2:5] == ["needs output", "--", "ready output"]
    assert set(said[5:]) == {"ready attention", "ready attention.out_proj"}


def test_layers_follow_the_order_of_calls_and_unused_ones_end_last():
    said = events(Backwards(), torch.randn(2, 4))
    # what no pass was seen to use is waited for before all others
    assert said == ["needs never", "needs first", "needs second", "--", "ready second", "ready first", "ready never"]


def test_a_shared_weight_is_ready_after_its_last_use():
    said = events(Tied(), torch.tensor([[0, 1], [2, 3]]))
    assert said == ["needs embedding", "needs middle", "--", "ready middle", "ready embedding"]


def test_a_module_that_was_not_seen_waits_for_its_own_parameters():
    said = events(Moody(), torch.randn(2, 4), passes=2)
    for seen in (said[:5], said[5:]):
        assert sorted(seen[:2]) == ["needs one", "needs other"]
        assert sorted(seen[3:]) == ["ready one", "ready other"]


def test_every_pass_reports_the_same():
    said = events(MLP(6, 4, 3), torch.ones(2, 6), passes=3)
    assert said[:9] == said[9:18] == said[18:]


def test_an_exception_in_a_hook_ends_the_pass():
    class Enough(Exception):
        pass

    module = MLP(6, 4, 3)
    layerwise = Layerwise(module, Keyspace.of(module))

    def enough(layer: int) -> None:
        raise Enough

    layerwise.ready = enough
    with pytest.raises(Enough):
        module(torch.ones(2, 6)).sum().backward()


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
