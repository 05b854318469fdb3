"""Running statistics: means and variances that BatchNorm and InstanceNorm update in training and use in evaluation.

Each worker's own statistics belong to other weights than the evaluated ones. So an evaluation recomputes them, as
torch.optim.swa_utils.update_bn does: the plain mean over all calls of the norm, in one pass over CALIBRATION training
examples. Only the norms are in training mode then: nothing is dropped out, and a norm that training leaves as it is
keeps its statistics. Another buffer that training changes and evaluation reads is refused: nobody knows its value for
the evaluated weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
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

CALIBRATION = 2048  # training examples from which statistics are recomputed
STATISTICS = "running_mean", "running_var", "num_batches_tracked"


def calibration(seed: int, examples: int) -> npt.NDArray[np.int64]:
    """The numbers of the training examples from which a run's statistics are recomputed, of so many."""
    return numpy_generator(seed, "calibration").permutation(examples)[:CALIBRATION]


@torch.no_grad()
def recompute(module: nn.Module, paths: Sequence[str], batches: Callable[[], Iterable[Tensor]]) -> None:
    """Set the statistics of the norms at these paths to the mean over these inputs, each [B, ...]. The module is in
    evaluation mode afterwards."""
    module.eval()
    norms: list[Any] = [module.get_submodule(path) for path in paths]
    momenta, calls = [norm.momentum for norm in norms], Counter[Any]()

    def count(norm: Any, _: Any) -> None:  # InstanceNorm takes momentum=None, torch's plain mean, for 0
        calls[norm] += 1
        norm.momentum = 1 / calls[norm]

    for norm in norms:
        norm.reset_running_stats()
        norm.training = True
    with _hooked(norms, count):
        for x in batches() if norms else ():
            module(x)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    module.eval()


def running_norms(module: nn.Module, sample: Tensor) -> tuple[str, ...]:
    """The paths of the norms whose statistics training changes, by trying a copy on a sample of its input [B, ...].

    The module and the global generators are unchanged.

    Raises:
        ConfigError: training changes another buffer, which evaluation reads.
    """
    with temporary_seed(), torch.no_grad():
        trial = copied(module).train()
        norms = {path: each for path, each in trial.named_modules()
                 if isinstance(each, _NormBase) and each.track_running_stats and each.training}  # fmt: skip
        before, called = {name: buffer.clone() for name, buffer in trial.named_buffers()}, set[Any]()
        with _hooked(norms.values(), lambda norm, _: called.add(norm)), torch.enable_grad():  # forward may need it
            for _ in range(2):
                trial(sample)
        changed = [name for name, value in before.items() if not _same(trial.get_buffer(name), value)]
        owned = {f"{path}.{name}".lstrip("."): path for path in norms for name in STATISTICS}
        others = [name for name in changed if name not in owned]
        uses = Uses(trial.eval(), [(name, trial.get_buffer(name)) for name in others])
        uses.watch(lambda: trial(sample))
    for name in others:
        if name in uses.used:
            owner = type(trial.get_submodule(name.rpartition(".")[0])).__name__
            problem = (f"buffer {name} of {owner} changes in training and is read in evaluation; only statistics of "
                       "torch's BatchNorm and InstanceNorm are recomputed for the weights that are evaluated: use one "
                       "of these, or a buffer that training leaves as it is")  # fmt: skip
            raise ConfigError("model", type(module).__name__, problem)
    moved = {owned[name] for name in changed if not name.endswith(STATISTICS[-1]) and name in owned}
    return tuple(path for path, norm in norms.items() if path in moved or norm not in called)


@contextmanager
def _hooked(modules: Iterable[nn.Module], hook: Callable[[Any, Any], None]) -> Iterator[None]:
    """Call the hook before each call of these modules."""
    handles = [module.register_forward_pre_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
