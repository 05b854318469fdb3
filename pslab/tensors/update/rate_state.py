"""The state of rates, which turns pushed gradients into applied gradients.

A rate names by `needs` what has to be computed for it (`pslab.policies.rates`). The rate supplies scalars; the vectors
are kept and computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from pslab.protocol.server import Step
    from pslab.tensors.update.part import Gradient, Part
    from pslab.tensors.update.squares import Squares
    from pslab.tensors.update.states import State


class RateState(Protocol):
    """Vectors that the server keeps for a rate, of one range."""

    def adjust(self, step: Step, gradients: Sequence[Gradient], computing: Collection[int]) -> Sequence[Gradient]:
        """Return the gradients whose mean is applied in a step.

        Args:
            gradients: the gradients of the step's pushes, in their order. They are not changed, and are copied where
                kept.
            computing: the versions of the range that other workers compute on, each of which will push for it; empty
                unless the rate `joins` them.
        """

    def leave(self, worker: int) -> None:
        """Forget a worker that has left the run."""

    def state(self) -> State:
        """Return the vectors, and what tells them apart, as tensors by name."""

    def restore(self, state: State) -> None:
        """Restore a saved state; KeyError or ValueError if it belongs to another run."""


#: The class of each state, "module:class", which a run that needs it loads.
AT_SERVER = {
    "versions": "pslab.tensors.update.versions:Versions",
    "squares": "pslab.tensors.update.squares:ServerSquares",
    "directions": "pslab.tensors.update.directions:Directions",
}
AT_WORKER = {"own squares": "pslab.tensors.update.squares:Squares"}
NEEDS = ("", *AT_SERVER, *AT_WORKER)
PUSH_BY_PUSH = ("versions", "directions")  #: of these, the states that read which worker's push a gradient is
#: The attributes of a rate that are read to compute it.
READ = {"squares": ("eps",), "own squares": ("eps",), "directions": ("share", "clamp")}


def needs(rate: object) -> str:
    """The name of the state that a rate needs besides its factor; "" if it needs none."""
    return str(getattr(rate, "needs", ""))


def joins(rate: object) -> bool:
    """Whether what a server keeps for a rate depends on the versions that workers compute on: one for each worker, in
    each step, which a server elsewhere would have to be sent."""
    return needs(rate) == "versions"


def at_server(rate: object, parts: Sequence[Part], layers: Sequence[slice], dtype: torch.dtype) -> list[RateState]:
    """The state that the server keeps for a rate, one for each range; empty if the rate needs none.

    Args:
        parts: the ranges.
        layers: slices of the flat vector.
        dtype: of the weights.
    """
    made = _class(AT_SERVER, rate)
    return [made(rate, part, layers, dtype) for part in parts] if made else []


def at_worker(rate: object, memory: Callable[[], torch.Tensor]) -> Squares | None:
    """The state that a worker keeps for a rate, if it needs one, in the flat vector `memory()`, zero at first."""
    made = _class(AT_WORKER, rate)
    return made(rate, memory()) if made else None


def _class(paths: dict[str, str], rate: object) -> Any:
    module, _, name = paths.get(needs(rate), "").partition(":")
    return getattr(import_module(module), name) if module else None
