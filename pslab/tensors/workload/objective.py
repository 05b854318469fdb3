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

NO_LABEL = -(2**62)  # instead of torch's default -100: labels are ignored only if the user's loss object says so
Loss = Callable[[Any, Tensor], Tensor]
Metric = Callable[[Any, Tensor], Any]
COLUMNS = ("pushes", "iteration", "seconds", "accuracy", "loss")  # columns of evaluations in a record


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy of scores [B, classes, ...] (dimension 1, as in torch) and labels [B, ...] of int64.

    Raises:
        ValueError: other shapes or dtypes.
    """
    _scored("cross_entropy", output, target)
    return functional.cross_entropy(output, target, ignore_index=NO_LABEL)


def mse(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared error of outputs and targets of the same shape.

    Raises:
        ValueError: other shapes, which torch would broadcast.
    """
    _same("mse", output, target)
    return functional.mse_loss(output, target)


def l1(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean absolute error of outputs and targets of the same shape.

    Raises:
        ValueError: other shapes, which torch would broadcast.
    """
    _same("l1", output, target)
    return functional.l1_loss(output, target)


def accuracy(output: Tensor, target: Tensor, ignored: int | None = None) -> Tensor:
    """Return whether each label [B, ...] has the highest score in [B, classes, ...].

    If some labels are `ignored`, return the mean over the others.

    Raises:
        ValueError: other shapes or dtypes; or a negative label, which is not a class.
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
    how = "give output.transpose(1, -1)" if last else "use loss='mse' and metric='loss', for example" * (not fits)
    problem = f"{name} needs scores [B, classes, ...] and labels [B, ...] of int64"
    raise ValueError(f"{problem}, not {described(output)} and {described(target)}" + (f": {how}" if how else ""))


def _same(name: str, output: Any, target: Tensor) -> None:
    if not isinstance(output, Tensor) or output.shape != target.shape:
        problem = f"{name} needs outputs and targets of one shape, not {described(output)} and {described(target)}"
        squeezed = isinstance(output, Tensor) and output.squeeze(-1).shape == target.shape
        raise ValueError(problem + (": give output.squeeze(-1)" if squeezed else ""))


def described(x: Any) -> str:
    """Return ``"[2, 10] of torch.float32"`` for a tensor; the type's name for another object."""
    return f"{list(x.shape)} of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__


def called(function: object) -> str:
    """Return the name of a user's loss or metric."""
    return str(getattr(function, "__qualname__", type(function).__name__))


# -- the loss and metric of a run ------------------------------------------------------------------


def resolve_loss(value: object, dtype: torch.dtype) -> Loss:
    """Return the loss of a Run's `loss`: a name of the table, "package.module:name", or a callable; an nn.Module is
    converted to `dtype`.

    Raises:
        ConfigError: the value is none of these, a class, or a module with parameters, which would not be trained.
    """
    loss: Loss = _resolved("loss", value, dtype)
    return loss


def resolve_metric(value: object, dtype: torch.dtype) -> Metric | None:
    """Return the metric of a Run's `metric`, in the forms of `resolve_loss`; None for "loss", the mean loss.

    Raises:
        ConfigError: as `resolve_loss`; or lower values are better, but the path does not end with LOWER.
    """
    metric = _resolved("metric", value, dtype)
    if isinstance(value, str) and getattr(metric, "lower_is_better", False) and not value.endswith(LOWER):
        problem = f"lower is better, and a record shows this only by the path: write '{value}{LOWER}'"
        raise ConfigError("metric", value, problem)
    return metric if callable(metric) else None


def with_ignored(metric: Metric | None, loss: Loss) -> Metric | None:
    """Return the metric of a run with this loss: accuracy without the labels that the loss ignores."""
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
    if parameters := [name for name, _ in value.named_parameters()]:
        problem = f"has parameters ({', '.join(parameters[:3])}), but only a model is trained: move them into the model"
        raise ConfigError(kind, type(value).__name__, problem)
    return copy.deepcopy(value).to(dtype)


def placed(function: Any, device: torch.device, *, training: bool = True) -> Any:
    """Copy a loss or metric, with its state, for one process and device; if not `training`, in evaluation mode."""
    copied = copy.deepcopy(function)
    if not isinstance(copied, nn.Module):
        return copied
    return copied.to(device) if training else copied.to(device).eval()


def targets(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Return targets for a loss: labels unchanged, numbers in the run's dtype."""
    return y.to(dtype) if y.is_floating_point() else y


# -- evaluation ------------------------------------------------------------------------------------


def loss_sum(loss: Loss, output: Any, target: Tensor) -> float:
    """Return the mean loss of a batch times its number of examples."""
    if loss is cross_entropy and target.ndim == 1:
        # reduction="sum" saves a rounding
        return float(functional.cross_entropy(output, target, reduction="sum", ignore_index=NO_LABEL))
    return float(loss(output, target)) * len(target)


def parts_of(value: Any) -> dict[str, Any]:
    """Return the values of a metric by name; a single value has the name ""."""
    return dict(value) if isinstance(value, Mapping) else {"": value}


def metric_sums(metric: Metric, output: Any, target: Tensor) -> list[float]:
    """Return, for each value of a metric, its mean over a batch times the number of examples in the batch."""
    sums = [torch.as_tensor(value).double() for value in parts_of(metric(output, target)).values()]
    return [float(values.sum()) * (len(target) / values.numel()) for values in sums]


def try_loss(loss: Loss, output: Any, target: Tensor, name: str) -> Tensor:
    """Compute the loss of a batch, and check that it is a scalar.

    Raises:
        ConfigError: the loss raises, broadcasts output and target, or returns no scalar.
    """
    value = _called("loss", loss, output, target, name)
    if not (isinstance(value, Tensor) and value.ndim == 0 and value.is_floating_point()):
        raise ConfigError("loss", name, f"returned {described(value)}: must return one floating point number, a scalar "
                                        "tensor, such as the mean over the batch")  # fmt: skip
    return value


def try_metric(metric: Metric | None, output: Any, target: Tensor, name: str) -> tuple[str, ...]:
    """Check a metric on a batch; return the names of its values except the first.

    Raises:
        ConfigError: the metric raises, or returns neither a number nor a number for each example.
    """
    if metric is None:
        return ()
    parts = parts_of(_called("metric", metric, output, target, name))
    first, *others = parts or {"": ()}
    for part, value in parts.items() or [("", None)]:
        try:
            numbers = torch.as_tensor(value)  # NumPy's, too
        except (TypeError, ValueError, RuntimeError):
            numbers = torch.empty(0)
        if numbers.is_complex() or not numbers.numel() or (numbers.ndim and len(numbers) != len(target)):
            wanted = f"a value for each of the {len(target)} examples, or their mean"
            given = ("no value" if not parts else described(value)) + (f" for {part!r}" if len(parts) > 1 else "")
            raise ConfigError("metric", name, f"returned {given}: must return {wanted}")
    if wrong := [part for part in parts if not isinstance(part, str) or (part in COLUMNS and part != first)]:
        raise ConfigError("metric", name, f"names a value {wrong[0]!r}: use a string other than {', '.join(COLUMNS)}")
    return tuple(others)


def _called(field: str, function: Any, output: Any, target: Tensor, name: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Using a target size")  # torch's warning that it broadcasts
            return function(output, target)
    except Exception as error:
        given = f"outputs {described(output)} and targets {described(target)}"
        why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        if "require grad" in why and not torch.is_grad_enabled():
            why += "; an evaluation has no gradients: skip operations that need them (if output.requires_grad: ...)"
        raise ConfigError(field, name, f"cannot be computed from {given}: {why.strip()}") from error


def joined(parts: Sequence[Any], counts: Sequence[int]) -> Any:
    """Join the outputs of several batches, each with `counts` examples.

    Tensors with a row for each example are concatenated; other parts are taken from the first batch.
    """

    def join(*columns: Any) -> Any:
        rows = all(has_rows(part, count) for part, count in zip(columns, counts, strict=True))
        return torch.cat(columns) if rows else columns[0]

    return parts[0] if len(parts) == 1 else tree_map(join, *parts)


def has_rows(part: Any, count: int) -> bool:
    return isinstance(part, Tensor) and part.ndim > 0 and len(part) == count
