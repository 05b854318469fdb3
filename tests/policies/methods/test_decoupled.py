"""Decoupled DiLoCo: whose pushes are merged when, with workers that leave, die and come."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pandas as pd
import pytest
from simulate import simulate
from tiny import finished, tiny
from whole import in_process

from pslab.config.run import Run
from pslab.config.spec import build
from pslab.engines.experiment.experiment import Outcome
from pslab.engines.server.ledger import PUSH_COLUMNS
from pslab.lab.judge import tables_of
from pslab.policies.methods.decoupled import Decoupled
from pslab.protocol.messages import Pull, Push
from pslab.protocol.server import Reply, Server

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
