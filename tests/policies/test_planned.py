"""DSSP and ElasticBSP, which plan by the instants of pushes: forecasts, bounds, and one event at a time."""

from __future__ import annotations

import random

import pytest
from driven import Driven
from hypothesis import given
from hypothesis import strategies as st
from simulate import simulate

from pslab.policies.planning.zipline import ZIPLINES
from pslab.policies.sync.dssp import DSSP, forecast
from pslab.policies.sync.elastic import ElasticBSP, Superstep, WorkerProgress
from pslab.protocol.messages import Apply, Searched, Start

SPEEDS = [1.0, 1.37, 2.11, 2.9]

# --- DSSP -------------------------------------------------------------------------------------------------------------

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


def test_waiting_time_counts_in_intervals_between_pushes_only():
    push, release = (simulate(DSSP(1, 4, "literal", None, interval), [1, 4], 16) for interval in ("push", "release"))
    assert push.pushes[0][2:5] == [5, 9, 10]  # at 9: 4 s between pushes, so one more iteration would end at 13
    assert release.pushes[0][2:5] == [5, 6, 7]  # at 5: 1 s; the slow worker's first interval counts from its start


def ahead(sync: DSSP | None = None) -> Driven:
    """Worker 0 has pushed four iterations, the last at 4 s, a second each; worker 1 two, the last at 3 s, 3 s each."""
    driven = Driven(sync or DSSP(1, 2), 2)
    for worker, now in ((1, 0.0), (0, 1.0), (0, 2.0), (1, 3.0), (0, 3.0), (0, 4.0)):
        iteration = driven.next[worker]
        assert driven.push(worker, now) == (Apply(worker, iteration),)
        if iteration < 3:
            assert driven.ask(worker, now) == (Start(worker, iteration + 1),)
    return driven


def test_a_grant_is_used_up_by_credit_and_not_by_a_request_that_comes_again():
    driven = ahead()
    assert driven.ask(0, 4.0) == (Searched(6), Start(0, 4))  # 2 iterations end at 6, when the slow worker's does
    assert [driven.ask(0, 4.0)[-1] for _ in range(2)] == [Start(0, 4)] * 2
    driven.push(0, 5.0)
    assert driven.ask(0, 5.0) == (Start(0, 5),)  # the rest of the grant
    driven.push(0, 6.0)
    assert driven.ask(0, 6.0) == (Searched(6),)  # the slow worker ends now: it waits
    assert [driven.push(1, now) for now in (6.0, 8.0)] == [(Apply(1, 2),), (Apply(1, 3),)]
    assert driven.push(1, 10.0) == (Apply(1, 4), Start(0, 6))


@pytest.mark.parametrize(("cap", "granted"), [(None, 3), (True, 2)])  # one more iteration, or up to the cap
def test_a_literal_grant(cap: bool | None, granted: int):
    driven = ahead(DSSP(1, 2, "literal", cap=cap))
    for iteration in range(4, 4 + granted):
        assert driven.ask(0, float(iteration))[-1] == Start(0, iteration)
        driven.push(0, iteration + 1.0)
    assert driven.ask(0, 4.0 + granted)[0] == Searched(6)  # the grant is used up


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


def test_no_forecast_while_the_interval_of_a_slowest_worker_is_unknown():
    driven = ahead()
    driven.join(2, 2)
    driven.push(1, 4.0)
    assert driven.ask(0, 4.0) == ()  # the low bound is that of worker 2, which has not even asked
    assert driven.ask(2, 4.5) == (Start(2, 2),)
    assert driven.push(2, 5.0) == (Apply(2, 2), Start(0, 4))
    driven.push(1, 5.5)
    driven.push(0, 6.0)
    assert driven.ask(0, 6.0) == ()  # worker 2 has pushed once: its speed is unknown
    assert driven.ask(2, 6.0) == (Start(2, 3),)
    assert driven.push(2, 6.5) == (Apply(2, 3), Start(0, 5))
    driven.push(0, 6.75)
    assert driven.ask(0, 6.75)[0] == Searched(6)


# --- ElasticBSP -------------------------------------------------------------------------------------------------------


def test_searches_and_predictions_agree_on_constant_intervals():
    usual = simulate(ElasticBSP(15), SPEEDS, 100)
    for search in ZIPLINES:
        for predict in ("last", "median", "ewma"):
            other = simulate(ElasticBSP(15, search, predict), SPEEDS, 100)
            assert other.searched == usual.searched
            for worker in range(4):  # averages round otherwise
                assert other.pushes[worker] == pytest.approx(usual.pushes[worker])
    trace = simulate(ElasticBSP(15), SPEEDS, 300)
    assert [trace.waited[worker] for worker in range(4)] == pytest.approx([1.3, 0, 5.7, 10.8], abs=0.05)


@pytest.mark.parametrize(("sync", "expected"), [
    (ElasticBSP(), 9), (ElasticBSP(predict="median"), 3), (ElasticBSP(predict="median", k=2), 5.5),
    (ElasticBSP(predict="median", k=3), 4), (ElasticBSP(predict="median", k=1), 9),
    (ElasticBSP(predict="ewma", weight=0.5), 5.8125), (ElasticBSP(predict="ewma", weight=1.0), 9),
])  # fmt: skip
def test_predicted_intervals(sync, expected):
    row, pushes_s = WorkerProgress(0), [0, 2, 5, 9, 11, 20]
    for iteration, now in enumerate(pushes_s):
        row = sync._pushed(row, iteration, now)
    first, second = sync._ends(row)[:2]
    assert first == pytest.approx(pushes_s[-1] + second - first)
    assert second - first == pytest.approx(expected)


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
