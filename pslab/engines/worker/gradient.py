"""Compute a gradient: a forward and a backward pass, which writes straight into the buffer that the server reads."""

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
    """Return a copy of a job's model, without weights, for `Computing` in this process."""
    device.prepare()
    module = copied(job.shell).to(device.place).train()
    for name in job.unreached:
        parameter = module.get_parameter(name).requires_grad_()
        # no weights are exchanged for this parameter: without the hook its gradient would be lost silently
        late = functools.partial(_refuse_late, type(module).__name__, name)
        parameter.register_hook(late)  # type: ignore[no-untyped-call]
    return module


def _refuse_late(model: str, name: str, gradient: torch.Tensor) -> None:
    problem = (f"parameter {name} got no gradient when the model was tried, so it is not exchanged, but it gets one "
               "now: use it in each batch (add 0 * parameter.sum() to the output), or freeze it")  # fmt: skip
    raise ConfigError("model", model, problem)


class Computing:
    """Computes a worker's gradients. `weights` and `buffers` are flat, on the job's device.

    During a pass, the module's parameters are views of them. So several workers of a process may share a module, if it
    stores nothing between passes.
    """

    _generators: Generators | None = None  # the random generators of module and loss, from the first gradient on

    def __init__(
        self, job: Job, worker: int, dataset: Dataset, weights: torch.Tensor, buffers: list[torch.Tensor],
        module: nn.Module,
    ) -> None:  # fmt: skip
        run = job.run
        self._seed, self._worker, self._dataset, self._dtype = run.seed, worker, dataset, job.layout.dtype
        self.weights, self._module, self._keyspace = weights, module, job.keyspace
        self._device, self._loss = job.device.of(worker), torch.full((), math.nan)
        self._objective = placed(job.loss, self._device.place)
        self._trains = [(name, parameter, parameter.requires_grad) for name, parameter in module.named_parameters()]
        self.reader = reader_of(dataset, run.workers, worker, run.batch_size, run.seed, job.assignment)
        if not job.keyed and job.products == ONEDNN:
            use_onednn(module)
        self._use(buffers)

    @property
    def loss(self) -> float:
        """The mean loss of the last batch. Reading this property waits until the device is done."""
        return float(self._loss)

    def gradient(self, step: int, buffer: int) -> float:
        """Write the gradient on this worker's batch number `step` into a buffer; return the batch's mean loss."""
        self.buffers[buffer].zero_()  # backward adds to it
        # set for each gradient: buffers alternate, and workers of a process may share the module
        for parameter, weights, gradient in self._views[buffer]:
            parameter.data, parameter.grad = weights, gradient
        # a random stream for each gradient, so that it does not depend on the process
        seed_globals(self._seed, "layers", self._worker, step)
        if self._generators is None:
            self._generators = Generators(self._module, self._objective)
        self._generators.seed(self._seed, "layers", self._worker, step)
        read_x, read_y = self.reader.at(step)
        # images reach the device as bytes, a fourth of their size as floats
        x = batch(self._device.to(read_x), self._dtype, self._dataset.mean, self._dataset.std)
        y = targets(self._device.to(read_y), self._dtype)
        output = self._forward(x)
        try:
            loss = self._objective(output, y)
        except IndexError as error:
            examples = self.reader.batches.at(step)
            raise label_error(self._dataset, "training", output, y, examples, self._objective) or error from error
        self._loss = loss.detach()  # read at the end: reading it here would wait for the device
        check_trains(self._module, self._trains)
        for parameter, _, gradient in self._views[buffer]:
            if parameter.grad is not gradient:  # forward may have called zero_grad
                gradient.copy_(torch.zeros_like(gradient) if parameter.grad is None else parameter.grad)
                parameter.grad = gradient
        self._backward(loss)
        # shards of unequal size: the gradient's share makes all examples of a round count equally
        share = self.reader.batches.share(step)
        if share != 1.0:
            self.buffers[buffer].mul_(share)
        return self.loss

    def _forward(self, x: torch.Tensor) -> Any:
        return self._module(x)

    def _backward(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def warm_up(self, *, aside: bool = False) -> None:
        """Run a first pass, which allocates and compiles, before the run is timed; the state of module and loss does
        not change. With `aside`, the gradient does not go into the worker's buffers."""
        buffers, objective = self.buffers, self._objective
        self._objective = copy.deepcopy(objective)  # a user's loss may have state
        if aside:
            # a successor's buffers may have pushes that the server has still to apply
            self._use([torch.empty_like(self.weights)])
        with _unchanged(self._module):
            self._run_first()
        self._generators, self._objective = None, objective  # for the objective that the run uses
        if aside:
            self._use(buffers)

    def _run_first(self) -> None:
        self.gradient(0, 0)

    def _use(self, buffers: list[torch.Tensor]) -> None:

        def view(flat: torch.Tensor, slot: Slot) -> torch.Tensor:
            return flat[slot.offset : slot.offset + slot.size].view(slot.shape)

        slots = self._keyspace.parameters if self.weights.numel() == self._keyspace.size else ()
        self.buffers, self._views = buffers, [
            [(self._module.get_parameter(slot.name), view(self.weights, slot), view(buffer, slot)) for slot in slots]
            for buffer in buffers]  # fmt: skip


@contextmanager
def _unchanged(module: nn.Module) -> Iterator[None]:
    """Restore the buffers and the own attributes of modules after the body of `with`."""
    modules = list(module.modules())
    base = vars(nn.Module()).keys() - {"_buffers"}
    extra = [{name: value for name, value in vars(m).items() if name not in base} for m in modules]
    before = copy.deepcopy(extra, {id(x): x for x in (*modules, *module.parameters())})  # do not copy modules
    yield
    for owner, saved in zip(modules, before, strict=True):
        for name in vars(owner).keys() - base - saved.keys():
            del vars(owner)[name]
        vars(owner).update(saved)
