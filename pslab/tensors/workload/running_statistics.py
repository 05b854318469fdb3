"""Running statistics: means and variances that BatchNorm and InstanceNorm update in training and use in evaluation.

A worker's statistics do not belong to the weights that are evaluated. So an evaluation recomputes them, as
torch.optim.swa_utils.update_bn does: the plain mean over all calls of the norm, in one pass over CALIBRATION training
examples. During this pass only the norms are in training mode, so there is no dropout. A norm that training does not
change keeps its statistics. Other buffers that training changes and evaluation reads are refused, because their values
for the evaluated weights are not known.
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

from pslab.tensors.random_streams import numpy_generator
from pslab.tensors.workload.data import Dataset, batch_slices, read_batches

CALIBRATION = 2048  # training examples from which statistics are recomputed
CALIBRATION_BATCH = 256


def calibration(seed: int, examples: int) -> npt.NDArray[np.int64]:
    """Draw the numbers of the training examples, of `examples`, from which a run's statistics are recomputed."""
    return numpy_generator(seed, "calibration").permutation(examples)[:CALIBRATION]


def calibration_batches(dataset: Dataset, seed: int) -> Iterator[torch.Tensor]:
    """Return the inputs from which a run's evaluations recompute running statistics."""
    chosen = calibration(seed, len(dataset.train_y))
    batches = [chosen[piece] for piece in batch_slices(len(chosen), CALIBRATION_BATCH)]
    return (x for x, _ in read_batches(dataset.train_x, dataset.train_y, batches))


@torch.no_grad()
def recompute(module: nn.Module, paths: Sequence[str], batches: Callable[[], Iterable[Tensor]]) -> None:
    """Set the statistics of the norms at `paths` to the mean over these batches of inputs, and leave the module in
    evaluation mode."""
    module.eval()
    norms: list[Any] = [module.get_submodule(path) for path in paths]
    momenta, calls = [norm.momentum for norm in norms], Counter[Any]()

    def count(norm: Any, _: Any) -> None:  # not momentum=None, torch's plain mean, which InstanceNorm reads as 0
        calls[norm] += 1
        norm.momentum = 1 / calls[norm]

    for norm in norms:
        norm.reset_running_stats()
        norm.training = True
    with hooked(norms, count):
        for x in batches() if norms else ():
            module(x)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    module.eval()


@contextmanager
def hooked(modules: Iterable[nn.Module], hook: Callable[[Any, Any], None]) -> Iterator[None]:
    """Call `hook` before each call of these modules in the block."""
    handles = [module.register_forward_pre_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
