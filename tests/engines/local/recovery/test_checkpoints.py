"""When a checkpoint of several servers is begun, and when it is whole."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from seats import seated

from pslab.engines.local.recovery.checkpoints import Checkpoints, State, first_state
from pslab.engines.server.clock import WallClock
from pslab.protocol.store import Store


def deciding(**fields: Any) -> tuple[Checkpoints, State, list[Any]]:
    """What the deciding one of three servers keeps, its state, and the others."""
    job, seat, _ = seated(servers=3, on_death="restart", checkpoint_every=4, **fields)
    others, clock, transport = [SimpleNamespace(machine=Store(), kept=0) for _ in range(2)], WallClock(), object()
    state = first_state(job, seat, transport, clock, others)  # type: ignore[arg-type]
    return Checkpoints(job, seat, transport, clock, others), state, others  # type: ignore[arg-type]


def test_a_checkpoint_is_whole_when_the_last_server_has_kept_its_part():
    found, state, others = deciding()
    assert found.begin(state)
    for other in others:
        assert not found.complete()
        assert found.generations.numbers() == []
        other.kept = found.number
    assert found.complete()
    assert found.generations.numbers() == [1]
    assert not found.complete()  # once


def test_no_other_is_begun_before_one_is_whole():
    found, state, others = deciding()
    state.driver.machine.gradients = 4
    assert found.due(state.driver.machine)
    found.begin(state)
    state.driver.machine.gradients = 8
    assert not found.due(state.driver.machine)
    for other in others:
        other.kept = found.number
    found.complete()
    assert found.due(state.driver.machine)


def test_none_is_begun_while_the_parent_does_not_have_the_one_before():
    """It would be laid where that one is still read."""
    found, state, _ = deciding()
    state.driver.machine.gradients = 4
    found._seat.parent.late = True  # type: ignore[attr-defined]
    assert not found.due(state.driver.machine)
    found._seat.parent.late = False  # type: ignore[attr-defined]
    assert found.due(state.driver.machine)


@pytest.mark.parametrize("late", [0, 1])
def test_a_server_that_has_kept_the_one_before_has_not_kept_this_one(late: int):
    found, state, others = deciding()
    for number in (1, 2):
        found.begin(state)
        for index, other in enumerate(others):
            other.kept = number - (number == 2 and index == late)
        assert found.complete() == (number == 1)
    assert found.generations.numbers() == [1]
