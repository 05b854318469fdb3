"""Gradients that are not finite: they end a run, or are skipped, on every engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conducted import judged
from tiny import finished, net, tiny
from torch import nn
from whole import in_process

from pslab.engines.server.ledger import PUSH_COLUMNS

CLUSTER = {"compute_s": 0.01, "slow": {0: 1.5}}
SPARSE = {"prune": "static:5%", "pull": "changed"}


class Picky(nn.Module):
    """Its output is not a number for batches whose mean is above a bound: about a third of them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) * (float("nan") if self.training and len(x) == 16 and x.mean() > 0.03 else 1.0)


class Broken(Picky):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) * (float("nan") if self.training and len(x) == 16 else 1.0)


def wanted(**fields):
    return tiny(**{"model": Picky, "pushes": 12, "workers": 2, "cluster": CLUSTER, "on_nonfinite": "skip", **fields})


@pytest.mark.parametrize("fields", [{}, SPARSE, {"sync": "local:2"}, {"sync": "asp", "rate": "adagrad"},
                                    {"sync": "eager"}], ids=["bsp", "sparse", "local", "adagrad", "eager"])  # fmt: skip
def test_what_is_not_finite_is_not_pushed_and_the_next_batch_is_computed(fields):
    given = wanted(engine="virtual", **fields)
    outcome = in_process(given)
    assert judged(given, outcome) == {"verdict": "valid"}
    assert (outcome.facts["outcome"], outcome.facts["pushes"]) == ("budget", 12)
    assert outcome.facts["skipped"] == sum(count for _, _, count in outcome.facts["skips"]) > 0
    assert np.isfinite(outcome.weights).all()
    assert np.isfinite(outcome.pushes[:, PUSH_COLUMNS.index("loss")]).all()


def test_a_skipped_gradient_takes_as_long_as_another():
    outcome = in_process(wanted(engine="virtual", sync="asp"))
    skips = {(worker, iteration): count for worker, iteration, count in outcome.facts["skips"]}
    for worker, iteration, phase, begin_s, end_s, *_ in outcome.phases:
        if phase == 0:
            each_s = 0.015 if worker == 0 else 0.01
            assert end_s - begin_s == pytest.approx(each_s * (1 + skips.get((worker, iteration), 0)))


def test_real_processes_skip_what_virtual_time_skips():
    local, virtual = (finished(wanted(engine=engine)) for engine in ("local", "virtual"))
    assert judged(wanted(engine="local"), local) == {"verdict": "valid"}
    last = 5  # of the budget's iterations; a local worker may have begun another
    assert ([row for row in local.facts["skips"] if row[1] <= last]
            == [row for row in virtual.facts["skips"] if row[1] <= last])  # fmt: skip
    np.testing.assert_array_equal(local.weights, virtual.weights)


@pytest.mark.parametrize("engine", ["virtual", pytest.param("local", marks=pytest.mark.slow)])
def test_gradients_that_are_never_finite_end_the_run(engine):
    facts = finished(wanted(model=Broken, engine=engine, cluster={"compute_s": 0.0001})).facts
    assert (facts["outcome"], facts["pushes"]) == ("diverged", 0)
    assert facts["skipped"] >= 100


def test_a_run_that_stops_at_them_says_nothing_of_skips():
    stops = wanted(engine="virtual", on_nonfinite="stop")
    facts = in_process(stops).facts
    assert facts["outcome"] == "diverged"
    assert "skipped" not in facts
