"""A problem that trains in milliseconds: real digits, few of them, and a model that is small but not trivial."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from pslab.config.run import Run
from pslab.tensors.workload.data import Dataset, data_root, resolve_data

if TYPE_CHECKING:
    from pslab.engines.experiment.experiment import Experiment, Outcome


@lru_cache(maxsize=1)
def digits() -> Dataset:
    """1,024 digits for training and 256 for testing, of 7 x 7 pixels."""
    full = resolve_data("mnist:train=1024,test=256", data_root())
    train_x, test_x = (x[:, :, 2::4, 2::4].contiguous() for x in (full.train_x, full.test_x))
    return Dataset("digits", train_x, full.train_y, test_x, full.test_y, mean=full.mean, std=full.std, classes=10)


def net(hidden: int = 32) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(49, hidden), nn.Tanh(), nn.Linear(hidden, 10))


def tiny(**fields: object) -> Run:
    """A run on it: 4 workers, 16 examples each, and never repeated in slower time for a machine that is busy."""
    defaults = {"model": net, "data": digits, "batch_size": 16, "pushes": 40, "learning_rate": 0.2,
                "keep_weights": True, "dilation": 1}  # fmt: skip
    return Run.of({**defaults, **fields})


def quiet(news: dict[str, Any]) -> None:
    """Show no news of a run."""


def finished(run: Run | Experiment, look: Callable[[dict[str, Any]], None] = quiet) -> Outcome:
    """What a run leaves, of whose news `look` is told."""
    from pslab.engines.execute import execute  # children, which import models from here, need neither
    from pslab.lab.runs.resolve import resolve

    return execute(resolve(run) if isinstance(run, Run) else run, look)


def conduct(look: Callable[[dict[str, Any]], None] = quiet, **fields: Any) -> Outcome:
    """What a tiny run of 2 workers leaves."""
    return finished(tiny(**{"workers": 2, **fields}), look)


def huber(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    assert output.dtype == target.dtype  # numbers come in the dtype of the run
    return nn.functional.huber_loss(output, target, delta=0.3)


def worst(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The largest error of each example."""
    return (output - target).abs().flatten(1).amax(1)


worst.lower_is_better = True  # type: ignore[attr-defined]


class Parts(nn.Module):
    """Named modules and parameters, and a forward pass of them."""

    def __init__(self, forward: Callable[[Any, torch.Tensor], torch.Tensor], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._forward = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._forward(self, x)


class Attention(nn.Module):
    """Its output projection calls no hook; its rows are a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.attention = nn.Linear(7, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.output = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.project(x.squeeze(1))
        return self.output((x + self.attention(x, x, x, need_weights=False)[0]).mean(1))


class Odd(nn.Module):
    """Its layers are called in another order than they are named: one twice, one as a bare weight."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first, self.bare = nn.Linear(49, 10), nn.Linear(49, 49), nn.Linear(49, 49, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(torch.tanh(self.first(x.flatten(1))))
        return self.last(x @ self.bare.weight.T)


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(49), nn.Linear(49, 10))


def convolution() -> nn.Module:
    """A model with buffers, which no process may share."""
    return nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(100, 10))


class Raises(nn.Module):
    """A model that raises once it has seen `good` batches."""

    def __init__(self, good: int = 6) -> None:
        super().__init__()
        self.net, self.left = net(), good

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        return self.net(x) if self.left >= 0 else self.after(x)

    def after(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("the model broke here")


class Diverges(Raises):
    """A model whose output is not a number after a while."""

    def after(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) * float("nan")


class Swells(nn.Module):
    """A model with finite gradients that add up to more than float32 has numbers for."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.extra = net(), nn.Parameter(torch.zeros(100))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        extra = 1.0 * self.extra
        if extra.requires_grad:
            extra.register_hook(lambda _: torch.linspace(1e38, 3e38, 100))
        return self.net(x) + 0.0 * extra.sum()


def draw_globally() -> torch.Tensor:
    """Draw from each global generator."""
    return torch.tensor([random.random(), np.random.rand(), float(torch.rand(()))])


class Noisy(nn.Module):
    """A model that draws from every global generator, and notes what it drew."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.bias, self.draws = net(), nn.Parameter(draw_globally()), 0
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        drawn = draw_globally()
        if not self.training:
            return self.net(x) * (1 + drawn.mean())
        self.draws += 1
        self.last = drawn if self.draws % 3 else self.last  # an assignment, not a change of the tensor
        return self.net(x) * (1 + drawn.mean() + self.last.sum()) + (self.bias * drawn).sum()


def global_states() -> tuple[str, str, str]:
    """What the global generators of Python, NumPy and torch would draw next."""
    return repr(random.getstate()), repr(np.random.get_state()), repr(torch.get_rng_state().tolist())
