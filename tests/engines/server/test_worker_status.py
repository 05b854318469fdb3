"""What each worker does, as the server knows it."""

from __future__ import annotations

import pytest

from pslab.engines.server.worker_status import doings
from pslab.policies.sync.bsp import BSP
from pslab.protocol.messages import Pull, Push
from pslab.protocol.server import Server


def after(*done: int, workers: int = 4, ranges: int = 2, partly: tuple[int, ...] = ()) -> Server:
    """A server to which these workers have pushed, and which they have asked; `partly`: only range 0."""
    server = Server(range(workers), ranges, BSP())
    for worker in (*done, *partly):
        for index in range(ranges if worker in done else 1):
            server.handle(Push(worker, index, 0, 0), 0.0)
            server.handle(Pull(worker, index, 1, 0), 0.0)
    return server


def test_a_worker_waits_for_the_slowest_of_each_range_that_it_lacks():
    server = after(0, partly=(3,))
    server.leave(2, 0.0)
    assert doings(server, [False, False, True, True]) == [
        {"doing": "waiting", "for": [1, 3], "iteration": 1},  # of range 1 both, of range 0 only worker 1
        {"doing": "computing", "for": [], "iteration": 0},
        {"doing": "dead", "for": [], "iteration": None},
        {"doing": "waiting", "for": [1], "iteration": 0},
    ]
    assert doings(after(), [True, False, False, False])[0]["doing"] == "transferring"


def test_many_workers_that_wait_cost_one_look_at_each_range(monkeypatch: pytest.MonkeyPatch):
    looks, waits_for = [], Server.waits_for
    monkeypatch.setattr(Server, "waits_for", lambda server, index: looks.append(index) or waits_for(server, index))
    found = doings(after(*range(9), workers=10), [False] * 10)
    assert [each["for"] for each in found] == [*[[9]] * 9, []]
    assert looks == [0, 1]
