"""Decoupled DiLoCo: whose pushes are merged when, what a merge makes of them, and a sequential reference."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from simulate import simulate
from tiny import finished, tiny
from torch.nn import functional
from whole import in_process

from pslab.config.run import Run
from pslab.config.spec import build
from pslab.engines.experiment.experiment import Outcome
from pslab.engines.server.ledger import PUSH_COLUMNS
from pslab.errors import ConfigError
from pslab.lab.judge import tables_of
from pslab.lab.runs.resolve import resolve
from pslab.policies.methods.decoupled import Decoupled
from pslab.protocol.messages import Pull, Push
from pslab.protocol.server import Reply, Server
from pslab.tensors.workload.data import Batches, batch

NESTEROV = {"optimizer": "sgd:momentum=0.9,nesterov=True", "outer_learning_rate": 0.7}
UNEVEN = {"preset": "steady", "slow": {0: 4.0, 2: 1.7}}


def decoupled(**fields: Any) -> Run:
    return tiny(**{"engine": "virtual", "cluster": UNEVEN, "pushes": 144, "dtype": "float64", "learning_rate": 0.01,
                   "sync": "decoupled:6,2,quorum=2", **fields})  # fmt: skip


def trained(**fields: Any) -> tuple[Outcome, pd.DataFrame]:
    """A run that is valid, and its pushes, in the order in which they were applied."""
    outcome = in_process(run := decoupled(**fields))
    assert (found := tables_of(run, outcome)[2])["verdict"] == "valid", found
    return outcome, pd.DataFrame(outcome.pushes, columns=PUSH_COLUMNS)


# --- whose pushes are merged when -------------------------------------------------------------------------------------


def merges(sync: str, compute_s: list[float], until_s: float) -> list[list[tuple[int, int]]]:
    """The (worker, iteration)s of each step."""
    steps = simulate(build("sync", sync), compute_s, until_s).steps
    assert all(step.aggregate for step in steps)
    return [[(push.worker, push.iteration) for push in step.pushes] for step in steps]


def test_a_merge_waits_for_a_quorum_and_a_late_push_is_part_of_the_next():
    """By hand: pushes of iteration 0 at 2, 3, 5 and 20 s; 0 and 1 go on at 3 s, and push at 5 and 6 s."""
    assert merges("decoupled:1,quorum=2", [2, 3, 5, 20], 6) == [[(0, 0), (1, 0)], [(0, 1), (2, 0)]]
    trace = simulate(build("sync", "decoupled:1,quorum=2"), [2, 3, 5, 20], 6)
    assert (trace.pushes[0], trace.pushes[2]) == ([2, 5], [5])
    assert trace.waited[2] == 0  # its push at 5 s made the second merge


def test_workers_wait_in_turn_where_a_late_push_finds_no_other():
    """By hand: 2 waits from 4 s until the push of 0 at 5 s, 1 from 6 s until that of 0 at 7 s."""
    assert merges("decoupled:1,quorum=2", [2, 3, 4], 8) == [[(0, 0), (1, 0)], [(0, 1), (2, 0)], [(0, 2), (1, 1)]]


def test_ranges_that_are_exchanged_together_are_merged_together():
    """Pushes come to three servers in three orders: two workers go on, and not each of them on two of its ranges."""
    server, replies = Server(range(3), 3, build("sync", "decoupled:1,quorum=2")), list[tuple[int, int]]()
    for index, order in enumerate([(0, 1, 2), (1, 2, 0), (2, 0, 1)]):
        for worker in order:
            for message in (Push(worker, index, 0, 0), Pull(worker, index, 1, 0)):
                pending = server.handle(message, 0.0)
                while pending:
                    effect = pending.pop(0)
                    if isinstance(effect, Reply):
                        replies.append((effect.pull.worker, effect.pull.range))
                        pending += server.answered(effect.pull.range)
    workers = {worker for worker, _ in replies}
    assert len(workers) == 2
    assert sorted(replies) == [(worker, index) for worker in sorted(workers) for index in range(3)]


def test_a_quorum_of_one_merges_each_push_and_holds_nobody():
    trace = simulate(build("sync", "decoupled:1"), [1, 2, 7], 21)
    assert [len(step.pushes) for step in trace.steps] == [1] * (21 + 10 + 3)
    assert {*trace.waited.values()} == {0}


@pytest.mark.parametrize("quorum", [3, 9])
def test_a_quorum_of_all_workers_or_more_makes_rounds(quorum):
    found, wanted = (simulate(build("sync", sync), [2, 3, 7], 30) for sync in (f"decoupled:1,quorum={quorum}", "bsp"))
    assert (found.pushes, found.waited, found.steps) == (wanted.pushes, wanted.waited, wanted.steps)


@pytest.mark.parametrize("ranges", [1, 3])
def test_duplicate_messages_change_nothing(ranges):
    once, twice = (simulate(build("sync", "decoupled:1,quorum=2"), [2, 3, 5], 60, ranges=ranges, copies=copies)
                   for copies in (1, 2))  # fmt: skip
    assert (twice.pushes, twice.waited) == (once.pushes, once.waited)
    assert twice.refused


# --- weights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["constant", "linear"])
@pytest.mark.parametrize("more", [
    "6,1,overlap=0", "6,2,overlap=1", "6,1,overlap=2,merge=carry", "6,2,overlap=2,merge=mix,alpha=0.5"])  # fmt: skip
def test_with_a_quorum_of_all_workers_and_plain_means_it_is_streaming(more, schedule):
    found, wanted = (trained(sync=sync, schedule=schedule, **NESTEROV)[0].weights
                     for sync in (f"decoupled:{more},quorum=4,average=mean", f"streaming:{more}"))  # fmt: skip
    assert found.tobytes() == wanted.tobytes()


def test_quorum_and_average_each_change_the_run():
    syncs = ["decoupled:6,2", "decoupled:6,2,quorum=2", "decoupled:6,2,quorum=2,average=mean", "decoupled:6,2,quorum=4"]
    assert len({trained(sync=sync)[0].weights.tobytes() for sync in syncs}) == len(syncs)


def reference(run: Run, outcome: Outcome, pushes: pd.DataFrame) -> np.ndarray:
    """The same one after another, by torch's own optimizers and a mean of directions by NumPy.

    A merge happens when the last of its pushes arrives; the rates of a worker's next steps follow the gradients that
    have arrived by then, and those of the steps that follow a push go on from the ones before it.
    """
    experiment = resolve(run)
    data, space, module, sync = experiment.dataset, experiment.keyspace, experiment.shell, experiment.sync
    every, late, fragments = sync.steps, sync.overlap, sync.fragments
    places = [torch.cat([torch.arange(s.start, s.stop) for s in part.slices]) for part in experiment.parts]
    tensors = [torch.arange(slot.offset, slot.offset + slot.size) for slot in space.parameters]
    server = [experiment.weights[own].clone() for own in places]
    rate, named = (0.7, {"momentum": 0.9, "nesterov": True}) if run.outer_learning_rate else (1.0, {})
    outer = [torch.optim.SGD([own], rate, **named) for own in server]
    batches = [Batches(len(data.train_y), run.workers, w, run.batch_size, run.seed) for w in range(run.workers)]
    own = [experiment.weights.clone() for _ in batches]
    inner = [torch.optim.AdamW([each], betas=(0.9, 0.95), weight_decay=0.1) for each in own]
    held, taken, reached = [each.clone() for each in own], [0] * run.workers, [0] * run.workers
    came = [[0] * fragments for _ in batches]  # by worker and fragment, for which iteration it was sent

    def steps(worker: int, count: int) -> None:
        x, gradient = own[worker], torch.zeros_like(own[worker])
        for _ in range(count):
            space.bind(module, x, gradient.zero_())
            rows = torch.from_numpy(batches[worker].at(taken[worker]))
            inputs = batch(data.train_x[rows], x.dtype, data.mean, data.std)
            functional.cross_entropy(module(inputs), data.train_y[rows]).backward()
            x.grad = gradient * min(1.0, 1.0 / (float(gradient.norm()) + 1e-6))
            inner[worker].param_groups[0]["lr"] = run.learning_rate * (1 - min(1.0, reached[worker] / run.pushes))
            inner[worker].step()
            taken[worker], reached[worker] = taken[worker] + 1, reached[worker] + run.workers

    arrivals = tables_of(run, outcome)[0]["arrivals"]
    arrived = arrivals[arrivals.kind == "push"][["worker", "iteration"]].to_numpy(int).tolist()
    for (index, _), merge in pushes.astype({"range": int}).groupby(["range", "version_applied"], sort=False):
        who, changes, counts = merge[["worker", "iteration"]].to_numpy(int).tolist(), [], []
        for worker, iteration in who:
            steps(worker, every - late)
            changes.append((held[worker] - own[worker])[places[index]])
            counts.append((iteration + 1 - came[worker][index]) * every - late)
        merged = torch.zeros_like(server[index])
        for tensor in tensors:
            if len(inside := np.flatnonzero(np.isin(places[index], tensor))):
                vectors, weights = [change[inside].numpy() for change in changes], np.array(counts) / sum(counts)
                lengths = [np.linalg.norm(vector) for vector in vectors]
                toward = sum(w * v / length for w, v, length in zip(weights, vectors, lengths, strict=True))
                merged[inside] = torch.from_numpy(toward / np.linalg.norm(toward) * (weights @ lengths))
        server[index].grad = merged
        outer[index].step()
        gradients = every * (1 + max(arrived.index(each) for each in who))
        for worker, iteration in who:
            steps(worker, late)
            own[worker][places[index]] = held[worker][places[index]] = server[index]
            reached[worker], came[worker][index] = gradients, iteration + 1
    found = experiment.weights.clone()
    for where, each in zip(places, server, strict=True):
        found[where] = each
    return found.numpy()


@pytest.mark.parametrize(("sync", "outer"), [
    ("decoupled:3,quorum=3", NESTEROV), ("decoupled:6,2,quorum=3", NESTEROV),
    ("decoupled:6,2,quorum=2,overlap=1", NESTEROV), ("decoupled:4,1,overlap=3", {}), ("decoupled:6,2", {}),
])  # fmt: skip
def test_a_run_is_that_of_a_sequential_reference(sync, outer):
    fields = {"sync": sync, "schedule": "linear", **outer}
    outcome, pushes = trained(**fields)
    apart = pushes.groupby("worker").iteration.max()
    assert apart.max() > apart.min()
    np.testing.assert_allclose(outcome.weights, reference(decoupled(**fields), outcome, pushes), rtol=0, atol=1e-12)


# --- workers that leave, die and come, and processes that end ---------------------------------------------------------


@pytest.mark.parametrize("quorum", [1, 2, 4])
def test_a_push_of_a_worker_that_has_left_is_merged_and_others_go_on(quorum):
    cluster = {"compute_s": 0.01, "slow": {0: 1.5, 2: 2.0}, "leave": {1: 0.1, 2: 0.2}, "join": {1: 0.35}}
    outcome, pushes = trained(sync=f"decoupled:8,2,overlap=2,quorum={quorum}", cluster=cluster, pushes=400)
    assert outcome.facts["outcome"] == "budget"
    last = pushes[pushes.worker == 2].iteration.max()
    assert len(pushes[(pushes.worker == 2) & (pushes.iteration == last)]) == 1
    counts = pushes[pushes.seconds > 0.5].worker.value_counts()
    assert {*counts.index} == {0, 1, 3}


def test_a_worker_that_joined_counts_by_the_steps_since_then():
    """Its first push of each fragment has fewer than those of others: the mean of changes is not that of equal ones."""
    cluster = {"compute_s": 0.01, "compute_sigma": 0.0, "leave": {1: 0.1}, "join": {1: 0.25}}
    fields = {"cluster": cluster, "pushes": 192, **NESTEROV}
    found, _ = trained(sync="decoupled:8,2,overlap=2,quorum=4,average=mean", **fields)
    wanted, _ = trained(sync="streaming:8,2,overlap=2,merge=replace", **fields)
    assert found.facts["pushes"] == wanted.facts["pushes"]
    assert found.weights.tobytes() != wanted.weights.tobytes()
    np.testing.assert_allclose(found.weights, wanted.weights, rtol=0, atol=0.05)


def test_real_processes_merge_by_quorum():
    run = tiny(sync="decoupled:4,2,overlap=1,quorum=2", pushes=160, learning_rate=0.01, workers=3,
               cluster={"compute_s": 0.002, "slow": {0: 30.0}})  # fmt: skip
    outcome = finished(run)
    facts = tables_of(run, outcome)[2]
    assert (facts["verdict"], facts.get("violations")) == ("valid", None)
    pushes = pd.DataFrame(outcome.pushes, columns=PUSH_COLUMNS)
    assert {*pushes.groupby(["range", "version_applied"]).size()} <= {1, 2, 3}
    assert pushes.worker.value_counts()[0] < pushes.worker.value_counts()[1]


# --- parameters -------------------------------------------------------------------------------------------------------


def test_workers_take_two_steps_after_a_push_if_as_many_fit():
    syncs = "decoupled:24", "decoupled:24,12", "decoupled:24,24", "decoupled:24,overlap=5", "decoupled:24,overlap=0"
    assert [build("sync", sync).overlap for sync in syncs] == [2, 1, 0, 5, 0]
    assert build("sync", "decoupled:24") == Decoupled(24, overlap=2)
    for one, other in pairwise([Decoupled(24, 2), Decoupled(24, 2, quorum=1), Decoupled(24, 2, merge="replace")]):
        assert one == other


@pytest.mark.parametrize(("fields", "problem"), [
    ({"sync": "decoupled:6,2,quorum=0"}, "quorum=0: must be a whole number of at least 1"),
    ({"sync": "decoupled:6,2,overlap=3"}, "overlap=3: must be less than the 3 steps between two pushes"),
    ({"sync": "decoupled:6,4"}, "fragments=4: must divide the period of 6 steps"),
    ({"sync": "decoupled:6,12"}, "fragments=12: must divide the period of 6 steps"),
    ({"sync": "decoupled:6,0"}, "fragments=0: must be a whole number of at least 1"),
    ({"sync": "decoupled:6,2,average=rdb"}, "did you mean 'rda'"),
    ({"sync": "decoupled:6,2,alpha=0.5"}, "alpha=0.5: is of merge=mix"),
    ({"quantize": "sign"}, "moves every weight by the whole outer_learning_rate"),
    ({"prune": "ef21:1%"}, "this policy's steps are no rounds"),
    ({"prune": "dgc:5%"}, "whose momentum is the server's"),
    ({"ranges": "layers"}, "ranges"),
])  # fmt: skip
def test_what_does_not_go_together_is_refused(fields, problem):
    with pytest.raises(ConfigError) as caught:
        resolve(decoupled(**fields))
    assert problem in re.sub(r"\s+", " ", str(caught.value))
