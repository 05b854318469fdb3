"""Evaluation: statistics that belong to the weights that are evaluated, whatever module keeps them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from tiny import net, tiny
from torch import nn

from pslab.engines.execute import execute
from pslab.lab.runs import resolve as resolving
from pslab.tensors.workload.running_statistics import Running


class Far(nn.Module):
    """Inputs far from what a norm expects at first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 30 + 9 * x


class Standardized(nn.Module):
    """Standardizes each pixel by running statistics of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("middle", torch.zeros(7, 7))
        self.register_buffer("width", torch.ones(7, 7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return (x - self.middle) / self.width
        middle, width = x.mean((0, 1)), x.std((0, 1)) + 1
        self.middle += 0.1 * (middle.detach() - self.middle)
        self.width += 0.1 * (width.detach() - self.width)
        return (x - middle) / width


class Drawing(nn.Module):
    """Random also in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) * (1 + random.random()) + torch.rand(10)


def own() -> nn.Module:
    return nn.Sequential(Far(), Standardized(), net())


def instance_norm() -> nn.Module:
    return nn.Sequential(Far(), nn.InstanceNorm2d(1, momentum=0.5, track_running_stats=True), net())


def batch_norm() -> nn.Module:
    return nn.Sequential(Far(), nn.BatchNorm2d(1), net())


def accuracy_of(model: Callable[[], nn.Module]) -> list[float]:
    run = tiny(engine="virtual", cluster="steady", model=model, pushes=160, eval_every=160, learning_rate=0.5)
    return [float(value) for value in execute(resolving.resolve(run), lambda news: None).accuracy[-1][2:]]


@pytest.mark.one_of(3)
@pytest.mark.parametrize("model", [own, batch_norm, instance_norm])
def test_statistics_are_those_of_the_weights(monkeypatch: pytest.MonkeyPatch, model: Callable[[], nn.Module]):
    accuracy, _ = accuracy_of(model)
    assert accuracy > 0.6
    monkeypatch.setattr(resolving, "_FOUND", {})
    monkeypatch.setattr(resolving, "running_of", lambda *_: Running())
    at_their_start, _ = accuracy_of(model)
    assert at_their_start < accuracy - 0.2


def test_draws_in_evaluation_are_the_same_each_time():
    assert accuracy_of(Drawing) == accuracy_of(Drawing)
