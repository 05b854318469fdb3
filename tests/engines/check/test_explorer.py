"""The explorer: state counts by hand, faults, and policies that break one rule each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from ownpolicies import NeverWaits

from pslab.engines.check.explorer import explore
from pslab.engines.check.plan import examples, resolve_sync
from pslab.engines.check.result import Explored
from pslab.engines.check.worker import FAULTS
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.bsp import BSP
from pslab.policies.sync.dssp import DSSP
from pslab.policies.sync.elastic import ElasticBSP
from pslab.policies.sync.ssp import SSP
from pslab.protocol.messages import Apply, Asked, Pushed, Start

POLICIES = [BSP(), SSP(0), SSP(1), ASP()]
NO_FAULT_OR_ONE = [(), *((fault,) for fault in FAULTS)]


def explored(sync: Any, workers: int = 2, iterations: int = 2, **more: Any) -> Explored:
    return explore(sync, workers=workers, iterations=iterations, **more)


def wrong(sync: Any, **cluster: Any) -> tuple[str, tuple[str, ...]]:
    violation = explored(sync, **cluster).violation
    assert violation is not None
    return violation.what, violation.path


# --- counts of states -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", POLICIES, ids=repr)
def test_states_of_one_worker_are_counted_by_hand(sync):
    """It computes; pushes and pulls; the push is applied; then the acknowledgement arrives before, between or after
    the pull is answered and its weights are read; the weights arrive, and it computes again.

    Killed, but not yet missed, by what is under way: nothing before its push, push and pull, pull, a reading, nothing
    after: 5. After it has left: push and pull under way, the pull, nothing; or pull, nothing after its push was
    applied: 5.
    """
    found = explored(sync, workers=1, iterations=1)
    assert (found.states, found.transitions, found.verdict) == (9, 10, "clean")
    assert explored(sync, workers=1, iterations=1, faults=("kill",)).states == 9 + 5 + 5


def test_more_faults_reach_more_states():
    kinds = ("lose", "kill", "reorder")
    counts = [explored(SSP(1), iterations=1, faults=kinds[:count]).states for count in range(len(kinds) + 1)]
    assert counts == sorted(set(counts))
    fewer = [explored(SSP(1), iterations=1, faults=kinds, faults_max=count).states for count in range(len(kinds) + 1)]
    assert fewer == sorted(set(fewer))
    assert (fewer[0], fewer[-1]) == (counts[0], counts[-1])


def test_an_exploration_is_unfinished_at_its_limit_of_states():
    found = explored(SSP(1), iterations=3, states_max=50)
    assert (found.verdict, found.complete) == ("unfinished", False)
    assert 50 <= found.states < 303


# --- policies that keep the rules -------------------------------------------------------------------------------------

PLANNING = [DSSP(0, 1), DSSP(1, 1), DSSP(0, 1, "literal"), DSSP(0, 1, interval="release"), ElasticBSP(1),
            ElasticBSP(2), ElasticBSP(1, include_last=True), ElasticBSP(1, predict="median", k=2)]  # fmt: skip
REJOINS = ("lose", "kill", "rejoin")
CLEAN = [
    *((sync, {"iterations": 1 if faults == ("duplicate",) else 2, "faults": faults})
      for sync in POLICIES for faults in NO_FAULT_OR_ONE if faults != ("rejoin",)),
    *((sync, cluster) for sync in POLICIES for cluster in (
        {"iterations": 1, "faults": REJOINS}, {"workers": 1, "ranges": 2, "faults": ("rejoin",)})),
    *((sync, {"ranges": 2, "iterations": 1, "layered": True}) for sync in (BSP(), ASP())),
    *((sync, {"iterations": 3, "faults": faults})
      for sync, faults in ((DSSP(0, 1), ("lose",)), (ElasticBSP(1), ("kill",)))),
]  # fmt: skip
LARGE = [
    *((sync, {"iterations": 3 if {"duplicate", "rejoin"} & {*faults} else 4, "faults": faults})
      for sync in PLANNING for faults in NO_FAULT_OR_ONE),
    *((sync, {"ranges": 2, "iterations": 1 if faults else 2, "faults": faults, "layered": True})
      for sync in (BSP(), SSP(1), ASP()) for faults in ((), ("duplicate",), ("lose",), ("kill",), ("reorder",))),
    *((sync, {"ranges": 2, "iterations": 1, "faults": REJOINS, "layered": layered})
      for sync, layered in ((BSP(), False), (BSP(), True), (SSP(1), True), (ASP(), True))),
    *((sync, {"iterations": 3, "faults": FAULTS}) for sync in (SSP(0), SSP(2))),
    *((sync, {"iterations": 2, "faults": ("rejoin",)}) for sync in POLICIES),
    *((resolve_sync(name), {"iterations": 1, "ranges": 2, "servers": 2, "faults": faults})
      for name in examples() for faults in NO_FAULT_OR_ONE),
    *((resolve_sync(name), {"workers": 1, "ranges": 2, "servers": 2, "faults": FAULTS, "faults_max": 2})
      for name in examples()),
]  # fmt: skip


@pytest.mark.one_of(3)
@pytest.mark.parametrize(("sync", "cluster"), [
    *(pytest.param(*each, id=f"{each[0]}-{each[1]}") for each in CLEAN),
    *(pytest.param(*each, id=f"large-{each[0]}-{each[1]}", marks=pytest.mark.slow) for each in LARGE),
])  # fmt: skip
def test_a_policy_is_clean(sync: Any, cluster: dict[str, Any]):
    found = explored(sync, **cluster)
    assert found.verdict == "clean", str(found.violation)
    if cluster.get("faults") == FAULTS and "faults_max" not in cluster:
        assert found.states > 100_000


# --- policies that break a rule ---------------------------------------------------------------------------------------


def test_a_policy_that_exceeds_its_bound_is_violated():
    what, path = wrong(NeverWaits(2), iterations=3)
    assert what == "worker 0 is started with iteration 2, the slowest is at 0: bound 1 exceeded"
    assert path == (
        "worker 0 has computed its gradient, pushes it and pulls",
        "worker 0's push of iteration 0 arrives; the server applies it: worker 0's of iteration 0, as version 1",
        "the acknowledgement to worker 0 of iteration 0 arrives",
        "worker 0's pull for iteration 1 arrives; the server starts worker 0 with iteration 1",
        "the weights for iteration 1 of worker 0 have been sent",
        "the reply to worker 0 for iteration 1 arrives; it computes iteration 1",
        "worker 0 has computed its gradient, pushes it and pulls",
        "worker 0's push of iteration 1 arrives; the server applies it: worker 0's of iteration 1, as version 2",
        "worker 0's pull for iteration 2 arrives; the server starts worker 0 with iteration 2",
    )


@pytest.mark.parametrize(("sync", "iterations", "bound", "verdict"), [
    (NeverWaits(None), 3, None, "clean"),
    (NeverWaits(4), 3, None, "clean"),  # a lead of 4 takes 4 iterations
    (NeverWaits(4), 4, None, "violated"),
    (SSP(1), 3, 1, "clean"),
    (SSP(1), 3, 0, "violated"),
    (ASP(), 4, 3, "violated"),
])  # fmt: skip
def test_the_policys_bound_or_a_given_one_is_checked(sync, iterations, bound, verdict):
    assert explored(sync, iterations=iterations, bound=bound).verdict == verdict


class Does(NeverWaits):
    """Decides something else; its step is a function of the policy, its state and the event."""

    def __init__(self, step: Callable[[Any, Any, Any], Any], window: int | None = None, barrier: bool = False) -> None:
        super().__init__(window)
        self.other, self.barrier = step, barrier

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        return self.other(self, state, event)


def plain(policy: Any, state: Any, event: Any) -> Any:
    return NeverWaits.step(policy, state, event, None)


def starts_none(policy: Any, state: Any, event: Any) -> Any:
    return state, (Apply(event.worker, event.iteration),) if isinstance(event, Pushed) else ()


def applies_none(policy: Any, state: Any, event: Any) -> Any:
    return state, (Start(event.worker, event.iteration),) if isinstance(event, Asked) else ()


def changes_itself(policy: Any, state: Any, event: Any) -> Any:
    policy.last = event
    return plain(policy, state, event)


def test_a_policy_that_starts_no_worker_is_violated():
    what, path = wrong(Does(starts_none, 1), workers=1, iterations=1)
    assert what == "worker 0 waits forever; worker 0 at the low bound"
    assert path[-1] == "worker 0's pull for iteration 1 arrives; the server holds it"


@pytest.mark.parametrize(("sync", "words"), [
    (Does(applies_none), "on weights without its own push of 0"),
    (Does(changes_itself), "the policy changed itself"),
    (Does(lambda policy, state, event: state["nothing"]), "Does in it, raises TypeError: tuple indices must be"),
    (Does(plain, barrier=True), "computes on it; the policy claims a barrier"),
], ids=["applies", "changes", "raises", "barrier"])  # fmt: skip
def test_the_broken_rule_is_named(sync, words):
    assert words in wrong(sync)[0]


# --- policies that plan -----------------------------------------------------------------------------------------------


class Only:
    """One of a policy's variants."""

    def __init__(self, sync: Any) -> None:
        self.sync, self.window = sync, sync.window
        self.initial, self.step = sync.initial, sync.step


def test_every_plan_is_explored():
    """More states are reached than one variant reaches by itself."""
    several, alone = (explored(sync, iterations=4) for sync in (ElasticBSP(2), Only(ElasticBSP(2).variants(2)[1])))
    assert alone.verdict == "now not varied"
    assert several.states > alone.states


def test_dssp_literal_grant_exceeds_the_proved_bound():
    literal = DSSP(1, 1, "literal")
    assert explored(literal, iterations=2).verdict == "clean", "it claims no bound"
    found = explored(literal, iterations=5, bound=2)
    assert found.bound == 2
    assert found.violation is not None
    assert found.violation.what == "worker 0 is started with iteration 5, the slowest is at 2: bound 2 exceeded"
    assert len(found.violation.path) == 35
    *_, grant, _, _, _, _, credit = found.violation.path
    assert grant == ("worker 0's pull for iteration 4 arrives; the policy plans over 4 points; "
                     "the server starts worker 0 with iteration 4")  # fmt: skip
    assert credit == "worker 0's pull for iteration 5 arrives; the server starts worker 0 with iteration 5"
    assert explored(DSSP(1, 1), iterations=5, bound=2).verdict == "clean"
    assert explored(DSSP(1, 1), iterations=5, bound=1).verdict == "violated"


def test_workers_beyond_their_iterations_release_those_that_wait():
    """Where the explored iterations end, a barrier may be further ahead for one worker than for the other."""
    for iterations in range(1, 4):
        assert explored(ElasticBSP(2), iterations=iterations).verdict == "clean"

    class StartsOnlyTheLast(ElasticBSP):
        def step(self, state: Any, event: Any, clocks: Any) -> Any:
            state, decisions = super().step(state, event, clocks)
            return state, tuple(d for d in decisions if not isinstance(d, Start) or d.worker == event.worker)

        def variants(self, workers: int) -> Any:
            return (self,)

    assert "waits forever" in wrong(StartsOnlyTheLast(1), iterations=3)[0]


# --- policies that distinguish workers --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Favours:
    """SSP, but one worker need not wait."""

    favourite: int | None
    window: int | None = 2

    def initial(self, workers: tuple[int, ...]) -> Any:
        return ()

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        if isinstance(event, Asked) and event.worker == self.favourite:
            return state, (Start(event.worker, event.iteration),)
        return SSP(1).step(state, event, clocks)


@pytest.mark.parametrize("favourite", [0, 1])
def test_a_policy_may_distinguish_workers(favourite):
    found = explored(Favours(favourite), iterations=3)
    assert found.violation is not None
    assert found.violation.what.startswith(f"worker {favourite} is started with iteration 2")
    assert explored(Favours(favourite, window=None), iterations=3).verdict == "clean"
    assert explored(Favours(None), iterations=3).states == explored(SSP(1), iterations=3).states


# --- several servers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sync", "states"), [
    (BSP(), 3330), *(pytest.param(sync, count, marks=pytest.mark.slow)
                     for sync, count in ((DSSP(1, 1), 1335), (SSP(1), 3626), (ASP(), 3626))),
], ids=repr)  # fmt: skip
def test_states_with_ranges_at_two_servers_are_counted(sync: Any, states: int):
    """More than with one, whose weights are read before a push is taken: an order waits at its server, however long."""
    found = explored(sync, iterations=1, ranges=2, servers=2)
    assert (found.verdict, found.states) == ("clean", states)
    assert explored(sync, iterations=1, ranges=2).states != states
