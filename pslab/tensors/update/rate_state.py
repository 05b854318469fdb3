"""The state of rates, which turns pushed gradients into applied gradients.

A rate names by `needs` what has to be computed for it (`pslab.policies.rates`). The rate supplies scalars; the vectors
are kept and computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import torch

from pslab.protocol.server import Step
from pslab.tensors.device import zeros
from pslab.tensors.entries import Entries
from pslab.tensors.update.directions import Directions
from pslab.tensors.update.states import State, fitting
from pslab.tensors.update.store import Gradient, Part
from pslab.tensors.update.vectors import inside, mean, outside, positions
from pslab.tensors.update.versions import Versions

CHUNK = 1 << 18  # elements that are divided at a time


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


class Squares:
    """AdaGrad (Duchi et al., 2011): gradients divided by the root of the sum of all squared gradients, elementwise.

    Each gradient counts in its own divisor.

    Args:
        rate: its `eps` is added to the root.
        total: [size], the sums so far; updated in place.
    """

    def __init__(self, rate: Any, total: torch.Tensor) -> None:
        self._eps, self.total = float(rate.eps), total

    def divide(self, gradient: torch.Tensor, out: torch.Tensor, start: int = 0) -> torch.Tensor:
        """A dense gradient whose first element is number `start`, divided; `out` may be the gradient itself."""
        for offset in range(0, len(gradient), CHUNK):  # in chunks, because the roots need memory of their own
            chunk = slice(offset, offset + CHUNK)
            g = gradient[chunk]
            total = self.total[start + offset :][: len(g)]
            total.addcmul_(g, g)
            torch.div(g, total.sqrt().add_(self._eps), out=out[chunk])
        return out

    def divide_entries(self, entries: Entries) -> Entries:
        """Sparse entries, divided; an entry that is absent is zero and stays zero."""
        where, values = positions(entries), torch.from_numpy(entries.values)
        total = self.total[where].addcmul_(values, values)
        self.total.index_copy_(0, where, total)
        return Entries(entries.n, entries.indices, (values / total.sqrt_().add_(self._eps)).numpy())


class ServerSquares(Squares):
    """A sum of squares for all workers; where a step has several pushes, their mean is squared."""

    def __init__(self, rate: Any, part: Part, layers: Sequence[slice], dtype: torch.dtype) -> None:
        super().__init__(rate, zeros(part.size, dtype=dtype))
        self._part, self._out = part, torch.empty(part.size, dtype=dtype)

    def adjust(self, step: Step, gradients: Sequence[Gradient], computing: Collection[int]) -> Sequence[Gradient]:
        vector = mean([inside(self._part, gradient) for gradient in gradients])
        if isinstance(vector, torch.Tensor):
            return [outside(self.divide(vector, self._out))]
        return [self.divide_entries(vector)]

    def leave(self, worker: int) -> None:
        """Keep the squares of the worker's gradients in the sum."""

    def state(self) -> State:
        return {"total": self.total}

    def restore(self, state: State) -> None:
        self.total.copy_(fitting(state["total"], self.total))


AT_SERVER: dict[str, Callable[[Any, Part, Sequence[slice], torch.dtype], RateState]] = {
    "versions": Versions,
    "squares": ServerSquares,
    "directions": Directions,
}
AT_WORKER: dict[str, Callable[[Any, torch.Tensor], Squares]] = {"own squares": Squares}
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
    made = AT_SERVER.get(needs(rate))
    return [made(rate, part, layers, dtype) for part in parts] if made else []


def at_worker(rate: object, memory: Callable[[], torch.Tensor]) -> Squares | None:
    """The state that a worker keeps for a rate, if it needs one, in the flat vector `memory()`, zero at first."""
    made = AT_WORKER.get(needs(rate))
    return made and made(rate, memory())
