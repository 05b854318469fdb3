"""Rates from end to end: vectors by hand in virtual time, and runs that are one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny
from torch import nn
from whole import in_process

from pslab.config.run import Run
from pslab.policies.rates import AdaGrad, Applied, Split
from pslab.tensors.workload.data import Batches, Dataset

UNEVEN = {"preset": "lab", "slow": {0: 3.0}}


# --- a problem whose gradients are given: what each worker pushes in each iteration, and when -------------------------

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
    """Layers of these sizes, zero at first, whose gradient is the example itself; evaluated, gives its first weight."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ParameterList([nn.Parameter(torch.zeros(size))]) for size in sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return next(self.parameters())[:1].expand(len(x), 2)
        return _Gives.apply(x, *self.parameters())


def taken(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A metric: what has been taken away from the first weight."""
    return -output[:, 0]


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


# --- by hand ----------------------------------------------------------------------------------------------------------

SAME = [[[1]], [[3]]], [[1.0], [1.5]]  # two pushes for the same version
SEQUENCE = [[[1], [1], [1], [0]], [[3], [2], [0], [0]]], [[1.0, 1.0, 1.0, 50.0], [3.5, 0.25]]  # and a late one
SUMS = [[[3], [4], [0]]], [[0.1]]  # of one worker
ONES = [[[1]] * 9], [[1.0]]
ROOTS = np.cumsum(np.arange(1, 10) ** -0.5)


@pytest.mark.parametrize(("rate", "case", "moved"), [
    ("dynsgd", SAME, [1, 2]), ("dynsgd", SEQUENCE, [1, 2, 3, 4, 6]),
    ("constant", SAME, [0.5, 2]), ("constant", SEQUENCE, [0.5, 1, 1.5, 3, 4]),
    ("dynsgd:inverse", SAME, [1, 2.5]), ("dynsgd:inverse", SEQUENCE, [1, 2, 3, 3.75, 5.75]),
    # the second worker's weights are one step older with every push of the first, then it pulls
    ("dynsgd:stalest", SEQUENCE, [1, 1.5, 1 + 1 / 2 + 1 / 3, 1 + 1 / 2 + 1 / 3 + 3 / 4, 31 / 12 + 2 / 2]),
    *((f"adagrad:{where}", *row) for where in ("worker", "server") for row in ((SUMS, [1, 1.8, 1.8]), (ONES, ROOTS))),
])  # fmt: skip
def test_weights_move_as_computed_by_hand(rate, case, moved):
    """The one weight, with its sign turned, after each push: gradients are what is taken away."""
    run = given(rate, *case).but(pushes=len(moved), eval_every=1, metric=taken)
    assert in_process(run).accuracy[1:, 2].tolist() == pytest.approx(list(moved), rel=1e-9)


class Shares(Split):
    """Shares by staleness, which here is the worker's number: the first push is fresh, the second stale by one."""

    def __init__(self, *shares: float) -> None:
        super().__init__()
        self.shares = shares

    def share(self, staleness: int, pushes: int) -> float:
        return self.shares[staleness]


@pytest.mark.parametrize(("rate", "sizes", "first", "second", "pushed"), [
    ("split:equal", (2,), (3, 0), (0, 4), (0, 12.5**0.5)), (Shares(0.5, 1.0), (2,), (3, 0), (0, 4), (0, 20**0.5)),
    ("split", (2,), (0, 4), (3, 0), (5**0.5, 0)),  # fresh: 1, stale by one: 1/2
    (Shares(3.0, 4.0), (2,), (3, 0), (0, 4), (0, 4)), (Shares(1.0, 1 / 3), (2,), (3, 4), (6, 8), (2.25, 3)),
    ("split:identity", (2,), (3, 4), (6, 8), (6, 8)),
    ("split:equal", (2, 1), (3, 0, 1), (0, 4, 1), (0, 12.5**0.5, 1)),  # by layer
])  # fmt: skip
def test_splitting_moves_as_computed_by_hand(rate, sizes, first, second, pushed):
    wanted = given(rate, [[first], [second]], [[1.0], [1.5]], sizes=sizes)
    alone, both = (-in_process(wanted.but(pushes=pushes)).weights for pushes in (1, 2))
    assert alone == pytest.approx(first, rel=1e-12)  # alone there is nothing to share out
    assert both - alone == pytest.approx(pushed, abs=1e-9)


# --- every rate -------------------------------------------------------------------------------------------------------


class Doubled:
    """A rate of the user's: a factor and no more."""

    def scale(self, step: Applied) -> float:
        return 2.0 / step.workers


#: Two runs that are one, and by how much their weights may differ.
DOUBLE = {"sync": "asp", "cluster": UNEVEN, "dtype": "float64", "learning_rate": 0.05}
ONE_WORKER = {**DOUBLE, "cluster": "steady", "workers": 1}
EQUAL: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    "a push weight is a learning rate": (
        {"sync": "asp", "cluster": UNEVEN, "learning_rate": 0.4},
        {"sync": "asp", "cluster": UNEVEN, "learning_rate": 0.1, "push_weight": 1.0}, 0.0),
    **{f"under a barrier {rate} is averaging": ({"cluster": "lab"}, {"cluster": "lab", "rate": rate}, 0.0)
       for rate in ("dynsgd", "dynsgd:stalest", "split:identity", "modulated")},
    "sums at the server are torch's adagrad": (
        {**DOUBLE, "rate": "adagrad:server"}, {**DOUBLE, "optimizer": "adagrad", "push_weight": 1.0}, 1e-10),
    "sums at one worker are torch's adagrad": (
        {**ONE_WORKER, "rate": AdaGrad()}, {**ONE_WORKER, "optimizer": "adagrad"}, 1e-10),
    "a rate of the user's is a factor and no more": (
        {"sync": "asp", "cluster": UNEVEN, "rate": Doubled(), "learning_rate": 0.1},
        {"sync": "asp", "cluster": UNEVEN, "learning_rate": 0.2}, 1e-6),
}  # fmt: skip


@pytest.mark.parametrize("rule", EQUAL)
def test_two_runs_that_are_one_end_with_the_same_weights(rule: str):
    one, other, differ = EQUAL[rule]
    here, there = (in_process(tiny(engine="virtual", **fields)).weights for fields in (one, other))
    assert np.allclose(here, there, rtol=differ, atol=1e-3 * differ)
