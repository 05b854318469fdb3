"""Asynchronous parallel: no worker waits for another."""

from __future__ import annotations

from dataclasses import dataclass

from pslab.protocol.messages import Apply, Asked, Decisions, Left, Pushed, Start, SyncEvent
from pslab.protocol.window import Window


@dataclass(frozen=True)
class ASP:
    """Asynchronous parallel, as in a Hogwild-style server: each push is applied at once, and no worker waits.

    Source: Dean et al. (NIPS 2012).
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
