"""The checker: state counts by hand, policies that break one rule each, seeded bugs, and what check() explores."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from bugs import CHECKED, DRAWN, Bug
from ownpolicies import ByInstant, ByLoss, NeverWaits

import pslab
from pslab.config.table import ROWS
from pslab.engines.check.explorer import explore
from pslab.engines.check.parallel import Task, explore_all
from pslab.engines.check.plan import check, examples, plan, resolve_sync, row
from pslab.engines.check.result import Explored
from pslab.engines.check.worker import FAULTS
from pslab.errors import ConfigError, PslabError, StartFailed
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


def test_more_faults_reach_more_states_and_an_exploration_is_unfinished_at_its_limit_of_states():
    kinds = ("lose", "kill", "reorder")
    counts = [explored(SSP(1), iterations=1, faults=kinds[:count]).states for count in range(len(kinds) + 1)]
    fewer = [explored(SSP(1), iterations=1, faults=kinds, faults_max=count).states for count in range(len(kinds) + 1)]
    assert (counts, fewer) == (sorted(set(counts)), sorted(set(fewer)))
    assert (fewer[0], fewer[-1]) == (counts[0], counts[-1])
    found = explored(SSP(1), iterations=3, states_max=50)
    assert (found.verdict, found.complete) == ("unfinished", False)
    assert 50 <= found.states < 303


@pytest.mark.parametrize(("sync", "states"), [
    (BSP(), 3330), *(pytest.param(sync, count, marks=pytest.mark.slow)
                     for sync, count in ((DSSP(1, 1), 2637), (SSP(1), 7203), (ASP(), 7203))),
], ids=repr)  # fmt: skip
def test_states_with_ranges_at_two_servers_are_counted(sync: Any, states: int):
    """More than with one, whose weights are read before a push is taken: an order waits at its server, however long."""
    found = explored(sync, iterations=1, ranges=2, servers=2)
    assert (found.verdict, found.states) == ("clean", states)
    assert explored(sync, iterations=1, ranges=2).states != states


# --- policies that break a rule ---------------------------------------------------------------------------------------


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


class StartsOnlyTheLast(ElasticBSP):
    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        state, decisions = super().step(state, event, clocks)
        return state, tuple(d for d in decisions if not isinstance(d, Start) or d.worker == event.worker)

    def variants(self, workers: int) -> Any:
        return (self,)


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


def over(worker: int, iteration: int, slowest: int, bound: int) -> str:
    return f"worker {worker} is started with iteration {iteration}, the slowest is at {slowest}: bound {bound} exceeded"


#: A policy, what is explored, and the broken rule.
BROKEN: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no bound is kept": (NeverWaits(2), {"iterations": 3}, over(0, 2, 0, 1)),
    "a lead of four": (NeverWaits(4), {"iterations": 4}, over(0, 4, 0, 3)),
    "a smaller bound is given": (SSP(1), {"iterations": 3, "bound": 0}, over(0, 1, 0, 0)),
    "a bound is given": (ASP(), {"iterations": 4, "bound": 3}, over(0, 4, 0, 3)),
    "a grant beyond the bound": (DSSP(1, 1, "literal"), {"iterations": 5, "bound": 2}, over(0, 5, 2, 2)),
    "a grant": (DSSP(1, 1), {"iterations": 5, "bound": 1}, "bound 1 exceeded"),
    "worker 0 is favoured": (Favours(0), {"iterations": 3}, over(0, 2, 0, 1)),
    "worker 1 is favoured": (Favours(1), {"iterations": 3}, over(1, 2, 0, 1)),
    "none is started": (Does(starts_none, 1), {"workers": 1, "iterations": 1},
                        "worker 0 waits forever; worker 0 at the low bound"),
    "one is started": (StartsOnlyTheLast(1), {"iterations": 3}, "waits forever"),
    "none is applied": (Does(applies_none), {}, "on weights without its own push of 0"),
    "it changes": (Does(changes_itself), {}, "the policy changed itself"),
    "it raises": (Does(lambda policy, state, event: state["nothing"]), {},
                  "Does in it, raises TypeError: tuple indices must be"),
    "no barrier": (Does(plain, barrier=True), {}, "computes on it; the policy claims a barrier"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_the_broken_rule_is_named(what: str):
    sync, cluster, words = BROKEN[what]
    violation = explored(sync, **cluster).violation
    assert violation is not None
    assert words in violation.what


def test_a_violation_is_the_shortest_path_to_it_in_words():
    violation = explored(NeverWaits(2), iterations=3).violation
    assert violation is not None
    assert violation.path == (
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


# --- policies that keep the rules -------------------------------------------------------------------------------------

PLANNING = [DSSP(0, 1), DSSP(1, 1), DSSP(0, 1, "literal"), DSSP(0, 1, interval="release"), ElasticBSP(1),
            ElasticBSP(2), ElasticBSP(1, include_last=True), ElasticBSP(1, predict="median", k=2)]  # fmt: skip
REJOINS = ("lose", "kill", "rejoin")
CLEAN = [
    (NeverWaits(None), {"iterations": 3}), (NeverWaits(4), {"iterations": 3}),  # a lead of 4 takes 4 iterations
    (SSP(1), {"iterations": 3, "bound": 1}), (Favours(0, window=None), {"iterations": 3}),
    (DSSP(1, 1, "literal"), {"iterations": 2}),  # it claims no bound
    (DSSP(1, 1), {"iterations": 5, "bound": 2}),
    # where the explored iterations end, a barrier may be further ahead for one worker than for the other
    *((ElasticBSP(2), {"iterations": iterations}) for iterations in (1, 2, 3)),
    *((sync, {"iterations": 2, "faults": faults}) for sync in (SSP(0), ASP())
      for faults in NO_FAULT_OR_ONE if faults not in (("rejoin",), ("duplicate",))),
    (ASP(), {"workers": 1, "ranges": 2, "faults": ("rejoin",)}), (DSSP(0, 1), {"iterations": 3, "faults": ("lose",)}),
]  # fmt: skip
LARGE = [
    *((sync, {"iterations": 3 if {"duplicate", "rejoin"} & {*faults} else 4, "faults": faults})
      for sync in PLANNING for faults in NO_FAULT_OR_ONE),
    *((sync, {"ranges": 2, "iterations": 1 if faults else 2, "faults": faults, "layered": True})
      for sync in (BSP(), SSP(1), ASP()) for faults in ((), ("duplicate",), ("lose",), ("kill",), ("reorder",))),
    *((sync, {"ranges": 2, "iterations": 1, "faults": REJOINS, "layered": layered})
      for sync, layered in ((BSP(), False), (BSP(), True), (SSP(1), True), (ASP(), True))),
    *((sync, {"iterations": 3, "faults": FAULTS}) for sync in (SSP(0), SSP(2))),
    *((sync, {"iterations": 2, "faults": faults}) for sync in POLICIES for faults in NO_FAULT_OR_ONE),
    *((resolve_sync(name), {"iterations": 1, "ranges": 2, "servers": 2, "faults": faults})
      for name in examples() for faults in NO_FAULT_OR_ONE),
    *((resolve_sync(name), {"workers": 1, "ranges": 2, "servers": 2, "faults": FAULTS, "faults_max": 2})
      for name in examples()),
]  # fmt: skip


@pytest.mark.parametrize(("sync", "cluster"), [
    *(pytest.param(sync, cluster, id=f"{type(sync).__name__}-{cluster}") for sync, cluster in CLEAN),
    *(pytest.param(sync, cluster, id=f"large-{type(sync).__name__}-{cluster}", marks=pytest.mark.slow)
      for sync, cluster in LARGE),
])  # fmt: skip
def test_a_policy_is_clean(sync: Any, cluster: dict[str, Any]):
    found = explored(sync, **cluster)
    assert found.verdict == "clean", str(found.violation)
    if cluster.get("faults") == FAULTS and "faults_max" not in cluster:
        assert found.states > 100_000


# --- policies that plan, or distinguish workers -----------------------------------------------------------------------


class Only:
    """One of a policy's variants."""

    def __init__(self, sync: Any) -> None:
        self.sync, self.window = sync, sync.window
        self.initial, self.step = sync.initial, sync.step


def test_every_plan_is_explored_and_workers_that_are_alike_once():
    """More states are reached than one variant reaches by itself."""
    several, alone = (explored(sync, iterations=4) for sync in (ElasticBSP(2), Only(ElasticBSP(2).variants(2)[1])))
    assert alone.verdict == "now not varied"
    assert several.states > alone.states
    assert explored(Favours(None), iterations=3).states == explored(SSP(1), iterations=3).states


# --- seeded bugs: edits of the source of protocol/ and policies/, each of which the checker finds ---------------------


def explored_with(bug: Bug) -> Explored:
    return explore(resolve_sync(bug.policy), **bug.cluster)


def test_each_bug_is_an_edit_of_the_present_source():
    assert all(bug.text() for bug in CHECKED + DRAWN)
    assert len({bug.name for bug in CHECKED}) == len(CHECKED) >= 50


@pytest.mark.one_of(2)
@pytest.mark.parametrize("bug", CHECKED, ids=lambda bug: bug.name)
def test_checker_finds_seeded_bug(bug: Bug, monkeypatch: pytest.MonkeyPatch):
    bug.seed(monkeypatch)
    found = explored_with(bug)
    assert found.violation is not None, f"{found.states} states are {found.verdict}"
    assert bug.says in found.violation.what, str(found.violation)
    assert found.violation.path, "no bug shows before the first event"


def _large(bug: Bug) -> bool:
    cluster: dict[str, Any] = {"ranges": 1, **bug.cluster}
    several = cluster["workers"] > 1 and cluster["ranges"] > 1
    return cluster["workers"] > 2 or bug.policy.startswith("dssp") or (
        several and ("servers" in cluster or "rejoin" in cluster["faults"]))  # fmt: skip


@pytest.mark.parametrize("bug", [
    pytest.param(bug, marks=[pytest.mark.slow] * _large(bug), id=f"{bug.policy} {bug.cluster}")
    for bug in {(bug.policy, str(bug.cluster)): bug for bug in CHECKED}.values()])  # fmt: skip
def test_the_code_without_a_bug_is_clean(bug: Bug):
    """What the tests of the machines leave to the checker is in these explorations."""
    found = explored_with(bug)
    assert found.verdict == "clean", str(found.violation)


def test_worker_numbers_are_the_same_along_a_path(monkeypatch: pytest.MonkeyPatch):
    (bug,) = [each for each in CHECKED if each.name == "staleness has no bound"]
    bug.seed(monkeypatch)
    violation: Any = explored_with(bug).violation
    fast = re.match(r"worker (\d) is started", violation.what)
    assert fast
    assert violation.path[-1].endswith(f"the server starts worker {fast[1]} with iteration 2")
    assert sum(f"worker {fast[1]} has computed" in words for words in violation.path) == 2


# --- check(): what is explored by default and on demand, several processes, and what comes back -----------------------


def test_every_policy_is_explored_with_each_fault_and_with_all():
    given = [resolve_sync(each) for each in examples()]
    assert {type(each) for each in given} == {each.load() for each in ROWS["sync"].values()}
    assert SSP(1) in given
    assert given == [resolve_sync(each) for each in sorted(examples())]
    found = check("asp", workers=1, iterations=1, processes=1)
    assert [each.faults for each in found.explored] == [(), *((fault,) for fault in FAULTS), FAULTS]
    tasks = plan("asp", ASP())
    assert {(task.workers, task.ranges) for task in tasks} == {(1, 1), (2, 1), (3, 1), (2, 2)}
    assert len(tasks) == 4 * (2 + len(FAULTS))


def test_iterations_suffice_to_break_the_bound():
    for name in examples():
        sync = resolve_sync(name)
        tasks = [task for task in plan(name, sync) if not task.faults and task.workers == 2]
        assert tasks
        assert sync.window is None or all(task.iterations >= sync.window for task in tasks if task.ranges == 1), name


def test_a_narrowed_plan():
    tasks = plan("asp", ASP(), workers=[1, 2], ranges=[2], iterations=4, faults=["lose", "kill"])
    assert [(task.workers, task.ranges, task.iterations, task.faults) for task in tasks] == [
        (1, 2, 4, ("lose", "kill")), (2, 2, 4, ("lose", "kill"))
    ]  # fmt: skip
    assert [(task.workers, task.ranges) for task in plan("asp", ASP(), ranges=2, faults=())] == [(2, 2)]
    assert [(task.workers, task.ranges) for task in plan("asp", ASP(), workers=4, faults=())] == [(4, 1)]


@pytest.mark.parametrize(("policy", "read"), [(ByLoss(2.0), "loss"), (ByInstant(None), "now")])
def test_what_a_policy_reads_and_nothing_varies_is_said(policy, read):
    found = check(policy, workers=2, iterations=2, faults=(), processes=1)
    assert {each.verdict for each in found.explored} == {f"{read} not varied"}
    assert not found.clean
    assert f"it reads {read} of its events, but each exploration has only one value" in str(found)


@pytest.mark.parametrize(
    ("policy", "narrowed", "verdict"),
    [("ssp:1", {"iterations": 2}, "clean"), ("ssp:2", {"iterations": 2}, "bound not reached"),
     ("ssp:1000", {"iterations": 1}, "bound not reached"), ("asp", {"iterations": 1}, "clean"),
     ("ssp:1000", {"iterations": 2, "bound": 1}, "violated"),
     ("asp", {"iterations": 1, "bound": 1}, "bound not reached")],
)  # fmt: skip
def test_a_bound_that_no_exploration_can_break_is_not_called_clean(policy, narrowed, verdict):
    found = pslab.check(policy, workers=2, faults=(), processes=1, **narrowed)
    assert [each.verdict for each in found.explored] == [verdict]
    assert found.clean == (verdict == "clean")
    words = f"this proves nothing: in {narrowed['iterations']} iterations no worker"
    assert (words in str(found)) == (verdict == "bound not reached")


def test_more_plans_than_can_be_explored_are_refused():
    with pytest.raises(ConfigError, match=r"in 1000 ways for each of 3 workers.*such as elastic:2") as error:
        check("elastic:1000")
    assert error.value.field == "sync"
    check("elastic:3", workers=1, iterations=2, faults=(), processes=1)


def test_from_a_notebook():
    found = pslab.check(NeverWaits(), workers=2, iterations=2, faults=())
    assert not found.clean
    assert found.explored[0].policy == "NeverWaits"
    assert "=> worker 0 is started with iteration 2" in repr(found)
    assert pslab.check("asp", workers=1, iterations=1, faults=["kill"]).clean
    assert pslab.check("asp", SSP(1), workers=1, iterations=1, faults="kill").states == 38
    pairs = pslab.check("asp", workers=2, iterations=1, faults=["kill", "lose"], faults_max=1)
    assert "  1 of lose+kill " in row(pairs.explored[0])
    with pytest.raises(ConfigError, match="is a class: give an object of it"):
        pslab.check(NeverWaits)


def test_a_check_that_nobody_listens_to_counts_its_explorations(capsys):
    check("asp", workers=(1, 2), ranges=1, iterations=1, faults=(), processes=1)
    assert capsys.readouterr().err == (
        "explores 2 clusters, the largest first\n\rexplored 1 of 2\rexplored 2 of 2\n")  # fmt: skip


class Begins(NeverWaits):
    """A policy whose state begins as a function says, and which changes a set or a dict in place."""

    def __init__(self, begin: Any) -> None:
        super().__init__(None)
        self._begin = begin

    def initial(self, workers: tuple[int, ...]) -> Any:
        return self._begin()

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        if isinstance(state, dict):
            state[event.worker] = state.get(event.worker, 0) + 1
        elif isinstance(state, set):
            state.add(event.worker)
        return super().step(state, event, clocks)


def test_plain_states_are_explored_on_copies_and_others_are_refused():
    for empty in ({}, set(), [], frozenset(), None, 1.5):
        assert explore(Begins(lambda same=empty: same), workers=2, iterations=1).verdict == "clean"
        assert not empty or empty == 1.5, "the policy's own object must not change"
    for begin in (deque, lambda: iter(())):
        with pytest.raises(ConfigError, match="use numbers, strings, tuples"):
            explore(Begins(begin), workers=2, iterations=1)


def test_explorations_in_parallel_find_the_same():
    class Local(NeverWaits):  # can be had by cloudpickle only
        pass

    tasks = [Task(str(window), Local(window), 2, 1, 2) for window in (1, 3, None)]
    alone, parallel = ({index: (found.policy, found.states, found.violation, found.verdict)
                        for index, found in explore_all(tasks, processes)} for processes in (1, 2))  # fmt: skip
    assert alone == parallel
    assert [alone[index][-1] for index in range(3)] == ["violated", "clean", "clean"]


@pytest.mark.parametrize(("begin", "error", "words"), [
    (deque, ConfigError, "use numbers, strings, tuples"),
    (lambda: {}[1], PslabError, "(?s)Traceback.*KeyError: 1"),
    (lambda: os._exit(9), StartFailed, "ended early, perhaps because memory ran out"),
])  # fmt: skip
def test_what_ends_a_child_is_raised_in_the_parent(begin: Any, error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        list(explore_all([Task("one", Begins(begin), 1, 1, 1)] * 2, 2))
