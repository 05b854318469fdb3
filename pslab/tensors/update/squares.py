"""AdaGrad: gradients divided by the roots of the sums of squared gradients, elementwise."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from pslab.protocol.server import Step
from pslab.tensors.device import zeros
from pslab.tensors.entries import Entries
from pslab.tensors.update.part import Gradient, Part
from pslab.tensors.update.states import State, fitting
from pslab.tensors.update.vectors import inside, mean, outside, positions

CHUNK = 1 << 18  # elements that are divided at a time


class Squares:
    """AdaGrad (Duchi et al., 2011): divides gradients by the root of the sum of all squared gradients, elementwise.

    The divisor of a gradient includes the gradient itself.

    Args:
        rate: its `eps` is added to the root.
        total: [size], the sums so far; updated in place.
    """

    def __init__(self, rate: Any, total: torch.Tensor) -> None:
        self._eps, self.total = float(rate.eps), total

    def divide(self, gradient: torch.Tensor, out: torch.Tensor, start: int = 0) -> torch.Tensor:
        """Add a gradient's squares to the sums, and write the divided gradient to `out`; return `out`.

        The gradient is dense, and its first element has position `start`. `out` may be the gradient itself.
        """
        for offset in range(0, len(gradient), CHUNK):  # in chunks, to limit the memory for the roots
            chunk = slice(offset, offset + CHUNK)
            g = gradient[chunk]
            total = self.total[start + offset :][: len(g)]
            total.addcmul_(g, g)
            torch.div(g, total.sqrt().add_(self._eps), out=out[chunk])
        return out

    def divide_entries(self, entries: Entries) -> Entries:
        """Add the squares of sparse entries to the sums; return the divided entries. An absent entry stays zero."""
        where, values = positions(entries), torch.from_numpy(entries.values)
        total = self.total[where].addcmul_(values, values)
        self.total.index_copy_(0, where, total)
        return Entries(entries.n, entries.indices, (values / total.sqrt_().add_(self._eps)).numpy())


class ServerSquares(Squares):
    """AdaGrad at the server: one sum for all workers, to which a step adds the square of the mean of its pushes."""

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
