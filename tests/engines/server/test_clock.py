"""Real time at a server: in the emulated world's own seconds."""

from __future__ import annotations

import pytest

from pslab.engines.server import clock
from pslab.engines.server.clock import APPLY, WallClock


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The machine's monotonic clock."""
    now = [100.0]
    monkeypatch.setattr(clock.time, "monotonic", lambda: now[0])
    return now


def test_a_dilated_clock_goes_so_many_times_slower_than_the_machines(machine: list[float]):
    own = WallClock()
    own.start(4.0)
    machine[0] += 2.0
    assert (own.now(), own.at(101.0), own.real_s(0.25)) == (0.5, 0.25, 1.0)
    own.spend(APPLY, own.at(101.0))
    assert own.spent == {APPLY: [0.25, 1]}  # what is measured is recorded in its seconds, too


def test_processes_that_start_later_share_the_servers_zero(machine: list[float]):
    own = WallClock()
    own.start(2.0, 97.0)
    assert own.now() == 1.5


def test_without_dilation_it_is_the_machines(machine: list[float]):
    own = WallClock()
    own.start()
    machine[0] += 0.1
    assert own.now() == 100.1 - 100.0
