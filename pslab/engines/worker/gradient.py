"""Gradients: one forward and backward pass on a worker's weights, straight into the buffers that the server reads."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from pslab.config.products import ONEDNN
from pslab.engines.experiment.job import Job
from pslab.engines.worker.batches import reader_of
from pslab.errors import ConfigError
from pslab.tensors.device import Device
from pslab.tensors.products import use_onednn
from pslab.tensors.random_streams import Generators, seed_globals
from pslab.tensors.workload.data import Dataset, batch, label_error
from pslab.tensors.workload.keyspace import Slot
from pslab.tensors.workload.module_copies import check_trains, copied
from pslab.tensors.workload.objective import placed, targets


def module_of(job: Job, device: Device) -> nn.Module:
    """The model of a job without its weights, ready for `Computing` in this process."""
    device.prepare()
    module = copied(job.shell).to(device.place).train()
    for name in job.unreached:
        parameter = module.get_parameter(name).requires_grad_()
        late = functools.partial(_refuse_late, type(module).__name__, name)
        parameter.register_hook(late)  # type: ignore[no-untyped-call]
    return module


def _refuse_late(model: str, name: str, gradient: torch.Tensor) -> None:
    problem = (f"parameter {name} got no gradient where the model was tried, so it is not exchanged, but a batch "
               "has one: let each batch reach it (add 0 * parameter.sum() to the output), or freeze it")  # fmt: skip
    raise ConfigError("model", model, problem)


class Computing:
    """A worker's gradients. `weights` and `buffers` are flat, on the job's device.

    The module lives in them while it computes: several workers of a process may share one that remembers nothing.
    """

    _generators: Generators | None = None  # of the module, as it is now

    def __init__(
        self, job: Job, worker: int, dataset: Dataset, weights: torch.Tensor, buffers: list[torch.Tensor],
        module: nn.Module,
    ) -> None:  # fmt: skip
        run = job.run
        self._seed, self._worker, self._dataset, self._dtype = run.seed, worker, dataset, job.layout.dtype
        self.weights, self._module, self._keyspace = weights, module, job.keyspace
        self._device, self._loss = job.device.of(worker), torch.full((), math.nan)
        self._objective = placed(job.loss, self._device.place)
        self._trains = [(name, each, each.requires_grad) for name, each in module.named_parameters()]
        self.reader = reader_of(dataset, run.workers, worker, run.batch_size, run.seed, job.assignment)
        if not job.keyed and job.products == ONEDNN:
            use_onednn(module)
        self._use(buffers)

    @property
    def loss(self) -> float:
        """The mean loss of the last batch. Reading it waits for all that the device was given to compute."""
        return float(self._loss)

    def gradient(self, step: int, buffer: int) -> float:
        """The gradient on this worker's batch number `step`, into one of its buffers; the batch's mean loss."""
        self.buffers[buffer].zero_()
        for parameter, weights, gradient in self._views[buffer]:
            parameter.data, parameter.grad = weights, gradient
        # a stream for each gradient: it does not matter which process computes it
        seed_globals(self._seed, "layers", self._worker, step)
        if self._generators is None:
            self._generators = Generators(self._module, self._objective)
        self._generators.seed(self._seed, "layers", self._worker, step)
        read_x, read_y = self.reader.at(step)
        # bytes of images travel as they are, a fourth of what they become
        x = batch(self._device.to(read_x), self._dtype, self._dataset.mean, self._dataset.std)
        y = targets(self._device.to(read_y), self._dtype)
        output = self._forward(x)
        try:
            loss = self._objective(output, y)
        except IndexError as error:
            examples = self.reader.batches.at(step)
            raise label_error(self._dataset, "training", output, y, examples, self._objective) or error from error
        self._loss = loss.detach()
        check_trains(self._module, self._trains)
        for parameter, _, gradient in self._views[buffer]:
            if parameter.grad is not gradient:  # forward called zero_grad, say
                gradient.copy_(torch.zeros_like(gradient) if parameter.grad is None else parameter.grad)
                parameter.grad = gradient
        self._backward(loss)
        share = self.reader.batches.share(step)
        if share != 1.0:
            self.buffers[buffer].mul_(share)
        return self.loss

    def _forward(self, x: torch.Tensor) -> Any:
        return self._module(x)

    def _backward(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def warm_up(self, *, aside: bool = False) -> None:
        """Run the first backward pass, which allocates and compiles, before a run is timed. It leaves no trace in the
        module and the loss, nor, if that is to be `aside`, in the buffers."""
        buffers, objective = self.buffers, self._objective
        self._objective = copy.deepcopy(objective)
        if aside:
            self._use([torch.empty_like(self.weights)])
        with _unchanged(self._module):
            self._run_first()
        self._generators, self._objective = None, objective
        if aside:
            self._use(buffers)

    def _run_first(self) -> None:
        self.gradient(0, 0)

    def _use(self, buffers: list[torch.Tensor]) -> None:
        """Write gradients into these buffers from now on."""

        def view(flat: torch.Tensor, slot: Slot) -> torch.Tensor:
            return flat[slot.offset : slot.offset + slot.size].view(slot.shape)

        slots = self._keyspace.parameters if self.weights.numel() == self._keyspace.size else ()
        self.buffers, self._views = buffers, [
            [(self._module.get_parameter(slot.name), view(self.weights, slot), view(buffer, slot)) for slot in slots]
            for buffer in buffers]  # fmt: skip


def _own(module: nn.Module) -> dict[str, Any]:
    """A module's attributes beside those of every module."""
    base = vars(nn.Module()).keys()
    return {name: value for name, value in vars(module).items() if name not in base}


@contextmanager
def _unchanged(module: nn.Module) -> Iterator[None]:
    """Restore what modules remember of a pass afterwards: buffers, and attributes of their own."""
    each = list(module.modules())
    base = vars(nn.Module()).keys() - {"_buffers"}
    own = [{**_own(m), "_buffers": m._buffers} for m in each]
    before = copy.deepcopy(own, {id(x): x for x in (*each, *module.parameters())})  # of these, only what they hold
    yield
    for owner, kept in zip(each, before, strict=True):
        for name in vars(owner).keys() - base - kept.keys():
            del vars(owner)[name]
        vars(owner).update(kept)
