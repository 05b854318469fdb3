"""Methods on the scalar problem: weights after each step by hand, and which methods leave the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scalar import Targets, scalar, traced
from tiny import finished, tiny
from whole import in_process

from pslab.engines.experiment.experiment import Outcome
from pslab.engines.server.ledger import PUSH_COLUMNS, reached
from pslab.lab.judge import tables_of
from pslab.lab.runs.resolve import resolve
from pslab.policies.methods.admm import ADMM
from pslab.policies.methods.average import Average
from pslab.policies.methods.diloco import DiLoCo
from pslab.policies.methods.downpour import Downpour
from pslab.policies.methods.local_sgd import LocalSGD
from pslab.protocol.traits import Lengths, traits_of
from pslab.tensors.random_streams import numpy_generator

SGD = {"inner": "sgd", "optimizer": "sgd:momentum=0", "outer_learning_rate": 1.0}  # local SGD
NESTEROV = {"inner": "sgd", "optimizer": "sgd:momentum=0.9,nesterov=True", "outer_learning_rate": 0.7}


class One(torch.autograd.Function):
    """Logits that say nothing, with the gradient 1."""

    @staticmethod
    def forward(ctx: Any, w: torch.Tensor, count: int) -> torch.Tensor:
        ctx.save_for_backward(w)
        return torch.zeros(count, 2, dtype=w.dtype)

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> tuple[torch.Tensor, None]:
        (w,) = ctx.saved_tensors
        return torch.ones_like(w), None


class Falling(torch.nn.Module):
    """One weight, whose gradient is 1 everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = One.apply(self.w, len(x))
        return found


class TwoEach:
    """Worker 0 sees 2 and 2, worker 1 sees 0 and 4."""

    def __call__(self) -> tuple[torch.Tensor, ...]:
        x, y, _, _ = Targets(2.0, 0.0)()
        x[int(numpy_generator(0, "epoch", 0).permutation(len(x))[3]), 0] = 4.0  # the second batch of worker 1
        return x, y, x[:2], y[:2]


FALLS = {"model": Falling, "learning_rate": 1.0, "pushes": 4}
BOTH = (0.0, 4.0)
#: The policy, each worker's target, fields, and the weight after each step.
VECTORS: list[tuple[str, tuple[float, ...], dict[str, Any], list[float]]] = [
    ("local:2", BOTH, {"pushes": 8}, [1.5, 1.875]), ("local:1", BOTH, {"pushes": 8}, [1.0, 1.5, 1.75, 1.875]),
    ("local:2,after=2", BOTH, {"pushes": 8}, [1.0, 1.5, 1.875]),  # from 1.5 as in the second round of local:2
    ("local:4", BOTH, {"pushes": 8}, [2 * (1 - 0.5**4)]),  # one averaging, at the end
    ("local:2", (4.0,), {"schedule": "linear", "pushes": 4}, [2.75, 3.1796875]),  # which counts gradients
    ("average", (2.0, 0.0), {"data": TwoEach(), "pushes": 4}, [1.75]),  # of 1.5 and 2
    ("diloco:2", BOTH, {**SGD, "pushes": 12}, [1.5, 1.875, 1.96875]),
    ("diloco:2", BOTH, {**NESTEROV, "pushes": 20}, [1.995, 2.8504875, 2.76970247, 2.33107307, 1.96974564]),
    ("diloco:2", BOTH, {"inner": "sgd", "pushes": 12}, [1.995, 2.8504875, 2.76970247]),  # what nothing names: paper's
    ("diloco:2", BOTH, {**SGD, "optimizer": "sgd:momentum=0.5", "pushes": 16},
     [1.5, 2.625, 2.71875, 2.2265625]),  # SlowMo
    ("diloco:5", (4.0,), {**SGD, "learning_rate": 0.1, "outer_learning_rate": 0.5, "pushes": 15},
     [0.81902, 1.47034156, 1.98830177]),  # Lookahead
    ("diloco:2", BOTH, {"inner": "adamw:betas=(0.9;0.95),weight_decay=0.1", "learning_rate": 0.1, "pushes": 12},
     [0.132306947, 0.228509468, 0.316872764]),
    ("diloco:2", (4.0, 4.0), {**SGD, "inner": "sgd:clip=1", "pushes": 8},
     [1 - 2.679e-7, 2 - 6.345e-7]),  # until the slope is 1; torch adds 1e-6 to it
    ("diloco:1,after=2", BOTH, {**SGD, "pushes": 6}, [1.0, 1.5, 1.75]),
    ("diloco:1,after=2", BOTH, {**NESTEROV, "pushes": 8}, [1.0, 1.5, 1.8325, 2.0856375]),  # momentum begins after them
    ("diloco:2,periods=1;2", BOTH, {**SGD, "pushes": 6}, [1.5, 2.0625]),
    ("diloco:2,periods=1;2,by=steps", BOTH, {**SGD, "pushes": 6}, [2.0, 8 / 3]),
    ("diloco:2,periods=2;2,by=steps", BOTH, {**SGD, "pushes": 8}, [1.5, 1.875]),
    ("diloco:2,after=1,periods=1;2", BOTH, {**SGD, "pushes": 5}, [1.0, 1.875]),
    ("streaming:2,overlap=1,merge=carry", BOTH, {**SGD, "pushes": 12}, [1.0, 1.75, 1.9375]),
    ("easgd:1,beta=0.9", BOTH, {"pushes": 6}, [0.9, 1.2375, 1.5215625]),
    ("downpour:2,2", (0.0,), FALLS, [-2, -4]),
    ("downpour:2,2", (0.0,), {**FALLS, "pushes": 3}, [-2, -3]),  # what is left at the end of the budget is pushed
    *(("downpour:1,1", (0.0,), {**FALLS, **how}, [-1, -1.70710678, -2.28445705, -2.78445705])
      for how in ({"rate": "adagrad:server"}, {"optimizer": "adagrad"})),
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


# --- methods that contain others --------------------------------------------------------------------------------------


def trained(**fields: Any) -> Outcome:
    run = tiny(**{"engine": "virtual", "cluster": "steady", "pushes": 96, "dtype": "float64", "learning_rate": 0.01,
                  **fields})  # fmt: skip
    outcome = in_process(run)
    assert (facts := tables_of(run, outcome)[2])["verdict"] == "valid", facts
    return outcome


ALONE = {"workers": 1, "optimizer": "sgd:momentum=0.9,nesterov=True"}
MERGED = {"cluster": {"preset": "steady", "slow": {0: 4.0, 2: 1.7}}, "schedule": "linear", "pushes": 144,
          "optimizer": "sgd:momentum=0.9,nesterov=True", "outer_learning_rate": 0.7}  # fmt: skip
#: Two policies, the fields of both runs, and by how much a weight may differ.
ALIKE: list[tuple[str, str, dict[str, Any], float]] = [
    ("streaming:6", "diloco:6", {}, 0), ("streaming:6,1,merge=replace", "diloco:6", {}, 0),
    ("streaming:6,1,merge=carry", "diloco:6", {}, 0),
    ("streaming:6,2,overlap=1", "streaming:6,2,overlap=1,merge=replace", {}, 0),
    ("streaming:6,2,merge=carry", "streaming:6,2,merge=replace", {}, 0),
    ("diloco:3,fresh=on", "diloco:3", {"inner": "sgd"}, 0),
    *(("diloco:3,periods=3;3;3;3", "diloco:3", more, 0)
      for more in ({}, {"servers": 2}, {"prune": "static:5%", "pull": "changed"})),
    ("adiloco:4", "diloco:4", ALONE, 0),
    ("adiloco:4,staleness=0", "diloco:4", {**ALONE, "schedule": "linear", "prune": "static:5%"}, 0),
    ("adiloco:4,dylu=on", "diloco:4", {**ALONE, "inner": "sgd", "outer_learning_rate": 1.0}, 0),
    ("adiloco:4", "diloco:4", {"workers": 1}, 1e-12),  # by delayed momentum of a period of one
    *((f"decoupled:{more},quorum=4,average=mean", f"streaming:{more}", MERGED, 0) for more in (
        "6,1,overlap=0", "6,2,overlap=1", "6,1,overlap=2,merge=carry", "6,2,overlap=2,merge=mix,alpha=0.5")),
]  # fmt: skip


@pytest.mark.parametrize(("sync", "other", "fields", "atol"), ALIKE)
def test_policies_that_are_the_same_leave_the_same_weights(sync, other, fields, atol):
    found, wanted = (trained(sync=each, **fields) for each in (sync, other))
    np.testing.assert_allclose(found.weights, wanted.weights, rtol=0, atol=atol)
    assert found.accuracy[:, 0].tolist() == wanted.accuracy[:, 0].tolist()
    assert found.facts["pushes"] == wanted.facts["pushes"]


@pytest.mark.parametrize(("sync", "same"), [
    ("diloco:3", "local:3"), ("diloco:1", "bsp"), ("diloco:3,after=2", "local:3,after=2")])  # fmt: skip
def test_plain_steps_inside_and_outside_are_local_sgd(sync, same):
    found, wanted = trained(sync=sync, **SGD), trained(sync=same)
    np.testing.assert_allclose(found.weights, wanted.weights, rtol=0, atol=1e-12)


DIFFERENT: list[tuple[list[str], dict[str, Any]]] = [
    (["streaming:6,2", "diloco:6", "diloco:3", "streaming:6,1,overlap=2", "streaming:6,1,alpha=0.5"], {}),
    (["streaming:6,2,overlap=1,merge=carry", "streaming:6,2,overlap=1", "streaming:6,2,overlap=1,alpha=0.5"], {}),
    (["decoupled:6,2", "decoupled:6,2,quorum=2", "decoupled:6,2,quorum=2,average=mean", "decoupled:6,2,quorum=4"], {}),
    (["diloco:3", "diloco:3,fresh=on"], {}), (["diloco:3", "diloco:3,fresh=on"], {"inner": "sgd:momentum=0.9"}),
]  # fmt: skip


@pytest.mark.parametrize(("syncs", "fields"), DIFFERENT)
def test_each_parameter_of_a_method_changes_the_run(syncs, fields):
    assert len({trained(sync=sync, **fields).weights.tobytes() for sync in syncs}) == len(syncs)


@pytest.mark.parametrize("servers", [1, 2])
def test_a_budget_that_holds_whole_rounds_of_unequal_periods_is_used_up(servers):
    assert trained(sync="diloco:4,periods=4;3;1;2", pushes=60, servers=servers).facts["pushes"] == 60


# --- exchanges --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "steps", "pushes", "fetches"), [
    (LocalSGD(4, after=2), [0, 1, 2, 6, 10], [1] * 4, [1] * 4),
    (DiLoCo(4, after=2), [0, 1, 2, 6, 10], [1] * 4, [1] * 4), (ADMM(5), [0, 5, 10, 15], [1] * 3, [1] * 3),
    (Downpour(2, 4), [0, 2, 4, 6, 8], [0, 1, 0, 1], [1, 1, 1, 1]),
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


@pytest.mark.one_of(3)
@pytest.mark.parametrize("sync", ["downpour:2,4", "downpour:4,2", "downpour:3,2", "downpour:3,3"])
@pytest.mark.parametrize("engine", ["virtual", "local", "timing"])
def test_what_is_not_exchanged_takes_no_bytes(sync, engine):
    outcome = finished(wanted := tiny(engine=engine, sync=sync, cluster="steady" if engine != "local" else "free",
                                      pushes=48))  # fmt: skip
    tables, _, facts = tables_of(wanted, outcome)
    assert facts["verdict"] == "valid", facts
    policy = resolve(wanted).sync
    for push in tables["pushes"].itertuples():
        assert (push.bytes_up > 0) == policy.pushes(push.iteration)
        if push.bytes_down_raw:
            assert (push.bytes_down > 0) == policy.fetches(push.iteration + 1)


def test_admm_ends_with_small_residuals_on_each_engine():
    fields = {"sync": "admm:8,rho=0.1,stop=0.9", "pushes": 4 * 8 * 6, "learning_rate": 0.5}
    found, real = finished(tiny(engine="virtual", cluster="steady", **fields)), finished(tiny(**fields))
    assert found.facts["outcome"] == real.facts["outcome"] == "converged"
    assert found.facts["residuals"] == real.facts["residuals"]
    assert np.array_equal(found.weights, real.weights)
    assert max(found.facts["residuals"][-1][-2:]) <= 0.9
    assert all(max(row[-2:]) > 0.9 for row in found.facts["residuals"][:-1])
