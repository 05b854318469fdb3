"""check(): what is explored by default and on demand, states of policies, several processes, and what comes back."""

from __future__ import annotations

import os
from collections import deque
from typing import Any

import pytest
from ownpolicies import ByInstant, ByLoss, NeverWaits

import pslab
from pslab.config.table import ROWS
from pslab.engines.check.explorer import explore
from pslab.engines.check.parallel import Task, explore_all
from pslab.engines.check.plan import check, examples, plan, resolve_sync, row
from pslab.engines.check.worker import FAULTS
from pslab.errors import ConfigError, PslabError, StartFailed
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.ssp import SSP


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


@pytest.mark.parametrize("name", examples())
def test_iterations_suffice_to_break_the_bound(name):
    sync = resolve_sync(name)
    fault_free = [task for task in plan(name, sync) if not task.faults and task.workers == 2]
    assert fault_free
    assert sync.window is None or all(task.iterations >= sync.window for task in fault_free if task.ranges == 1)


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
    words = (
        f"{policy}: no broken rule was found, but this proves nothing: in {narrowed['iterations']} iterations no worker"
    )
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


class Stateful(NeverWaits):
    """A policy with a state of some type, which it changes in place."""

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
def test_plain_states_are_explored_on_copies(empty):
    assert explore(Stateful(empty), workers=2, iterations=1).verdict == "clean"
    assert not empty or empty == 1.5, "the policy's own object must not change"


@pytest.mark.parametrize("empty", [deque(), iter(())], ids=lambda value: type(value).__name__)
def test_states_that_cannot_be_compared_are_refused(empty):
    with pytest.raises(ConfigError, match="use numbers, strings, tuples"):
        explore(Stateful(empty), workers=2, iterations=1)


def test_explorations_in_parallel_find_the_same():
    class Local(NeverWaits):  # can be had by cloudpickle only
        pass

    tasks = [Task(str(window), Local(window), 2, 1, 2) for window in (1, 3, None)]
    alone, parallel = (dict(explore_all(tasks, processes)) for processes in (1, 2))
    assert set(alone) == set(parallel) == {0, 1, 2}
    for index, found in alone.items():
        assert (found.policy, found.states, found.violation) == (
            parallel[index].policy, parallel[index].states, parallel[index].violation
        )  # fmt: skip
    assert [alone[index].verdict for index in range(3)] == ["violated", "clean", "clean"]


class Begins(NeverWaits):
    def __init__(self, initial: Any) -> None:
        super().__init__(None)
        self._begin = initial

    def initial(self, workers: tuple[int, ...]) -> Any:
        return self._begin()


@pytest.mark.parametrize(("begin", "error", "words"), [
    (deque, ConfigError, "use numbers, strings, tuples"),
    (lambda: {}[1], PslabError, "(?s)Traceback.*KeyError: 1"),
    (lambda: os._exit(9), StartFailed, "ended early, perhaps because memory ran out"),
])  # fmt: skip
def test_what_ends_a_child_is_raised_in_the_parent(begin: Any, error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        list(explore_all([Task("one", Begins(begin), 1, 1, 1)] * 2, 2))
