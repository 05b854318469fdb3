"""What is computed for a rate that asks for more than a factor: which gradients are really applied.

A rate says by `needs` what that is (`pslab.policies.rates`); it answers for its own numbers, this for the vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import torch

from pslab.protocol.server import Step
from pslab.tensors.update.directions import Directions
from pslab.tensors.update.squares import Squares, SquaresAtServer
from pslab.tensors.update.store import Gradient, Part
from pslab.tensors.update.versions import Versions


class Rating(Protocol):
    """Vector work at the server, range by range."""

    def rate(self, step: Step, gradients: Sequence[Gradient], computing: Collection[int]) -> Sequence[Gradient]:
        """The gradients whose mean is really applied in a step.

        Args:
            gradients: of the step's pushes, in their order; they are not changed, and copied where they are kept.
            computing: the versions of the range that others' coming pushes are taken on.
        """

    def leave(self, worker: int) -> None:
        """A worker is gone."""


AT_SERVER: dict[str, Callable[[Any, Sequence[Part], Sequence[slice], torch.dtype], Rating]] = {
    "versions": Versions,
    "squares": SquaresAtServer,
    "directions": Directions,
}
AT_WORKER: dict[str, Callable[[Any, torch.Tensor], Squares]] = {"own squares": Squares}
NEEDS = ("", *AT_SERVER, *AT_WORKER)


def needs(rate: object) -> str:
    """What a rate needs beside its factor; "" is nothing."""
    return str(getattr(rate, "needs", ""))


def at_server(rate: object, parts: Sequence[Part], layers: Sequence[slice], dtype: torch.dtype) -> Rating | None:
    """What the server computes for a rate."""
    made = AT_SERVER.get(needs(rate))
    return made and made(rate, parts, layers, dtype)


def at_worker(rate: object, memory: Callable[[], torch.Tensor]) -> Squares | None:
    """What a worker computes for a rate, in a flat vector of its own, zero at first, which it keeps between pushes."""
    made = AT_WORKER.get(needs(rate))
    return made and made(rate, memory())
