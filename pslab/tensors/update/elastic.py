"""Elastic averaging: each worker trains its own weights, and each exchange pulls them towards the server's weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from pslab.tensors.update.inner import InnerOptimizer
from pslab.tensors.update.own_weights import OWN, OwnSteps
from pslab.tensors.update.steps import Iteration


class ElasticSteps(OwnSteps):
    """A worker's steps on its own weights x, which are then pulled towards the center c, the server's weights.

    A push is beta (c - x). The server subtracts the mean of all workers' pushes from c, or a single push divided by the
    number of workers. The worker divides its push by this number, too, and adds it to x. While workers are absent, the
    mean of fewer pushes moves c further, by the factor workers / pushes.

    Args:
        memory: the worker's `own_weights`, and the vectors of the optimizer.
        beta: the strength of the pull by all workers together.
        workers: the number of workers.
    """

    def __init__(
        self, inner: InnerOptimizer, memory: Mapping[str, torch.Tensor], dtype: torch.dtype, beta: float, workers: int
    ) -> None:
        super().__init__(inner, memory, dtype)
        self._beta, self._workers = beta, workers

    def run(self, iteration: Iteration) -> float:
        center = iteration.weights.clone()
        if self._goes_on(iteration):
            iteration.weights.copy_(self._kept[OWN])
        loss = super().run(iteration)
        moved = iteration.weights - iteration.gradient  # weights before the steps minus their change
        torch.sub(center, moved, out=iteration.gradient).mul_(self._beta)
        self._own = moved.add_(iteration.gradient, alpha=1 / self._workers)
        iteration.weights.copy_(center)
        return loss
