"""Evaluation: statistics that belong to the weights that are evaluated, whatever module keeps them."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tiny import net, tiny
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

from pslab.engines.execute import execute
from pslab.lab.runs import resolve as resolving
from pslab.tensors.workload.running_statistics import calibration


class Far(nn.Module):
    """Inputs far from what a norm expects at first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 30 + 9 * x


class Drawing(nn.Module):
    """Random also in evaluation, by generators of its own, too."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()
        self.own = [np.random.default_rng(0)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) * (1 + random.random()) + torch.rand(10) + 9 * self.own[0].random()


def instance_norm() -> nn.Module:
    return nn.Sequential(Far(), nn.InstanceNorm2d(1, momentum=0.5, track_running_stats=True), net())


def batch_norm() -> nn.Module:
    return nn.Sequential(Far(), nn.BatchNorm2d(1), net())


def accuracy_of(model: Callable[[], nn.Module]) -> list[float]:
    run = tiny(engine="virtual", cluster="steady", model=model, pushes=160, eval_every=160, learning_rate=0.5)
    return [float(value) for value in execute(resolving.resolve(run), lambda news: None).accuracy[-1][2:]]


@pytest.mark.one_of(2)
@pytest.mark.parametrize("model", [batch_norm, instance_norm])
def test_statistics_are_those_of_the_weights(monkeypatch: pytest.MonkeyPatch, model: Callable[[], nn.Module]):
    accuracy, _ = accuracy_of(model)
    assert accuracy > 0.6
    monkeypatch.setattr(resolving, "_FOUND", {})
    monkeypatch.setattr(resolving, "running_norms", lambda *_: ())
    at_their_start, _ = accuracy_of(model)
    assert at_their_start < accuracy - 0.2


def test_draws_in_evaluation_are_the_same_each_time():
    assert accuracy_of(Drawing) == accuracy_of(Drawing)
    run = tiny(engine="virtual", cluster="steady", model=Drawing, pushes=8, eval_every=4, learning_rate=1e-12)
    losses = execute(resolving.resolve(run), lambda news: None).accuracy[:, 3]
    assert losses == pytest.approx(losses[0], rel=1e-5)


class Shifted(nn.Module):
    """A model whose gradient is what its own generator draws."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.w = np.random.default_rng(0), nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        at = int(self.own.integers(8)) if self.training else 0
        return self.w[at] + torch.zeros(len(x), 10)


def first(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return output[:, 0].mean()


def test_workers_do_not_draw_the_same_from_a_generator_of_the_model():
    run = tiny(engine="virtual", cluster="steady", model=Shifted, loss=first, metric="loss", sync="bsp", pushes=4)
    weights = execute(resolving.resolve(run), lambda news: None).weights
    assert (weights != 0).sum() > 1


class Squeezed(nn.Module):
    """A model of which torch makes nothing for a batch of one: it normalizes over the batch, and squeezes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x).squeeze()


@pytest.mark.parametrize(("train", "test"), [(257, 1001), (513, 3)])
def test_no_single_example_is_left_for_a_last_batch(train, test):
    draw = torch.Generator().manual_seed(0)
    x, y, test_x, test_y = (torch.randn(*shape, generator=draw) for shape in ((train, 4), (train,), (test, 4), (test,)))
    run = tiny(engine="virtual", cluster="steady", model=Squeezed, data=lambda: (x, y, test_x, test_y), loss="mse",
               metric="loss", pushes=4, dtype="float64")  # fmt: skip
    outcome = execute(experiment := resolving.resolve(run), lambda news: None)
    module, order = Squeezed().double(), torch.from_numpy(calibration(run.seed, train))
    experiment.keyspace.bind(module, torch.from_numpy(outcome.weights.copy()), None)
    module.net[1].momentum = None  # torch's plain mean over the batches
    with torch.no_grad():
        for batch in (order[:256], order[256:]) if train == 513 else (order,):
            module(x[batch].double())
        expected = nn.functional.mse_loss(module.eval()(test_x.double()), test_y.double())
    assert outcome.accuracy[-1][3] == pytest.approx(float(expected), rel=1e-12)


class Merging(nn.Module):
    """Adds its factors into a frozen weight in evaluation mode, and takes them out in training mode, as LoRA does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.merged = nn.Parameter(torch.ones(2, 4), requires_grad=False), False
        self.a, self.b = nn.Parameter(torch.linspace(-1, 1, 4).view(1, 4)), nn.Parameter(torch.zeros(2, 1))

    def train(self, mode: bool = True) -> Merging:
        if mode == self.merged:
            self.weight.data += (-1 if mode else 1) * self.b.data @ self.a.data
        self.merged = not mode
        return super().train(mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.t() + (0 if self.merged else x @ self.a.t() @ self.b.t())


class Mean:
    """The mean error over all outputs so far, as metrics have it that are reset for each evaluation."""

    total = count = 0.0

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> float:
        self.total, self.count = self.total + float((output - target).abs().mean(1).sum()), self.count + len(target)
        return self.total / self.count


class InTraining(nn.Module):
    """A loss that is larger in training."""

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(output, target) * (2 if self.training else 1)


def complete(batch: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    """Those examples of a batch that could be read."""
    return default_collate([(x, y) for x, y in batch if not x.isnan().any()])


@pytest.mark.parametrize(("fields", "column"), [
    ({"model": Merging}, 3), ({"metric": Mean()}, 2), ({"loss": InTraining()}, 3), ({"metric": InTraining()}, 2),
    ({"unread": 12}, 3)], ids=["merged", "summed", "loss module", "metric module", "left out"])  # fmt: skip
def test_an_evaluation_is_that_of_fresh_objects_on_the_examples_that_there_are(fields, column):
    x, y = torch.linspace(-2, 2, 192).view(48, 4).sin(), torch.linspace(0, 1, 96).view(48, 2).cos()
    left = 48 - (unread := fields.pop("unread", 0))
    if unread:
        x[-unread:] = torch.nan
    loader = DataLoader(TensorDataset(x, y), collate_fn=complete)
    given = {"model": lambda: nn.Linear(4, 2), "loss": "mse", "metric": "loss", "data": lambda: [loader] * 2,
             "workers": 1, "batch_size": 48, "pushes": 12, "eval_every": 4, "engine": "virtual",
             "cluster": "lab"}  # fmt: skip
    outcome = execute(experiment := resolving.resolve(tiny(**given | fields)), lambda news: None)
    module = (given | fields)["model"]()
    experiment.keyspace.bind(module, torch.from_numpy(outcome.weights.copy()), None)
    with torch.no_grad():
        error = module.eval()(x[:left]) - y[:left]
    expected = error.abs().mean() if isinstance(fields.get("metric"), Mean) else error.pow(2).mean()
    assert outcome.accuracy[-1][column] == pytest.approx(float(expected), rel=1e-5)
