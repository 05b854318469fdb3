"""Elastic averaging: a worker's own weights, which go on from one exchange to the next."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from pslab.tensors.pruning.pruner import KeptVector
from pslab.tensors.update.inner import InnerOptimizer, InnerSteps
from pslab.tensors.update.steps import Course

OWN, BEGUN = "own weights", "own weights begun"


def memories(size: int, dtype: torch.dtype) -> dict[str, KeptVector]:
    """What a worker keeps beside the state of its optimizer: its weights, and whether there are any."""
    return {OWN: KeptVector(size, dtype), BEGUN: KeptVector(1, torch.float64, scalars=True)}


class ElasticSteps(InnerSteps):
    """A worker's steps, on its own weights x. What is pushed is -beta (x - c), of the center c that has come: the mean
    of all workers' pushes, or one of them with the weight 1 / workers, moves the center by what x has moved to it.

    Args:
        kept: its `memories`, and those of the optimizer.
        beta: the force of all workers.
        workers: their number.
    """

    def __init__(
        self, inner: InnerOptimizer, kept: Mapping[str, torch.Tensor], dtype: torch.dtype, beta: float, workers: int
    ) -> None:
        super().__init__(inner, kept, dtype)
        self._own, self._begun, self._beta, self._workers = kept[OWN], kept[BEGUN], beta, workers
        self._moved: torch.Tensor | None = None  # its weights after the course that was run

    def run(self, course: Course) -> float:
        center = course.weights.clone()
        if self._begun[0]:
            course.weights.copy_(self._own)
        loss = super().run(course)
        moved = course.weights - course.gradient  # where they began, less what they have changed by
        torch.sub(center, moved, out=course.gradient).mul_(self._beta)
        self._moved = moved.add_(course.gradient, alpha=1 / self._workers)
        course.weights.copy_(center)
        return loss

    def commit(self, course: Course) -> None:
        super().commit(course)
        assert self._moved is not None
        self._own.copy_(self._moved)
        self._begun.fill_(1.0)
