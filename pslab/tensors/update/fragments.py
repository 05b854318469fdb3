"""Weights of a worker's own, of which one fragment after another is merged with the server's: Streaming DiLoCo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pslab.protocol.traits import traits_of
from pslab.tensors.pruning.pruner import KeptVector
from pslab.tensors.update.inner import InnerOptimizer, InnerSteps
from pslab.tensors.update.steps import Course
from pslab.tensors.update.store import Part

OWN, BEFORE = "own", "before"  # the memories: the weights as they were pushed; before which iteration, 0 for none


def own_weights(sync: Any, size: int, dtype: torch.dtype) -> dict[str, KeptVector]:
    """The vectors that a worker keeps for its own weights, if they are not the server's."""
    own = {OWN: KeptVector(size, dtype), BEFORE: KeptVector(1, torch.float64, scalars=True)}
    return own if getattr(sync, "keeps_own", False) else {}


class FragmentSteps(InnerSteps):
    """A worker's steps on weights of its own.

    An iteration takes the steps that follow the push before it, merges the fragment of that one, whose weights have
    come, and goes on to the next push. Without weights of its own from the iteration before, as after it has joined, a
    worker begins with the server's, and a new optimizer.
    """

    def __init__(
        self, sync: Any, parts: Sequence[Part], inner: InnerOptimizer, kept: Mapping[str, torch.Tensor],
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        super().__init__(inner, kept, dtype)
        self._sync, self._parts, self._rotation = sync, parts, traits_of(sync).rotation
        self._own: torch.Tensor | None = None  # as they are to be pushed
        # the batches of steps that follow a push, their losses, and what they lead to: the optimizer's state, weights
        self._followed: tuple[Sequence[int], list[float], dict[str, Any], torch.Tensor] | None = None

    def follow(self, course: Course) -> None:
        """Take the late steps of a course, perhaps before the weights are here; `run` goes on from there."""
        held = course.weights.clone()
        course.weights.copy_(self._kept[OWN])
        taken = self._steps(course, range(course.late), self._state())
        self._followed = course.batches[: course.late], *taken, course.weights.clone()
        course.weights.copy_(held)

    def run(self, course: Course) -> float:
        weights, arrived, losses, state = course.weights, course.weights.clone(), list[float](), dict[str, Any]()
        if course.iteration and self._kept[BEFORE] == course.iteration:
            if self._followed is None or self._followed[0] != course.batches[: course.late]:
                self.follow(course)
            assert self._followed is not None
            (_, losses, state, own), self._followed = self._followed, None
            weights.copy_(own)
            for index in self._rotation.ranges(course.iteration - 1, len(self._parts)):
                for s in self._parts[index].slices:
                    weights[s] = self._merged(arrived[s], own[s], self._kept[OWN][s])
        more, self._next = self._steps(course, range(course.late, len(course.batches)), state)
        self._own = weights.clone()
        torch.sub(arrived, weights, out=course.gradient)
        weights.copy_(arrived)
        return sum(losses + more) / len(losses + more)

    def commit(self, course: Course) -> None:
        super().commit(course)
        if self._own is not None:
            self._kept[OWN].copy_(self._own)
            self._kept[BEFORE].fill_(course.iteration + 1)

    def _merged(self, arrived: torch.Tensor, own: torch.Tensor, pushed: torch.Tensor) -> torch.Tensor:
        """What a worker makes of the server's weights, its own, and its own as it pushed them."""
        if self._sync.merge == "carry":
            return arrived + (own - pushed)
        return arrived if self._sync.merge == "replace" else torch.lerp(arrived, own, self._sync.alpha)
