"""Explorations in several processes."""

from __future__ import annotations

from collections import deque

import pytest
from ownpolicies import NeverWaits

from pslab.engines.check.parallel import Task, explore_all
from pslab.errors import PslabError


class Unexplorable(NeverWaits):
    def initial(self, workers):
        return deque()


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


def test_an_error_in_a_child_is_raised_in_the_parent():
    tasks = [Task("deque", Unexplorable(), 1, 1, 1)] * 2
    with pytest.raises(PslabError, match="use numbers, strings, tuples"):
        list(explore_all(tasks, 2))
