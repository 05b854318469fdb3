"""Sums of squared gradients, elementwise, and gradients divided by their roots: AdaGrad (Duchi et al., 2011)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from pslab.protocol.server import Step
from pslab.tensors.codec.frames import Entries
from pslab.tensors.update.store import Gradient, Part
from pslab.tensors.update.vectors import Vector, inside, mean, outside, positions

CHUNK = 1 << 18


class Squares:
    """Divides each gradient by the root of the sum of squares up to and with it, plus the rate's `eps`."""

    def __init__(self, rate: Any, total: torch.Tensor) -> None:
        self._eps, self.total = float(rate.eps), total  #: total: the sums so far

    def divide(self, gradient: torch.Tensor, out: torch.Tensor, begin: int = 0) -> torch.Tensor:
        """A dense gradient from element `begin` on, divided; `out` may be the gradient itself."""
        for start in range(0, len(gradient), CHUNK):  # not at once: the roots want memory of their own
            chunk = slice(start, start + CHUNK)
            g = gradient[chunk]
            total = self.total[begin + start :][: len(g)]
            total.addcmul_(g, g)
            torch.div(g, total.sqrt().add_(self._eps), out=out[chunk])
        return out

    def divide_entries(self, entries: Entries) -> Entries:
        """Sparse entries, divided: what they do not name is zero, and stays so."""
        where, values = positions(entries), torch.from_numpy(entries.values)
        total = self.total[where].addcmul_(values, values)
        self.total.index_copy_(0, where, total)
        return Entries(entries.n, entries.indices, (values / total.sqrt_().add_(self._eps)).numpy())


class SquaresAtServer:
    """One sum for all workers."""

    def __init__(self, rate: Any, parts: Sequence[Part], layers: Sequence[slice], dtype: torch.dtype) -> None:
        self._parts = parts
        self._squares = [Squares(rate, torch.zeros(part.size, dtype=dtype)) for part in parts]
        self._out = torch.empty(max(part.size for part in parts), dtype=dtype)

    def rate(self, step: Step, gradients: Sequence[Gradient], computing: Collection[int]) -> Sequence[Gradient]:
        part, squares = self._parts[step.range], self._squares[step.range]
        vector: Vector = mean([inside(part, gradient) for gradient in gradients])
        if isinstance(vector, torch.Tensor):
            return [outside(squares.divide(vector, self._out[: part.size]))]
        return [squares.divide_entries(vector)]

    def leave(self, worker: int) -> None:
        """What it has pushed counts."""
