"""Running statistics: buffers that a training pass changes and an evaluation reads, such as BatchNorm's running mean.

Those of the workers are theirs alone and belong to other weights, so they are estimated anew for the weights that are
evaluated, by passes over the same training batches. One rule holds for every module:

    which     a buffer that a pass in training mode changes and a pass in evaluation mode reads: found by trying
    from      its initial value
    how       its module alone is in training mode, all others are in evaluation mode
    how long  once over the batches for torch's BatchNorm and InstanceNorm, whose statistics are the plain mean over
              their calls, since their momentum is set to 1 / n at call n; for every other, with the momentum that it
              has, again and again until it has settled: until twice as many passes move it by less than TOLERANCE of
              its way
    refused   a buffer that does not settle within CYCLES times the batches, such as a counter or a very slow mean, and
              one that changes only where other modules are in training mode, too

What a module keeps outside its buffers cannot be seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from pslab.errors import ConfigError
from pslab.tensors.random_streams import numpy_generator
from pslab.tensors.workload.layer_costs import Uses
from pslab.tensors.workload.models import temporary_seed
from pslab.tensors.workload.module_copies import copied

CALIBRATION = 2048  # training examples on which they are estimated
CYCLES = 128  # over all batches, at most
TOLERANCE = 0.05  # an exponential moving mean has less than 0.3 % of its initial value left then
TRIED = 8  # passes that count as one cycle when a model is tried


@dataclass(frozen=True)
class Running:
    """The running statistics of a model, by the names of its modules and buffers."""

    norms: tuple[str, ...] = ()  #: modules of torch's, whose statistics are a plain mean
    changed: tuple[str, ...] = ()  #: other buffers that a training pass changes
    settled: tuple[str, ...] = ()  #: those of them that an evaluation reads


def calibration(seed: int, examples: int) -> npt.NDArray[np.int64]:
    """The training examples on which a run's are estimated, of so many."""
    return numpy_generator(seed, "calibration").permutation(examples)[:CALIBRATION]


class Estimate:
    """Gives a module the running statistics of its weights as they are."""

    def __init__(self, module: nn.Module, running: Running) -> None:
        self._module, self._running = module, running
        self._norms: list[Any] = [module.get_submodule(path) for path in running.norms]
        self._owners = [module.get_submodule(name.rpartition(".")[0]) for name in running.changed]
        self._initial = {name: module.get_buffer(name).clone() for name in running.changed}

    @torch.no_grad()
    def renew(self, batches: Callable[[], Iterable[Tensor]]) -> list[str]:
        """Estimate them on these inputs, each [B, ...]; the names of buffers that have not settled.

        The module is in evaluation mode afterwards.
        """
        self._module.eval()
        for owner in (*self._norms, *self._owners):
            owner.training = True
        self._put(self._initial)
        done, before, unsettled = 0, self._initial, list[str]()
        limit = CYCLES if self._running.settled else len(self._norms[:1])
        while done < limit:
            for _ in range(max(1, done)):
                self._cycle(batches())
            done, now = max(1, 2 * done), self._taken()
            unsettled = [name for name in self._running.settled if not _distance(now[name], before[name])
                         <= TOLERANCE * _distance(now[name], self._initial[name])]  # fmt: skip
            if not unsettled:
                break
            before = now
        self._module.eval()
        return unsettled

    def _cycle(self, batches: Iterable[Tensor]) -> None:
        momenta, calls = [norm.momentum for norm in self._norms], Counter[Any]()

        def count(norm: Any, _: Any) -> None:  # a norm may be called several times in a pass
            calls[norm] += 1
            norm.momentum = 1 / calls[norm]

        for norm in self._norms:
            norm.reset_running_stats()
        with _hooked(self._norms, count):
            for x in batches:
                self._module(x)
        for norm, momentum in zip(self._norms, momenta, strict=True):
            norm.momentum = momentum

    def _taken(self) -> dict[str, Tensor]:
        return {name: self._module.get_buffer(name).clone() for name in self._running.changed}

    def _put(self, values: dict[str, Tensor]) -> None:
        for owner, (name, value) in zip(self._owners, values.items(), strict=True):
            owner._buffers[name.rpartition(".")[2]] = value.clone()  # it may have been assigned, or have another shape


def running_of(module: nn.Module, sample: Tensor) -> Running:
    """The running statistics of a module, by trying a copy on a sample of its input [B, ...].

    The module and the global generators are unchanged.

    Raises:
        ConfigError: there is a buffer that cannot be estimated by the rule above.
    """
    with temporary_seed(), torch.no_grad():
        found = _found(copied(module).train(), sample)
        if found.settled:
            _check(module, found, sample)
    return found


def _found(trial: nn.Module, sample: Tensor) -> Running:
    norms = {path: each for path, each in trial.named_modules()
             if isinstance(each, _NormBase) and each.track_running_stats and each.training}  # fmt: skip
    averaged = {id(buffer) for each in norms.values() for buffer in each.buffers(recurse=False)}
    before = {name: buffer.clone() for name, buffer in trial.named_buffers() if id(buffer) not in averaged}
    at_first, called = {path: _statistics(each) for path, each in norms.items()}, set[Any]()
    with _hooked(norms.values(), lambda norm, _: called.add(norm)), torch.enable_grad():  # forward may differentiate
        for _ in range(2):
            trial(sample)
    fixed = [path for path, each in norms.items()
             if each in called and all(map(_same, at_first[path], _statistics(each)))]  # fmt: skip
    changed = tuple(name for name, value in before.items() if not _same(trial.get_buffer(name), value))
    uses = Uses(trial.eval(), [(name, trial.get_buffer(name)) for name in changed])
    uses.watch(lambda: trial(sample))
    averages = tuple(path for path in norms if path not in fixed)
    return Running(averages, changed, tuple(name for name in changed if name in uses.used))


@contextmanager
def _hooked(modules: Iterable[nn.Module], hook: Callable[[Any, Any], None]) -> Iterator[None]:
    """Call the hook before each call of these modules."""
    handles = [module.register_forward_pre_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _statistics(norm: Any) -> list[Tensor]:
    return [norm.running_mean.clone(), norm.running_var.clone()]


def _check(module: nn.Module, found: Running, sample: Tensor) -> None:
    trial, name = copied(module), type(module).__name__
    if unsettled := Estimate(trial, found).renew(lambda: [sample] * TRIED):
        problem = f"buffer {unsettled[0]} changes in training, is read in evaluation, and does not settle"
        how = f"within {TRIED * CYCLES} passes, so no value of it belongs to the weights: average faster, or not at all"
        raise ConfigError("model", name, f"{problem} {how}")
    for buffer in found.settled:
        if _same(trial.get_buffer(buffer), module.get_buffer(buffer)):
            problem = f"buffer {buffer} changes in training, and is read in evaluation, but does not change where"
            raise ConfigError("model", name, f"{problem} its own module alone is in training mode: change it there")


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).norm()) if one.shape == other.shape else float("inf")
