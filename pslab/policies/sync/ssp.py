"""Stale synchronous parallel: a bound on how far any worker may be ahead of the slowest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pslab.config.parameters import Bounds, check
from pslab.protocol.messages import Apply, Asked, Decisions, Left, Pushed, Start, SyncEvent
from pslab.protocol.window import Window

Waiting = tuple[tuple[int, int], ...]  # (worker, the iteration that it asked for)


def release(waiting: Waiting, clocks: Window, staleness: int) -> tuple[Waiting, Decisions]:
    """Return the workers that must still wait, and a Start for each one at most `staleness` ahead of the slowest."""
    bound = clocks.base + staleness
    starts = tuple(Start(worker, iteration) for worker, iteration in waiting if iteration <= bound)
    return tuple(entry for entry in waiting if entry[1] > bound), starts


def without(waiting: Waiting, worker: int) -> Waiting:
    """Return the waiting workers without this worker, which has left."""
    return tuple(entry for entry in waiting if entry[0] != worker)


@dataclass(frozen=True)
class SSP:
    """Stale synchronous parallel: no worker is more than `staleness` iterations ahead of the slowest.

    Source: Ho et al. (NIPS 2013).
    """

    staleness: Annotated[
        int, Bounds(at_least=0), "iterations; 0: workers wait as in BSP, but each push is applied by itself"
    ]

    def __post_init__(self) -> None:
        check(self)

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
            case Left(worker):
                return release(without(state, worker), clocks, self.staleness)
