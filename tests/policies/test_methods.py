"""Methods of several steps a push: against torch's own optimizers, by hand on the scalar problem, and in fragments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scalar import scalar, traced
from simulate import simulate
from tiny import finished, tiny
from torch import nn
from torch.nn import functional
from whole import in_process

from pslab.config.cluster import APPLY_FACTORS
from pslab.config.run import Run
from pslab.config.spec import build
from pslab.engines.emulation.compute_times import ComputeTimes
from pslab.engines.experiment.experiment import Outcome
from pslab.engines.server.ledger import PUSH_COLUMNS, reached
from pslab.errors import ConfigError
from pslab.lab.judge import tables_of
from pslab.lab.runs.resolve import resolve
from pslab.policies.methods.admm import ADMM
from pslab.policies.methods.average import Average
from pslab.policies.methods.downpour import Downpour
from pslab.policies.methods.local_sgd import LocalSGD
from pslab.policies.methods.streaming import Streaming
from pslab.protocol.traits import Lengths, traits_of
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
      for optimizer in ({}, {"optimizer": "sgd:momentum=0.9,nesterov=True"})), ("adiloco:3,staleness=0", {}),
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
    assert name != "adiloco" or "," in sync or pushes.worker.value_counts()[1] > pushes.worker.value_counts()[0]
    if "staleness" in sync:  # of pushes: it is the next iteration that waits
        done, leads = dict.fromkeys(range(run.workers), 0), []
        for worker in pushes.worker:
            done[worker] += 1
            leads.append(max(done.values()) - min(done.values()))
        assert max(leads) == workers.sync.staleness + 1
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


SGD = {"inner": "sgd", "optimizer": "sgd:momentum=0", "outer_learning_rate": 1.0}  # local SGD


BOTH = (0.0, 4.0)
#: The policy, each worker's target, fields, and the weight after each step.
VECTORS: list[tuple[str, tuple[float, ...], dict[str, Any], list[float]]] = [
    ("local:2,after=2", BOTH, {"pushes": 8}, [1.0, 1.5, 1.875]),  # from 1.5 as in the second round of local:2
    ("local:2", (4.0,), {"schedule": "linear", "pushes": 4}, [2.75, 3.1796875]),  # which counts gradients
    ("diloco:2", BOTH, {"inner": "sgd", "pushes": 12}, [1.995, 2.8504875, 2.76970247]),  # what nothing names: paper's
    ("diloco:1,after=2", BOTH, {**SGD, "pushes": 6}, [1.0, 1.5, 1.75]),
    ("diloco:1,after=2", BOTH, {"inner": "sgd", **NESTEROV, "pushes": 8}, [1.0, 1.5, 1.8325, 2.0856375]),
    ("diloco:2,periods=1;2", BOTH, {**SGD, "pushes": 6}, [1.5, 2.0625]),
    ("diloco:2,periods=1;2,by=steps", BOTH, {**SGD, "pushes": 6}, [2.0, 8 / 3]),
    ("diloco:2,after=1,periods=1;2", BOTH, {**SGD, "pushes": 5}, [1.0, 1.875]),
    ("downpour:2,2", (1.0,), {"pushes": 3}, [0.75, 0.875]),  # what is left at the end of the budget is pushed
    *(("downpour:2,2", (1.0,), {"pushes": 4, **how}, [0.5, 0.5 + 0.375 / 2.8125**0.5])  # of the sum's square
      for how in ({"rate": "adagrad:server"}, {"optimizer": "adagrad"})),
    ("downpour:2,4,literal=off", (1.0,), {"pushes": 4}, [0, 0.9375]),  # at 0, .5, .75, .875
    ("downpour:2,4,literal=on", (1.0,), {"pushes": 4}, [0, 1.5]),  # at 0, .5, 0, .5
    ("downpour:2,1", (1.0, 0.0), {"pushes": 4}, [0.25, 0.25, 0.4375, 0.4375]),  # worker 1 has not fetched the first
    ("downpour:2,2", (1.0, 0.0), {"pushes": 4}, [0.4375] * 2),  # a replica moves as far as its push moves the server
    ("downpour:2,2", (1.0, 0.0), {"pushes": 4, "push_weight": 1.0}, [0.75] * 2),
    ("admm:34,balance=off", BOTH, {"pushes": 4 * 2 * 34}, [1, 1.5, 1.75, 1.875]),
]  # fmt: skip


@pytest.mark.parametrize(("sync", "targets", "fields", "expected"), VECTORS)
def test_weights_after_each_step(sync, targets, fields, expected):
    found, outcome = traced(run := scalar(sync, *targets, **fields))
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


SENT = {"workers": 2, "pushes": 96, "engine": "virtual", "dtype": "float64", "learning_rate": 0.01,
        "sync": "streaming:8,2,overlap=2", "cluster": "steady"}  # fmt: skip


def tables(run: Any) -> dict[str, Any]:
    return tables_of(run, in_process(run))[0]


GPT = [("bytes", 16384), ("places", 4096), *((f"blocks.{block}.{name}", size) for block in range(4) for name, size in (
    ("norm1", 64), ("attend", 12288), ("widen", 16384))), ("norm", 64)]  # fmt: skip


def test_blocks_are_dealt_out_behind_what_is_outside_of_them_and_balanced_fills_the_smallest_fragment():
    """The largest layer first, and of equal ones the first name."""
    for sync, blocks in (("6,3", [1, 2, 1, 2]), ("6,3,layout=sequential", [1, 1, 2, 2]), ("6,2", [1, 1, 1, 1]),
                         ("6,1", [0, 0, 0, 0]), ("10,5,layout=sequential", [1, 2, 3, 4])):  # fmt: skip
        wanted = 0, 0, *(each for block in blocks for each in [block] * 3), 0
        assert build("sync", f"streaming:{sync}").fragment_of(GPT) == wanted
    balanced = build("sync", "streaming:4,2,layout=balanced")
    assert balanced.fragment_of([("b", 5), ("a", 5), ("c", 3), ("d", 3)]) == (1, 0, 0, 1)
    assert balanced.fragment_of([("c", 9), ("a", 5), ("b", 4)]) == (0, 1, 1)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30), st.integers(1, 8),
       st.sampled_from(["strided", "sequential", "balanced"]))  # fmt: skip
def test_no_fragment_is_empty_and_balanced_ones_differ_by_a_layer_at_most(sizes, fragments, layout):
    policy, layers = Streaming(fragments, fragments, layout=layout), [(f"{n}", size) for n, size in enumerate(sizes)]
    if len(sizes) < fragments:
        with pytest.raises(ConfigError):
            policy.fragment_of(layers)
        return
    fragment_of = policy.fragment_of(layers)
    sums = [sum(size for size, own in zip(sizes, fragment_of, strict=True) if own == each) for each in range(fragments)]
    assert min(sums) > 0
    assert layout != "balanced" or max(sums) - min(sums) <= max(sizes)


def test_the_ranges_of_a_fragment_are_its_layers():
    deep = nn.Sequential(nn.Flatten(), nn.Linear(49, 8), nn.Linear(8, 8), nn.Linear(8, 10))
    experiment = resolve(tiny(**{**SENT, "model": deep, "sync": "streaming:6,2"}))
    assert sum(part.size for part in experiment.parts) == experiment.keyspace.size
    assert [len(part.slices) for part in experiment.parts] == [2, 1]  # layers 0 and 2, layer 1


@pytest.mark.parametrize(("overlap", "waits"), [(0, True), (4, False)])
def test_nobody_waits_once_the_steps_after_a_push_take_longer_than_its_transfer(overlap, waits):
    cluster = {"compute_s": 0.02, "compute_sigma": 0.0, "latency_s": 0.015}
    run = tiny(**{**SENT, "sync": f"streaming:10,2,overlap={overlap}", "cluster": cluster, "pushes": 100})
    phases = tables(run)["phases"]
    end_s = phases[(phases.worker == 0) & (phases.phase == "compute")].end_s.max()
    assert end_s == pytest.approx(50 * 0.02 + 9 * 0.03 * waits - 0.02 * overlap, abs=1e-4)


def test_every_step_takes_a_draw_of_the_cluster_and_its_own_optimizer_step():
    cluster = {"compute_s": 0.02, "compute_sigma": 0.3, "apply_s": 0.003}
    run = tiny(**{**SENT, "cluster": cluster, "inner": "sgd:momentum=0.9"})
    phases = tables(run)["phases"]
    times = ComputeTimes(resolve(run).cluster, run.seed, 1)
    drawn_s = [times.draw() for _ in range(44)]
    own = phases[(phases.worker == 1) & (phases.phase == "compute") & (phases.iteration < 11)]
    spent_s = (own.end_s - own.begin_s).groupby(own.iteration).sum()
    assert [*own.groupby("iteration").size()] == [2] * 11  # until its push, and after it
    step_s = 0.003 * APPLY_FACTORS["sgd"][0]
    np.testing.assert_allclose(spent_s, np.add.reduceat(drawn_s, range(0, 44, 4)) + 4 * step_s, rtol=1e-9)


def test_a_merge_waits_for_a_quorum_and_a_late_push_is_part_of_the_next():
    for compute_s, until_s, merges in (
        # Pushes of iteration 0 at 2, 3, 5 and 20 s; 0 and 1 go on at 3 s, and push at 5 and 6 s.
        ([2, 3, 5, 20], 6, [[(0, 0), (1, 0)], [(0, 1), (2, 0)]]),
        # 2 waits from 4 s until the push of 0 at 5 s, 1 from 6 s until that of 0 at 7 s.
        ([2, 3, 4], 8, [[(0, 0), (1, 0)], [(0, 1), (2, 0)], [(0, 2), (1, 1)]]),
    ):
        trace = simulate(build("sync", "decoupled:1,quorum=2"), compute_s, until_s)
        assert trace.rounds == merges
        assert len(trace.steps) == len(merges)


def test_a_quorum_of_one_merges_each_push_and_one_of_all_workers_or_more_makes_rounds():
    trace = simulate(build("sync", "decoupled:1"), [1, 2, 7], 21)
    assert [len(pushes) for pushes in trace.rounds] == [1] * (21 + 10 + 3)
    assert {*trace.waited.values()} == {0}
    wanted = simulate(build("sync", "bsp"), [2, 3, 7], 30)
    for quorum in (3, 9):
        found = simulate(build("sync", f"decoupled:1,quorum={quorum}"), [2, 3, 7], 30)
        assert (found.pushes, found.waited, found.steps) == (wanted.pushes, wanted.waited, wanted.steps)


def test_workers_take_two_steps_after_a_push_if_as_many_fit():
    syncs = "decoupled:24", "decoupled:24,12", "decoupled:24,24", "decoupled:24,overlap=5", "decoupled:24,overlap=0"
    assert [build("sync", sync).overlap for sync in syncs] == [2, 1, 0, 5, 0]
