"""ElasticBSP against traces by hand, its predictions, and one event at a time."""

from __future__ import annotations

import random

import pytest
from driven import Driven
from simulate import simulate

from pslab.policies.planning.zipline import ZIPLINES
from pslab.policies.sync.elastic import ElasticBSP, Superstep, WorkerProgress
from pslab.protocol.messages import Apply, Searched, Start

SPEEDS = [1.0, 1.37, 2.11, 2.9]


def test_elastic_vector():
    trace = simulate(ElasticBSP(4), [2, 3], 24)
    assert trace.pushes == {0: [2.0 * n for n in range(1, 13)], 1: [3.0 * n for n in range(1, 9)]}
    assert trace.waited == {0: 0, 1: 0}
    assert trace.searched == [(6, 8), (18, 8)]  # barriers at 12 and 24
    assert not any(step.aggregate for step in trace.steps)
    assert len(trace.steps) == 20


def test_workers_that_reach_the_barrier_first_wait():
    trace = simulate(ElasticBSP(1), [2, 3], 15)  # predicted: 8 and 9; 9 it is, then 11, 12, 13, 15, 15
    assert trace.pushes == {0: [2, 4, 6, 8, 11, 13, 15], 1: [3, 6, 9, 12, 15]}
    assert trace.waited == {0: 1, 1: 0}


def test_waiting_time_of_a_heterogeneous_cluster():
    trace = simulate(ElasticBSP(15), SPEEDS, 300)
    assert [trace.waited[worker] for worker in range(4)] == pytest.approx([1.3, 0, 5.7, 10.8], abs=0.05)


@pytest.mark.parametrize("search", ZIPLINES)
@pytest.mark.parametrize("predict", ["last", "median", "ewma"])
def test_all_searches_and_predictions_agree_on_constant_intervals(search, predict):
    usual, other = (simulate(sync, SPEEDS, 100) for sync in (ElasticBSP(15), ElasticBSP(15, search, predict)))
    assert other.searched == usual.searched
    for worker in range(4):  # averages round otherwise
        assert other.pushes[worker] == pytest.approx(usual.pushes[worker])


def test_the_last_push_may_be_the_first_prediction():
    """The authors' program: at 6 the pushes at 6 are the best plan. But worker 0 computes already, until 8."""
    trace = simulate(ElasticBSP(4, include_last=True), [2, 3], 24)
    assert trace.searched == [(6, 8), (14, 8), (22, 8)]
    assert trace.pushes == {0: [2.0 * n for n in range(1, 13)], 1: [3, 6, 11, 14, 19, 22]}
    assert trace.waited == {0: 0, 1: 6}


# --- predictions ------------------------------------------------------------------------------------------------------


def interval(sync: ElasticBSP, pushes_s: list[float]) -> float:
    """The predicted interval of a worker that has pushed at these instants."""
    row = WorkerProgress(0)
    for iteration, now in enumerate(pushes_s):
        row = sync._pushed(row, iteration, now)
    first, second = sync._ends(row)[:2]
    assert first == pytest.approx(pushes_s[-1] + second - first)
    return second - first


@pytest.mark.parametrize(("sync", "expected"), [
    (ElasticBSP(), 9), (ElasticBSP(predict="median"), 3), (ElasticBSP(predict="median", k=2), 5.5),
    (ElasticBSP(predict="median", k=3), 4), (ElasticBSP(predict="median", k=1), 9),
    (ElasticBSP(predict="ewma", weight=0.5), 5.8125), (ElasticBSP(predict="ewma", weight=1.0), 9),
])  # fmt: skip
def test_predicted_intervals(sync, expected):
    assert interval(sync, [0, 2, 5, 9, 11, 20]) == pytest.approx(expected)


def test_waiting_at_a_barrier_is_not_part_of_an_interval():
    """With k = 9 all intervals count; worker 0 waits at each barrier, and its median stays 2."""
    seen = set()

    class Recording(ElasticBSP):
        def _ends(self, row):
            seen.update((row.worker, each) for each in row.intervals_s)
            return super()._ends(row)

    assert simulate(Recording(1, "sweep", "median", 9), [2, 3.5], 200).waited[0] > 10
    assert seen == {(0, 2), (1, 3.5)}


# --- one event at a time ----------------------------------------------------------------------------------------------


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


def test_all_workers_are_started_when_the_last_one_asks():
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


def test_the_plan_is_made_when_the_only_unknown_worker_leaves():
    driven = Driven(ElasticBSP(2), 2)
    for now in (1.0, 2.0, 3.0):
        driven.push(0, now)
        driven.ask(0)
    assert driven.leave(1) == (Searched(2),)


def test_a_worker_may_join_after_all_have_left():
    driven = planned()
    assert driven.leave(0) == driven.leave(1) == ()
    assert driven.state == Superstep(frozenset())
    driven.join(1, 2)
    assert driven.ask(1) == (Start(1, 2),)


def test_a_worker_that_joins_before_the_plan_is_part_of_it():
    driven = Driven(ElasticBSP(1), 1)
    driven.push(0, 1.0)
    driven.join(1, 1)
    assert driven.ask(1) == (Start(1, 1),)
    for iteration in range(1, 4):
        assert driven.ask(0) == (Start(0, iteration),)
        assert driven.push(0, iteration + 1.0) == (Apply(0, iteration),)
    assert driven.push(1, 4.0) == (Apply(1, 1),)
    assert driven.push(1, 5.0) == (Apply(1, 2), Searched(2))


@pytest.mark.parametrize("in_time", [True, False])
def test_a_worker_that_joins_after_the_plan_waits_for_its_barrier(in_time):
    driven = planned()
    driven.join(2, 2)
    if in_time:
        assert driven.ask(2) == ()
    for worker in (0, 1):
        driven.push(worker, 3.0)
    assert driven.ask(0) == ()
    assert driven.ask(1) == (Start(0, 3), Start(1, 3)) + (Start(2, 2),) * in_time
    if not in_time:
        assert driven.ask(2) == (Start(2, 2),)


@pytest.mark.parametrize("seed", range(15))
def test_no_worker_waits_forever_whatever_the_instants(seed):
    """Workers at random speeds, under a policy that sees other instants than those at which events happen."""
    rng = random.Random(seed)
    workers = rng.randint(1, 4)

    class FalseInstants(ElasticBSP):
        def step(self, state, event, clocks):
            now = self.clock[0] = self.clock[0] + rng.choice((0.0, 0.0, 1e-9, 1.0, 1e6))
            return super().step(state, event._replace(now=now), clocks)

    FalseInstants.clock = [0.0]
    sync = FalseInstants(rng.randint(1, 6), include_last=bool(seed % 2), predict=rng.choice(("last", "median", "ewma")))
    speeds = [rng.uniform(0.1, 3) for _ in range(workers)]
    half, full = (simulate(sync, speeds, until_s) for until_s in (100, 200))
    assert all(len(full.pushes[worker]) > len(half.pushes[worker]) + 3 for worker in range(workers))
    assert len(full.searched) > 1
