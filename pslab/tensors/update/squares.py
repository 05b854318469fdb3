"""AdaGrad (Duchi et al., 2011): gradients divided by the root of the sum of all squared gradients, elementwise."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from pslab.protocol.server import Step
from pslab.tensors.codec import Entries
from pslab.tensors.device import zeros
from pslab.tensors.update.store import Gradient, Part
from pslab.tensors.update.vectors import inside, mean, outside, positions

CHUNK = 1 << 18


class Squares:
    """The sums of squares of one sequence of gradients; each gradient counts in its own divisor.

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


class ServerSquares:
    """One sum of squares for all workers; of several pushes in one step the mean is squared."""

    def __init__(self, rate: Any, parts: Sequence[Part], layers: Sequence[slice], dtype: torch.dtype) -> None:
        self._parts = parts
        self._squares = [Squares(rate, zeros(part.size, dtype=dtype)) for part in parts]
        self._out = torch.empty(max(part.size for part in parts), dtype=dtype)

    def adjust(self, step: Step, gradients: Sequence[Gradient], computing: Collection[int]) -> Sequence[Gradient]:
        part, squares = self._parts[step.range], self._squares[step.range]
        vector = mean([inside(part, gradient) for gradient in gradients])
        if isinstance(vector, torch.Tensor):
            return [outside(squares.divide(vector, self._out[: part.size]))]
        return [squares.divide_entries(vector)]

    def leave(self, worker: int) -> None:
        """The squares of its gradients stay in the sum."""
