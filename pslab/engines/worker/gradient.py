"""Gradients: one forward and backward pass on a worker's weights, straight into the buffers that the server reads."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from pslab.config.products import ONEDNN
from pslab.engines.experiment.job import Job
from pslab.engines.worker.batches import KeyedRows, Reader
from pslab.engines.worker.layer_hooks import Layerwise
from pslab.errors import ConfigError
from pslab.policies.rates import Applied
from pslab.tensors.device import Device
from pslab.tensors.finite import checked_finite
from pslab.tensors.products import use_onednn
from pslab.tensors.random_streams import Generators, seed_globals
from pslab.tensors.update import methods
from pslab.tensors.update.steps import Course
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
    With `layerwise` a layered worker waits for weights and takes gradients layer by layer. Of the policy's
    method it has the worker's half, with what is `kept` for that, and the server's `rho`.
    """

    layerwise: Layerwise | None = None
    _generators: Generators | None = None  # of the module, as it is now

    def __init__(
        self, job: Job, worker: int, dataset: Dataset, weights: torch.Tensor, buffers: list[torch.Tensor],
        module: nn.Module, kept: Mapping[str, torch.Tensor] | None = None, rho: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        run = job.run
        self._job = job
        alone = Applied(run.workers, 1, False, job.push_weight, 0, 0, 0)
        self._local = methods.at_worker(job.sync, kept or {}, job.rate.scale(alone), rho, job.inner, job.layout.dtype,
                                        run.workers, job.parts)  # fmt: skip
        self._reached, self._reaches = (kept or {}).get(methods.REACHED), 0
        self._seed, self._worker, self._dataset, self._dtype = run.seed, worker, dataset, job.layout.dtype
        self._weights, self._module = weights, module
        self._device, self._loss = job.device.of(worker), torch.full((), math.nan)
        self._objective = placed(job.loss, self._device.place)
        self._trains = [(name, each, each.requires_grad) for name, each in module.named_parameters()]
        self._reader = Reader(dataset, run.workers, worker, run.batch_size, run.seed, job.assignment)
        self._keyspace, self._layered = job.keyspace, job.layered and run.engine == "local"
        if not job.keyed and job.products == ONEDNN:
            use_onednn(module)
        self._use(buffers)

    @property
    def loss(self) -> float:
        """The mean loss of the last batch. Reading it waits for all that the device was given to compute."""
        return float(self._loss)

    def gradient(self, step: int, buffer: int) -> float:
        """The gradient on this worker's batch number `step`, into one of its buffers; the batch's mean loss."""
        self._buffers[buffer].zero_()
        for parameter, weights, gradient in self._views[buffer]:
            parameter.data, parameter.grad = weights, gradient
        layerwise = self.layerwise
        if layerwise is not None:
            layerwise.forward_begins()
        # a stream for each gradient: it does not matter which process computes it
        seed_globals(self._seed, "layers", self._worker, step)
        if self._generators is None:
            self._generators = Generators(self._module, self._objective)
        self._generators.seed(self._seed, "layers", self._worker, step)
        read_x, read_y = self._reader.at(step)
        # bytes of images travel as they are, a fourth of what they become
        x = batch(self._device.to(read_x), self._dtype, self._dataset.mean, self._dataset.std)
        y = targets(self._device.to(read_y), self._dtype)
        output = self._module(x)
        try:
            loss = self._objective(output, y)
        except IndexError as error:
            examples = self._reader.batches.at(step)
            raise label_error(self._dataset, "training", output, y, examples, self._objective) or error from error
        self._loss = loss.detach()
        check_trains(self._module, self._trains)
        for parameter, _, gradient in self._views[buffer]:
            if parameter.grad is not gradient:  # forward called zero_grad, say
                gradient.copy_(torch.zeros_like(gradient) if parameter.grad is None else parameter.grad)
                parameter.grad = gradient
        if layerwise is not None:
            layerwise.forward_ended()
        loss.backward()
        if layerwise is not None:
            layerwise.backward_ended()
        share = self._reader.batches.share(step)
        if share != 1.0:
            self._buffers[buffer].mul_(share)
        return self.loss

    def on_keys(self, needed: KeyedRows, weights: torch.Tensor) -> torch.Tensor:
        """The next gradients are taken on these weights ([k]) of an iteration's keys; where they will be ([k])."""
        parameter = self._keyspace.bind_keys(self._module, weights)
        gradient, self._weights, self._reader.needed = torch.zeros_like(weights), weights, needed
        self._buffers, self._views = [gradient], [[(parameter, parameter.data, gradient.view_as(parameter))]]
        return gradient

    def iteration(
        self, iteration: int, buffer: int, *, fetched: bool = True, counted: int = 0, assigned: range | None = None
    ) -> float:
        """Compute all gradients of an iteration; return their mean loss.

        In the buffer is what they make, which is to be pushed; the weights stay as they are. `fetched`: they are new.
        `counted`: the gradients that the server had of all workers, if the policy's workers are to know; `assigned`:
        those of the iteration, by their numbers, if the policy says so.
        """
        steps = assigned or self._steps(iteration)
        if len(steps) == 1 and not self._local.keeps:
            return self.gradient(self._batches(steps)[0], buffer)
        self._course = self._course_of(iteration, steps, buffer, fetched, counted)
        return self._local.run(self._course)

    def follow(self, iteration: int, buffer: int) -> None:
        """Take the first steps of an iteration before its weights are here: those that follow the push before."""
        self._local.follow(self._course_of(iteration, self._steps(iteration), buffer, True))

    def _steps(self, iteration: int) -> range:
        """The numbers of an iteration's gradients: those that follow the push before are of this one."""
        traits = self._job.traits
        begin, overlap = traits.gradients_before(iteration), traits.overlap
        end = begin + traits.unassigned(self._worker, iteration) - overlap
        return range(begin - (overlap if iteration else 0), end)

    def _batches(self, steps: range) -> list[int]:
        return [step % self._reader.batches.rounds for step in steps] if self._job.traits.repeats else list(steps)

    def _course_of(self, iteration: int, steps: range, buffer: int, fetched: bool, counted: int = 0) -> Course:
        job, traits, late = self._job, self._job.traits, self._job.traits.overlap if iteration else 0
        begin = counted if traits.counted else (steps.start + late) * job.run.workers
        counts = [begin + (step - late) * job.run.workers for step in range(len(steps))]
        if late and self._reached is not None:  # steps that follow a push go on from where the iteration before came to
            counts[:late] = [int(self._reached) + step * job.run.workers for step in range(late)]
        self._reaches = counts[-1] + job.run.workers
        rates = [job.learning_rate(count) for count in counts]
        return Course(self._batches(steps), rates, lambda batch: self.gradient(batch, buffer), self._weights,
                      self._buffers[buffer], fetched, traits.pushes(iteration), iteration, late)  # fmt: skip

    def commit(self) -> None:
        """Let the method keep the result of `iteration`; NonFinite if that is not finite."""
        if self._local.keeps:
            checked_finite(self._course.gradient)
            self._local.commit(self._course)
            if self._reached is not None:
                self._reached.fill_(self._reaches)

    def warm_up(self, *, aside: bool = False) -> None:
        """Run the first backward pass, which allocates and compiles, before a run is timed. It leaves no trace in the
        module and the loss, nor, if that is to be `aside`, in the buffers."""
        buffers, objective = self._buffers, self._objective
        self._objective = copy.deepcopy(objective)
        if aside:
            self._use([torch.empty_like(self._weights)])
        with _unchanged(self._module):
            self.gradient(0, 0)
            if self._layered:
                layerwise = Layerwise(self._module, self._keyspace)
                layerwise.learn(lambda: self.gradient(0, 0))
                self.layerwise = layerwise
        self._generators, self._objective = None, objective
        if aside:
            self._use(buffers)

    def _use(self, buffers: list[torch.Tensor]) -> None:
        """Write gradients into these buffers from now on."""

        def view(flat: torch.Tensor, slot: Slot) -> torch.Tensor:
            return flat[slot.offset : slot.offset + slot.size].view(slot.shape)

        slots = self._keyspace.parameters if self._weights.numel() == self._keyspace.size else ()
        self._buffers, self._views = buffers, [
            [(self._module.get_parameter(slot.name), view(self._weights, slot), view(buffer, slot)) for slot in slots]
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
