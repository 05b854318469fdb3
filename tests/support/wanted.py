"""A problem whose gradients are given: what each worker pushes in each iteration, and when."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from pslab.config.run import Run
from pslab.engines.execute import execute
from pslab.lab.runs.resolve import resolve
from pslab.tensors.workload.data import Batches, Dataset

Vectors = Sequence[Sequence[float]]


class _Gives(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, *parameters):
        ctx.x, ctx.shapes = x, [p.shape for p in parameters]
        return torch.zeros(len(x), 2, dtype=x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        pieces = ctx.x[0].split([shape.numel() for shape in ctx.shapes])
        return None, *(piece.view(shape) for piece, shape in zip(pieces, ctx.shapes, strict=True))


class Given(nn.Module):
    """Layers of these sizes, zero at first, whose gradient is the example itself."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ParameterList([nn.Parameter(torch.zeros(size))]) for size in sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Gives.apply(x, *self.parameters())


def data(gradients: Sequence[Vectors]) -> Dataset:
    """Examples such that worker w learns in iteration t from gradients[w][t] alone."""
    workers, iterations = len(gradients), max(map(len, gradients))
    count = workers * iterations
    x = torch.zeros(count, len(gradients[0][0]), dtype=torch.float64)
    for worker, mine in enumerate(gradients):
        batches = Batches(count, workers, worker, 1, 0)
        for iteration, gradient in enumerate(mine):
            x[int(batches.at(iteration)[0])] = torch.tensor(gradient, dtype=torch.float64)
    y = torch.arange(count) % 2
    return Dataset("given", x, y, x[:2], y[:2], mean=0.0, std=1.0, classes=2)


def given(
    rate: Any, gradients: Sequence[Vectors], seconds: Sequence[Sequence[float]], *, sizes: Sequence[int] = (1,),
    **fields: Any,
) -> Run:  # fmt: skip
    """A run in virtual time whose worker w takes seconds[w][t] for gradients[w][t]; learning rate 1, plain SGD."""
    cluster = {"compute_s": 1.0, "trace": dict(enumerate(seconds))}
    plain = {"engine": "virtual", "sync": "asp", "dtype": "float64", "learning_rate": 1.0, "batch_size": 1}
    return Run.of({**plain, "workers": len(gradients), "model": partial(Given, sizes), "rate": rate,
                   "data": partial(data, gradients), "cluster": cluster, **fields})  # fmt: skip


def weights(run: Run, pushes: int) -> np.ndarray:
    """The weights after so many pushes."""
    return execute(resolve(run.but(pushes=pushes)), lambda news: None).weights
