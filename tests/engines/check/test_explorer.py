"""The checker: counts made by hand, symmetry against none, and policies that are wrong in one way each."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import pytest
from mutants import SOURCE, machines, modules
from ownpolicies import Eager

from pslab.engines.check.explorer import Explorer, explore
from pslab.engines.check.parallel import Task, explore_all
from pslab.engines.check.result import Explored
from pslab.engines.check.worker import FAULTS
from pslab.errors import ConfigError, PslabError
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.bsp import BSP
from pslab.policies.sync.dssp import DSSP
from pslab.policies.sync.elastic import ElasticBSP
from pslab.policies.sync.ssp import SSP
from pslab.protocol.messages import Apply, Asked, Left, Pushed, Searched, Start

POLICIES = [BSP(), SSP(0), SSP(1), ASP()]


def explored(sync: Any, workers: int = 2, iterations: int = 2, **more: Any) -> Explored:
    return explore(sync, workers=workers, iterations=iterations, **more)


def wrong(sync: Any, **cluster: Any) -> tuple[str, tuple[str, ...]]:
    violation = explored(sync, **cluster).violation
    assert violation is not None
    return violation.what, violation.path


# -- counts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", POLICIES, ids=repr)
def test_one_worker_and_one_iteration_by_hand(sync):
    """It computes; pushes and asks; the push is applied; then the acknowledgement arrives before, between or after
    the pull is answered and its weights are read; the weights arrive, and it computes again."""
    found = explored(sync, workers=1, iterations=1)
    assert (found.states, found.transitions, found.verdict) == (9, 10, "clean")


@pytest.mark.parametrize("sync", POLICIES, ids=repr)
def test_one_worker_that_may_be_killed_by_hand(sync):
    """9 while it lives. Dead and not yet missed, by what is under way: nothing before its push, push and pull, pull,
    reading, nothing after: 5. Gone: push and pull under way, pull of these, nothing; or pull, nothing after its push
    was applied: 5."""
    assert explored(sync, workers=1, iterations=1, faults=("kill",)).states == 19


CLUSTERS = [
    ({"workers": 2, "iterations": 3}, ()),
    ({"workers": 2, "iterations": 2}, ("kill",)),
    ({"workers": 2, "iterations": 1}, ("duplicate", "reorder")),
    ({"workers": 2, "iterations": 1, "ranges": 2}, ()),
    ({"workers": 3, "iterations": 1}, ("lose",)),
]


class Deaf(SSP):
    """Does not hear that somebody left."""

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        return (state, ()) if isinstance(event, Left) else super().step(state, event, clocks)


class Noting(Explorer):
    """Notes the states that it visits, whose workers have their own names."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, symmetric=False, **more)
        self.visited: list[tuple[int, ...]] = []

    def _level(self, frontier: Any) -> Any:
        self.visited += frontier
        return super()._level(frontier)


@pytest.mark.parametrize(("cluster", "faults"), CLUSTERS, ids=str)
@pytest.mark.parametrize("sync", [BSP(), SSP(1), ASP()], ids=repr)
def test_of_states_that_differ_in_names_one_is_kept(sync, cluster, faults):
    full = Noting(sync, faults=faults, **cluster)
    reduced = explore(sync, faults=faults, **cluster)
    assert full.explore().verdict == reduced.verdict == "clean"
    assert full.states == len(set(full.visited))
    names = Explorer(sync, faults=faults, **cluster)  # gives each of them its canonical name
    names.server, names.local = full.server, full.local
    orbits = {(state[1], names.canonical(state[0], list(state[2:]))[0]) for state in full.visited}
    assert reduced.states == len(orbits) < full.states


@pytest.mark.parametrize("verdict", ["clean", "violated"])
def test_what_was_reached_with_fewer_faults_is_not_visited_again(verdict):
    """Without that the verdict, and the length of the shortest way, are the same."""
    sync = SSP(0) if verdict == "clean" else Deaf(0)

    class Stubborn(Explorer):
        def _covered(self, state: Any) -> bool:
            return False

    def cluster(kind: Any) -> Explored:
        return kind(sync, iterations=1, faults=("duplicate", "reorder", "kill")).explore()

    all_of_them, kept = cluster(Stubborn), cluster(Explorer)
    assert kept.states < all_of_them.states
    assert kept.verdict == all_of_them.verdict == verdict
    if kept.violation and all_of_them.violation:
        assert len(kept.violation.path) == len(all_of_them.violation.path) > 5


def test_more_faults_reach_more_states():
    kinds = ("duplicate", "lose", "kill", "reorder")
    counts = [explored(SSP(1), iterations=1, faults=kinds[:count]).states for count in range(len(kinds) + 1)]
    assert counts == sorted(set(counts))
    fewer = [explored(SSP(1), iterations=1, faults=kinds, faults_max=count).states for count in range(len(kinds) + 1)]
    assert fewer == sorted(set(fewer))
    assert (fewer[0], fewer[-1]) == (counts[0], counts[-1])


def test_an_exploration_ends_at_its_limit():
    found = explored(SSP(1), iterations=3, states_max=50)
    assert (found.verdict, found.whole) == ("unfinished", False)
    assert 50 <= found.states < 303


def test_a_fault_that_does_not_exist():
    with pytest.raises(ConfigError, match="did you mean 'duplicate'"):
        explored(BSP(), faults=("duplicat",))


# -- policies that are right, and those that are wrong in one way ------------------------------------------


@pytest.mark.parametrize("faults", [(), *((fault,) for fault in FAULTS)], ids=str)
@pytest.mark.parametrize("sync", POLICIES, ids=repr)
def test_real_policies_are_clean(sync, faults):
    assert explored(sync, iterations=2 if faults != ("duplicate",) else 1, faults=faults).verdict == "clean"


@pytest.mark.parametrize("sync", POLICIES, ids=repr)
def test_everybody_is_gone_and_one_comes_back(sync):
    assert explored(sync, iterations=1, faults=("lose", "kill", "rejoin")).verdict == "clean"
    assert explored(sync, workers=1, ranges=2, faults=("rejoin",)).verdict == "clean"


def test_a_policy_without_a_bound_is_clean():
    assert explored(Eager(None), iterations=3).verdict == "clean"


def test_a_policy_that_breaks_the_bound_that_it_claims():
    what, path = wrong(Eager(2), iterations=3)
    assert what == "worker 0 is started with iteration 2, the slowest is at 0: bound 1 exceeded"
    assert path == (
        "worker 0 has computed its gradient, pushes it and asks to go on",
        "worker 0's push of iteration 0 arrives; the server applies it: worker 0's of iteration 0, as version 1",
        "worker 0's acknowledgement of iteration 0 arrives",
        "worker 0's request for iteration 1 arrives; the server starts worker 0 with iteration 1",
        "the weights for iteration 1 of worker 0 have been read",
        "worker 0's answer for iteration 1 arrives; it computes iteration 1",
        "worker 0 has computed its gradient, pushes it and asks to go on",
        "worker 0's push of iteration 1 arrives; the server applies it: worker 0's of iteration 1, as version 2",
        "worker 0's request for iteration 2 arrives; the server starts worker 0 with iteration 2",
    )


def test_a_bound_that_cannot_be_reached_in_so_few_iterations():
    assert explored(Eager(4), iterations=3).verdict == "clean"
    assert explored(Eager(4), iterations=4).verdict == "violated"


class Never(Eager):
    """Starts nobody."""

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        return state, (Apply(event.worker, event.iteration),) if isinstance(event, Pushed) else ()


def test_a_policy_that_starts_nobody():
    what, path = wrong(Never(1), workers=1, iterations=1)
    assert what == "worker 0 waits for ever; worker 0 at the low bound"
    assert path == (
        "worker 0 has computed its gradient, pushes it and asks to go on",
        "worker 0's push of iteration 0 arrives; the server applies it: worker 0's of iteration 0, as version 1",
        "worker 0's acknowledgement of iteration 0 arrives",
        "worker 0's request for iteration 1 arrives; the server keeps it",
    )


class Hoarding(Eager):
    """Applies nothing."""

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        return state, (Start(event.worker, event.iteration),) if isinstance(event, Asked) else ()


class Itself(Eager):
    """Keeps its state in itself."""

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        self.last = event
        return super().step(state, event, clocks)


class Raising(Eager):
    """Has a slip of the pen."""

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        return state["nothing"], ()


class InPlace(Eager):
    """Claims that nobody computes when weights change."""

    barrier = True


@pytest.mark.parametrize(("sync", "words"), [
    (Hoarding(None), "on weights without its own push of 0"),
    (Itself(None), "the policy changed itself"),
    (Raising(None), "Raising in it, raises TypeError: tuple indices must be integers"),
    (InPlace(None), "computes on it; the policy claims a barrier"),
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_policies_that_are_wrong_otherwise(sync, words):
    assert words in wrong(sync)[0]


def test_weights_that_change_while_they_are_read():
    """The server's guard off, and a policy that applies after it starts."""
    file = SOURCE / "protocol/server.py"
    guard = "        if scope.reading:\n            raise"
    assert file.read_text().count(guard) == 1
    text = file.read_text().replace(guard, "        if False:\n            raise")
    fresh = modules({"protocol.server": text})
    messages = fresh["protocol.messages"]

    class Late(Eager):
        def step(self, state: Any, event: Any, clocks: Any) -> Any:
            if isinstance(event, messages.Pushed):
                waiting = tuple(each for each in state if each[0] != event.worker)
                return waiting, (*(messages.Start(*each) for each in waiting),
                                 messages.Apply(event.worker, event.iteration))  # fmt: skip
            return ((*state, (event.worker, event.iteration)), ()) if isinstance(event, messages.Asked) else (state, ())

    what, path = wrong(Late(None), machines=machines(fresh))
    assert "changes while worker" in what
    assert "is being sent its weights" in what
    assert "the server starts worker" in path[-1]


# -- policies that plan ----------------------------------------------------------------------------------

PLANNING = [DSSP(0, 1), DSSP(1, 1), DSSP(0, 1, "literal"), DSSP(0, 1, interval="release"), ElasticBSP(1),
            ElasticBSP(2), ElasticBSP(1, include_last=True), ElasticBSP(1, predict="median", k=2)]  # fmt: skip


@pytest.mark.parametrize("faults", [(), *((fault,) for fault in FAULTS)], ids=str)
@pytest.mark.parametrize("sync", PLANNING, ids=repr)
def test_policies_that_plan_are_clean(sync, faults):
    found = explored(sync, iterations=3 if {"duplicate", "rejoin"} & {*faults} else 4, faults=faults)
    assert (found.verdict, found.symmetric) == ("clean", True), str(found.violation)


def test_every_plan_is_tried():
    """What one of the variants can reach alone, the policy that may plan each reaches too, and more."""
    several = explored(ElasticBSP(2), iterations=4)
    alone = [explored(Only(plan), iterations=4) for plan in ElasticBSP(2).variants(2)]
    assert [found.verdict for found in alone] == ["clean"] * 4
    assert several.states > max(found.states for found in alone)
    assert explored(Only(DSSP(0, 1)), iterations=4).states <= explored(DSSP(0, 1), iterations=4).states


class Only:
    """One of a policy's variants."""

    def __init__(self, sync: Any) -> None:
        self.sync, self.window = sync, sync.window
        self.initial, self.step = sync.initial, sync.step


def test_the_literal_grant_exceeds_the_bound_that_was_proved():
    literal = DSSP(1, 1, "literal")
    assert explored(literal, iterations=5).verdict == "clean", "it claims no bound"
    found = explored(literal, iterations=5, bound=2)
    assert found.bound == 2
    assert found.violation is not None
    assert found.violation.what == "worker 0 is started with iteration 5, the slowest is at 2: bound 2 exceeded"
    assert len(found.violation.path) == 35
    *_, grant, _, _, _, _, credit = found.violation.path
    assert grant == ("worker 0's request for iteration 4 arrives; the policy plans over 4 points; "
                     "the server starts worker 0 with iteration 4")  # fmt: skip
    assert credit == "worker 0's request for iteration 5 arrives; the server starts worker 0 with iteration 5"
    assert explored(DSSP(1, 1), iterations=5, bound=2).verdict == "clean"
    assert explored(DSSP(1, 1), iterations=5, bound=1).verdict == "violated"


def test_a_bound_of_ones_own():
    assert explored(SSP(1), iterations=3, bound=1).verdict == "clean"
    assert explored(SSP(1), iterations=3, bound=0).verdict == "violated"
    assert explored(ASP(), iterations=4, bound=3).verdict == "violated"


class Secret(Eager):
    """Plans: to start, or to hold. `says` is what it tells of it."""

    def __init__(self, says: tuple[Any, ...], holds: bool = False) -> None:
        super().__init__(None)
        self.says, self.holds = says, holds

    def variants(self, workers: int) -> Any:
        return Secret(self.says), Secret(self.says, holds=True)

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        state, decisions = super().step(state, event, clocks)
        if isinstance(event, Asked):
            return state, self.says + (() if self.holds else decisions)
        return state, decisions


def test_a_plan_is_explored_and_one_that_is_not_told_is_refused():
    what, path = wrong(Secret((Searched(1),)), workers=1)
    assert what == "worker 0 waits for ever; worker 0 at the low bound"
    assert path[-1] == "worker 0's request for iteration 1 arrives; the policy plans over 1 point"
    assert wrong(Secret(()), workers=1)[0] == "the policy plans, and does not say that it has Searched"


def test_who_is_ahead_goes_on_for_who_waits_for_it():
    """Where the iterations that are explored end, a barrier may be farther for one than for the other."""
    for iterations in range(1, 5):
        assert explored(ElasticBSP(2), iterations=iterations).verdict == "clean"

    class Forgets(ElasticBSP):
        def step(self, state: Any, event: Any, clocks: Any) -> Any:
            state, decisions = super().step(state, event, clocks)
            return state, tuple(d for d in decisions if not isinstance(d, Start) or d.worker == event.worker)

        def variants(self, workers: int) -> Any:
            return (self,)

    assert "waits for ever" in wrong(Forgets(1), iterations=3)[0]


# -- workers that are told apart -----------------------------------------------------------------------


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
def test_a_policy_that_goes_by_a_workers_number(favourite):
    found = explored(Favours(favourite), iterations=3)
    assert found.violation is not None
    assert not found.symmetric
    assert found.violation.what.startswith(f"worker {favourite} is started with iteration 2")
    free = explored(Favours(favourite, window=None), iterations=3)
    assert (free.verdict, free.symmetric) == ("clean", False)
    assert free.states == explored(Favours(favourite, window=None), iterations=3, symmetric=False).states


def test_one_that_does_not_is_explored_once_for_all_names():
    assert explored(Favours(None), iterations=3).symmetric
    assert explored(Favours(None), iterations=3).states == explored(SSP(1), iterations=3).states


# -- states that policies may have ---------------------------------------------------------------------


class Remembers(Eager):
    """A policy with a state of some kind, which it changes in place."""

    def __init__(self, empty: Any) -> None:
        super().__init__(None)
        self.empty = empty

    def initial(self, workers: tuple[int, ...]) -> Any:
        return self.empty

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        if isinstance(state, dict):
            state[event.worker] = state.get(event.worker, 0) + 1
        elif isinstance(state, set):
            state.add(event.worker)
        return super().step(state, event, clocks)


@pytest.mark.parametrize("empty", [{}, set(), [], frozenset(), None, 1.5], ids=lambda value: type(value).__name__)
def test_states_of_plain_values(empty):
    assert explored(Remembers(empty), iterations=1).verdict == "clean"
    assert not empty or empty == 1.5, "the policy's own object stays as it was"


@pytest.mark.parametrize("empty", [deque(), iter(())], ids=lambda value: type(value).__name__)
def test_states_that_cannot_be_compared_are_refused(empty):
    with pytest.raises(ConfigError, match="use numbers, strings, tuples"):
        explored(Remembers(empty))


# -- side by side --------------------------------------------------------------------------------------


def test_explorations_side_by_side_find_the_same():
    class Local(Eager):  # can be had by cloudpickle only
        pass

    tasks = [Task(str(window), Local(window), 2, 1, 2) for window in (1, 3, None)]
    here, there = (dict(explore_all(tasks, processes)) for processes in (1, 2))
    assert set(here) == set(there) == {0, 1, 2}
    for index, found in here.items():
        assert (found.policy, found.states, found.violation) == (
            there[index].policy, there[index].states, there[index].violation
        )  # fmt: skip
    assert [here[index].verdict for index in range(3)] == ["violated", "clean", "clean"]


def test_what_one_of_them_raises_is_raised_here():
    tasks = [Task("deque", Remembers(deque()), 1, 1, 1)] * 2
    with pytest.raises(PslabError, match="use numbers, strings, tuples"):
        list(explore_all(tasks, 2))


@pytest.mark.slow
def test_who_comes_back_ahead_on_one_range_is_left_alone():
    assert explored(BSP(), ranges=2, iterations=1, faults=("lose", "kill", "rejoin")).verdict == "clean"


@pytest.mark.slow
@pytest.mark.parametrize("sync", [SSP(0), SSP(2)], ids=repr)
def test_a_large_exploration(sync):
    found = explored(sync, iterations=3, faults=FAULTS)
    assert found.verdict == "clean", str(found.violation)
    assert found.states > 100_000


# -- range by range ------------------------------------------------------------------------------------


@pytest.mark.parametrize("faults", [(), ("duplicate",), ("lose",), ("kill",), ("reorder",)], ids=str)
@pytest.mark.parametrize("sync", [BSP(), SSP(1), ASP()], ids=repr)
def test_workers_that_push_and_wait_range_by_range_are_clean(sync, faults):
    iterations = 2 if not faults else 1
    found = explored(sync, ranges=2, iterations=iterations, faults=faults, layered=True)
    assert found.verdict == "clean", str(found.violation)
    assert found.states > 1000


@pytest.mark.slow
@pytest.mark.parametrize("sync", [BSP(), SSP(1), ASP()], ids=repr)
def test_who_comes_back_range_by_range(sync):
    found = explored(sync, ranges=2, iterations=1, faults=("rejoin", "lose", "kill"), layered=True)
    assert found.verdict == "clean", str(found.violation)
