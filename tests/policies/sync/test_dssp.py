"""DSSP against hand-computed traces, in both readings of the paper; who leaves and who comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulate import simulate

from pslab.config.spec import build
from pslab.errors import ConfigError
from pslab.policies.sync.dssp import DSSP, Row, _slowest, forecast
from pslab.policies.sync.ssp import SSP
from pslab.protocol.messages import Apply, Asked, Left, Pushed, Searched, Start
from pslab.protocol.window import Window

LITERAL = DSSP(grant="literal")


def test_forecast_vector():
    assert forecast(10, 1, 8, 4, 4) == 2  # 10, 11, 12, 13, 14 beside 12, 16, 20, 24, 28


times = st.floats(0, 100)


@given(times, times, times, times, st.integers(0, 12))
def test_forecasts_against_all_pairs(pushed_s, interval_s, slow_s, slow_interval_s, extra):
    ends = [slow_s + count * slow_interval_s for count in range(1, extra + 2)]
    apart_s = [min(abs(end - (pushed_s + r * interval_s)) for end in ends) for r in range(extra + 1)]
    assert forecast(pushed_s, interval_s, slow_s, slow_interval_s, extra) == apart_s.index(min(apart_s))


@pytest.mark.parametrize("cap", [None, True, False])
def test_the_text_vector(cap):
    trace = simulate(DSSP(1, 4, cap=cap), [1, 4], 16)
    assert trace.pushes == {0: [1, 2, 5, 9, 10, 11, 12], 1: [4, 8, 12, 16]}
    assert trace.waited == {0: 9, 1: 0}
    assert trace.lead_max == 4
    assert [now for now, _ in trace.searched] == [9, 10, 12]  # before that the slow one has not pushed twice


def test_the_literal_vector():
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
def test_a_permanent_straggler(sync, compute_s, pushes, lead):
    trace = simulate(sync, compute_s, 300)
    assert [len(trace.pushes[worker]) for worker in range(len(compute_s))] == pushes
    assert trace.lead_max == lead


def test_published_times_need_the_literal_reading():
    """1.85 times sooner at 67 % than SSP with s = 15: as many more pushes, if one worker is 2.7 times slower."""
    total = {sync: sum(map(len, simulate(sync, [1, 2.7], 2000).pushes.values())) for sync in (DSSP(), LITERAL, SSP(15))}
    assert total[LITERAL] / total[SSP(15)] == pytest.approx(1.85, rel=0.03)
    assert total[DSSP()] <= total[SSP(15)]


@pytest.mark.parametrize("compute_s", [[1, 3], [1, 7], [2, 3, 5], [1, 1, 1, 2], [1.0, 1.37, 2.11, 2.9]])
@pytest.mark.parametrize("grant", ["text", "literal"])
@pytest.mark.parametrize("interval", ["push", "release"])
def test_a_cap_is_never_exceeded(compute_s, grant, interval):
    sync = DSSP(1, 3, grant, True, interval)
    trace = simulate(sync, compute_s, 200)
    assert trace.lead_max <= 4 == sync.window - 1
    assert not trace.refused


@pytest.mark.parametrize("compute_s", [[1, 4], [2, 3, 7]])
def test_without_anything_to_grant_it_is_ssp(compute_s):
    ours, theirs = simulate(DSSP(2, 0), compute_s, 60), simulate(SSP(2), compute_s, 60)
    assert (ours.pushes, ours.waited) == (theirs.pushes, theirs.waited)


def test_time_spent_waiting_makes_a_worker_look_slow_only_between_pushes():
    push, release = (simulate(DSSP(1, 4, "literal", None, interval), [1, 4], 16) for interval in ("push", "release"))
    assert push.pushes[0][2:5] == [5, 9, 10]  # at 9: 4 s between pushes, so one more iteration would end at 13
    assert release.pushes[0][2:5] == [5, 6, 7]  # at 5: 1 s; the slow one's first interval counts from its start


@pytest.mark.parametrize("sync", [DSSP(1, 4), LITERAL])
def test_duplicates_change_nothing(sync):
    once, twice = (simulate(sync, [2, 3, 5], 60, copies=n) for n in (1, 2))
    assert (twice.pushes, twice.waited) == (once.pushes, once.waited)
    assert twice.searched == once.searched
    assert twice.refused


# -- one step at a time ---------------------------------------------------------------------------------


class Told:
    """A policy, its state and the clocks: events in, decisions out."""

    def __init__(self, sync, workers: int) -> None:
        self.sync, self.state = sync, sync.initial(tuple(range(workers)))
        self.clocks = Window(workers, sync.window)

    def push(self, worker, iteration, now):
        return self.tell(Pushed(worker, iteration, now, self.clocks.push(iteration)))

    def tell(self, event):
        self.state, decisions = self.sync.step(self.state, event, self.clocks)
        return decisions


def ahead(sync=None) -> Told:
    """Worker 0 has pushed four iterations, the last at 4 s, a second each; worker 1 two, the last at 3 s, 3 s each."""
    told = Told(sync or DSSP(1, 2), 2)
    for worker, iteration, now in ((1, 0, 0.0), (0, 0, 1.0), (0, 1, 2.0), (1, 1, 3.0), (0, 2, 3.0), (0, 3, 4.0)):
        assert told.push(worker, iteration, now) == (Apply(worker, iteration),)
        if iteration < 3:
            assert told.tell(Asked(worker, iteration + 1, now)) == (Start(worker, iteration + 1),)
    return told


def test_a_grant_and_its_credit():
    told = ahead()
    assert told.tell(Asked(0, 4, 4.0)) == (Searched(6), Start(0, 4))  # 2 of them end at 6, when the slow one does
    told.push(0, 4, 5.0)
    assert told.tell(Asked(0, 5, 5.0)) == (Start(0, 5),)  # by what is left of the grant
    told.push(0, 5, 6.0)
    assert told.tell(Asked(0, 6, 6.0)) == (Searched(6),)  # the slow one ends now: it waits
    assert told.push(1, 2, 6.0) == (Apply(1, 2),)
    assert told.push(1, 3, 8.0) == (Apply(1, 3),)
    assert told.push(1, 4, 10.0) == (Apply(1, 4), Start(0, 6))


def test_a_grant_read_literally_starts_one_more():
    told = ahead(DSSP(1, 2, "literal"))
    starts = 0
    while Searched(6) not in (decisions := told.tell(Asked(0, 4 + starts, 4.0 + starts))) or not starts:
        assert decisions[-1] == Start(0, 4 + starts)
        told.push(0, 4 + starts, 5.0 + starts)
        starts += 1
    assert starts == 3


def test_a_grant_ends_at_the_cap():
    told = ahead(DSSP(1, 2, "literal", cap=True))
    for iteration in (4, 5):  # 2 and 3 ahead
        assert told.tell(Asked(0, iteration, float(iteration)))[-1] == Start(0, iteration)
        told.push(0, iteration, iteration + 1.0)
    assert told.tell(Asked(0, 6, 6.0)) == (Searched(6),)


def test_who_asks_again_is_answered_again_and_spends_nothing():
    told = ahead()
    for _ in range(3):
        assert told.tell(Asked(0, 4, 4.0))[-1] == Start(0, 4)
    told.push(0, 4, 5.0)
    assert told.tell(Asked(0, 5, 5.0)) == (Start(0, 5),)


def test_who_is_not_the_fastest_waits():
    told = Told(DSSP(0, 2, cap=False), 3)
    for iteration in range(2):
        for worker in range(3):
            told.push(worker, iteration, iteration + 1.0)
        for worker in range(3):
            assert told.tell(Asked(worker, iteration + 1, iteration + 1.0)) == (Start(worker, iteration + 1),)
    told.push(0, 2, 2.1)
    told.push(1, 2, 2.1)
    assert told.tell(Asked(1, 3, 2.1)) == (Searched(6), Start(1, 3))  # as far ahead as worker 0
    told.push(1, 3, 2.2)
    assert told.tell(Asked(0, 3, 2.2)) == ()


def test_the_slowest_is_behind_all_and_has_been_silent_longest():
    late, old = Row(0, 2, pushed_s=5.0, interval_s=1.0), Row(2, 2, pushed_s=4.0, interval_s=9.0)
    far, new = Row(1, 3, pushed_s=1.0, interval_s=1.0), Row(3, 2, pushed_s=4.5)
    assert _slowest(frozenset({late, old, far}), 2) == old
    assert _slowest(frozenset({late, old._replace(pushed_s=5.0), far}), 2) == late
    assert _slowest(frozenset({late, old, far, new}), 2) is None  # its interval is not known
    assert _slowest(frozenset({late, old, far}), 1) is None  # somebody is behind who has not asked yet
    assert _slowest(frozenset(), 0) is None


def test_those_who_wait_go_on_when_the_slowest_leaves():
    told = ahead(DSSP(1, 0))
    assert told.tell(Asked(0, 4, 4.0)) == (Searched(2),)
    assert told.tell(Left(1, 5.0, told.clocks.leave(2))) == (Start(0, 4),)
    assert {row.worker for row in told.state} == {0}


def test_who_left_is_never_started():
    told = ahead(DSSP(1, 0))
    told.tell(Asked(0, 4, 4.0))
    assert told.tell(Left(0, 5.0, told.clocks.leave(4))) == ()
    assert told.push(1, 2, 6.0) == (Apply(1, 2),)
    assert told.tell(Left(1, 7.0, told.clocks.leave(3))) == ()
    assert told.state == frozenset()


def test_nothing_is_forecast_of_somebody_who_has_just_come():
    told = ahead()
    told.clocks.join(2)
    told.push(1, 2, 4.0)
    assert told.tell(Asked(0, 4, 4.0)) == ()  # the low bound is that of worker 2, which has not even asked
    assert told.tell(Asked(2, 2, 4.5)) == (Start(2, 2),)
    assert told.push(2, 2, 5.0) == (Apply(2, 2), Start(0, 4))
    told.push(1, 3, 5.5)
    told.push(0, 4, 6.0)
    assert told.tell(Asked(0, 5, 6.0)) == ()  # worker 2 has pushed once: it may be of any speed
    assert told.tell(Asked(2, 3, 6.0)) == (Start(2, 3),)
    assert told.push(2, 3, 6.5) == (Apply(2, 3), Start(0, 5))
    told.push(0, 5, 6.75)
    assert told.tell(Asked(0, 6, 6.75))[0] == Searched(6)


@pytest.mark.parametrize(("text", "words"), [
    ("dssp:-1,3", "low=-1: must be a whole number of at least 0"), ("dssp:1,-3", "extra=-3"),
    ("dssp:3,12,grant=litteral", "did you mean 'literal'"), ("dssp:3,12,interval=start", "allowed: push, release"),
    ("dssp:3,12,cap=maybe", "cap='maybe' cannot be read"),
])  # fmt: skip
def test_what_is_refused(text, words):
    with pytest.raises(ConfigError, match=words):
        build("sync", text)


def test_strings():
    assert build("sync", "dssp") == build("sync", "dssp:3,12") == DSSP(3, 12)
    assert build("sync", "dssp:3,12").window == 16
    assert build("sync", "dssp:1,2,grant=literal").window is None
    assert build("sync", "dssp:1,2,literal,cap=on").window == 4
    assert build("sync", "dssp:1,2,cap=off").window is None
