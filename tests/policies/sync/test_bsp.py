"""BSP, SSP and ASP against hand-computed traces (and against each other)."""

from __future__ import annotations

import pytest
from simulate import simulate

from pslab.errors import ProtocolError
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.bsp import BSP
from pslab.policies.sync.ssp import SSP
from pslab.protocol.messages import Aggregate, Apply, Asked, Left, Pushed, Start
from pslab.protocol.window import Window


def test_bsp_vector():
    trace = simulate(BSP(), [2, 3], 12)
    assert trace.pushes == {0: [2, 5, 8, 11], 1: [3, 6, 9, 12]}
    assert trace.waited == {0: 4, 1: 0}


def test_bsp_applies_the_mean_of_each_round_once():
    trace = simulate(BSP(), [2, 3], 12)
    assert [(step.aggregate, [(p.worker, p.iteration) for p in step.pushes]) for step in trace.steps] == [
        (True, [(0, t), (1, t)]) for t in range(4)
    ]


def test_asp_vector():
    trace = simulate(ASP(), [2, 3], 12)
    assert trace.pushes == {0: [2, 4, 6, 8, 10, 12], 1: [3, 6, 9, 12]}
    assert trace.waited == {0: 0, 1: 0}


@pytest.mark.parametrize(
    ("compute_s", "until_s", "pushes", "waited"),
    [
        ([1, 4], 16, {0: [1, 2, 5, 9, 13], 1: [4, 8, 12, 16]}, {0: 11, 1: 0}),
        ([2, 3], 12, {0: [2, 4, 6, 8, 11], 1: [3, 6, 9, 12]}, {0: 2, 1: 0}),
    ],
)
def test_ssp_vectors(compute_s, until_s, pushes, waited):
    trace = simulate(SSP(1), compute_s, until_s)
    assert trace.pushes == pushes
    assert trace.waited == waited


def test_throughput_of_a_permanent_straggler():
    total = {
        name: sum(map(len, simulate(sync, [1, 3], 300).pushes.values()))
        for name, sync in {"bsp": BSP(), "ssp:3": SSP(3), "ssp:15": SSP(15), "asp": ASP()}.items()
    }
    assert total == {"bsp": 200, "ssp:3": 203, "ssp:15": 215, "asp": 400}


@pytest.mark.parametrize("compute_s", [[1, 4], [2, 3, 7], [1, 1, 1, 5]])
def test_bsp_is_ssp_without_staleness(compute_s):
    bsp, ssp = simulate(BSP(), compute_s, 60), simulate(SSP(0), compute_s, 60)
    assert bsp.pushes == ssp.pushes
    assert bsp.waited == ssp.waited


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_ssp_lead_is_the_staleness_plus_the_push_itself(staleness):
    # a worker may start an iteration `staleness` ahead of the slowest; once pushed it counts as done
    assert simulate(SSP(staleness), [1, 10], 100).gap_max == staleness + 1


@pytest.mark.parametrize("sync", [BSP(), SSP(1), SSP(3), ASP()])
@pytest.mark.parametrize("ranges", [1, 3])
def test_duplicates_change_nothing(sync, ranges):
    once, twice = (simulate(sync, [2, 3, 5], 60, ranges=ranges, copies=n) for n in (1, 2))
    assert twice.pushes == once.pushes
    assert twice.waited == once.waited
    assert [s.pushes for s in twice.steps] == [s.pushes for s in once.steps]
    assert twice.refused
    assert not once.refused


@pytest.mark.parametrize("sync", [BSP(), SSP(2), ASP()])
def test_ranges_do_not_change_when_workers_start(sync):
    assert simulate(sync, [2, 3], 60, ranges=4).pushes == simulate(sync, [2, 3], 60).pushes


def test_bsp_goes_on_when_the_missing_worker_leaves():
    clocks, sync = Window(2, 1), BSP()
    state = sync.initial((0, 1))
    clocks.push(0)
    state, none = sync.step(state, Pushed(0, 0, 1.0, False), clocks)
    state, held = sync.step(state, Asked(0, 1, 1.0), clocks)
    assert none == held == ()
    state, decisions = sync.step(state, Left(1, 2.0, clocks.leave(0)), clocks)
    assert decisions == (Aggregate(((0, 0),)), Start(0, 1))
    assert state == ((), ())


def test_ssp_releases_when_the_slowest_leaves():
    clocks, sync = Window(2, 2), SSP(1)
    state = sync.initial((0, 1))
    for t in (0, 1):
        clocks.push(t)
        state, decisions = sync.step(state, Pushed(0, t, 1.0, False), clocks)
        assert decisions == (Apply(0, t),)
    state, held = sync.step(state, Asked(0, 2, 1.0), clocks)
    assert held == ()
    state, decisions = sync.step(state, Left(1, 2.0, clocks.leave(0)), clocks)
    assert decisions == (Start(0, 2),)


def test_a_worker_that_left_is_never_started():
    clocks, sync = Window(3, 1), SSP(0)
    state = sync.initial((0, 1, 2))
    clocks.push(0)
    state, _ = sync.step(state, Pushed(0, 0, 1.0, False), clocks)
    state, _ = sync.step(state, Asked(0, 1, 1.0), clocks)
    state, decisions = sync.step(state, Left(0, 2.0, clocks.leave(1)), clocks)
    assert decisions == ()
    assert state == ()


class AlwaysHold(SSP):
    """SSP whose rule is broken one way: nobody ever starts."""

    def step(self, state, event, clocks):
        return state, tuple(d for d in super().step(state, event, clocks)[1] if not isinstance(d, Start))


class AlwaysStart(SSP):
    """... and the other way: everybody always does."""

    def step(self, state, event, clocks):
        if isinstance(event, Asked):
            return state, (Start(event.worker, event.iteration),)
        return super().step(state, event, clocks)


def test_breaking_the_rule_is_noticed():
    assert {w: len(p) for w, p in simulate(AlwaysHold(1), [1, 4], 100).pushes.items()} == {0: 1, 1: 1}
    broken = simulate(AlwaysStart(1), [1, 4], 100)
    assert broken.refused  # the window does not count a push that nobody was allowed to make


def test_a_policy_that_starts_nobody_who_asked_is_refused():
    class Eager(ASP):
        def step(self, state, event, clocks):
            return state, (Start(0, 1),)

    with pytest.raises(ProtocolError, match="no worker asked for"):
        simulate(Eager(), [1, 2], 10)
