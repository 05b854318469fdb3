"""DSSP and ElasticBSP, which plan by the instants of pushes: forecasts, bounds, and one event at a time."""

from __future__ import annotations

import pytest
from driven import Driven
from hypothesis import given
from hypothesis import strategies as st
from simulate import simulate

from pslab.policies.planning.zipline import ZIPLINES
from pslab.policies.sync.dssp import DSSP, forecast
from pslab.policies.sync.elastic import ElasticBSP, Superstep, WorkerProgress
from pslab.protocol.messages import Apply, Searched, Start

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


def ahead() -> Driven:
    """Worker 0 has pushed four iterations, the last at 4 s, a second each; worker 1 two, the last at 3 s, 3 s each."""
    driven = Driven(DSSP(1, 2), 2)
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
