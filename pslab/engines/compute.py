"""Gradients: one forward and backward pass on a worker's weights, straight into the buffers that the server reads."""

from __future__ import annotations

import copy
import math

import torch
from torch.nn import functional

from pslab.engines.job import Job
from pslab.tensors.data import Batches, Dataset, batch
from pslab.tensors.streams import seed_of


class Computing:
    """A worker's model. `weights` and `buffers` are flat, on the device on which it computes."""

    def __init__(
        self, job: Job, worker: int, dataset: Dataset, weights: torch.Tensor, buffers: list[torch.Tensor]
    ) -> None:
        run = job.run
        self._dataset, self._dtype, self._buffers = dataset, job.layout.dtype, buffers
        self._batches = Batches(len(dataset.train_y), run.workers, worker, run.batch_size, run.seed)
        self._device = weights.device
        self._module = copy.deepcopy(job.shell).to(self._device)  # its own buffers, where a process hosts several
        job.keyspace.bind(self._module, weights, buffers[0])
        parameters = dict(self._module.named_parameters())
        self._views = [
            [(parameters[s.name], g[s.offset : s.offset + math.prod(s.shape)].view(s.shape))
             for s in job.keyspace.parameters]
            for g in buffers
        ]  # fmt: skip
        self._random = torch.get_rng_state()
        self._warm_up(seed_of(run.seed, "layers", worker))

    def gradient(self, iteration: int, buffer: int) -> float:
        """The gradient on this worker's batch of the iteration, into one of its buffers; the batch's mean loss."""
        for parameter, view in self._views[buffer]:
            parameter.grad = view
        self._buffers[buffer].zero_()
        torch.set_rng_state(self._random)
        rows = torch.from_numpy(self._batches.at(iteration))
        data = self._dataset
        x = batch(data.train_x[rows], self._dtype, data.mean, data.std).to(self._device)
        loss = functional.cross_entropy(self._module(x), data.train_y[rows].to(self._device))
        loss.backward()  # type: ignore[no-untyped-call]
        self._random = torch.get_rng_state()
        return float(loss.detach())

    def _warm_up(self, seed: int) -> None:
        """The first backward pass allocates and compiles: not what a run measures. Its traces are removed."""
        before = [(b, b.clone()) for b in self._module.buffers()]
        torch.manual_seed(seed)
        self._random = state = torch.get_rng_state()
        self._module.train()
        self.gradient(0, 0)
        for buffer, value in before:
            buffer.copy_(value)
        self._random = state
