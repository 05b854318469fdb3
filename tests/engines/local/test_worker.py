"""A worker's process: what it makes of the instants at which it wakes."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import pytest
from whole import Line as Parent

from pslab.engines.local.worker import LocalWorker
from pslab.engines.processes.channel import ALIVE, LifeSigns
from pslab.engines.server.clock import WallClock


@pytest.fixture
def worker():
    """One whose server has sent something that is read half a second too late."""
    ours, theirs = os.pipe()
    os.write(theirs, b".")
    found = object.__new__(LocalWorker)
    sent_s = time.monotonic() - 0.5
    found.stream = SimpleNamespace(descriptor=ours, sent_s=sent_s, frames=lambda: [os.read(ours, 1) and []])
    found.spin = None
    found.driver = SimpleNamespace(drop_if_repeated=lambda frame: False)
    found.job = SimpleNamespace(run=SimpleNamespace(lease_s=60.0))
    found.parent = Parent()
    found.life = LifeSigns(found.parent, 60.0)
    found.clock, found.hides, found.lag_s, found.idle_since_s = WallClock(), True, 0.0, 0.0
    found.clock.start()
    yield found
    os.close(ours)
    os.close(theirs)


def test_what_comes_late_delays_the_computation_that_waits_for_it(worker):
    worker._receive()
    assert worker.lag_s >= 0.5


def test_what_comes_late_while_a_computation_is_held_delays_nothing(worker):
    ends_s = worker.clock.now() + 0.01
    worker._hold_until(ends_s)
    assert worker.now() >= ends_s


def test_a_worker_to_which_messages_come_while_a_computation_is_held_says_that_it_lives(worker, monkeypatch):
    now_s = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(worker, "_receive", lambda: now_s.append(now_s.pop() + worker.life.period_s / 2))
    worker._hold_until(worker.clock.now() + 100.0)  # two of its leases, in all of which something can be read
    assert {said.kind for said in worker.parent.reports()} == {ALIVE}
