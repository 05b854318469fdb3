"""Synchronization policies: traces by hand, one event at a time, how they compare; eager workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scalar import scalar, serial, traced
from simulate import simulate
from tiny import tiny
from whole import in_process

from pslab.config.spec import build
from pslab.engines.server.ledger import PUSH_COLUMNS
from pslab.lab.runs.run import run
from pslab.policies.planning.zipline import ZIPLINES
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.backup import Backup
from pslab.policies.sync.bsp import BSP
from pslab.policies.sync.dssp import DSSP, forecast
from pslab.policies.sync.eager import Eager
from pslab.policies.sync.elastic import ElasticBSP, Superstep, WorkerProgress
from pslab.policies.sync.ssp import SSP
from pslab.protocol.messages import Apply, Asked, Decisions, Left, Pushed, Searched, Start, SyncEvent
from pslab.protocol.window import Window

PRUNED = {"prune": "static:5%", "pull": "changed"}
POLICIES = [BSP(), SSP(1), SSP(3), ASP(), Backup(1), DSSP(1, 4), DSSP(grant="literal"), ElasticBSP(3),
            ElasticBSP(3, include_last=True), build("sync", "decoupled:1,quorum=2")]  # fmt: skip
LITERAL = DSSP(1, 4, grant="literal")
EACH_2_S, EACH_3_S = [2 * n for n in range(1, 13)], [3 * n for n in range(1, 9)]
TEXT = [[1, 2, 5, 9, 10, 11, 12], [4, 8, 12, 16]], [9, 0], {"lead_max": 4, "searched": [(9, 10), (10, 10), (12, 10)]}

#: The policy, the seconds that each worker computes, and until when; each worker's pushes, how long it waits, and more.
TRACES: list[tuple[Any, list[float], float, list[list[float]], list[float], dict[str, Any]]] = [
    (ASP(), [2, 3], 12, [[2, 4, 6, 8, 10, 12], [3, 6, 9, 12]], [0, 0], {"rounds": []}),
    (BSP(), [2, 3], 12, [[2, 5, 8, 11], [3, 6, 9, 12]], [4, 0], {"rounds": [[(0, t), (1, t)] for t in range(4)]}),
    (SSP(1), [1, 4], 16, [[1, 2, 5, 9, 13], [4, 8, 12, 16]], [11, 0], {"rounds": []}),
    (SSP(1), [2, 3], 12, [[2, 4, 6, 8, 11], [3, 6, 9, 12]], [2, 0], {}),
    # rounds end at 3, 6, 9, 12; the slow worker's push at 7 belongs to the round that ended at 3, that at 14 to 9's
    (Backup(1), [2, 3, 7], 14, [[2, 5, 8, 11, 14], [3, 6, 9, 12], [7, 14]], [4, 0, 0],
     {"dropped": [(2, 0), (2, 1)], "rounds": [[(0, t), (1, t)] for t in range(4)]}),
    (Backup(5), [2, 3], 6, [[2, 4, 6], [3, 6]], [0, 0], {"rounds": [[(0, t)] for t in range(3)]}),
    *((DSSP(1, 4, cap=cap), [1, 4], 16, *TEXT) for cap in (None, True, False)),  # no search before two slow pushes
    (LITERAL, [1, 4], 16, [[1, 2, 5, *range(9, 17)], [4, 8, 12, 16]], [5, 0], {"lead_max": 8}),
    (replace(LITERAL, cap=True), [1, 4], 16, [[1, 2, 5, *range(9, 15)], [4, 8, 12, 16]], [7, 0], {"lead_max": 5}),
    # at 5 the slow worker's only interval counts from its start, and at 9 four seconds lie between two pushes
    (replace(LITERAL, interval="release"), [1, 4], 16, [[1, 2, *range(5, 17)], [4, 8, 12, 16]], [2, 0], {}),
    (ElasticBSP(4), [2, 3], 24, [EACH_2_S, EACH_3_S], [0, 0], {"searched": [(6, 8), (18, 8)], "rounds": []}),
    # predicted: 8 and 9; 9 it is, then 11, 12, 13, 15, 15
    (ElasticBSP(1), [2, 3], 15, [[2, 4, 6, 8, 11, 13, 15], [3, 6, 9, 12, 15]], [1, 0], {}),
    # the authors' program: at 6 the pushes at 6 are the best plan, but worker 0 computes already, until 8
    (ElasticBSP(4, include_last=True), [2, 3], 24, [EACH_2_S, [3, 6, 11, 14, 19, 22]], [0, 6],
     {"searched": [(6, 8), (14, 8), (22, 8)]}),
]  # fmt: skip


@pytest.mark.parametrize(("sync", "compute_s", "until_s", "pushes", "waited", "more"), TRACES)
def test_traces_by_hand(sync, compute_s, until_s, pushes, waited, more):
    trace = simulate(sync, compute_s, until_s)
    assert (trace.pushes, trace.waited) == (dict(enumerate(pushes)), dict(enumerate(waited)))
    assert {name: getattr(trace, name) for name in more} == more


@pytest.mark.parametrize("sync", POLICIES, ids=repr)
def test_duplicate_messages_and_the_number_of_ranges_change_nothing(sync):
    for compute_s in ([2, 3, 5], [1, 4], [1.0, 1.37, 2.11, 2.9]):
        for ranges in (1, 3):
            once, twice = (simulate(sync, compute_s, 30, ranges=ranges, twice=twice) for twice in (False, True))
            assert once.refused == 0 < twice.refused
            assert {**vars(twice), "refused": 0} == vars(once)
    assert simulate(sync, [2, 3], 60, ranges=4).pushes == simulate(sync, [2, 3], 60).pushes


@pytest.mark.parametrize(
    ("sync", "limit"), [(BSP(), SSP(0)), (BSP(), Backup(0)), (SSP(2), DSSP(2, 0))], ids=repr
)  # fmt: skip
def test_policies_are_equal_in_the_limit(sync, limit):
    for compute_s in ([1, 4], [2, 3, 7], [1, 1, 1, 5]):
        for ranges in (1, 2):
            ours, theirs = (simulate(each, compute_s, 60, ranges=ranges) for each in (sync, limit))
            assert (ours.pushes, ours.waited) == (theirs.pushes, theirs.waited)
            assert not theirs.dropped


@pytest.mark.parametrize(("sync", "limit", "fields"), [
    ("backup:0", "bsp", PRUNED), ("local:1", "bsp", {**PRUNED, "schedule": "linear"}),
    ("local:1", "bsp", {"optimizer": "adam"}), ("downpour", "asp", PRUNED), ("downpour", "asp", {"optimizer": "adam"}),
    ("average:1", "local:4", {"batch_size": 64, "pushes": 32}),  # a pass of a worker's quarter of the data
], ids=str)  # fmt: skip
def test_whole_runs_are_equal_in_the_limit(tmp_path, sync, limit, fields):
    ours, theirs = (run(tiny(engine="virtual", sync=each, cluster="steady", **fields), results=tmp_path, progress=False)
                    for each in (sync, limit))  # fmt: skip
    assert np.array_equal(ours.weights, theirs.weights)
    assert ours.pushes.equals(theirs.pushes)
    assert (ours.manifest["verdict"], ours.manifest["dropped"]) == ("valid", 0)


def test_ssp_lead_is_the_staleness_plus_the_push_itself():
    # a worker may start an iteration `staleness` ahead of the slowest; once pushed it counts as done
    assert [simulate(SSP(staleness), [1, 10], 100).gap_max for staleness in (0, 1, 3)] == [1, 2, 4]


def test_strings_name_policies_and_their_windows():
    for text, sync, window in (
        ("dssp", DSSP(3, 12), 16), ("dssp:1,2,grant=literal", DSSP(1, 2, "literal"), None),
        ("dssp:1,2,cap=off", DSSP(1, 2, cap=False), None), ("elastic", ElasticBSP(15), None),
        ("dssp:1,2,literal,cap=on", DSSP(1, 2, "literal", cap=True), 4),
        ("elastic:4,lru,median,k=3,include_last=on", ElasticBSP(4, "lru", "median", 3, include_last=True), None),
    ):  # fmt: skip
        assert (build("sync", text), sync.window) == (sync, window)


LINKS = {"compute_s": 10.0, "bandwidth_bit_s": 8.0 * 32 / 4}  # a push of the scalar, and a pull, take four seconds


def test_vector_of_two_workers():
    weights, outcome = traced(scalar("eager", 1.0, 1.0, pushes=8))
    assert weights[:6] == [0.25, 0.5, 0.6875, 0.875, 1.015625, 1.09375]
    columns = [PUSH_COLUMNS.index(name) for name in ("seconds", "worker", "version_pulled", "staleness")]
    assert outcome.pushes[:6, columns].tolist() == [
        [10, 0, 0, 0], [10, 1, 0, 1], [20, 0, 0, 2], [20, 1, 0, 3], [30, 0, 1, 3], [30, 1, 2, 3]]  # fmt: skip


@pytest.mark.parametrize("cluster", [{"compute_s": 10.0}, LINKS, {**LINKS, "latency_s": 3.0}])
def test_one_worker_that_reads_its_writes_trains_serially_and_one_that_does_not_oscillates(cluster):
    assert traced(scalar("eager", 1.0, cluster=cluster))[0] == serial(6, lambda step: 0.5)
    falling = traced(scalar("eager", 1.0, schedule="linear", cluster=cluster))[0]
    assert falling == serial(6, lambda step: 0.5 * (1 - step / 6))
    assert traced(scalar("eager:rmw=off", 1.0))[0][:5] == [0.5, 1.0, 1.25, 1.25, 1.125]


@pytest.mark.parametrize("fields", [{"prune": "static:5%", "pull": "changed"}, {"prune": "std:2"}])
def test_pruned_own_writes_are_serial_training(fields):
    cluster = {"compute_s": 0.02, "bandwidth_bit_s": 1e6}
    eager, one = (in_process(tiny(engine="virtual", sync=sync, workers=1, dtype="float64", cluster=cluster,
                                  schedule="linear", **fields)).weights for sync in ("eager", "asp"))  # fmt: skip
    assert np.abs(eager - one).max() <= 1e-12
    assert np.abs(one).max() > 0.1


def test_eager_bound_includes_the_push_under_way():
    fast = {staleness: simulate(Eager(staleness), [1, 10], 100) for staleness in (1, 2, 4)}
    leads = {staleness: trace.gap_max for staleness, trace in fast.items()}
    assert leads == {1: 1, 2: 2, 4: 4}  # a worker that is held has not pushed
    assert len(simulate(Eager(), [1, 10], 100).pushes[0]) == 100


times = st.floats(0, 100)


@given(times, times, times, times, st.integers(0, 12))
def test_forecast_is_the_closest_of_all_pairs(pushed_s, interval_s, slow_s, slow_interval_s, extra):
    ends = [slow_s + count * slow_interval_s for count in range(1, extra + 2)]
    distance_s = [min(abs(end - (pushed_s + r * interval_s)) for end in ends) for r in range(extra + 1)]
    assert forecast(pushed_s, interval_s, slow_s, slow_interval_s, extra) == distance_s.index(min(distance_s))


def test_a_cap_is_never_exceeded_and_the_literal_reading_has_none():
    for compute_s in ([1, 3], [1, 7], [2, 3, 5], [1, 1, 1, 2], [1.0, 1.37, 2.11, 2.9]):
        for grant in ("text", "literal"):
            for interval in ("push", "release"):
                sync = DSSP(1, 3, grant, True, interval)
                trace = simulate(sync, compute_s, 200)
                assert trace.lead_max <= 4 == sync.window - 1
                assert not trace.refused
    assert simulate(DSSP(grant="literal"), [1, 3], 300).lead_max == 194
    assert forecast(10, 1, 8, 4, 4) == 2  # 10, 11, 12, 13, 14 beside 12, 16, 20, 24, 28


class Driven:
    """A policy with so many workers, each of which pushes its iterations in order."""

    def __init__(self, sync: Any, workers: int) -> None:
        self.sync, self.state = sync, sync.initial(tuple(range(workers)))
        self.clocks = Window(workers, sync.window)
        self.next = dict.fromkeys(range(workers), 0)  # the iteration that each worker pushes next

    def push(self, worker: int, now: float = 0.0) -> Decisions:
        """Let the worker's next push arrive."""
        iteration = self.next[worker]
        self.next[worker] += 1
        return self.step(Pushed(worker, iteration, now, self.clocks.push(iteration)))

    def ask(self, worker: int, now: float = 0.0) -> Decisions:
        """The worker asks for its next iteration."""
        return self.step(Asked(worker, self.next[worker], now))

    def leave(self, worker: int, now: float = 0.0) -> Decisions:
        """The worker leaves."""
        return self.step(Left(worker, now, self.clocks.leave(self.next.pop(worker))))

    def join(self, worker: int, iteration: int) -> None:
        """A worker joins with this iteration."""
        self.clocks.join(iteration)
        self.next[worker] = iteration

    def step(self, event: SyncEvent) -> Decisions:
        """Any event."""
        self.state, decisions = self.sync.step(self.state, event, self.clocks)
        return decisions


def test_only_the_fastest_worker_is_granted_iterations():
    driven = Driven(DSSP(0, 2, cap=False), 3)
    for iteration in range(2):
        for worker in range(3):
            driven.push(worker, iteration + 1.0)
        for worker in range(3):
            assert driven.ask(worker, iteration + 1.0) == (Start(worker, iteration + 1),)
    driven.push(0, 2.1)
    driven.push(1, 2.1)
    assert driven.ask(1, 2.1) == (Searched(6), Start(1, 3))  # as far ahead as worker 0
    driven.push(1, 2.2)
    assert driven.ask(0, 2.2) == ()


@pytest.mark.parametrize(("fields", "interval_s"), [
    ({}, 9), ({"predict": "median"}, 3), ({"predict": "median", "k": 2}, 5.5), ({"predict": "median", "k": 1}, 9),
    ({"predict": "ewma", "weight": 0.5}, 5.8125), ({"predict": "ewma", "weight": 1.0}, 9),
])  # fmt: skip
def test_iterations_are_predicted_from_the_intervals_between_pushes(fields, interval_s, monkeypatch):
    searched, sweep = list[list[float]](), ZIPLINES["sweep"]

    def search(points):
        searched.append(points[0])
        return sweep(points)

    monkeypatch.setitem(ZIPLINES, "sweep", search)
    driven = Driven(ElasticBSP(2, **fields), 2)
    for now in (0, 2, 5, 9, 11, 20):
        driven.push(0, now)
    driven.leave(1)  # whose speed is not known: the plan is made now
    assert searched == [pytest.approx([20 + interval_s, 20 + 2 * interval_s])]


def planned() -> Driven:
    """Both workers have pushed twice, at 1 and 2 s, and compute iteration 2; one more of each is planned."""
    driven = Driven(ElasticBSP(1), 2)
    for iteration in range(2):
        for worker in range(2):
            decisions = driven.push(worker, iteration + 1.0)
            assert decisions[0] == Apply(worker, iteration)
        for worker in range(2):
            assert driven.ask(worker) == (Start(worker, iteration + 1),)
    assert decisions[1:] == (Searched(2),)
    assert driven.state.planned
    return driven


def test_all_workers_are_started_when_the_last_one_asks_and_waiting_is_no_part_of_an_interval():
    driven = planned()
    driven.push(1, 3.0)
    assert driven.ask(1) == ()
    assert driven.push(0, 9.0) == (Apply(0, 2),)
    assert driven.ask(0) == (Start(0, 3), Start(1, 3))
    rows = WorkerProgress(0, 3, 3, intervals_s=(7.0,)), WorkerProgress(1, 3, 3, intervals_s=(1.0,))
    assert driven.state == Superstep(frozenset(rows))


def test_a_duplicate_request_for_the_iteration_being_computed_is_answered():
    driven = Driven(ElasticBSP(1, include_last=True), 2)
    for worker in (0, 1, 0):
        driven.push(worker, driven.next[worker] + 1.0)
        assert driven.ask(worker) == (Start(worker, driven.next[worker]),)
    assert driven.push(1, 2.0) == (Apply(1, 1), Searched(2))  # the plan: no worker continues
    assert driven.ask(0) == (Start(0, 2),)  # it computes it already
    assert driven.ask(1) == ()
    driven.push(0, 3.0)
    assert driven.ask(0) == (Start(0, 3), Start(1, 2))


def test_workers_that_leave_leave_the_plan_to_the_others():
    driven = Driven(ElasticBSP(2), 2)
    for now in (1.0, 2.0, 3.0):
        driven.push(0, now)
        driven.ask(0)
    assert driven.leave(1) == (Searched(2),)  # the only one whose speed is unknown
    driven = planned()
    assert driven.leave(0) == driven.leave(1) == ()
    assert driven.state == Superstep(frozenset())
    driven.join(1, 2)
    assert driven.ask(1) == (Start(1, 2),)


def test_a_worker_that_joins_after_the_plan_waits_for_its_barrier():
    driven = planned()
    driven.join(2, 2)
    assert driven.ask(2) == ()
    for worker in (0, 1):
        driven.push(worker, 3.0)
    assert driven.ask(0) == ()
    assert driven.ask(1) == (Start(0, 3), Start(1, 3), Start(2, 2))
