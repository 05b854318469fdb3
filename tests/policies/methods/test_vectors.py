"""Methods on the scalar problem: weights after each step by hand, and what each iteration exchanges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scalar import Targets, scalar, traced
from tiny import finished, tiny

from pslab.engines.server.ledger import PUSH_COLUMNS, reached
from pslab.lab.judge import tables_of
from pslab.lab.runs.resolve import resolve
from pslab.policies.methods.admm import ADMM
from pslab.policies.methods.average import Average
from pslab.policies.methods.downpour import Downpour
from pslab.policies.methods.local_sgd import LocalSGD
from pslab.protocol.traits import Lengths, traits_of
from pslab.tensors.random_streams import numpy_generator

SGD = {"inner": "sgd", "optimizer": "sgd:momentum=0", "outer_learning_rate": 1.0}  # local SGD
NESTEROV = {"inner": "sgd", "optimizer": "sgd:momentum=0.9,nesterov=True", "outer_learning_rate": 0.7}


class Falling(torch.nn.Module):
    """One weight, which is its own output."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w.expand(len(x), 2)


class TwoEach:
    """Worker 0 sees 2 and 2, worker 1 sees 0 and 4."""

    def __call__(self) -> tuple[torch.Tensor, ...]:
        x, y, _, _ = Targets(2.0, 0.0)()
        x[int(numpy_generator(0, "epoch", 0).permutation(len(x))[3]), 0] = 4.0  # the second batch of worker 1
        return x, y, x[:2], y[:2]


FALLS = {
    "model": Falling,
    "loss": lambda output, target: output[:, 0].mean(),
    "metric": "loss",
    "learning_rate": 1.0,
    "pushes": 4,
}  # whose gradient is 1 everywhere; fmt: skip
BOTH = (0.0, 4.0)
#: The policy, each worker's target, fields, and the weight after each step.
VECTORS: list[tuple[str, tuple[float, ...], dict[str, Any], list[float]]] = [
    ("local:2,after=2", BOTH, {"pushes": 8}, [1.0, 1.5, 1.875]),  # from 1.5 as in the second round of local:2
    ("local:2", (4.0,), {"schedule": "linear", "pushes": 4}, [2.75, 3.1796875]),  # which counts gradients
    ("average", (2.0, 0.0), {"data": TwoEach(), "pushes": 4}, [1.75]),  # of 1.5 and 2
    ("diloco:2", BOTH, {"inner": "sgd", "pushes": 12}, [1.995, 2.8504875, 2.76970247]),  # what nothing names: paper's
    ("diloco:1,after=2", BOTH, {**SGD, "pushes": 6}, [1.0, 1.5, 1.75]),
    ("diloco:1,after=2", BOTH, {**NESTEROV, "pushes": 8}, [1.0, 1.5, 1.8325, 2.0856375]),  # momentum begins after them
    ("diloco:2,periods=1;2", BOTH, {**SGD, "pushes": 6}, [1.5, 2.0625]),
    ("diloco:2,periods=1;2,by=steps", BOTH, {**SGD, "pushes": 6}, [2.0, 8 / 3]),
    ("diloco:2,after=1,periods=1;2", BOTH, {**SGD, "pushes": 5}, [1.0, 1.875]),
    ("downpour:2,2", (0.0,), FALLS, [-2, -4]),
    ("downpour:2,2", (0.0,), {**FALLS, "pushes": 3}, [-2, -3]),  # what is left at the end of the budget is pushed
    *(("downpour:2,2", (0.0,), {**FALLS, **how}, [-1, -1.70710678])  # of the sum's square
      for how in ({"rate": "adagrad:server"}, {"optimizer": "adagrad"})),
    ("downpour:2,4,literal=off", (1.0,), {"pushes": 4}, [0, 0.9375]),  # at 0, .5, .75, .875
    ("downpour:2,4,literal=on", (1.0,), {"pushes": 4}, [0, 1.5]),  # at 0, .5, 0, .5
    ("downpour:2,1", (1.0, 0.0), {"pushes": 4}, [0.25, 0.25, 0.4375, 0.4375]),  # worker 1 has not fetched the first
    ("downpour:2,2", (1.0, 0.0), {"pushes": 4}, [0.4375] * 2),  # a replica moves as far as its push moves the server
    ("downpour:2,2", (1.0, 0.0), {"pushes": 4, "push_weight": 1.0}, [0.75] * 2),
    ("admm:34,balance=off", BOTH, {"pushes": 4 * 2 * 34}, [1, 1.5, 1.75, 1.875]),
]  # fmt: skip


@pytest.mark.parametrize(("sync", "targets", "fields", "expected"), VECTORS)
def test_weights_after_each_step(sync, targets, fields, expected, monkeypatch):
    steps, outcome = traced(monkeypatch, run := scalar(sync, *targets, **fields))
    versions = outcome.pushes[:, PUSH_COLUMNS.index("version_applied")].tolist()
    found = [*dict(zip(versions, (step[-1] for step in steps), strict=True)).values()]
    assert [*found, outcome.weights[0]] == pytest.approx([*expected, expected[-1]], abs=1e-8)
    assert tables_of(run, outcome)[2]["verdict"] == "valid"
    assert outcome.facts["pushes"] == outcome.facts["accepted"] == run.pushes  # gradients, and not pushes
    assert reached(outcome.pushes, 1, traits_of(resolve(run).sync))["pushes"] == run.pushes
    if "overlap" not in sync and "periods" not in sync:  # each gradient takes its time
        assert outcome.facts["seconds"] == pytest.approx(10.0 * run.pushes / len(targets))


@pytest.mark.parametrize(("policy", "steps", "pushes", "fetches"), [
    (LocalSGD(4, after=2), [0, 1, 2, 6, 10], [1] * 4, [1] * 4), (ADMM(5), [0, 5, 10, 15], [1] * 3, [1] * 3),
    (Downpour(3, 1), [0, 1, 2, 3, 4], [1, 1, 1, 1], [1, 0, 0, 1]),
    (Downpour(2, 3), [0, 2, 3, 4, 6, 8], [0, 1, 0, 1, 0], [1, 1, 0, 1, 1]),
    (Downpour(5, 5, end=7), [0, 5, 7, 10, 15], [1, 1, 1, 1], [1, 1, 1, 1]),
    (Downpour(2, 4, end=3), [0, 2, 3, 4, 6], [0, 1, 1, 0], [1, 1, 1, 1]),
])  # fmt: skip
def test_gradients_and_exchanges_of_each_iteration(policy, steps, pushes, fetches):
    traits = traits_of(policy)
    assert [traits.gradients_before(t) for t in range(len(steps))] == steps
    assert [traits.gradients(t) for t in range(len(pushes))] == np.diff(steps).tolist()
    assert [traits.pushes(t) for t in range(len(pushes))] == pushes
    assert [traits.fetches(t) for t in range(len(fetches))] == fetches
    assert traits.gradients_before(10_000) < traits.gradients_before(10_001)


@pytest.mark.parametrize(("policy", "lengths", "sized"), [
    *((Average(passes), Lengths(16, 100), LocalSGD(period))
      for passes, period in ((1, 16), (2, 32), (0.5, 8), (0.01, 1))),
    (Average(), Lengths(16, 100), LocalSGD(100)), (Downpour(2, 2), Lengths(9, 5), Downpour(2, 2, end=5)),
    (Downpour(2, 2, end=3), Lengths(9, 5), Downpour(2, 2, end=3)),
])  # fmt: skip
def test_a_policy_is_sized_by_the_pass_and_the_budget(policy, lengths, sized):
    assert policy.sized(lengths) == sized


def test_what_is_not_exchanged_takes_no_bytes():
    for engine, sync in (("virtual", "downpour:2,4"), ("timing", "downpour:4,2"), ("timing", "downpour:3,2")):
        outcome = finished(run := tiny(engine=engine, sync=sync, cluster="steady", pushes=48))
        tables, _, facts = tables_of(run, outcome)
        assert facts["verdict"] == "valid", facts
        policy = resolve(run).sync
        for push in tables["pushes"].itertuples():
            assert (push.bytes_up > 0) == policy.pushes(push.iteration)
            if push.bytes_down_raw:
                assert (push.bytes_down > 0) == policy.fetches(push.iteration + 1)


def test_admm_ends_with_small_residuals():
    found = finished(tiny(engine="virtual", cluster="steady", sync="admm:8,rho=0.1,stop=0.9", pushes=4 * 8 * 6,
                          learning_rate=0.5))  # fmt: skip
    assert found.facts["outcome"] == "converged"
    assert [max(row[-2:]) > 0.9 for row in found.facts["residuals"]] == [True] * (len(found.facts["residuals"]) - 1) + [
        False]  # fmt: skip
