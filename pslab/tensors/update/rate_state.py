"""The vectors that some rates need to convert pushed gradients to applied gradients.

A rate (`pslab.policies.rates`) names the class of its vectors by the attribute `needs`, and computes only scalars.
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
    """The vectors that the server stores for a rate and one range."""

    def adjust(self, step: Step, gradients: Sequence[Gradient], computing: Collection[int]) -> Sequence[Gradient]:
        """Return the gradients whose mean is applied in a step.

        Args:
            gradients: the gradients of the step's pushes, in the order of the pushes. An implementation must not change
                them, and must copy a gradient that it stores.
            computing: the versions of the range on which other workers compute gradients; empty unless `joins(rate)`.
        """

    def leave(self, worker: int) -> None:
        """Forget a worker that has left the run."""

    def state(self) -> State:
        """Return the vectors, and the numbers that identify them, as tensors by name."""

    def restore(self, state: State) -> None:
        """Restore a saved state; KeyError or ValueError if it belongs to another run."""


#: The class of each state, as "module:class"; only a run that needs it loads it.
AT_SERVER = {
    "versions": "pslab.tensors.update.versions:Versions",
    "squares": "pslab.tensors.update.squares:ServerSquares",
    "directions": "pslab.tensors.update.directions:Directions",
}
AT_WORKER = {"own squares": "pslab.tensors.update.squares:Squares"}
NEEDS = ("", *AT_SERVER, *AT_WORKER)
PUSH_BY_PUSH = ("versions", "directions")  #: states that need the worker of each gradient
#: The attributes of a rate that each state reads.
READ = {"squares": ("eps",), "own squares": ("eps",), "directions": ("share", "clamp")}


def needs(rate: object) -> str:
    """Return the name of the state that a rate needs, a key of AT_SERVER or AT_WORKER; "" if it needs none."""
    return str(getattr(rate, "needs", ""))


def joins(rate: object) -> bool:
    """Whether the server's state of a rate depends on the versions that workers compute on; with several servers, each
    step would have to send these versions."""
    return needs(rate) == "versions"


def at_server(rate: object, parts: Sequence[Part], layers: Sequence[slice], dtype: torch.dtype) -> list[RateState]:
    """Return the server's state of a rate for each range; empty if the rate needs none.

    Args:
        parts: the ranges.
        layers: slices of the flat vector.
        dtype: the dtype of the weights.
    """
    made = _class(AT_SERVER, rate)
    return [made(rate, part, layers, dtype) for part in parts] if made else []


def at_worker(rate: object, memory: Callable[[], torch.Tensor]) -> Squares | None:
    """Return a worker's state of a rate, stored in the flat vector `memory()`, zero at first; None if it needs none."""
    made = _class(AT_WORKER, rate)
    return made(rate, memory()) if made else None


def _class(paths: dict[str, str], rate: object) -> Any:
    module, _, name = paths.get(needs(rate), "").partition(":")
    return getattr(import_module(module), name) if module else None
