"""Elastic averaging: a worker's own weights, which go on from one exchange to the next."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from pslab.tensors.update.inner import InnerOptimizer
from pslab.tensors.update.own_weights import OWN, OwnSteps
from pslab.tensors.update.steps import Course


class ElasticSteps(OwnSteps):
    """A worker's steps, on its own weights x. A push is -beta (x - c), of the center c that was pulled: the mean
    of all workers' pushes, or one of them with the weight 1 / workers, moves the center by what x has moved to it.

    The mean of fewer pushes, while workers are away, moves it by more than these x: by workers / pushes times as much.

    Args:
        kept: its `own_weights`, and the memories of the optimizer.
        beta: the force of all workers.
        workers: their number.
    """

    def __init__(
        self, inner: InnerOptimizer, kept: Mapping[str, torch.Tensor], dtype: torch.dtype, beta: float, workers: int
    ) -> None:
        super().__init__(inner, kept, dtype)
        self._beta, self._workers = beta, workers

    def run(self, course: Course) -> float:
        center = course.weights.clone()
        if self._goes_on(course):
            course.weights.copy_(self._kept[OWN])
        loss = super().run(course)
        moved = course.weights - course.gradient  # where they began, less what they have changed by
        torch.sub(center, moved, out=course.gradient).mul_(self._beta)
        self._own = moved.add_(course.gradient, alpha=1 / self._workers)
        course.weights.copy_(center)
        return loss
