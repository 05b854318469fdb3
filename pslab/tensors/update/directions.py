"""Gradients rescaled layer by layer: workers' directions count by their shares, and the sum's length is preserved.

After Tsai's slides (2017); see `pslab.policies.rates`. Let g be a worker's latest gradient and alpha its share. A push
is applied as t * alpha * g / |g|, where t is chosen such that t * |sum of alpha * g / |g|| = |sum of g|. The sums are
over the workers that have pushed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from pslab.protocol.server import Step
from pslab.tensors.device import zeros
from pslab.tensors.entries import Entries
from pslab.tensors.update.part import Gradient, Part
from pslab.tensors.update.states import State, fitting, named, state_of, table, under, vector_of
from pslab.tensors.update.vectors import Vector, copied, cuts, inside, outside, positions

REFRESH = 256  # pushes after which the sums are recomputed, since adding and subtracting accumulates rounding errors


@dataclass
class _Latest:
    """A worker's latest gradient, its share alpha, and alpha / |g| of each layer: 0 where the gradient is zero."""

    gradient: Vector
    alpha: float
    weights: np.ndarray


class Directions:
    """The state of a range: per layer, the sum of the workers' latest gradients and the sum of alpha * g / |g|.

    The rate supplies `share(staleness, pushes)` and `clamp`.
    """

    def __init__(self, rate: Any, part: Part, layers: Sequence[slice], dtype: torch.dtype) -> None:
        self._rate, self._part, self._cuts = rate, part, cuts(part, layers)
        self._bounds = np.array([cut.start for cut in self._cuts] + [part.size])
        self._ones = np.ones(len(self._cuts))
        self._latest: dict[int, _Latest] = {}
        self._pushes: dict[int, int] = {}
        self._sum, self._directed = zeros(part.size, dtype=dtype), zeros(part.size, dtype=dtype)
        self._out = torch.empty(part.size, dtype=dtype)
        self._replaced = 0

    def adjust(self, step: Step, gradients: Sequence[Gradient], computing: Collection[int]) -> Sequence[Gradient]:
        vectors = [inside(self._part, gradient) for gradient in gradients]
        for push, vector in zip(step.pushes, vectors, strict=True):
            count = self._pushes[push.worker] = self._pushes.get(push.worker, 0) + 1
            self._replace(push.worker, vector, float(self._rate.share(step.version - 1 - push.version, count)))
        lengths = self._lengths()
        factors = [self._factors(push.worker, lengths) for push in step.pushes]
        return [outside(vector) for vector in self._applied(vectors, factors)]

    def leave(self, worker: int) -> None:
        if self._latest.pop(worker, None) is not None:
            self._refresh()

    def state(self) -> State:
        """Return the sums, and each worker's latest gradient, share, weights and number of pushes."""
        state = {"pushes": table(self._pushes.items()), "latest": table([worker] for worker in self._latest),
                 "sum": self._sum, "directed": self._directed, "replaced": torch.tensor(self._replaced)}  # fmt: skip
        for worker, latest in self._latest.items():
            numbers = {"alpha": torch.tensor(latest.alpha, dtype=torch.float64),
                       "weights": torch.from_numpy(latest.weights)}  # fmt: skip
            state |= named(f"worker {worker}", {**state_of(latest.gradient), **numbers})
        return state

    def restore(self, state: State) -> None:
        """Restore a saved state."""
        self._sum.copy_(fitting(state["sum"], self._sum))
        self._directed.copy_(fitting(state["directed"], self._directed))
        self._pushes, self._replaced = dict(state["pushes"].tolist()), int(state["replaced"])
        for worker in state["latest"].flatten().tolist():
            saved, ones = under(f"worker {worker}", state), torch.from_numpy(self._ones)
            weights = fitting(saved["weights"], ones).numpy().copy()
            self._latest[worker] = _Latest(vector_of(saved, self._sum), float(saved["alpha"]), weights)

    def _replace(self, worker: int, gradient: Vector, alpha: float) -> None:
        lengths = self._norms(gradient)
        weights = np.divide(alpha, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        old = self._latest.get(worker)
        if old is not None:
            self._add(self._sum, old.gradient, -self._ones)
            self._add(self._directed, old.gradient, -old.weights)
        self._add(self._sum, gradient, self._ones)
        self._add(self._directed, gradient, weights)
        if old is not None and isinstance(old.gradient, torch.Tensor) and isinstance(gradient, torch.Tensor):
            copy: Vector = old.gradient.copy_(gradient)
        else:
            copy = copied(gradient)
        self._latest[worker] = _Latest(copy, alpha, weights)
        self._replaced += 1
        if self._replaced % REFRESH == 0:
            self._refresh()

    def _refresh(self) -> None:
        self._sum.zero_()
        self._directed.zero_()
        for latest in self._latest.values():
            self._add(self._sum, latest.gradient, self._ones)
            self._add(self._directed, latest.gradient, latest.weights)

    def _lengths(self) -> np.ndarray:
        """Return t of each layer. If a layer's directions cancel, no t exists: return |sum of g| / sum of alpha."""
        total, directed = self._norms(self._sum), self._norms(self._directed)
        shares = sum((latest.alpha * (latest.weights > 0) for latest in self._latest.values()), np.zeros(len(total)))
        cancel = directed <= torch.finfo(self._sum.dtype).eps * shares
        below = np.where(cancel, shares, directed)
        t: np.ndarray = np.divide(total, below, out=np.zeros_like(total), where=below > 0)
        return t

    def _factors(self, worker: int, lengths: np.ndarray) -> np.ndarray:
        """Return t * alpha / |g| of a worker's latest gradient for each layer, at most the rate's `clamp`."""
        with np.errstate(invalid="ignore"):  # infinite lengths occur in a run that diverges
            clamped: np.ndarray = np.minimum(lengths * self._latest[worker].weights, self._rate.clamp)
        return clamped

    def _applied(self, vectors: Sequence[Vector], factors: Sequence[np.ndarray]) -> list[Vector]:
        """Return one dense vector, or sparse ones, whose mean is the mean of the vectors times their factors."""
        sparse = [v for v in vectors if not isinstance(v, torch.Tensor)]
        if len(sparse) == len(vectors):
            return [Entries(v.n, v.indices, v.values * self._each(v, f)) for v, f in zip(sparse, factors, strict=True)]
        if len(vectors) > 1:
            self._out.zero_()
            for vector, factor in zip(vectors, factors, strict=True):
                self._add(self._out, vector, factor / len(vectors))
        elif isinstance(vectors[0], torch.Tensor):
            for cut, factor in zip(self._cuts, factors[0].tolist(), strict=True):
                torch.mul(vectors[0][cut], factor, out=self._out[cut])
        return [self._out]

    def _add(self, total: torch.Tensor, vector: Vector, weights: np.ndarray) -> None:
        if isinstance(vector, torch.Tensor):
            for cut, weight in zip(self._cuts, weights.tolist(), strict=True):
                total[cut].add_(vector[cut], alpha=weight)
        else:
            total.index_add_(0, positions(vector), torch.from_numpy(vector.values * self._each(vector, weights)))

    def _each(self, entries: Entries, weights: np.ndarray) -> np.ndarray:
        """Return the weight of each entry's layer."""
        at = np.searchsorted(np.asarray(entries.indices), self._bounds)
        return np.repeat(weights.astype(entries.values.dtype), np.diff(at))

    def _norms(self, vector: Vector) -> np.ndarray:
        if isinstance(vector, torch.Tensor):
            return np.array([float(torch.linalg.vector_norm(vector[cut])) for cut in self._cuts])
        at = np.searchsorted(np.asarray(vector.indices), self._bounds)
        return np.sqrt([float(np.square(vector.values[a:b], dtype=float).sum()) for a, b in pairwise(at.tolist())])
