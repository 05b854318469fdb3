"""Losses and metrics, by name or a user's, and the check that they fit a model and its data."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_map

from pslab.config.metric import LOWER
from pslab.config.spec import build
from pslab.config.table import KINDS, find, names
from pslab.errors import ConfigError
from pslab.tensors.workload.torchvision_ops import import_named

NO_LABEL = -(2**62)  # for torch, which would ignore -100: here a loss that ignores labels is an object that says so
Loss = Callable[[Any, Tensor], Tensor]
Metric = Callable[[Any, Tensor], Any]
COLUMNS = ("pushes", "iteration", "seconds", "accuracy", "loss")  # of each evaluation in a record


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of scores [B, classes, ...], classes in dimension 1 as in torch, and labels [B, ...] of int64.

    Raises:
        ValueError: other shapes or dtypes.
    """
    _scored("cross_entropy", output, target)
    return functional.cross_entropy(output, target, ignore_index=NO_LABEL)


def mse(output: Tensor, target: Tensor) -> Tensor:
    """Mean squared error of outputs and targets of one shape.

    Raises:
        ValueError: other shapes, which torch would broadcast.
    """
    _same("mse", output, target)
    return functional.mse_loss(output, target)


def l1(output: Tensor, target: Tensor) -> Tensor:
    """Mean absolute error of outputs and targets of one shape.

    Raises:
        ValueError: other shapes, which torch would broadcast.
    """
    _same("l1", output, target)
    return functional.l1_loss(output, target)


def accuracy(output: Tensor, target: Tensor, ignored: int | None = None) -> Tensor:
    """The share of labels [B, ...] whose score in [B, classes, ...] is the highest: true or false for each of them; the
    mean over the others where some are `ignored`.

    Raises:
        ValueError: other shapes or dtypes; a negative label, which is no class.
    """
    _scored("accuracy", output, target)
    right, counted = output.argmax(1) == target, target >= 0 if ignored is None else target != ignored
    if bool(counted.all()):
        return right
    if ignored is None:
        raise ValueError(f"accuracy has no class {int(target.min())}: if the loss ignores that label, its attribute "
                         "ignore_index must say so, as in torch.nn.CrossEntropyLoss")  # fmt: skip
    return right[counted].double().mean()


def _scored(name: str, output: Any, target: Tensor) -> None:
    fits = isinstance(output, Tensor) and output.ndim == target.ndim + 1 and target.dtype == torch.int64
    if fits and output.shape[:1] + output.shape[2:] == target.shape:
        return
    last = fits and output.shape[:-1] == target.shape
    how = "give output.transpose(1, -1)" if last else "use loss='mse' and metric='loss', say" * (not fits)
    problem = f"{name} needs scores [B, classes, ...] and labels [B, ...] of int64"
    raise ValueError(f"{problem}, not {described(output)} and {described(target)}" + (f": {how}" if how else ""))


def _same(name: str, output: Any, target: Tensor) -> None:
    if not isinstance(output, Tensor) or output.shape != target.shape:
        problem = f"{name} needs outputs and targets of one shape, not {described(output)} and {described(target)}"
        squeezed = isinstance(output, Tensor) and output.squeeze(-1).shape == target.shape
        raise ValueError(problem + (": give output.squeeze(-1)" if squeezed else ""))


def described(x: Any) -> str:
    """``"[2, 10] of torch.float32"``; the type of another object."""
    return f"{list(x.shape)} of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__


def called(function: object) -> str:
    """The name of a user's loss or metric."""
    return str(getattr(function, "__qualname__", type(function).__name__))


# -- of a run --------------------------------------------------------------------------------------


def resolve_loss(value: object, dtype: torch.dtype) -> Loss:
    """The loss of a Run's `loss`: a name of the table, "package.module:name", or a callable; an nn.Module's numbers
    become `dtype`.

    Raises:
        ConfigError: none of these, a class, or a module with parameters, which nothing would train.
    """
    found: Loss = _resolved("loss", value, dtype)
    return found


def resolve_metric(value: object, dtype: torch.dtype) -> Metric | None:
    """The metric of a Run's `metric`, likewise; None stands for the mean loss.

    Raises:
        ConfigError: as `resolve_loss`; lower is better, and its path does not say so.
    """
    found = _resolved("metric", value, dtype)
    if isinstance(value, str) and getattr(found, "lower_is_better", False) and not value.endswith(LOWER):
        problem = f"lower is better, and records must say so without its module: write '{value}{LOWER}'"
        raise ConfigError("metric", value, problem)
    return found if callable(found) else None


def with_ignored(metric: Metric | None, loss: Loss) -> Metric | None:
    """The metric of a run with this loss: accuracy leaves out the labels that the loss says that it ignores."""
    ignored = getattr(loss, "ignore_index", None)
    if metric is not accuracy or not isinstance(ignored, int):
        return metric
    counting: Any = partial(cast("Any", accuracy), ignored=ignored)
    counting.__qualname__ = "accuracy"  # for messages
    return counting  # type: ignore[no-any-return]


def _resolved(kind: str, value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, str):
        if ":" not in value or find(kind, value) is not None:
            return build(kind, value)
        value = import_named(kind, value.removesuffix(LOWER) if kind == "metric" else value)
    if isinstance(value, type):
        raise ConfigError(kind, value.__name__, f"is a class: give an object of it, such as {value.__name__}()")
    if not callable(value):
        problem = f"must be one of {', '.join(names(kind))}, or {KINDS[kind].objects}"
        raise ConfigError(kind, type(value).__name__, problem)
    if not isinstance(value, nn.Module):
        return value
    if held := [name for name, _ in value.named_parameters()]:
        problem = f"has parameters ({', '.join(held[:3])}), which nothing trains: put them into the model"
        raise ConfigError(kind, type(value).__name__, problem)
    return copy.deepcopy(value).to(dtype)


def placed(function: Any, device: torch.device, *, training: bool = True) -> Any:
    """A loss or metric for one process and device: what it remembers is its own. A module that is not for training is
    in evaluation mode."""
    own = copy.deepcopy(function)
    if not isinstance(own, nn.Module):
        return own
    return own.to(device) if training else own.to(device).eval()


def targets(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Targets as a loss takes them: labels as they are, numbers in the dtype in which the run computes."""
    return y.to(dtype) if y.is_floating_point() else y


# -- evaluation ------------------------------------------------------------------------------------


def loss_sum(loss: Loss, output: Any, target: Tensor) -> float:
    """The mean loss of a batch times its examples."""
    if loss is cross_entropy and target.ndim == 1:
        # rounded once less
        return float(functional.cross_entropy(output, target, reduction="sum", ignore_index=NO_LABEL))
    return float(loss(output, target)) * len(target)


def parts_of(value: Any) -> dict[str, Any]:
    """Return the values of a metric by name; a single value has the name ""."""
    return dict(value) if isinstance(value, Mapping) else {"": value}


def metric_sums(metric: Metric, output: Any, target: Tensor) -> list[float]:
    """Return for each part of a metric its mean over a batch times the batch's examples."""
    each = [torch.as_tensor(value).double() for value in parts_of(metric(output, target)).values()]
    return [float(values.sum()) * (len(target) / values.numel()) for values in each]


def try_loss(loss: Loss, output: Any, target: Tensor, name: str) -> Tensor:
    """The loss of a batch, once it is known to be a scalar.

    Raises:
        ConfigError: it raises, broadcasts output and target, or returns anything else.
    """
    value = _called("loss", loss, output, target, name)
    if not (isinstance(value, Tensor) and value.ndim == 0 and value.is_floating_point()):
        raise ConfigError("loss", name, f"returned {described(value)}: must return one floating point number, a scalar "
                                        "tensor, such as the mean over the batch")  # fmt: skip
    return value


def try_metric(metric: Metric | None, output: Any, target: Tensor, name: str) -> tuple[str, ...]:
    """The names of a metric's values but the first; refuse one that raises, or returns neither a number nor one for
    each example.

    Raises:
        ConfigError: it does.
    """
    if metric is None:
        return ()
    parts = parts_of(_called("metric", metric, output, target, name))
    first, *others = parts or {"": ()}
    for value in parts.values() or [()]:
        try:
            numbers = torch.as_tensor(value)  # NumPy's, too
        except (TypeError, ValueError, RuntimeError):
            numbers = torch.empty(0)
        if numbers.is_complex() or not numbers.numel() or (numbers.ndim and len(numbers) != len(target)):
            wanted = f"a value for each of the {len(target)} examples, or their mean"
            raise ConfigError("metric", name, f"returned {described(value)}: must return {wanted}")
    if wrong := [part for part in parts if not isinstance(part, str) or (part in COLUMNS and part != first)]:
        raise ConfigError("metric", name, f"names a value {wrong[0]!r}: a record's table has such a column")
    return tuple(others)


def _called(field: str, function: Any, output: Any, target: Tensor, name: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Using a target size")  # torch broadcasts
            return function(output, target)
    except Exception as error:
        given = f"outputs {described(output)} and targets {described(target)}"
        why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        if "require grad" in why and not torch.is_grad_enabled():
            why += ": an evaluation has no gradients: leave out there what needs them (if output.requires_grad: ...)"
        raise ConfigError(field, name, f"cannot be computed of {given}: {why.strip()}") from error


def joined(parts: Sequence[Any], counts: Sequence[int]) -> Any:
    """The outputs of several batches as one: tensors with a row for each example are joined, others are the first's."""
    def join(*each: Any) -> Any:
        rows = all(has_rows(part, count) for part, count in zip(each, counts, strict=True))
        return torch.cat(each) if rows else each[0]

    return parts[0] if len(parts) == 1 else tree_map(join, *parts)


def has_rows(part: Any, count: int) -> bool:
    return isinstance(part, Tensor) and part.ndim > 0 and len(part) == count
