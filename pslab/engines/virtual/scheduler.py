"""Events in virtual time: a heap of what is to happen, and the links, which know what arrives next.

Events are ordered by (instant, phase, worker, sequence).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from pslab.engines.emulation.traffic import Traffic
from pslab.engines.experiment.wire import Frame

AT_SERVER, SERVER_FREE, SENT, AT_WORKER, INSTALLED, COMPUTED, LEAVES, JOINS = range(8)  # their order at one instant
SERVER = -1  # the worker of an event that is the server's

Act = Callable[[Any, float], None]  # what happens, and when
Deliver = Callable[[str, int, Frame, float], None]  # direction, worker, frame, instant


class Scheduler:
    """The next event is `turn`ed. A worker's events that are older than its `life` are dropped."""

    def __init__(self, traffic: Traffic | None, deliver: Deliver) -> None:
        self._heap: list[tuple[float, int, int, int, Act, Any]] = []
        self._traffic, self._deliver = traffic, deliver
        self.now, self.sequence, self.events = 0.0, 0, 0
        self.life: dict[int, float] = {}  #: the first event of each worker's life; infinity while it is not present

    def at(self, now: float, phase: int, worker: int, act: Act, content: Any = None) -> None:
        """Let this happen at an instant."""
        self.sequence += 1
        heappush(self._heap, (now, phase, worker, self.sequence, act, content))

    @property
    def empty(self) -> bool:
        """Whether no event is known."""
        return not self._heap

    def turn(self, until_s: float) -> bool:
        """Let the next thing happen that happens until this instant; False if there is none, and `now` is it then."""
        heap, traffic = self._heap, self._traffic
        if traffic is not None and traffic.soonest_s < math.inf:
            next_s = heap[0][0] if heap else math.inf
            if traffic.soonest_s <= next_s and self._links(traffic, next_s):
                return True
        if not heap or heap[0][0] > until_s:
            self.now = until_s if heap else self.now
            return False
        now, phase, worker, sequence, act, content = heappop(heap)
        if phase >= LEAVES or worker == SERVER or sequence >= self.life[worker]:
            self.now = now
            self.events += 1
            act(content, now)
        return True

    def _links(self, traffic: Traffic, next_s: float) -> bool:
        """Whether something happens on the links before the next event, or at the same instant; it does."""
        if (due_s := traffic.next_s()) < math.inf and due_s <= min(next_s, traffic.choice_s()):
            for at, direction, (worker, frame, sent) in traffic.arrived(due_s):
                if sent >= self.life[worker]:
                    self._deliver(direction, worker, frame, at)
            return True
        if traffic.choice_s() < next_s:  # all events of that instant have happened
            traffic.choose(traffic.choice_s())
            return True
        return False
