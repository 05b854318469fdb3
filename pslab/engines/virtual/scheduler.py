"""Events in virtual time: a heap of coming events, and the links, which know what arrives next.

Events are ordered by (instant, phase, worker, sequence).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from pslab.engines.emulation.traffic import Traffic
from pslab.engines.experiment.wire import Frame

AT_SERVER, SERVER_FREE, SENT, AT_WORKER, INSTALLED, COMPUTED, LEAVES, JOINS = range(8)  # in their order at one instant
SERVER = -1  # stands for the worker in an event of the server

Act = Callable[[Any, float], None]  # called with the event's content and instant
Deliver = Callable[[str, int, Frame, float], None]  # direction, worker, frame, instant


class Scheduler:
    """Processes events one by one, by `turn`; a worker's events from before its last join are dropped (see `life`)."""

    def __init__(self, traffic: Traffic | None, deliver: Deliver) -> None:
        self._heap: list[tuple[float, int, int, int, Act, Any]] = []
        self._traffic, self._deliver = traffic, deliver
        self.now, self.sequence, self.events = 0.0, 0, 0
        self.life: dict[int, float] = {}  #: worker: sequence number of its last join; infinity while it is absent

    def at(self, now: float, phase: int, worker: int, act: Act, content: Any = None) -> None:
        """Schedule the call `act(content, now)` for the instant `now`."""
        # unique, so the heap never compares acts; `life` also tells by it which events are older than a join
        self.sequence += 1
        heappush(self._heap, (now, phase, worker, self.sequence, act, content))

    @property
    def empty(self) -> bool:
        """Whether no event is scheduled."""
        return not self._heap

    def turn(self, until_s: float) -> bool:
        """Process the next event, or the next arrival or choice on the links before it, and return True. Return False
        if there is no event, or if the next one is later than `until_s`, to which `now` is then set."""
        heap, traffic = self._heap, self._traffic
        if traffic is not None and traffic.soonest_s < math.inf:
            next_s = heap[0][0] if heap else math.inf
            # nearly every event asks: an attribute says that the links have nothing to do, without a call
            if traffic.soonest_s <= next_s and self._links(traffic, next_s):
                return True
        # with an empty heap `now` stays: the run has stalled at its last event
        if not heap or heap[0][0] > until_s:
            self.now = until_s if heap else self.now
            return False
        now, phase, worker, sequence, act, content = heappop(heap)
        # events of the server and of membership hold for every process of a worker
        if phase >= LEAVES or worker == SERVER or sequence >= self.life[worker]:
            self.now = now
            self.events += 1
            act(content, now)
        return True

    def _links(self, traffic: Traffic, next_s: float) -> bool:
        """Perform the next arrival, or the choice of the next request, on the links if it is due before the next event;
        return whether it was."""
        if (due_s := traffic.next_s()) < math.inf and due_s <= min(next_s, traffic.choice_s()):
            for at, direction, (worker, frame, sent) in traffic.arrived(due_s):
                # else the frame is of a process that has left since
                if sent >= self.life[worker]:
                    self._deliver(direction, worker, frame, at)
            return True
        if traffic.choice_s() < next_s:  # after all other events of the same instant
            traffic.choose(traffic.choice_s())
            return True
        return False
