"""States of policies that can be copied and compared, and those that cannot."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from ownpolicies import NeverWaits

from pslab.engines.check.explorer import explore
from pslab.errors import ConfigError


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
