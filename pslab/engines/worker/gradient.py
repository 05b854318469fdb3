"""Gradients: one forward and backward pass on a worker's weights, straight into the buffers that the server reads."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from pslab.engines.job.job import Job
from pslab.engines.worker.layer_hooks import Layerwise
from pslab.engines.worker.reader import Reader
from pslab.tensors.device import Device
from pslab.tensors.random_streams import seed_globals
from pslab.tensors.workload.data import Dataset, batch
from pslab.tensors.workload.keyspace import Slot
from pslab.tensors.workload.objective import placed, targets


def module_of(job: Job, device: Device) -> nn.Module:
    """The model of a job without its weights, ready for `Computing`."""
    return copy.deepcopy(job.shell).to(device.place).train()


class Computing:
    """A worker's gradients. `weights` and `buffers` are flat, on the job's device.

    The module lives in them while it computes: several workers of a process may share one that remembers nothing.
    With `layerwise` a layered worker waits for weights and takes gradients layer by layer.
    """

    layerwise: Layerwise | None = None

    def __init__(
        self, job: Job, worker: int, dataset: Dataset, weights: torch.Tensor, buffers: list[torch.Tensor],
        module: nn.Module,
    ) -> None:  # fmt: skip
        run = job.run
        self._seed, self._worker, self._dataset, self._dtype = run.seed, worker, dataset, job.layout.dtype
        self._weights, self._buffers, self._module = weights, buffers, module
        self._device, self._loss = job.device.of(worker), torch.full((), math.nan)
        self._objective = placed(job.loss, self._device.place)
        self._reader = Reader(dataset, run.workers, worker, run.batch_size, run.seed)
        self._keyspace, self._layered = job.keyspace, job.layered and run.engine == "local"
        job.keyspace.bind(module, weights, buffers[0])
        parameters = dict(module.named_parameters())

        def view(flat: torch.Tensor, slot: Slot) -> torch.Tensor:
            return flat[slot.offset : slot.offset + slot.size].view(slot.shape)

        self._views = [
            [(parameters[slot.name], view(weights, slot), view(buffer, slot)) for slot in job.keyspace.parameters]
            for buffer in buffers
        ]

    @property
    def loss(self) -> float:
        """Of the batch that came last. Reading it waits for the device."""
        return float(self._loss)

    def gradient(self, step: int, buffer: int) -> float:
        """The gradient on this worker's batch number `step`, into one of its buffers; the batch's mean loss."""
        for parameter, weights, gradient in self._views[buffer]:
            parameter.data, parameter.grad = weights, gradient
        self._buffers[buffer].zero_()
        layerwise = self.layerwise
        if layerwise is not None:
            layerwise.forward_begins()
        # a stream for each gradient: it does not matter which process computes it
        seed_globals(self._seed, "layers", self._worker, step)
        read_x, read_y = self._reader.at(step)
        x = self._device.to(batch(read_x, self._dtype, self._dataset.mean, self._dataset.std))
        y = self._device.to(targets(read_y, self._dtype))
        loss = self._objective(self._module(x), y)
        self._loss = loss.detach()
        if layerwise is not None:
            layerwise.forward_ended()
        loss.backward()
        if layerwise is not None:
            layerwise.backward_ended()
        self._device.synchronize()
        return self.loss

    def path(self, steps: range, rates: Sequence[float], buffer: int) -> float:
        """Several steps of this worker's own, each with its rate; their mean loss.

        Into the buffer goes the gradient that moves the weights as far in one step with the first rate. The weights
        stay as they are.
        """
        first = rates[0] or 1.0  # at the end of its schedule nothing moves
        begin, total, losses = self._weights.clone(), torch.zeros_like(self._weights), []
        for step, rate in zip(steps, rates, strict=True):
            losses.append(self.gradient(step, buffer))
            total.add_(self._buffers[buffer], alpha=rate / first)
            torch.sub(begin, total, alpha=first, out=self._weights)
        self._weights.copy_(begin)
        self._buffers[buffer].copy_(total)
        return sum(losses) / len(losses)

    def warm_up(self) -> None:
        """The first backward pass allocates and compiles: not what a run measures. It leaves no trace in the module."""
        with _unchanged(self._module):
            self.gradient(0, 0)
            if self._layered:
                layerwise = Layerwise(self._module, self._keyspace)
                layerwise.learn(lambda: self.gradient(0, 0))
                self.layerwise = layerwise


@contextmanager
def _unchanged(module: nn.Module) -> Iterator[None]:
    """Restore what modules remember of a pass afterwards: buffers, and attributes of their own."""
    each = list(module.modules())
    base = vars(nn.Module()).keys() - {"_buffers"}
    own = [{name: value for name, value in vars(m).items() if name not in base} for m in each]
    before = copy.deepcopy(own, {id(x): x for x in (*each, *module.parameters())})  # of these, only what they hold
    yield
    for owner, kept in zip(each, before, strict=True):
        for name in vars(owner).keys() - base - kept.keys():
            del vars(owner)[name]
        vars(owner).update(kept)
