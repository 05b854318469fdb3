"""Weights of a worker's own, of which one fragment after another is merged with the server's: Streaming DiLoCo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pslab.protocol.traits import traits_of
from pslab.tensors.update.inner import InnerOptimizer
from pslab.tensors.update.own_weights import OWN, OwnSteps
from pslab.tensors.update.part import Part
from pslab.tensors.update.steps import Course


class FragmentSteps(OwnSteps):
    """A worker's steps on weights of its own, kept as they are pushed.

    An iteration takes the steps that follow the push before it, merges the fragment of that one, whose weights have
    come, and goes on to the next push.
    """

    def __init__(
        self, sync: Any, parts: Sequence[Part], inner: InnerOptimizer, kept: Mapping[str, torch.Tensor],
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        super().__init__(inner, kept, dtype)
        self._sync, self._parts, self._rotation = sync, parts, traits_of(sync).rotation
        # the batches of steps that follow a push, their losses, and what they lead to: the optimizer's state, weights
        self._followed: tuple[Sequence[int], list[float], dict[str, Any], torch.Tensor] | None = None

    def follow(self, course: Course) -> None:
        held = course.weights.clone()
        course.weights.copy_(self._kept[OWN])
        taken = self._steps(course, range(course.late), self._state(course))
        self._followed = course.batches[: course.late], *taken, course.weights.clone()
        course.weights.copy_(held)

    def run(self, course: Course) -> float:
        weights, arrived, losses, state = course.weights, course.weights.clone(), list[float](), dict[str, Any]()
        if self._goes_on(course):
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

    def _merged(self, arrived: torch.Tensor, own: torch.Tensor, pushed: torch.Tensor) -> torch.Tensor:
        """Merge the server's weights with a worker's own weights, now and as it pushed them."""
        if self._sync.merge == "carry":
            return arrived + (own - pushed)
        return arrived if self._sync.merge == "replace" else torch.lerp(arrived, own, self._sync.alpha)
