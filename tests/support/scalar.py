"""The scalar problem f = (w - a)^2 / 2, one target a for each worker, whose steps a reader can compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tiny import finished
from torch import nn

from pslab.config.run import Run
from pslab.engines.experiment.experiment import Outcome
from pslab.tensors.random_streams import numpy_generator

ROUNDS = 64


class Scalar(nn.Module):
    """One weight, 0 at the beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w.expand(len(x), 1)


def half_square(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean() / 2


def weight(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A metric: the weight."""
    return output[:, 0]


class Targets:
    """A dataset of which each worker sees its own target, for an epoch of ROUNDS iterations."""

    def __init__(self, *targets: float) -> None:
        self.targets = targets

    def __call__(self) -> tuple[torch.Tensor, ...]:
        y = torch.empty(len(self.targets) * ROUNDS, 1)
        order = numpy_generator(0, "epoch", 0).permutation(len(y))
        y[torch.from_numpy(order), 0] = torch.tensor(self.targets).repeat(ROUNDS)
        return torch.zeros_like(y), y, torch.zeros(2, 1), y[:2]


def scalar(sync: Any, *targets: float, **fields: Any) -> Run:
    """A virtual run of one worker a target, a second per iteration, rate 1/2, which is evaluated after each step."""
    defaults = {"engine": "virtual", "cluster": {"compute_s": 10.0}, "workers": len(targets), "batch_size": 1,
                "learning_rate": 0.5, "dtype": "float64", "pushes": 6, "eval_every": 1}  # fmt: skip
    return Run.of({**defaults, "model": Scalar, "data": Targets(*targets), "loss": half_square, "metric": weight,
                   "sync": sync, **fields})  # fmt: skip


def traced(run: Run) -> tuple[list[float], Outcome]:
    """Return the weight after each step, and the outcome."""
    outcome = finished(run)
    return outcome.accuracy[1:, 2].tolist(), outcome


def serial(steps: int, rate: Callable[[int], float], target: float = 1.0) -> list[float]:
    """Plain gradient descent."""
    found, w = [], np.float64(0.0)
    for step in range(steps):
        w = w - rate(step) * (w - target)
        found.append(float(w))
    return found
