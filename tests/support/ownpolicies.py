"""Policies of a user's: some whose workers never wait, or always, and a rule that new processes have at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pslab.policies.sync.ssp import SSP
from pslab.protocol.messages import Apply, Asked, Pushed, Start

if TYPE_CHECKING:
    import torch  # which the checker does without

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


class Largest:
    """A pruning rule: the largest twentieth of every layer. A new process needs no compiled loops for it, whose loading
    takes longer than a short run."""

    residual = True

    def select(self, v: torch.Tensor) -> torch.Tensor:
        return v.abs().topk(max(1, len(v) // 20)).indices.sort().values


class AlwaysHold(SSP):
    """It starts no worker again."""

    def step(self, state, event, clocks):
        return state, tuple(d for d in super().step(state, event, clocks)[1] if not isinstance(d, Start))
