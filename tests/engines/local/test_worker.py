"""A worker's process: what it makes of the instants at which it wakes."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from pslab.engines.local.worker import LocalWorker
from pslab.engines.server.clock import WallClock


@pytest.fixture
def worker():
    """One whose server has sent something that is read half a second too late."""
    ours, theirs = os.pipe()
    os.write(theirs, b".")
    found = object.__new__(LocalWorker)
    found.line = SimpleNamespace(descriptor=ours, late_s=0.5, wait=lambda since_s: [os.read(ours, 1) and []])
    found.driver = SimpleNamespace(repeated=lambda frame: False)
    found.job = SimpleNamespace(run=SimpleNamespace(lease_s=60.0))
    found.clock, found.hides, found.lag_s, found.idle_since_s = WallClock(), True, 0.0, 0.0
    found.clock.start()
    yield found
    os.close(ours)
    os.close(theirs)


def test_what_comes_late_delays_the_computation_that_waits_for_it(worker):
    worker._receive()
    assert worker.lag_s == 0.5


def test_what_comes_late_while_a_computation_is_held_delays_nothing(worker):
    ends_s = worker.clock.now() + 0.01
    worker._hold_until(ends_s)
    assert worker.now() >= ends_s
