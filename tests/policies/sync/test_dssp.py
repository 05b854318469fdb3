"""DSSP against traces by hand, in both readings of the paper, and one event at a time."""

from __future__ import annotations

import pytest
from driven import Driven
from hypothesis import given
from hypothesis import strategies as st
from simulate import simulate

from pslab.policies.sync.dssp import DSSP, TableRow, _slowest, forecast
from pslab.policies.sync.ssp import SSP
from pslab.protocol.messages import Apply, Searched, Start

LITERAL = DSSP(grant="literal")


def test_forecast_vector():
    assert forecast(10, 1, 8, 4, 4) == 2  # 10, 11, 12, 13, 14 beside 12, 16, 20, 24, 28


times = st.floats(0, 100)


@given(times, times, times, times, st.integers(0, 12))
def test_forecast_is_the_closest_of_all_pairs(pushed_s, interval_s, slow_s, slow_interval_s, extra):
    ends = [slow_s + count * slow_interval_s for count in range(1, extra + 2)]
    distance_s = [min(abs(end - (pushed_s + r * interval_s)) for end in ends) for r in range(extra + 1)]
    assert forecast(pushed_s, interval_s, slow_s, slow_interval_s, extra) == distance_s.index(min(distance_s))


@pytest.mark.parametrize("cap", [None, True, False])
def test_text_vector(cap):
    trace = simulate(DSSP(1, 4, cap=cap), [1, 4], 16)
    assert trace.pushes == {0: [1, 2, 5, 9, 10, 11, 12], 1: [4, 8, 12, 16]}
    assert trace.waited == {0: 9, 1: 0}
    assert trace.lead_max == 4
    assert [now for now, _ in trace.searched] == [9, 10, 12]  # before that the slow worker has not pushed twice


def test_literal_vector():
    trace = simulate(DSSP(1, 4, grant="literal"), [1, 4], 16)
    assert trace.pushes == {0: [1, 2, 5, *range(9, 17)], 1: [4, 8, 12, 16]}
    assert trace.waited == {0: 5, 1: 0}
    assert trace.lead_max == 8


@pytest.mark.parametrize(("sync", "compute_s", "pushes", "lead"), [
    (DSSP(), [1, 3], [104, 100], 5),
    (LITERAL, [1, 3], [293, 100], 194),
    (LITERAL, [1, 1, 1, 2], [300, 300, 300, 150], 151),
    (DSSP(), [1, 1, 1, 2], [154, 154, 154, 150], 4),
    (DSSP(grant="literal", cap=True), [1, 3], [110, 100], 15),
])  # fmt: skip
def test_lead_over_a_permanent_straggler(sync, compute_s, pushes, lead):
    trace = simulate(sync, compute_s, 300)
    assert [len(trace.pushes[worker]) for worker in range(len(compute_s))] == pushes
    assert trace.lead_max == lead


def test_published_times_need_the_literal_reading():
    """1.85 times sooner at 67 % than SSP with s = 15: as many more pushes, if one worker is 2.7 times slower."""
    total = {sync: sum(map(len, simulate(sync, [1, 2.7], 2000).pushes.values())) for sync in (DSSP(), LITERAL, SSP(15))}
    assert total[LITERAL] / total[SSP(15)] == pytest.approx(1.85, rel=0.03)
    assert total[DSSP()] <= total[SSP(15)]


@pytest.mark.parametrize("compute_s", [[1, 3], [1, 7], [2, 3, 5], [1, 1, 1, 2], [1.0, 1.37, 2.11, 2.9]], ids=str)
@pytest.mark.parametrize("grant", ["text", "literal"])
@pytest.mark.parametrize("interval", ["push", "release"])
def test_a_cap_is_never_exceeded(compute_s, grant, interval):
    sync = DSSP(1, 3, grant, True, interval)
    trace = simulate(sync, compute_s, 200)
    assert trace.lead_max <= 4 == sync.window - 1
    assert not trace.refused


def test_waiting_time_counts_in_intervals_between_pushes_only():
    push, release = (simulate(DSSP(1, 4, "literal", None, interval), [1, 4], 16) for interval in ("push", "release"))
    assert push.pushes[0][2:5] == [5, 9, 10]  # at 9: 4 s between pushes, so one more iteration would end at 13
    assert release.pushes[0][2:5] == [5, 6, 7]  # at 5: 1 s; the slow worker's first interval counts from its start


# --- one event at a time ----------------------------------------------------------------------------------------------


def ahead(sync: DSSP | None = None) -> Driven:
    """Worker 0 has pushed four iterations, the last at 4 s, a second each; worker 1 two, the last at 3 s, 3 s each."""
    driven = Driven(sync or DSSP(1, 2), 2)
    for worker, now in ((1, 0.0), (0, 1.0), (0, 2.0), (1, 3.0), (0, 3.0), (0, 4.0)):
        iteration = driven.next[worker]
        assert driven.push(worker, now) == (Apply(worker, iteration),)
        if iteration < 3:
            assert driven.ask(worker, now) == (Start(worker, iteration + 1),)
    return driven


def test_a_grant_is_used_up_by_credit():
    driven = ahead()
    assert driven.ask(0, 4.0) == (Searched(6), Start(0, 4))  # 2 iterations end at 6, when the slow worker's does
    driven.push(0, 5.0)
    assert driven.ask(0, 5.0) == (Start(0, 5),)  # the rest of the grant
    driven.push(0, 6.0)
    assert driven.ask(0, 6.0) == (Searched(6),)  # the slow worker ends now: it waits
    assert [driven.push(1, now) for now in (6.0, 8.0)] == [(Apply(1, 2),), (Apply(1, 3),)]
    assert driven.push(1, 10.0) == (Apply(1, 4), Start(0, 6))


def test_a_literal_grant_starts_one_more_iteration():
    driven = ahead(DSSP(1, 2, "literal"))
    starts = 0
    while Searched(6) not in (decisions := driven.ask(0, 4.0 + starts)) or not starts:
        assert decisions[-1] == Start(0, 4 + starts)
        driven.push(0, 5.0 + starts)
        starts += 1
    assert starts == 3


def test_a_grant_ends_at_the_cap():
    driven = ahead(DSSP(1, 2, "literal", cap=True))
    for iteration in (4, 5):  # 2 and 3 ahead
        assert driven.ask(0, float(iteration))[-1] == Start(0, iteration)
        driven.push(0, iteration + 1.0)
    assert driven.ask(0, 6.0) == (Searched(6),)


def test_a_duplicate_request_is_answered_and_uses_no_credit():
    driven = ahead()
    assert [driven.ask(0, 4.0)[-1] for _ in range(3)] == [Start(0, 4)] * 3
    driven.push(0, 5.0)
    assert driven.ask(0, 5.0) == (Start(0, 5),)


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


def test_the_slowest_is_at_the_low_bound_and_pushed_longest_ago():
    late, old = TableRow(0, 2, pushed_s=5.0, interval_s=1.0), TableRow(2, 2, pushed_s=4.0, interval_s=9.0)
    far, new = TableRow(1, 3, pushed_s=1.0, interval_s=1.0), TableRow(3, 2, pushed_s=4.5)
    assert _slowest(frozenset({late, old, far}), 2) == old
    assert _slowest(frozenset({late, old._replace(pushed_s=5.0), far}), 2) == late
    assert _slowest(frozenset({late, old, far, new}), 2) is None  # its interval is not known
    assert _slowest(frozenset({late, old, far}), 1) is None  # a worker is behind that has not asked yet
    assert _slowest(frozenset(), 0) is None


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
