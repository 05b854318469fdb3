"""Asynchronous local SGD: what it is with one worker, its steps by torch's own optimizers, and its gates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import tiny
from torch.nn import functional
from whole import in_process

from pslab.config.run import Run
from pslab.engines.experiment.experiment import Outcome
from pslab.engines.server.ledger import PUSH_COLUMNS
from pslab.errors import ConfigError
from pslab.lab.judge import tables_of
from pslab.lab.runs.resolve import resolve
from pslab.tensors.update.delayed_nesterov import DelayedNesterov
from pslab.tensors.workload.data import Batches, batch

UNEVEN = {"preset": "steady", "slow": {0: 4.0, 2: 1.7}}


def trained(**fields: Any) -> tuple[Outcome, pd.DataFrame]:
    """A run that is valid, and its pushes, in the order in which they were applied."""
    outcome = in_process(run := adiloco(**fields))
    assert (found := tables_of(run, outcome)[2])["verdict"] == "valid", found
    return outcome, pd.DataFrame(outcome.pushes, columns=PUSH_COLUMNS)


def adiloco(**fields: Any) -> Run:
    return tiny(**{"engine": "virtual", "cluster": UNEVEN, "pushes": 96, "dtype": "float64", "learning_rate": 0.01,
                   "sync": "adiloco:3", **fields})  # fmt: skip


@pytest.mark.parametrize("more", [
    {}, {"schedule": "linear", "prune": "static:5%"}, {"inner": "sgd", "outer_learning_rate": 1.0}])  # fmt: skip
@pytest.mark.parametrize("sync", ["adiloco:4", "adiloco:4,staleness=0", "adiloco:4,dylu=on"])
def test_with_one_worker_it_is_diloco(sync, more):
    fields = {"workers": 1, "cluster": "steady", "optimizer": "sgd:momentum=0.9,nesterov=True", **more}
    found, wanted = (trained(sync=each, **fields)[0].weights for each in (sync, "diloco:4"))
    assert found.tobytes() == wanted.tobytes()


def test_with_one_worker_delayed_momentum_is_dilocos():
    found, wanted = (trained(workers=1, cluster="steady", sync=sync)[0].weights for sync in ("adiloco:4", "diloco:4"))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


def reference(run: Run, outcome: Outcome, pushes: pd.DataFrame) -> np.ndarray:
    """The same by torch's own optimizers: each push from the weights of its version, one after another."""
    experiment = resolve(run)
    data, space, module = experiment.dataset, experiment.keyspace, experiment.shell
    weights, period = experiment.weights.clone(), experiment.sync.period
    steps = {(worker, iteration): count for worker, iteration, count in outcome.facts.get("steps", [])}
    server = (DelayedNesterov([weights], 0.7, 0.9, run.workers) if run.optimizer == "sgd"
              else torch.optim.SGD([weights], 0.7 / run.workers, momentum=0.9, nesterov=True))  # fmt: skip
    batches = [Batches(len(data.train_y), run.workers, w, run.batch_size, run.seed) for w in range(run.workers)]
    own, done = [torch.zeros_like(weights) for _ in batches], [0] * run.workers
    inner = [torch.optim.AdamW([each], betas=(0.9, 0.95), weight_decay=0.1) for each in own]
    versions, counts = [weights.clone()], [0]
    for worker, iteration, version in pushes[["worker", "iteration", "version_pulled"]].to_numpy(int).tolist():
        mine, count = own[worker].copy_(versions[version]), steps.get((worker, iteration), period)
        for step in range(count):
            gradient, rows = torch.zeros_like(mine), torch.from_numpy(batches[worker].at(done[worker] + step))
            space.bind(module, mine, gradient)
            x = batch(data.train_x[rows], mine.dtype, data.mean, data.std)
            functional.cross_entropy(module(x), data.train_y[rows]).backward()
            mine.grad = gradient * min(1.0, 1.0 / (float(gradient.norm()) + 1e-6))
            # by the gradients that the server had, and not by the worker's own, of which a slow one has few
            progress = min(1.0, (counts[version] + step * run.workers) / run.pushes)
            inner[worker].param_groups[0]["lr"] = run.learning_rate * (1 - progress)
            inner[worker].step()
        done[worker] += count
        weights.grad = versions[version] - mine
        server.step()
        versions.append(weights.clone())
        counts.append(counts[-1] + count)
    assert counts[-1] == outcome.facts["pushes"]
    return weights.numpy()


@pytest.mark.parametrize("optimizer", ["sgd", "sgd:momentum=0.9,nesterov=True"])
@pytest.mark.parametrize("sync", ["adiloco:3", "adiloco:3,staleness=1", "adiloco:6,dylu=on"])
def test_each_change_is_a_step_of_the_outer_optimizer_as_it_comes(sync, optimizer):
    fields = {"sync": sync, "optimizer": optimizer, "schedule": "linear"}
    outcome, pushes = trained(**fields)
    counts = pushes.worker.value_counts()
    assert counts[1] > counts[0]  # else no schedule could tell whose count it follows
    wanted = reference(adiloco(**fields), outcome, pushes)
    np.testing.assert_allclose(outcome.weights, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_no_worker_is_further_ahead_of_the_slowest_than_the_staleness(staleness):
    _, pushes = trained(sync=f"adiloco:3,staleness={staleness}")
    done, leads = dict.fromkeys(range(4), 0), []
    for worker in pushes.worker.astype(int):
        done[worker] += 1
        leads.append(max(done.values()) - min(done.values()))
    assert max(leads) == staleness + 1  # of pushes: it is the next iteration that waits


def test_without_a_staleness_no_worker_waits():
    _, pushes = trained()
    assert pushes.groupby("worker").size().max() >= 3 * pushes.groupby("worker").size().min()


SECONDS = 0.58, 0.75, 1.51, 3.33  # a step, of the workers of asyncdiloco's notebook
OF_NOTEBOOK = {"compute_s": SECONDS[0], "slow": {w: each / SECONDS[0] for w, each in enumerate(SECONDS)}}


@pytest.mark.parametrize("servers", [1, 2])
def test_a_slow_worker_pushes_as_many_steps_as_it_takes_while_the_fastest_takes_a_period(servers):
    outcome, pushes = trained(sync="adiloco:50,dylu=on", cluster=OF_NOTEBOOK, pushes=700, servers=servers)
    steps = {(worker, iteration): count for worker, iteration, count in outcome.facts["steps"]}
    assert {(worker, count) for (worker, _), count in steps.items()} == {(0, 50), (1, 38), (2, 19), (3, 8)}
    made = pushes.drop_duplicates(["worker", "iteration"])
    counted = [steps.get((int(push.worker), int(push.iteration)), 50) for push in made.itertuples()]
    assert sum(counted) == outcome.facts["pushes"] >= 700  # what a budget counts are gradients


def test_equal_workers_take_whole_periods_for_ever():
    outcome, _ = trained(sync="adiloco:7,dylu=on", cluster={"compute_s": 0.1}, pushes=700)
    assert {count for *_, count in outcome.facts["steps"]} == {7}


def test_steps_that_the_policy_did_not_assign_are_found_out():
    run = adiloco(sync="adiloco:6,dylu=on")
    outcome = in_process(run)
    outcome.facts["steps"][-1][2] += 1
    violations = str(tables_of(run, outcome)[2]["violations"])
    assert "other numbers of gradients of iterations than the policy assigns" in violations


def test_a_worker_that_is_back_is_assigned_a_whole_period_and_goes_on_with_its_batches():
    cluster = {**UNEVEN, "leave": {0: 3.0}, "join": {0: 3.4}}
    outcome, _ = trained(sync="adiloco:6,dylu=on", cluster=cluster, pushes=600)
    again = [count for worker, _, count in outcome.facts["steps"] if worker == 0]
    assert 6 in again[1:]
    assert min(again) < 6


@pytest.mark.parametrize(("fields", "problem"), [
    ({"sync": "adiloco:4,staleness=-1"}, "a whole number of at least 0, or None"),
    ({"sync": "adiloco:0"}, "a whole number of at least 1"),
    ({"prune": "dgc:5%"}, "whose momentum is the server's"),
    ({"rate": "dynsgd"}, "which outer_learning_rate scales"),
    ({"ranges": "layers"}, "ranges"),
])  # fmt: skip
def test_what_does_not_go_together_is_refused(fields, problem):
    with pytest.raises(ConfigError, match=problem):
        resolve(adiloco(**fields))
