"""DiLoCo: vectors by hand, the policies that it contains, and its limits."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from scalar import scalar, traced
from tiny import tiny
from torch.nn import functional
from whole import in_process

from pslab.config.run import Run
from pslab.config.spec import build
from pslab.engines.experiment.experiment import Outcome
from pslab.engines.server.ledger import reached
from pslab.errors import ConfigError
from pslab.lab.judge import tables_of
from pslab.lab.runs.resolve import resolve
from pslab.policies.methods.diloco import DiLoCo
from pslab.protocol.traits import traits_of
from pslab.tensors.workload.data import Batches, batch

SGD = {"inner": "sgd", "optimizer": "sgd:momentum=0", "outer_learning_rate": 1.0}  # local SGD
CLIP = 0.5  # of some gradients
NESTEROV = {"inner": "sgd", "optimizer": "sgd:momentum=0.9,nesterov=True", "outer_learning_rate": 0.7}


@pytest.mark.parametrize(("targets", "sync", "fields", "expected"), [
    ((0.0, 4.0), "diloco:2", SGD, [1.5, 1.875, 1.96875]),
    ((0.0, 4.0), "diloco:2", NESTEROV, [1.995, 2.8504875, 2.76970247, 2.33107307, 1.96974564]),
    ((0.0, 4.0), "diloco:2", {"inner": "sgd"}, [1.995, 2.8504875, 2.76970247]),  # what nothing names is the paper's
    ((0.0, 4.0), "diloco:2", {**SGD, "optimizer": "sgd:momentum=0.5"}, [1.5, 2.625, 2.71875, 2.2265625]),  # SlowMo
    ((4.0,), "diloco:5", {**SGD, "learning_rate": 0.1, "outer_learning_rate": 0.5},
     [0.81902, 1.47034156, 1.98830177]),  # Lookahead
    ((0.0, 4.0), "diloco:2", {"inner": "adamw:betas=(0.9;0.95),weight_decay=0.1", "learning_rate": 0.1},
     [0.132306947, 0.228509468, 0.316872764]),
    ((4.0, 4.0), "diloco:2", {**SGD, "inner": "sgd:clip=1"},
     [1 - 2.679e-7, 2 - 6.345e-7]),  # until the slope is 1; torch adds 1e-6 to it
    ((0.0, 4.0), "diloco:1,after=2", SGD, [1.0, 1.5, 1.75]),
    ((0.0, 4.0), "diloco:1,after=2", NESTEROV, [1.0, 1.5, 1.8325, 2.0856375]),  # its momentum begins after them
])  # fmt: skip
def test_weights_after_each_round(targets, sync, fields, expected, monkeypatch):
    period = int(sync.partition(":")[2].partition(",")[0])
    run = scalar(sync, *targets, dtype="float64", pushes=len(targets) * period * len(expected), **fields)
    steps, outcome = traced(monkeypatch, run)
    found = [step[-1] for step in steps if step[-1] is not None][:: len(targets)]
    assert found == pytest.approx(expected, abs=1e-8)
    assert outcome.facts["pushes"] == outcome.facts["accepted"] == run.pushes


@pytest.mark.parametrize(("sync", "expected"), [
    ("diloco:2,periods=1;2", [1.5, 2.0625]), ("diloco:2,periods=1;2,by=steps", [2.0, 8 / 3]),
    ("diloco:2,periods=2;2,by=steps", [1.5, 1.875]), ("diloco:2,after=1,periods=1;2", [1.0, 1.875])])  # fmt: skip
def test_each_worker_has_a_period_of_its_own(sync, expected, monkeypatch):
    steps, outcome = traced(monkeypatch, run := scalar(sync, 0.0, 4.0, dtype="float64", pushes=8, **SGD))
    assert [step[-1] for step in steps][: 2 * len(expected) : 2] == pytest.approx(expected, abs=1e-12)
    assert tables_of(run, outcome)[2]["verdict"] == "valid"
    assert outcome.facts["accepted"] >= 8  # gradients, and not pushes
    assert reached(outcome.pushes, 1, traits_of(build("sync", sync)))["pushes"] == outcome.facts["accepted"]


@pytest.mark.parametrize("more", [{}, {"servers": 2}, {"prune": "static:5%", "pull": "changed"}])
def test_equal_periods_are_the_period(more):
    fields = {"learning_rate": 0.01, **more}
    found, wanted = (trained(sync=sync, **fields) for sync in ("diloco:3,periods=3;3;3;3", "diloco:3"))
    assert found.weights.tobytes() == wanted.weights.tobytes()
    assert found.facts["pushes"] == wanted.facts["pushes"]


@pytest.mark.parametrize("servers", [1, 2])
def test_a_budget_that_holds_whole_rounds_of_unequal_periods_is_used_up(servers):
    assert trained(sync="diloco:4,periods=4;3;1;2", pushes=60, servers=servers).facts["pushes"] == 60


def trained(**fields: Any) -> Outcome:
    run = tiny(**{"engine": "virtual", "cluster": "steady", "pushes": 48, "dtype": "float64", **fields})
    outcome = in_process(run)
    assert tables_of(run, outcome)[2]["verdict"] == "valid"
    return outcome


@pytest.mark.parametrize(("sync", "same"), [
    ("diloco:3", "local:3"), ("diloco:1", "bsp"), ("diloco:3,after=2", "local:3,after=2")])  # fmt: skip
def test_plain_steps_inside_and_outside_are_local_sgd(sync, same):
    found, wanted = trained(sync=sync, **SGD), trained(sync=same)
    np.testing.assert_allclose(found.weights, wanted.weights, rtol=0, atol=1e-12)
    assert found.accuracy[:, 0].tolist() == wanted.accuracy[:, 0].tolist()


@pytest.mark.parametrize(("inner", "lasts"), [("adamw", True), ("sgd:momentum=0.9", True), ("sgd", False)])
def test_a_workers_optimizer_goes_on_after_an_exchange_unless_it_is_fresh(inner, lasts):
    fields = {"inner": inner, "learning_rate": 0.01}
    kept, fresh = (trained(sync=sync, **fields).weights for sync in ("diloco:3", "diloco:3,fresh=on"))
    assert (kept.tobytes() != fresh.tobytes()) is lasts


class Reference:
    """DiLoCo by torch's own optimizers, one process, whole modules."""

    def __init__(self, run: Run) -> None:
        self.run, experiment = run, resolve(run)
        self.data, examples = experiment.dataset, len(experiment.dataset.train_y)
        self.batches = [Batches(examples, run.workers, worker, run.batch_size, run.seed)
                        for worker in range(run.workers)]  # fmt: skip
        self.weights, self.space, self.module = experiment.weights.clone(), experiment.keyspace, experiment.shell
        self.own = [self.weights.clone() for _ in range(run.workers)]
        self.inner = [torch.optim.AdamW([own], lr=run.learning_rate, weight_decay=0.1) for own in self.own]
        self.outer = torch.optim.SGD([self.weights], lr=0.7, momentum=0.9, nesterov=True)

    def gradient(self, worker: int, step: int) -> torch.Tensor:
        rows, gradient = torch.from_numpy(self.batches[worker].at(step)), torch.zeros_like(self.weights)
        self.space.bind(self.module, self.own[worker], gradient)
        x = batch(self.data.train_x[rows], self.weights.dtype, self.data.mean, self.data.std)
        functional.cross_entropy(self.module(x), self.data.train_y[rows]).backward()
        return gradient * min(1.0, CLIP / (float(gradient.norm()) + 1e-6))

    def round(self, steps: range) -> None:
        changes = []
        for worker, own in enumerate(self.own):
            own.copy_(self.weights)
            for step in steps:
                own.grad = self.gradient(worker, step)
                self.inner[worker].step()
            changes.append(self.weights - own)
        self.weights.grad = sum(changes) / len(changes)
        self.outer.step()


def test_a_run_is_that_of_torchs_own_optimizers():
    inner = f"adamw:weight_decay=0.1,clip={CLIP}"
    run = tiny(engine="virtual", cluster="steady", workers=3, pushes=36, sync="diloco:4", learning_rate=0.01,
               dtype="float64", inner=inner)  # fmt: skip
    reference = Reference(run)
    for begin in range(0, 12, 4):
        reference.round(range(begin, begin + 4))
    np.testing.assert_allclose(in_process(run).weights, reference.weights.numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("fields", "problem"), [
    ({"sync": "bsp", "inner": "adamw"}, "inner 'adamw' is for workers that train by themselves"),
    ({"sync": "local:4", "outer_learning_rate": 0.7}, "outer_learning_rate 0.7 is for workers that train"),
    ({"sync": "diloco:4,periods=4;4"}, "gives periods to 2 workers, and the run has 4"),
    ({"sync": "diloco:4,periods=3;3;3;2"}, "the largest of them the period, 4"),
    ({"sync": "diloco:4,periods=4;3;x;2"}, "must be whole numbers of at least 1"),
    ({"sync": "diloco:4,periods=4;4;4;0"}, "must be whole numbers of at least 1"),
    ({"inner": "adamv"}, "inner 'adamv' unknown name 'adamv'; did you mean 'adam"),
    ({"inner": "lbfgs"}, "inner 'lbfgs' lbfgs is not elementwise"),
    ({"inner": "sgd:clip=0"}, "clip=0 must be a number above 0"),
    ({"inner": "sgd:clip=much"}, "clip=much must be a number above 0"),
    ({"inner": "adamw:lr=1"}, "set learning_rate instead"),
    ({"prune": "dgc:5%"}, "whose momentum is the server's: use none, static, std, dynamic"),
    ({"rate": "dynsgd"}, "which outer_learning_rate scales: use constant"),
])  # fmt: skip
def test_what_does_not_go_together_is_refused(fields, problem):
    with pytest.raises(ConfigError) as caught:
        resolve(tiny(**{"engine": "virtual", "cluster": "lab", "sync": "diloco:4", **fields}))
    assert problem in re.sub(r"[=:]", " ", str(caught.value)).replace("  ", " ") or problem in str(caught.value)


def test_gradients_of_a_push():
    traits = traits_of(DiLoCo(4, after=2))
    assert [traits.gradients_before(t) for t in range(5)] == [0, 1, 2, 6, 10]
    assert [traits.averages(t) for t in range(4)] == [True, True, False, False]
