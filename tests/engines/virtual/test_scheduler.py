"""Events in virtual time: their order, and those of a worker that has left."""

from __future__ import annotations

import math

from pslab.engines.virtual.scheduler import AT_SERVER, COMPUTED, SERVER, Scheduler


def test_events_are_ordered_by_instant_phase_worker_and_sequence():
    scheduler, seen = Scheduler(None, lambda *frame: None), []
    scheduler.life = dict.fromkeys(range(3), 0.0)
    for name, at, phase, worker in (("late", 2.0, AT_SERVER, 0), ("computed", 1.0, COMPUTED, 0),
                                    ("worker 2", 1.0, AT_SERVER, 2), ("worker 1", 1.0, AT_SERVER, 1),
                                    ("worker 1 again", 1.0, AT_SERVER, 1)):  # fmt: skip
        scheduler.at(at, phase, worker, lambda content, now: seen.append((content, now)), name)
    while scheduler.turn(1.5):
        pass
    assert seen == [("worker 1", 1.0), ("worker 1 again", 1.0), ("worker 2", 1.0), ("computed", 1.0)]
    assert (scheduler.now, scheduler.empty, scheduler.events) == (1.5, False, 4)


def test_events_older_than_their_workers_life_are_dropped():
    scheduler, seen = Scheduler(None, lambda *frame: None), []
    scheduler.life = {0: 2, 1: math.inf}
    for worker in (0, 0, 1, SERVER):
        scheduler.at(1.0, AT_SERVER, worker, lambda content, now: seen.append(content), worker)
    while scheduler.turn(math.inf):
        pass
    assert seen == [SERVER, 0]
