"""The explorer: state counts by hand, symmetry, faults, and policies that break one rule each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from mutants import SOURCE, machines, modules
from ownpolicies import NeverWaits

from pslab.engines.check.explorer import Explorer, explore
from pslab.engines.check.plan import examples, resolve_sync
from pslab.engines.check.result import Explored
from pslab.engines.check.worker import FAULTS
from pslab.errors import ConfigError
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.bsp import BSP
from pslab.policies.sync.dssp import DSSP
from pslab.policies.sync.elastic import ElasticBSP
from pslab.policies.sync.ssp import SSP
from pslab.protocol.messages import Apply, Asked, Left, Pushed, Searched, Start

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


CLUSTERS = [
    ({"workers": 2, "iterations": 3}, ()),
    ({"workers": 2, "iterations": 2}, ("kill",)),
    ({"workers": 2, "iterations": 1}, ("duplicate", "reorder")),
    ({"workers": 2, "iterations": 1, "ranges": 2}, ()),
    ({"workers": 3, "iterations": 1}, ("lose",)),
]


class Recording(Explorer):
    """Without symmetry; records the states that it visits."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, symmetric=False, **more)
        self.visited: list[tuple[int, ...]] = []

    def _level(self, frontier: Any) -> Any:
        self.visited += frontier
        return super()._level(frontier)


@pytest.mark.one_of(3)
@pytest.mark.parametrize(("cluster", "faults"), CLUSTERS, ids=str)
@pytest.mark.parametrize("sync", [BSP(), SSP(1), ASP()], ids=repr)
def test_one_state_is_kept_of_those_that_differ_in_names(sync, cluster, faults):
    full = Recording(sync, faults=faults, **cluster)
    reduced = explore(sync, faults=faults, **cluster)
    assert full.explore().verdict == reduced.verdict == "clean"
    assert full.states == len(set(full.visited))
    names = Explorer(sync, faults=faults, **cluster)  # gives each of them its canonical name
    names.server, names.local = full.server, full.local
    orbits = {(state[1], names.canonical(state[0], list(state[2:]))[0]) for state in full.visited}
    assert reduced.states == len(orbits) < full.states


class IgnoresLeaving(SSP):
    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        return (state, ()) if isinstance(event, Left) else super().step(state, event, clocks)


@pytest.mark.parametrize("verdict", ["clean", "violated"])
def test_states_reached_with_fewer_faults_are_not_visited_again(verdict):
    """Without this rule the verdict, and the length of the shortest path, are the same."""
    sync = SSP(0) if verdict == "clean" else IgnoresLeaving(0)

    class VisitsAll(Explorer):
        def _covered(self, state: Any) -> bool:
            return False

    full, reduced = (kind(sync, iterations=1, faults=("duplicate", "reorder", "kill")).explore()
                     for kind in (VisitsAll, Explorer))  # fmt: skip
    assert reduced.states < full.states
    assert reduced.verdict == full.verdict == verdict
    if reduced.violation and full.violation:
        assert len(reduced.violation.path) == len(full.violation.path) > 5


def test_more_faults_reach_more_states():
    kinds = ("duplicate", "lose", "kill", "reorder")
    counts = [explored(SSP(1), iterations=1, faults=kinds[:count]).states for count in range(len(kinds) + 1)]
    assert counts == sorted(set(counts))
    fewer = [explored(SSP(1), iterations=1, faults=kinds, faults_max=count).states for count in range(len(kinds) + 1)]
    assert fewer == sorted(set(fewer))
    assert (fewer[0], fewer[-1]) == (counts[0], counts[-1])


def test_an_exploration_is_unfinished_at_its_limit_of_states():
    found = explored(SSP(1), iterations=3, states_max=50)
    assert (found.verdict, found.complete) == ("unfinished", False)
    assert 50 <= found.states < 303


def test_an_unknown_fault_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'duplicate'"):
        explored(BSP(), faults=("duplicat",))


# --- policies that keep the rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize("faults", NO_FAULT_OR_ONE, ids=str)
@pytest.mark.parametrize("sync", POLICIES, ids=repr)
def test_the_policies_are_clean(sync, faults):
    assert explored(sync, iterations=2 if faults != ("duplicate",) else 1, faults=faults).verdict == "clean"


@pytest.mark.parametrize("sync", POLICIES, ids=repr)
def test_a_worker_may_rejoin_after_all_have_left(sync):
    assert explored(sync, iterations=1, faults=("lose", "kill", "rejoin")).verdict == "clean"
    assert explored(sync, workers=1, ranges=2, faults=("rejoin",)).verdict == "clean"


LAYERED = [(sync, faults) for sync in (BSP(), SSP(1), ASP())
           for faults in ((), ("duplicate",), ("lose",), ("kill",), ("reorder",))]  # fmt: skip
QUICK = [each for each in LAYERED if isinstance(each[0], BSP) or each[1] == ("kill",)]


@pytest.mark.one_of(3)
@pytest.mark.parametrize(
    ("sync", "faults"), [pytest.param(*each, marks=[pytest.mark.slow] * (each not in QUICK)) for each in LAYERED]
)
def test_layered_workers_are_clean(sync, faults):
    found = explored(sync, ranges=2, iterations=1 if faults else 2, faults=faults, layered=True)
    assert found.verdict == "clean", str(found.violation)
    assert found.states > 1000


@pytest.mark.slow
@pytest.mark.parametrize(("sync", "layered"), [(BSP(), False), (BSP(), True), (SSP(1), True), (ASP(), True)], ids=repr)
def test_a_worker_may_rejoin_with_one_range_ahead(sync, layered):
    found = explored(sync, ranges=2, iterations=1, faults=("lose", "kill", "rejoin"), layered=layered)
    assert found.verdict == "clean", str(found.violation)


@pytest.mark.slow
@pytest.mark.parametrize("sync", [SSP(0), SSP(2)], ids=repr)
def test_a_large_exploration_with_all_faults_is_clean(sync):
    found = explored(sync, iterations=3, faults=FAULTS)
    assert found.verdict == "clean", str(found.violation)
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


class NeverStarts(NeverWaits):
    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        return state, (Apply(event.worker, event.iteration),) if isinstance(event, Pushed) else ()


def test_a_policy_that_starts_no_worker_is_violated():
    what, path = wrong(NeverStarts(1), workers=1, iterations=1)
    assert what == "worker 0 waits forever; worker 0 at the low bound"
    assert path[-1] == "worker 0's pull for iteration 1 arrives; the server holds it"


class NeverApplies(NeverWaits):
    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        return state, (Start(event.worker, event.iteration),) if isinstance(event, Asked) else ()


class ChangesItself(NeverWaits):
    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        self.last = event
        return super().step(state, event, clocks)


class Raises(NeverWaits):
    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        return state["nothing"], ()


class ClaimsBarrier(NeverWaits):
    barrier = True


@pytest.mark.parametrize(("sync", "words"), [
    (NeverApplies(None), "on weights without its own push of 0"),
    (ChangesItself(None), "the policy changed itself"),
    (Raises(None), "Raises in it, raises TypeError: tuple indices must be integers"),
    (ClaimsBarrier(None), "computes on it; the policy claims a barrier"),
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_the_broken_rule_is_named(sync, words):
    assert words in wrong(sync)[0]


def test_weights_that_change_while_they_are_read_are_found():
    """With the server's guard removed, and a policy that applies after it starts."""
    text, guard = (SOURCE / "protocol/server.py").read_text(), "        if scope.reading:\n            raise"
    assert text.count(guard) == 1
    fresh = modules({"protocol.server": text.replace(guard, "        if False:\n            raise")})
    messages = fresh["protocol.messages"]

    class AppliesLate(NeverWaits):
        def step(self, state: Any, event: Any, clocks: Any) -> Any:
            if isinstance(event, messages.Pushed):
                waiting = tuple(each for each in state if each[0] != event.worker)
                return waiting, (*(messages.Start(*each) for each in waiting),
                                 messages.Apply(event.worker, event.iteration))  # fmt: skip
            return ((*state, (event.worker, event.iteration)), ()) if isinstance(event, messages.Asked) else (state, ())

    what, path = wrong(AppliesLate(None), machines=machines(fresh))
    assert "changes while worker" in what
    assert "is being sent its weights" in what
    assert "the server starts worker" in path[-1]


# --- policies that plan -----------------------------------------------------------------------------------------------

PLANNING = [DSSP(0, 1), DSSP(1, 1), DSSP(0, 1, "literal"), DSSP(0, 1, interval="release"), ElasticBSP(1),
            ElasticBSP(2), ElasticBSP(1, include_last=True), ElasticBSP(1, predict="median", k=2)]  # fmt: skip


@pytest.mark.one_of(8)
@pytest.mark.parametrize("faults", NO_FAULT_OR_ONE, ids=str)
@pytest.mark.parametrize(
    "sync", [pytest.param(each, marks=[pytest.mark.slow] * (each in PLANNING[1::2])) for each in PLANNING], ids=repr
)
def test_policies_that_plan_are_clean(sync, faults):
    found = explored(sync, iterations=3 if {"duplicate", "rejoin"} & {*faults} else 4, faults=faults)
    assert (found.verdict, found.symmetric) == ("clean", True), str(found.violation)


class Only:
    """One of a policy's variants."""

    def __init__(self, sync: Any) -> None:
        self.sync, self.window = sync, sync.window
        self.initial, self.step = sync.initial, sync.step


def test_every_plan_is_explored():
    """The states that each variant reaches by itself are reached, and more."""
    several = explored(ElasticBSP(2), iterations=4)
    alone = [explored(Only(plan), iterations=4) for plan in ElasticBSP(2).variants(2)]
    assert [found.verdict for found in alone] == ["clean"] * 4
    assert several.states > max(found.states for found in alone)
    assert explored(Only(DSSP(0, 1)), iterations=4).states <= explored(DSSP(0, 1), iterations=4).states


def test_dssp_literal_grant_exceeds_the_proved_bound():
    literal = DSSP(1, 1, "literal")
    assert explored(literal, iterations=5).verdict == "clean", "it claims no bound"
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


class Plans(NeverWaits):
    """Plans to start a worker, or to hold it; `reported` are its decisions about that."""

    def __init__(self, reported: tuple[Any, ...], holds: bool = False) -> None:
        super().__init__(None)
        self.reported, self.holds = reported, holds

    def variants(self, workers: int) -> Any:
        return Plans(self.reported), Plans(self.reported, holds=True)

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        state, decisions = super().step(state, event, clocks)
        if isinstance(event, Asked):
            return state, self.reported + (() if self.holds else decisions)
        return state, decisions


def test_a_plan_without_searched_is_refused():
    what, path = wrong(Plans((Searched(1),)), workers=1)
    assert what == "worker 0 waits forever; worker 0 at the low bound"
    assert path[-1] == "worker 0's pull for iteration 1 arrives; the policy plans over 1 point"
    assert wrong(Plans(()), workers=1)[0] == "the policy plans without deciding Searched"


def test_workers_beyond_their_iterations_release_those_that_wait():
    """Where the explored iterations end, a barrier may be further ahead for one worker than for the other."""
    for iterations in range(1, 5):
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
def test_a_policy_that_distinguishes_workers_is_explored_without_symmetry(favourite):
    found = explored(Favours(favourite), iterations=3)
    assert found.violation is not None
    assert not found.symmetric
    assert found.violation.what.startswith(f"worker {favourite} is started with iteration 2")
    free = explored(Favours(favourite, window=None), iterations=3)
    assert (free.verdict, free.symmetric) == ("clean", False)
    assert free.states == explored(Favours(favourite, window=None), iterations=3, symmetric=False).states
    equal = explored(Favours(None), iterations=3)
    assert (equal.symmetric, equal.states) == (True, explored(SSP(1), iterations=3).states)


# --- several servers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sync", "states"), [(BSP(), 3330), (SSP(1), 3626), (ASP(), 3626), (DSSP(1, 1), 1335)],
                         ids=repr)  # fmt: skip
def test_a_policy_is_clean_with_its_ranges_at_two_servers(sync: Any, states: int):
    """More than with one, whose weights are read before a push is taken: an order waits at its server, however long."""
    found = explored(sync, iterations=1, ranges=2, servers=2)
    assert (found.verdict, found.states) == ("clean", states)
    assert explored(sync, iterations=1, ranges=2).states != states


@pytest.mark.slow
@pytest.mark.parametrize("name", examples())
def test_every_policy_is_clean_with_its_ranges_at_two_servers(name: str):
    for faults in NO_FAULT_OR_ONE:
        found = explored(resolve_sync(name), iterations=1, ranges=2, servers=2, faults=faults)
        assert found.verdict == "clean", str(found.violation)
    assert explored(resolve_sync(name), workers=1, ranges=2, servers=2, faults=FAULTS, faults_max=2).verdict == "clean"
