"""What a rate with state computes: the gradients that are applied in place of those that were pushed.

A rate names by `needs` what has to be computed for it (`pslab.policies.rates`). The rate supplies scalars; the vectors
are kept and computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import torch

from pslab.protocol.server import Step
from pslab.tensors.update.directions import Directions
from pslab.tensors.update.squares import ServerSquares, Squares
from pslab.tensors.update.store import Gradient, Part
from pslab.tensors.update.versions import Versions


class RateState(Protocol):
    """Vectors that the server keeps for a rate, range by range."""

    def adjust(self, step: Step, gradients: Sequence[Gradient], computing: Collection[int]) -> Sequence[Gradient]:
        """The gradients whose mean is applied in a step.

        Args:
            gradients: those of the step's pushes, in their order. They are not changed, and are copied where kept.
            computing: the versions of the range that other workers compute on, each of which will push for it; empty
                unless the rate `joins` them.
        """

    def leave(self, worker: int) -> None:
        """A worker has left the run."""


AT_SERVER: dict[str, Callable[[Any, Sequence[Part], Sequence[slice], torch.dtype], RateState]] = {
    "versions": Versions,
    "squares": ServerSquares,
    "directions": Directions,
}
AT_WORKER: dict[str, Callable[[Any, torch.Tensor], Squares]] = {"own squares": Squares}
NEEDS = ("", *AT_SERVER, *AT_WORKER)
#: The attributes of a rate that are read to compute it.
READ = {"squares": ("eps",), "own squares": ("eps",), "directions": ("share", "clamp")}


def needs(rate: object) -> str:
    """What a rate needs besides its factor; "" for nothing."""
    return str(getattr(rate, "needs", ""))


def joins(rate: object) -> bool:
    """Whether what a server keeps for a rate depends on the versions that workers compute on: one for each worker, in
    each step, which a server elsewhere would have to be sent."""
    return needs(rate) == "versions"


def at_server(rate: object, parts: Sequence[Part], layers: Sequence[slice], dtype: torch.dtype) -> RateState | None:
    """What the server keeps for a rate, if anything.

    Args:
        parts: the ranges.
        layers: slices of the flat vector.
        dtype: of the weights.
    """
    made = AT_SERVER.get(needs(rate))
    return made and made(rate, parts, layers, dtype)


def at_worker(rate: object, memory: Callable[[], torch.Tensor]) -> Squares | None:
    """What a worker keeps for a rate, if anything, in a flat vector of its own that `memory` gives, zero at first."""
    made = AT_WORKER.get(needs(rate))
    return made and made(rate, memory())
