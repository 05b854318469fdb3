"""Check whether a user's loss or metric is a mean over the examples, by trying it on examples.

A run averages gradients over workers, and an evaluation averages results over batches. Both are correct if the function
is a mean over the examples. So the function's value for some examples is compared with its values for two parts of
them. Each example's output is changed differently, so that the two parts have different values.
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

SHARES = (0.25, 0.625)  # shares of the examples in the first of two parts
EXAMPLES = 256  # targets with which a function is tried
WHOLE_BYTES = 2**28  # a metric is computed for the whole test set at once if its outputs take at most this
TOLERANCE = 1e-4  # relative difference of numbers that count as equal, because of rounding in float32
MEAN, SUM, BROADCAST, WEIGHTED, OTHER, UNKNOWN = "mean", "sum", "broadcast", "weighted", "other", "unknown"
REMEMBERS = "remembers"  # a mean over the examples that depends on earlier calls


def outputs_of(module: nn.Module, x: Tensor) -> Any:
    """Return the output of a copy of the module in evaluation mode; module and global generators are unchanged."""
    with temporary_seed(), torch.no_grad():
        return copied(module).eval()(x)


def whole_bytes(output: Any, count: int, examples: int) -> int:
    """Estimate the bytes of the outputs for `examples` examples from the output for `count` examples."""
    sizes = list[int]()
    tree_map(lambda part: sizes.append(part.nbytes) if has_rows(part, count) else None, output)
    return sum(sizes) * examples // count


class Objective(NamedTuple):
    """The results of `check_objective`: how a loss depends on the examples, and how loss and metric are evaluated."""

    kind: str = MEAN
    whole: tuple[bool, bool] = (False, False)  #: whether loss and metric are computed for the whole test set at once
    others: tuple[str, ...] = ()  #: the names of a metric's values except the first

    def remark(self, workers: int) -> str:
        """Return a warning to the user about a loss that is not a mean over the examples, or ""."""
        if self.kind == OTHER or (self.kind == WEIGHTED and not self.whole[0]):
            return ("the loss is not a mean over a batch's examples: it depends on batch_size, workers average it, "
                    "and an evaluation reports the mean of its batches")  # fmt: skip
        if self.kind == REMEMBERS:
            return ("the loss gives another value when it is called again: each worker has its own copy with its own "
                    "calls, and an evaluation begins with the loss as it was given")  # fmt: skip
        if self.kind == WEIGHTED and workers > 1:
            return ("the loss weighs examples by their targets (classes, ignored labels) and divides by a batch's "
                    "weights: several workers compute another mean than one process, as in torch's DDP")  # fmt: skip
        return ""


def check_objective(
    module: nn.Module, x: Tensor, target: Tensor, tested: int, loss: Loss | None, metric: Metric | None
) -> Objective:
    """Try a user's loss and metric on a model's outputs for a few inputs; None stands for a function of pslab.

    Args:
        target: [N, ...] of many examples, as different as possible.
        tested: the number of test examples.

    Raises:
        ConfigError: the loss is a sum, or broadcasts; the metric cannot be computed, or is not a mean over the examples
            and needs too much memory for the outputs of the whole test set.
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
        problem = f"broadcasts {shapes}, each example with every other: give both the same shape (output.squeeze(-1))"
        raise ConfigError("loss", called(loss), problem)
    repeated = [*_varied(output, len(target), 0)][-1]
    if kind == MEAN and loss is not None and _remembers(loss, repeated, target):
        kind = REMEMBERS
    others = () if metric is None else try_metric(placed(metric, x.device, training=False), repeated, target,
                                                  called(metric))  # fmt: skip
    fits = size_bytes <= WHOLE_BYTES
    parts = () if metric is None or fits else [partial(_part, metric, number) for number in range(1 + len(others))]
    if any(relation(part, output, target) != MEAN for part in parts):
        problem = ("is not a mean over the examples, so it needs the outputs of the whole test set, "
                   f"{size_bytes >> 20:,} MiB, but may take at most {WHOLE_BYTES >> 20} MiB: use fewer test examples, "
                   "or return one value for each example")  # fmt: skip
        raise ConfigError("metric", called(metric), problem)
    return Objective(kind, (fits and kind == WEIGHTED, fits and metric is not None), others)


def _remembers(loss: Loss, output: Any, target: Tensor) -> bool:
    """Whether a loss, called twice with the same outputs and random numbers, has two values."""
    once, values = placed(loss, target.device), list[float]()
    try:
        for _ in range(2):
            with temporary_seed(), torch.enable_grad():
                Generators(once).seed(0, "trial")
                values.append(float(once(output, target)))
    except Exception:  # the loss may refuse these outputs, which belong to other targets
        return False
    return all(map(math.isfinite, values)) and values[0] != values[1]


def _part(metric: Metric, number: int, output: Any, target: Tensor) -> Any:
    return [*parts_of(metric(output, target)).values()][number]


def relation(function: Any, output: Any, target: Tensor) -> str:
    """Return how a function's value for all examples follows from its values for two parts of the examples.

    MEAN: the mean of the two values, weighted by the sizes of the parts. SUM: their sum. BROADCAST: MEAN, but only
    after the output is given the target's shape. WEIGHTED: a mean with other weights, which depend only on the targets.
    UNKNOWN: the function raises, is not finite or is random, or there are fewer than two targets. OTHER: none of these.
    """
    with temporary_seed(), torch.no_grad():
        answers = [_of_parts(function, output, target, cut) for share in SHARES if (cut := int(share * len(target)))]
        return next((answer for answer in answers if answer != MEAN), MEAN if answers else UNKNOWN)


def _of_parts(function: Any, output: Any, target: Tensor, cut: int) -> str:
    share = cut / len(target)
    if (first := _values(function, output, target, cut)) is None:
        return UNKNOWN
    if (answer := _sums(first, share)) != OTHER:
        return answer
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
    """Return the function's values for all examples, the first `cut` and the others; None if they are never finite."""
    count = len(target)
    for varied in _varied(output, count, seed):
        try:
            values = tuple(metric_sums(placed(function, target.device), _rows(varied, count, rows), target[rows])[0]
                           / len(target[rows]) for rows in (slice(None), slice(cut), slice(cut, None)))  # fmt: skip
        except Exception:  # such as a loss of probabilities, which scaled outputs are not
            continue
        if all(map(math.isfinite, values)):
            return values
    return None


def _varied(output: Any, count: int, seed: int) -> Iterator[Any]:
    """Yield the outputs, repeated for `count` examples, in three variants: with random terms, which few functions
    refuse; with random factors, which suit probabilities and their logarithms; and unchanged. Later examples are
    changed more."""
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
