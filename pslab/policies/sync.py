"""Synchronization: when may a worker start its next iteration, and when is a push applied?"""

from __future__ import annotations

from dataclasses import dataclass

from pslab.protocol.messages import Aggregate, Apply, Asked, Decisions, Left, Pushed, Start, SyncEvent
from pslab.protocol.window import Window

Waiting = tuple[tuple[int, int], ...]  # (worker, the iteration that it asked for)


def release(waiting: Waiting, clocks: Window, staleness: int) -> tuple[Waiting, Decisions]:
    """Start every waiting worker that is now at most `staleness` iterations ahead of the slowest."""
    bound = clocks.base + staleness
    starts = tuple(Start(worker, iteration) for worker, iteration in waiting if iteration <= bound)
    return tuple(entry for entry in waiting if entry[1] > bound), starts


@dataclass(frozen=True)
class BSP:
    """Bulk synchronous parallel: the mean of all workers' gradients is one step, then all go on.

    Source: Valiant (CACM 1990).
    Example: bsp
    """

    @property
    def window(self) -> int:
        return 1

    @property
    def barrier(self) -> bool:
        return True

    def initial(self, workers: tuple[int, ...]) -> tuple[Waiting, Waiting]:
        """(pushes of this round, workers that wait for its end)"""
        return (), ()

    def step(
        self, state: tuple[Waiting, Waiting], event: SyncEvent, clocks: Window
    ) -> tuple[tuple[Waiting, Waiting], Decisions]:
        pushes, waiting = state
        match event:
            case Asked(worker, iteration) if iteration <= clocks.base:
                return state, (Start(worker, iteration),)
            case Asked(worker, iteration):
                return (pushes, (*waiting, (worker, iteration))), ()
            case Pushed(worker, iteration):
                pushes += ((worker, iteration),)
            case Left(gone):
                waiting = tuple(entry for entry in waiting if entry[0] != gone)
        if not event.moved:
            return (pushes, waiting), ()
        waiting, starts = release(waiting, clocks, 0)
        # in the workers' order: a sum of floats depends on it
        whole = (Aggregate(tuple(sorted(pushes))),) if pushes else ()  # none if the last worker left before its push
        return ((), waiting), (*whole, *starts)


@dataclass(frozen=True)
class SSP:
    """Stale synchronous parallel: nobody is more than `staleness` iterations ahead of the slowest.

    Source: Ho et al. (NIPS 2013).
    Example: ssp:3

    Args:
        staleness: iterations, from 0; 0 waits for everybody, but applies each push by itself.
    """

    staleness: int

    def __post_init__(self) -> None:
        if self.staleness < 0:
            raise ValueError("staleness must be 0 or more iterations")

    @property
    def window(self) -> int:
        return self.staleness + 1

    def initial(self, workers: tuple[int, ...]) -> Waiting:
        return ()

    def step(self, state: Waiting, event: SyncEvent, clocks: Window) -> tuple[Waiting, Decisions]:
        match event:
            case Asked(worker, iteration) if iteration <= clocks.base + self.staleness:
                return state, (Start(worker, iteration),)
            case Asked(worker, iteration):
                return (*state, (worker, iteration)), ()
            case Pushed(worker, iteration):
                state, starts = release(state, clocks, self.staleness) if event.moved else (state, ())
                return state, (Apply(worker, iteration), *starts)
            case Left(gone):
                return release(tuple(entry for entry in state if entry[0] != gone), clocks, self.staleness)


@dataclass(frozen=True)
class ASP:
    """Asynchronous parallel, as a Hogwild-style server: apply each push at once, never wait.

    Source: Dean et al. (NIPS 2012).
    Example: asp
    """

    @property
    def window(self) -> None:
        return None

    def initial(self, workers: tuple[int, ...]) -> None:
        return None

    def step(self, state: None, event: SyncEvent, clocks: Window) -> tuple[None, Decisions]:
        match event:
            case Asked(worker, iteration):
                return None, (Start(worker, iteration),)
            case Pushed(worker, iteration):
                return None, (Apply(worker, iteration),)
            case Left():
                return None, ()
