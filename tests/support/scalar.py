"""The scalar problem f = (w - a)^2 / 2, one target a for each worker, whose steps a reader can compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from pslab.config.run import Run
from pslab.engines.execute import execute
from pslab.engines.experiment.experiment import Outcome
from pslab.engines.server.ledger import PUSH_COLUMNS
from pslab.engines.server.shard import TensorShard
from pslab.lab.runs.resolve import resolve
from pslab.tensors.random_streams import numpy_generator

ROUNDS = 64


class Toward(torch.autograd.Function):
    """Logits that say nothing, with the gradient w - a."""

    @staticmethod
    def forward(ctx: Any, w: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(w, a)
        return torch.zeros(len(a), 2, dtype=w.dtype)

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor, None]:
        w, a = ctx.saved_tensors
        return (w - a.mean()).view_as(w), None


class Scalar(nn.Module):
    """One weight, 0 at the beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = Toward.apply(self.w, x.view(-1))
        return found


class Targets:
    """A dataset of which each worker sees its own target, for an epoch of ROUNDS iterations."""

    def __init__(self, *targets: float) -> None:
        self.targets = targets

    def __call__(self) -> tuple[torch.Tensor, ...]:
        x = torch.empty(len(self.targets) * ROUNDS, 1)
        order = numpy_generator(0, "epoch", 0).permutation(len(x))
        x[torch.from_numpy(order), 0] = torch.tensor(self.targets).repeat(ROUNDS)
        y = torch.arange(len(x)) % 2
        return x, y, x[:2], y[:2]


def scalar(sync: Any, *targets: float, **fields: Any) -> Run:
    """A virtual run of one worker a target, a second per iteration, rate 1/2."""
    defaults = {"engine": "virtual", "cluster": {"compute_s": 10.0}, "workers": len(targets), "batch_size": 1,
                "learning_rate": 0.5, "dtype": "float64", "pushes": 6}  # fmt: skip
    return Run.of({**defaults, "model": Scalar, "data": Targets(*targets), "sync": sync, **fields})


def traced(monkeypatch: pytest.MonkeyPatch, run: Run) -> tuple[list[tuple[Any, ...]], Outcome]:
    """Of each step: instant, worker, version that the worker had next, staleness that it saw, the weight after it."""
    steps: list[Any] = []

    applied = TensorShard.apply

    def apply(self: TensorShard, step: Any, rate: float, computing: Any) -> None:
        applied(self, step, rate, computing)
        steps.append((step.pushes, step.version, float(self.weights[0])))

    monkeypatch.setattr(TensorShard, "apply", apply)
    outcome = execute(resolve(run), lambda news: None)
    pushes = pd.DataFrame(outcome.pushes, columns=PUSH_COLUMNS)
    instants = dict(zip(pushes.version_applied.astype(int), pushes.seconds, strict=True))
    pulled = {(int(p.worker), int(p.iteration)): int(p.version_pulled) for p in pushes.itertuples()}
    return [(instants[version], push.worker, pulled.get((push.worker, push.iteration + 1)), push.seen, w)
            for of, version, w in steps for push in of], outcome  # fmt: skip


def serial(steps: int, rate: Callable[[int], float], target: float = 1.0) -> list[float]:
    """Plain gradient descent."""
    found, w = [], np.float64(0.0)
    for step in range(steps):
        w = w - rate(step) * (w - target)
        found.append(float(w))
    return found
