"""Whether a user's loss or metric is a mean over the examples, tried on examples.

A run averages: gradients over workers, and the results of an evaluation over batches. Both are right for a function of
a batch that is the mean of a number of each example. So the function of some examples is compared with its values of
their parts, which are made unlike each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from pslab.errors import ConfigError
from pslab.tensors.random_streams import Generators, temporary_seed
from pslab.tensors.workload.module_copies import copied
from pslab.tensors.workload.objective import (
    Loss,
    Metric,
    called,
    described,
    has_rows,
    metric_sums,
    parts_of,
    placed,
    try_metric,
)

SHARES = (0.25, 0.625)  # of the examples that are in the first of two parts
EXAMPLES = 256  # targets on which a function is tried
WHOLE_BYTES = 2**28  # outputs of a test set, up to which a metric is computed of all of them at once
TOLERANCE = 1e-4  # of compared numbers, float32 rounded
MEAN, SUM, BROADCAST, WEIGHTED, OTHER, UNKNOWN = "mean", "sum", "broadcast", "weighted", "other", "unknown"
REMEMBERS = "remembers"  # a mean over the examples, which depends on the calls before


def outputs_of(module: nn.Module, x: Tensor) -> Any:
    """Return the output of a copy of the module in an evaluation; module and global generators are unchanged."""
    with temporary_seed(), torch.no_grad():
        return copied(module).eval()(x)


def whole_bytes(output: Any, count: int, examples: int) -> int:
    """Return the bytes of the outputs of so many examples, from the outputs of `count`."""
    sizes = list[int]()
    tree_map(lambda part: sizes.append(part.nbytes) if has_rows(part, count) else None, output)
    return sum(sizes) * examples // count


class Objective(NamedTuple):
    """A user's loss: how it relates to its examples; and whether loss and metric are computed of the whole test set."""

    kind: str = MEAN
    whole: tuple[bool, bool] = (False, False)
    others: tuple[str, ...] = ()  #: the names of a metric's values but the first

    def remark(self, workers: int) -> str:
        """Return a sentence on the loss for the user; "" if there is nothing to say."""
        if self.kind == OTHER or (self.kind == WEIGHTED and not self.whole[0]):
            return ("the loss is no mean over the examples of a batch: it depends on batch_size, workers average it, "
                    "and an evaluation reports the mean of its batches")  # fmt: skip
        if self.kind == REMEMBERS:
            return ("the loss gives another value when it is computed again: each worker counts its own calls, and an "
                    "evaluation begins with the loss as it was given")  # fmt: skip
        if self.kind == WEIGHTED and workers > 1:
            return ("the loss weighs examples by their targets (classes, ignored labels) and divides by a batch's "
                    "weights: several workers compute another mean than one process, as in torch's DDP")  # fmt: skip
        return ""


def check_objective(
    module: nn.Module, x: Tensor, target: Tensor, tested: int, loss: Loss | None, metric: Metric | None
) -> Objective:
    """Try a user's loss and metric, None for others, on the outputs that a model gives for a few inputs.

    Args:
        target: [N, ...] of many examples, as unlike as there are.
        tested: the number of test examples.

    Raises:
        ConfigError: the loss is a sum, or broadcasts; the metric cannot be computed, or needs more outputs at
            once than fit.
    """
    output = outputs_of(module, x)
    size_bytes = whole_bytes(output, len(x), tested)
    kind = MEAN if loss is None else relation(loss, output, target)
    if kind == SUM:
        problem = ("is a sum over the examples: its gradient grows with batch_size, and its value with the test set; "
                   "return their mean, as reduction='mean' does")  # fmt: skip
        raise ConfigError("loss", called(loss), problem)
    if kind == BROADCAST:
        shapes = f"outputs {described(output)} with targets {described(target[: len(output)])}"
        problem = f"broadcasts {shapes}, each example with every other: give both one shape, as by output.squeeze(-1)"
        raise ConfigError("loss", called(loss), problem)
    repeated = [*_varied(output, len(target), 0)][-1]
    if kind == MEAN and loss is not None and _remembers(loss, repeated, target):
        kind = REMEMBERS
    others = () if metric is None else try_metric(placed(metric, x.device, training=False), repeated, target,
                                                  called(metric))  # fmt: skip
    fits = size_bytes <= WHOLE_BYTES
    parts = () if metric is None or fits else [partial(_part, metric, number) for number in range(1 + len(others))]
    if any(relation(part, output, target) != MEAN for part in parts):
        problem = (f"is no mean over the examples, so it needs the outputs of the whole test set, {size_bytes >> 20:,} "
                   f"MiB, at most {WHOLE_BYTES >> 20}: test on fewer examples, or return one value each")  # fmt: skip
        raise ConfigError("metric", called(metric), problem)
    return Objective(kind, (fits and kind == WEIGHTED, fits and metric is not None), others)


def _remembers(loss: Loss, output: Any, target: Tensor) -> bool:
    """Whether a loss has another value when it is computed again in training, with the same draws."""
    once, values = placed(loss, target.device), list[float]()
    try:
        for _ in range(2):
            with temporary_seed(), torch.enable_grad():
                Generators(once).seed(0, "trial")
                values.append(float(once(output, target)))
    except Exception:  # of outputs that belong to other targets
        return False
    return all(map(math.isfinite, values)) and values[0] != values[1]


def _part(metric: Metric, number: int, output: Any, target: Tensor) -> Any:
    return [*parts_of(metric(output, target)).values()][number]


def relation(function: Any, output: Any, target: Tensor) -> str:
    """Return how a function's value for examples relates to its values for parts of them.

    MEAN or SUM of both; BROADCAST: a mean if output and target had one shape; WEIGHTED: a mean whose weights depend on
    the targets alone; OTHER; UNKNOWN: it raises, is not finite or draws.
    """
    with temporary_seed(), torch.no_grad():
        found = [_of_parts(function, output, target, cut) for share in SHARES if (cut := int(share * len(target)))]
        return next((each for each in found if each != MEAN), MEAN if found else UNKNOWN)


def _of_parts(function: Any, output: Any, target: Tensor, cut: int) -> str:
    share = cut / len(target)
    if (first := _values(function, output, target, cut)) is None:
        return UNKNOWN
    if (found := _sums(first, share)) != OTHER:
        return found
    shape = target.shape[1:]
    if isinstance(output, Tensor) and output.shape[1:] != shape and output[0].numel() == math.prod(shape):
        alike = _values(function, output.reshape(-1, *shape), target, cut)
        if alike is not None and _sums(alike, share) == MEAN:
            return BROADCAST
    if _values(function, output, target, cut) != first:
        return UNKNOWN
    second = _values(function, output, target, cut, seed=1) or first
    weights = [(whole - other) / (one - other) for whole, one, other in (first, second) if one != other]
    weighted = len(weights) == 2 and second != first and 0 < weights[0] < 1
    return WEIGHTED if weighted and abs(weights[0] - weights[1]) < 10 * TOLERANCE else OTHER


def _sums(values: tuple[float, ...], share: float) -> str:
    whole, one, other = values
    slack = TOLERANCE * max(abs(whole), abs(one), abs(other))
    if abs(whole - (share * one + (1 - share) * other)) <= slack:
        return MEAN
    return SUM if abs(whole - (one + other)) <= slack else OTHER


def _values(function: Any, output: Any, target: Tensor, cut: int, seed: int = 0) -> tuple[float, ...] | None:
    """The function of all examples and of two parts; None if no outputs were found for which it is finite."""
    count = len(target)
    for varied in _varied(output, count, seed):
        try:
            values = tuple(metric_sums(placed(function, target.device), _rows(varied, count, rows), target[rows])[0]
                           / len(target[rows]) for rows in (slice(None), slice(cut), slice(cut, None)))  # fmt: skip
        except Exception:  # as a loss raises when scaled outputs are no probabilities any more
            continue
        if all(map(math.isfinite, values)):
            return values
    return None


def _varied(output: Any, count: int, seed: int) -> Iterator[Any]:
    """The outputs repeated for so many examples, later ones changed by more than earlier ones: by sums, which few
    functions refuse; by factors, which leave probabilities and their logarithms what they are; and as they are."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.linspace(0.1, 1, count) ** 3

    def changed(term: float, factor: float, part: Any) -> Any:
        if not isinstance(part, Tensor) or not part.ndim:
            return part
        rows = part[torch.arange(count) % len(part)]
        if not rows.is_floating_point():
            return rows
        noise = torch.rand(rows.shape, generator=generator).to(rows) * spread.view(-1, *[1] * (rows.ndim - 1)).to(rows)
        return rows * (1 - factor * noise) + term * noise * (rows.abs().mean() + 1)

    for term, factor in ((4.0, 0.0), (0.0, 0.5), (0.0, 0.0)):
        yield tree_map(partial(changed, term, factor), output)


def _rows(output: Any, count: int, rows: slice) -> Any:
    return tree_map(lambda part: part[rows] if has_rows(part, count) else part, output)
