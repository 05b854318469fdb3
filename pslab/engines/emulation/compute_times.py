"""Modelled compute times of a worker's gradients."""

from __future__ import annotations

import math

import numpy as np

from pslab.config.cluster import Cluster
from pslab.tensors.random_streams import numpy_generator


class ComputeTimes:
    """The modelled compute times of one worker, drawn from a seeded stream: the same for every policy and engine."""

    def __init__(self, cluster: Cluster, seed: int, worker: int) -> None:
        self._cluster, self._mean_s = cluster, cluster.compute_s
        self._factor = cluster.slow.get(worker, 1.0)
        self._trace, self._drawn = cluster.trace.get(worker, ()), 0
        self._generator: np.random.Generator = numpy_generator(seed, "compute", worker)

    def draw(self) -> float:
        """Draw the seconds that the next iteration's gradient takes; 0 if computation is not modelled."""
        if self._trace:
            self._drawn += 1
            return self._trace[(self._drawn - 1) % len(self._trace)]
        if self._mean_s is None:
            return 0.0
        sigma = self._cluster.compute_sigma
        jitter = math.exp(sigma * self._generator.standard_normal() - sigma * sigma / 2)
        stalled = self._generator.random() < self._cluster.stall_probability
        return self._mean_s * self._factor * jitter * (self._cluster.stall_factor if stalled else 1.0)
