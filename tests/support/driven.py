"""A synchronization policy, its state and its clocks: events in, decisions out."""

from __future__ import annotations

from typing import Any

from pslab.protocol.messages import Asked, Decisions, Left, Pushed, SyncEvent
from pslab.protocol.window import Window


class Driven:
    """A policy with so many workers, each of which pushes its iterations in order."""

    def __init__(self, sync: Any, workers: int) -> None:
        self.sync, self.state = sync, sync.initial(tuple(range(workers)))
        self.clocks = Window(workers, sync.window)
        self.next = dict.fromkeys(range(workers), 0)  # the iteration that each worker pushes next

    def push(self, worker: int, now: float = 0.0) -> Decisions:
        """The worker's next push arrives."""
        iteration = self.next[worker]
        self.next[worker] += 1
        return self.step(Pushed(worker, iteration, now, self.clocks.push(iteration)))

    def ask(self, worker: int, now: float = 0.0) -> Decisions:
        """The worker asks for its next iteration."""
        return self.step(Asked(worker, self.next[worker], now))

    def leave(self, worker: int, now: float = 0.0) -> Decisions:
        """The worker leaves."""
        return self.step(Left(worker, now, self.clocks.leave(self.next.pop(worker))))

    def join(self, worker: int, iteration: int) -> None:
        """A worker joins with this iteration."""
        self.clocks.join(iteration)
        self.next[worker] = iteration

    def step(self, event: SyncEvent) -> Decisions:
        """Any event."""
        self.state, decisions = self.sync.step(self.state, event, self.clocks)
        return decisions
