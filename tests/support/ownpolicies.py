"""A policy under which no worker ever waits, whatever bound it claims; for the checker, by object and by name."""

from __future__ import annotations

from typing import Any

from pslab.policies.sync.ssp import SSP
from pslab.protocol.messages import Apply, Asked, Pushed, Start

NUMBER = 3


class NeverWaits:
    """Claims a bound of `window` - 1 and keeps none."""

    def __init__(self, window: int | None = 2) -> None:
        self.window = window

    def initial(self, workers: tuple[int, ...]) -> Any:
        return ()

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        match event:
            case Asked(worker, iteration):
                return state, (Start(worker, iteration),)
            case Pushed(worker, iteration):
                return state, (Apply(worker, iteration),)
        return state, ()


class NeedsArgument(NeverWaits):
    """Cannot be made without an argument."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what


class AlwaysHold(SSP):
    """It starts no worker again."""

    def step(self, state, event, clocks):
        return state, tuple(d for d in super().step(state, event, clocks)[1] if not isinstance(d, Start))
