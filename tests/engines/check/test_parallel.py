"""Explorations in several processes."""

from __future__ import annotations

import os
from collections import deque
from typing import Any

import pytest
from ownpolicies import NeverWaits

from pslab.engines.check.parallel import Task, explore_all
from pslab.errors import ConfigError, PslabError, StartFailed


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
