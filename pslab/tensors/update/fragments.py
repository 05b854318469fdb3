"""Streaming DiLoCo: a worker's own weights are merged with the server's weights one fragment after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pslab.protocol.traits import traits_of
from pslab.tensors.update.inner import InnerOptimizer
from pslab.tensors.update.own_weights import OWN, OwnSteps
from pslab.tensors.update.part import Part
from pslab.tensors.update.steps import Iteration


class FragmentSteps(OwnSteps):
    """A worker's steps on its own weights, which are stored at each push.

    An iteration first takes its `late` steps, during which the reply to the last push arrives. It then merges the
    fragment of that push, and takes the steps up to the next push.
    """

    def __init__(
        self, sync: Any, parts: Sequence[Part], inner: InnerOptimizer, memory: Mapping[str, torch.Tensor],
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        super().__init__(inner, memory, dtype)
        self._sync, self._parts, self._rotation = sync, parts, traits_of(sync).rotation
        # of the steps after a push: their batches and losses, and the optimizer's state and the weights after them
        self._followed: tuple[Sequence[int], list[float], dict[str, Any], torch.Tensor] | None = None

    def follow(self, iteration: Iteration) -> None:
        before = iteration.weights.clone()
        iteration.weights.copy_(self._kept[OWN])
        taken = self._steps(iteration, range(iteration.late), self._state(iteration))
        self._followed = iteration.batches[: iteration.late], *taken, iteration.weights.clone()
        iteration.weights.copy_(before)

    def run(self, iteration: Iteration) -> float:
        weights, arrived, losses, state = iteration.weights, iteration.weights.clone(), list[float](), dict[str, Any]()
        if self._goes_on(iteration):
            if self._followed is None or self._followed[0] != iteration.batches[: iteration.late]:
                self.follow(iteration)
            assert self._followed is not None
            (_, losses, state, trained), self._followed = self._followed, None
            weights.copy_(trained)
            for index in self._rotation.ranges(iteration.number - 1, len(self._parts)):
                for s in self._parts[index].slices:
                    weights[s] = self._merged(arrived[s], trained[s], self._kept[OWN][s])
        more, self._next = self._steps(iteration, range(iteration.late, len(iteration.batches)), state)
        self._own = weights.clone()
        torch.sub(arrived, weights, out=iteration.gradient)
        weights.copy_(arrived)
        return sum(losses + more) / len(losses + more)

    def _merged(self, arrived: torch.Tensor, trained: torch.Tensor, pushed: torch.Tensor) -> torch.Tensor:
        """Return the server's weights, `arrived`, merged with the worker's, `trained` now and `pushed` at its push."""
        if self._sync.merge == "carry":
            return arrived + (trained - pushed)
        return arrived if self._sync.merge == "replace" else torch.lerp(arrived, trained, self._sync.alpha)
