"""Methods whose workers train by themselves, against the same one after another on torch's own optimizers."""

from __future__ import annotations

import math
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
from pslab.lab.judge import tables_of
from pslab.lab.runs.resolve import resolve
from pslab.protocol.traits import traits_of
from pslab.tensors.update.delayed_nesterov import DelayedNesterov
from pslab.tensors.workload.data import Batches, batch

UNEVEN = {"preset": "steady", "slow": {0: 4.0, 2: 1.7}}
BACK = {"compute_s": 0.01, "compute_sigma": 0.0, "leave": {1: 0.1}, "join": {1: 0.25}}
NESTEROV = {"optimizer": "sgd:momentum=0.9,nesterov=True", "outer_learning_rate": 0.7}
CLIPPED = "adamw:weight_decay=0.1,clip=0.5"
#: The optimizer of each worker by the name that a run gives it, and the norm at which it clips.
INNER: dict[str, tuple[Any, dict[str, Any], float]] = {
    "": (torch.optim.AdamW, {"betas": (0.9, 0.95), "weight_decay": 0.1}, 1.0),
    CLIPPED: (torch.optim.AdamW, {"weight_decay": 0.1}, 0.5), "sgd": (torch.optim.SGD, {}, math.inf),
    "sgd:momentum=0.9": (torch.optim.SGD, {"momentum": 0.9}, math.inf),
}  # fmt: skip


class Workers:
    """The workers of a run: weights of their own, the batches that they take, and one of torch's optimizers each."""

    def __init__(self, run: Run) -> None:
        self.run, self.experiment = run, resolve(run)
        self.sync, self.weights = self.experiment.sync, self.experiment.weights.clone()
        examples = len(self.experiment.dataset.train_y)
        self.batches = [Batches(examples, run.workers, w, run.batch_size, run.seed) for w in range(run.workers)]
        self.own = [self.weights.clone() for _ in self.batches]
        self.inner = [self.optimizer(worker) for worker in range(run.workers)]
        self.taken = [0] * run.workers  # batches

    def optimizer(self, worker: int) -> Any:
        make, options, _ = INNER[self.run.inner]
        return make([self.own[worker]], lr=self.run.learning_rate, **options)

    def step(self, worker: int, gradients: int) -> None:
        """One step of a worker's optimizer, at the rate that the schedule has after so many gradients of all."""
        own, data, gradient = self.own[worker], self.experiment.dataset, torch.zeros_like(self.weights)
        rows = torch.from_numpy(self.batches[worker].at(self.taken[worker]))
        self.experiment.keyspace.bind(self.experiment.shell, own, gradient)
        x = batch(data.train_x[rows], own.dtype, data.mean, data.std)
        functional.cross_entropy(self.experiment.shell(x), data.train_y[rows]).backward()
        own.grad = gradient * min(1.0, INNER[self.run.inner][2] / (float(gradient.norm()) + 1e-6))
        left = 1 - min(1.0, gradients / self.run.pushes) if self.run.schedule == "linear" else 1.0
        self.inner[worker].param_groups[0]["lr"] = self.run.learning_rate * left
        self.inner[worker].step()
        self.taken[worker] += 1


def trained(**fields: Any) -> tuple[Run, Outcome, pd.DataFrame]:
    """A run that is valid, and its pushes in the order in which they were applied."""
    run = tiny(**{"engine": "virtual", "cluster": UNEVEN, "pushes": 96, "dtype": "float64", "learning_rate": 0.01,
                  "schedule": "linear", **fields})  # fmt: skip
    outcome = in_process(run)
    assert (facts := tables_of(run, outcome)[2])["verdict"] == "valid", facts
    pushes = pd.DataFrame(outcome.pushes, columns=PUSH_COLUMNS)
    return run, outcome, pushes.astype(dict.fromkeys(("worker", "iteration", "range", "version_pulled"), int))


OUTER = {  # the server's optimizer, by the run
    "diloco": lambda weights, run: torch.optim.SGD([weights], 0.7, momentum=0.9, nesterov=True),
    "local": lambda weights, run: torch.optim.SGD([weights], 1.0),
    "adiloco": lambda weights, run: DelayedNesterov([weights], 0.7, 0.9, run.workers) if run.optimizer == "sgd" else (
        torch.optim.SGD([weights], 0.7 / run.workers, momentum=0.9, nesterov=True)),
}  # fmt: skip


@pytest.mark.parametrize(("sync", "fields"), [
    ("diloco:4", {"inner": CLIPPED, "workers": 3, "pushes": 36}), ("diloco:4", {}),
    ("diloco:4,periods=2;4;3;1", {"pushes": 100}), ("diloco:3,fresh=on", {}), ("local:3", {"learning_rate": 0.1}),
    *((sync, optimizer) for sync in ("adiloco:3", "adiloco:3,staleness=1", "adiloco:6,dylu=on")
      for optimizer in ({}, {"optimizer": "sgd:momentum=0.9,nesterov=True"})),
])  # fmt: skip
def test_changes_of_workers_are_gradients_of_an_outer_optimizer(sync, fields):
    name = sync.partition(":")[0]
    run, outcome, pushes = trained(sync=sync, **fields)
    workers = Workers(run if name != "local" else run.but(sync=f"diloco{sync[5:]}", inner="sgd"))
    weights, outer = workers.weights, OUTER[name](workers.weights, run)
    counts = {(worker, iteration): count for worker, iteration, count in outcome.facts.get("steps", [])}
    versions, gradients, traits = [weights.clone()], [0], traits_of(workers.sync)
    for _, together in pushes.groupby("version_applied"):
        changes, made = [], 0
        for push in together.itertuples():
            own = workers.own[push.worker].copy_(versions[push.version_pulled])
            if "fresh" in sync:
                workers.inner[push.worker] = workers.optimizer(push.worker)
            count = counts.get((push.worker, push.iteration)) or traits.unassigned(push.worker, push.iteration)
            for step in range(count):
                workers.step(push.worker, gradients[push.version_pulled] + step * run.workers)
            changes.append(versions[push.version_pulled] - own)
            made += count
        weights.grad = sum(changes) / len(changes)
        outer.step()
        versions.append(weights.clone())
        gradients.append(gradients[-1] + made)
    assert gradients[-1] == outcome.facts["pushes"]
    assert name != "adiloco" or pushes.worker.value_counts()[1] > pushes.worker.value_counts()[0] or "dylu" in sync
    np.testing.assert_allclose(outcome.weights, weights.numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("sync", "fields"), [
    ("easgd:3,beta=0.6", {}), ("easgd:3,beta=0.6,alone=on", {}), ("easgd:1", {}),
    *((f"easgd:3,beta=0.6{more}", {"cluster": BACK, "pushes": 144, "inner": "sgd:momentum=0.9"})
      for more in ("", ",alone=on")),
])  # fmt: skip
def test_workers_are_drawn_to_the_center_as_it_is_to_them(sync, fields):
    run, outcome, pushes = trained(**{"sync": sync, "inner": "sgd", "schedule": "constant", "learning_rate": 0.1,
                                      "pushes": 48, **fields})  # fmt: skip
    workers, center = Workers(run), (found := Workers(run)).weights
    centers, drawn, joined, following = {0: found.weights.clone()}, torch.zeros_like(center), 0, [0] * run.workers
    for made, together in pushes.groupby("version_applied"):
        drawn.zero_()
        for push in together.itertuples():
            worker, held = push.worker, centers[push.version_pulled]
            if push.iteration != following[worker]:  # it is back
                workers.own[worker].copy_(held)
                workers.inner[worker] = workers.optimizer(worker)
                joined += 1
            following[worker], workers.taken[worker] = push.iteration + 1, push.iteration * workers.sync.period
            for _ in range(workers.sync.period):
                workers.step(worker, 0)
            difference = workers.sync.beta / run.workers * (workers.own[worker] - held)
            workers.own[worker].sub_(difference)
            drawn.add_(difference)
        center.add_(drawn, alpha=1 if "alone" in sync else run.workers / len(together))
        centers[int(made)] = center.clone()
    assert pushes.groupby("version_applied").size().max() == (1 if "alone" in sync else run.workers)
    assert joined == ("cluster" in fields)
    np.testing.assert_allclose(outcome.weights, center.numpy(), rtol=0, atol=1e-12)


def radial_directional(changes: list[np.ndarray], weights: np.ndarray) -> np.ndarray:
    """The mean of the directions, as long as the changes are in the mean."""
    lengths = [np.linalg.norm(change) for change in changes]
    toward = sum(w * change / length for w, change, length in zip(weights, changes, lengths, strict=True))
    return toward / np.linalg.norm(toward) * (weights @ lengths)


@pytest.mark.parametrize(("sync", "fields"), [
    ("decoupled:3,quorum=3", NESTEROV), ("decoupled:6,2,quorum=3", NESTEROV),
    ("decoupled:6,2,quorum=2,overlap=1", NESTEROV), ("decoupled:4,1,overlap=3", {}), ("decoupled:6,2", {}),
    ("decoupled:6,2,quorum=2,average=mean", NESTEROV), ("decoupled:6,2,overlap=2,merge=replace", {}),
    ("streaming:6,2,overlap=1", {}), ("streaming:6,2,overlap=2,alpha=0.25", {}),
    ("streaming:6,2,overlap=1,merge=carry", {}), ("streaming:8,2,overlap=2", {"cluster": BACK, "pushes": 192}),
])  # fmt: skip
def test_fragments_are_merged_while_workers_go_on(sync, fields):
    """A merge happens when the last of its pushes arrives; the rates of a worker's next steps follow the gradients that
    have arrived by then, and those of the steps that follow a push go on from the ones before it."""
    run, outcome, pushes = trained(**{"sync": sync, "pushes": 144, **fields})
    workers, decoupled = Workers(run), sync.startswith("decoupled")
    policy, own, parts = workers.sync, workers.own, workers.experiment.parts
    every, late = policy.steps, policy.overlap
    places = [torch.cat([torch.arange(s.start, s.stop) for s in part.slices]) for part in parts]
    tensors = [range(slot.offset, slot.offset + slot.size) for slot in workers.experiment.keyspace.parameters]
    server = [workers.weights[place].clone() for place in places]
    rate, momentum = (0.7, {"momentum": 0.9, "nesterov": True}) if fields is NESTEROV or not decoupled else (1.0, {})
    outer = [torch.optim.SGD([each], rate, **momentum) for each in server]
    held, reached, following = [each.clone() for each in own], [0] * run.workers, [0] * run.workers
    came = [[0] * policy.fragments for _ in own]  # by worker and fragment, for which iteration it was sent
    arrivals = tables_of(run, outcome)[0]["arrivals"]
    arrived = arrivals[arrivals.kind == "push"][["worker", "iteration"]].to_numpy(int).tolist()

    def steps(worker: int, count: int) -> None:
        for _ in range(count):
            workers.step(worker, reached[worker])
            reached[worker] += run.workers

    for (index, _), merge in pushes.groupby(["range", "version_applied"], sort=False):
        who, changes, counts, place = merge[["worker", "iteration"]].to_numpy(int).tolist(), [], [], places[index]
        for worker, iteration in who:
            if iteration != following[worker]:  # it is back
                for each, weights in zip(places, server, strict=True):
                    own[worker][each] = held[worker][each] = weights
                workers.inner[worker], workers.taken[worker] = workers.optimizer(worker), iteration * every
                came[worker], reached[worker] = [iteration] * policy.fragments, iteration * every * run.workers
            following[worker] = iteration + 1
            steps(worker, every - late)
            changes.append((held[worker] - own[worker])[place].clone())
            counts.append((iteration + 1 - came[worker][index]) * every - late)
        merged, shares = sum(changes) / len(changes), np.array(counts) / sum(counts)
        for tensor in tensors if decoupled and "mean" not in sync else ():
            if len(inside := np.flatnonzero(np.isin(place, tensor))):
                vectors = [each[inside].numpy() for each in changes]
                merged[inside] = torch.from_numpy(radial_directional(vectors, shares))
        server[index].grad = merged
        outer[index].step()
        gradients = every * (1 + max(arrived.index(each) for each in who))
        for worker, iteration in who:
            pushed = own[worker][place].clone()
            steps(worker, late)
            kept = {"mix": policy.alpha * own[worker][place] + (1 - policy.alpha) * server[index],
                    "carry": server[index] + own[worker][place] - pushed, "replace": server[index]}  # fmt: skip
            own[worker][place], held[worker][place] = kept[policy.merge], server[index]
            reached[worker] = gradients if decoupled else reached[worker]
            came[worker][index] = iteration + 1
    found = workers.experiment.weights.clone()
    for place, each in zip(places, server, strict=True):
        found[place] = each
    np.testing.assert_allclose(outcome.weights, found.numpy(), rtol=0, atol=1e-12)


SECONDS = 0.58, 0.75, 1.51, 3.33  # a step, of the workers of asyncdiloco's notebook
OF_NOTEBOOK = {"compute_s": SECONDS[0], "slow": {w: each / SECONDS[0] for w, each in enumerate(SECONDS)}}
AWAY = {**UNEVEN, "leave": {0: 3.0}, "join": {0: 3.4}}


@pytest.mark.parametrize(("fields", "assigned"), [
    *(({"sync": "adiloco:50,dylu=on", "cluster": OF_NOTEBOOK, "pushes": 700, "servers": servers},
       {(0, 50), (1, 38), (2, 19), (3, 8)}) for servers in (1, 2)),
    ({"sync": "adiloco:7,dylu=on", "cluster": {"compute_s": 0.1}, "pushes": 700}, {(w, 7) for w in range(4)}),
    ({"sync": "adiloco:6,dylu=on", "cluster": AWAY, "pushes": 600}, None),
])  # fmt: skip
def test_a_slow_worker_pushes_as_many_steps_as_it_takes_while_the_fastest_takes_a_period(fields, assigned):
    run, outcome, pushes = trained(**fields)
    steps = {(worker, iteration): count for worker, iteration, count in outcome.facts["steps"]}
    made = pushes.drop_duplicates(["worker", "iteration"])
    period, unassigned = (policy := resolve(run).sync).period, traits_of(policy).unassigned
    names = [(push.worker, push.iteration) for push in made.itertuples()]
    counted = [steps.get(name) or unassigned(*name) for name in names]
    assert sum(counted) == outcome.facts["pushes"] >= run.pushes  # what a budget counts are gradients
    if assigned is not None:
        assert {(worker, count) for (worker, _), count in steps.items()} == assigned
    else:  # a worker that is back is assigned a whole period
        again = [count for worker, _, count in outcome.facts["steps"] if worker == 0]
        assert min(again) < period in again[1:]
    outcome.facts["steps"][-1][2] += 1
    assert "that the policy assigns" in str(tables_of(run, outcome)[2]["violations"])


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_no_worker_is_further_ahead_of_the_slowest_than_the_staleness(staleness):
    _, _, pushes = trained(sync=f"adiloco:3,staleness={staleness}")
    done, leads = dict.fromkeys(range(4), 0), []
    for worker in pushes.worker:
        done[worker] += 1
        leads.append(max(done.values()) - min(done.values()))
    assert max(leads) == staleness + 1  # of pushes: it is the next iteration that waits
