"""The server's state: for each key range its clocks and pushes, for each scope the policy's state."""

from __future__ import annotations

from typing import Any

from pslab.protocol.messages import Pull, Push
from pslab.protocol.traits import Sync, Traits
from pslab.protocol.window import Window


class Scope:
    """The ranges that one decision of the policy applies to: one range, or all ranges."""

    __slots__ = ("asked", "complete", "indices", "reading", "state")

    def __init__(self, indices: tuple[int, ...], complete: Window | None, state: Any) -> None:
        self.indices = indices  # the scope's ranges
        self.complete = complete  # the window of pushes that all ranges have; None with one range: it has its own
        self.state = state  # the policy's state
        self.asked: dict[int, int] = {}  # worker: the number of ranges that have its pull; empty with one range
        self.reading: dict[int, int] = {}  # range: number of replies being read; not empty in the state PULL


class Range:
    """The server's state of one key range."""

    __slots__ = ("asked", "clocks", "deferred", "held", "left", "version", "window")

    def __init__(self, workers: tuple[int, ...], length: int | None) -> None:
        self.window = Window(len(workers), length)
        self.clocks = dict.fromkeys(workers, 0)  # the iteration that each worker pushes next
        self.left: dict[int, int] = {}  # the clocks of workers that left
        self.asked: dict[int, Pull] = {}  # pulls not yet answered
        self.held: dict[tuple[int, int], Push] = {}  # pushes counted, not yet applied
        self.deferred: list[tuple[Push, float]] = []  # pushes that arrived while weights were read, and when
        self.version = 0

    @property
    def at_rest(self) -> bool:
        """Whether no push is held or deferred: all pushes are in the weights."""
        return not (self.held or self.deferred)


def scopes_of(workers: tuple[int, ...], ranges: int, sync: Sync, traits: Traits) -> list[Scope]:
    """Return the scopes that a policy decides on: one for each range, or one for all ranges."""
    if traits.whole and ranges > 1:
        return [Scope(tuple(range(ranges)), Window(len(workers), traits.window), sync.initial(workers))]
    return [Scope((index,), None, sync.initial(workers)) for index in range(ranges)]
