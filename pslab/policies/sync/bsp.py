"""Bulk synchronous parallel: a barrier after every iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pslab.policies.sync.ssp import Waiting, release, without
from pslab.protocol.messages import Aggregate, Asked, Decisions, Left, Pushed, Start, SyncEvent
from pslab.protocol.window import Window


@dataclass(frozen=True)
class BSP:
    """Bulk synchronous parallel: the mean of all workers' gradients is one step, then all continue.

    Source: Valiant (CACM 1990).
    """

    barrier: ClassVar[bool] = True
    rounds: ClassVar[bool] = True

    @property
    def window(self) -> int:
        return 1

    def initial(self, workers: tuple[int, ...]) -> tuple[Waiting, Waiting]:
        """Return (pushes of this round, workers that wait for the end of the round)."""
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
            case Left(worker):
                waiting = without(waiting, worker)
        if not event.moved:
            return (pushes, waiting), ()
        waiting, starts = release(waiting, clocks, 0)
        # ordered by worker, because a sum of floats depends on the order
        step = (Aggregate(tuple(sorted(pushes))),) if pushes else ()  # none if the last worker left before its push
        return ((), waiting), (*step, *starts)
