"""Ray's own parameter server, as its documentation has it ("Parameter Server", docs.ray.io, Ray Core examples): actors
hand weights and gradients to each other through Ray's object store, and one process schedules them.

They exchange the same data as the example: weights as tensors by their names, gradients as arrays of the layers. The
rest of the example is left out: the gradient exists already, and nothing is evaluated.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import torch

from pslab.engines.ray.actors import load_ray
from pslab.tensors.workload.models import build_model

RATE = 1e-6
Weights = dict[str, torch.Tensor]
Gradient = list[np.ndarray]


class ParameterServer:
    """The model that is trained."""

    def __init__(self, model: str) -> None:
        self._model = build_model(model, 0)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=RATE)

    def apply_gradients(self, *gradients: Gradient) -> Weights:
        """A step by the sum of gradients; the weights after it."""
        for parameter, layers in zip(self._model.parameters(), zip(*gradients, strict=True), strict=True):
            parameter.grad = torch.from_numpy(np.stack(layers).sum(axis=0))
        self._optimizer.step()
        return self.get_weights()

    def get_weights(self) -> Weights:
        """The weights as they are."""
        return self._model.state_dict()


class DataWorker:
    """A model of its own, and the gradient that it always has."""

    def __init__(self, model: str) -> None:
        self._model = build_model(model, 0)
        self._gradient = [np.ones(tuple(each.shape), np.float32) for each in self._model.parameters()]

    def compute_gradients(self, weights: Weights) -> Gradient:
        """The gradient at these weights."""
        self._model.load_state_dict(weights)
        return self._gradient


class Example:
    """The actors, on the Ray cluster that this process has joined."""

    def __init__(self, workers: int, model: str) -> None:
        self._ray = ray = load_ray()
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # its actors need not find the tests
        self.server: Any = ray.remote(ParameterServer).remote(model)
        self._workers: list[Any] = [ray.remote(DataWorker).remote(model) for _ in range(workers)]

    def asynchronous(self, rounds: int) -> float:
        """Seconds per round of as many pushes as there are workers; each gets the weights after its own push."""
        weights = self._begun()
        start_s = time.perf_counter()
        computing = {worker.compute_gradients.remote(weights): worker for worker in self._workers}
        for _ in range(rounds * len(self._workers)):
            (ready, *_), _ = self._ray.wait(list(computing))
            worker = computing.pop(ready)
            weights = self.server.apply_gradients.remote(ready)
            computing[worker.compute_gradients.remote(weights)] = worker
        self._ray.get(weights)
        return (time.perf_counter() - start_s) / rounds

    def synchronous(self, rounds: int) -> float:
        """Seconds per round, in which the gradients of all workers make one step."""
        weights = self._begun()
        start_s = time.perf_counter()
        for _ in range(rounds):
            weights = self.server.apply_gradients.remote(*(w.compute_gradients.remote(weights) for w in self._workers))
        self._ray.get(weights)
        return (time.perf_counter() - start_s) / rounds

    def close(self) -> None:
        """End the actors."""
        for actor in (self.server, *self._workers):
            self._ray.kill(actor)

    def _begun(self) -> Any:
        """The weights, once every actor has nothing else to do."""
        weights = self.server.get_weights.remote()
        self._ray.get([worker.compute_gradients.remote(weights) for worker in self._workers])
        return weights
