"""Models by name, and the checks of a model before a process starts."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import cloudpickle
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode

from pslab.config.parameters import Bounds, check
from pslab.config.spec import build
from pslab.config.table import ROWS, names
from pslab.errors import ConfigError, nearest
from pslab.tensors.device import zeros
from pslab.tensors.random_streams import temporary_seed
from pslab.tensors.workload.layer_costs import Uses
from pslab.tensors.workload.module_copies import check_carried, check_trains, copied
from pslab.tensors.workload.objective import Loss, Metric, accuracy, cross_entropy, placed, try_loss, try_metric
from pslab.tensors.workload.running_statistics import hooked
from pslab.tensors.workload.torchvision_ops import import_named, torchvision, with_operators

ROUNDING = 1e-2  # of a sum of probabilities, also of bfloat16
STATISTICS = "running_mean", "running_var", "num_batches_tracked"  # of a norm
Factory = Callable[[], nn.Module]


class MLP(nn.Module):
    """Three hidden layers of 512 ReLU neurons: 932,362 parameters, 1546 keys. [B, ...] -> [B, 10], input flattened.

    The network of the parameter-server thesis that this workbench follows (C.-Y. Tsai, 2018).
    """

    def __init__(self, inputs: int = 784, hidden: int = 512, classes: int = 10) -> None:
        super().__init__()
        self.hidden1 = nn.Linear(inputs, hidden)
        self.hidden2 = nn.Linear(hidden, hidden)
        self.hidden3 = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for hidden in (self.hidden1, self.hidden2, self.hidden3):
            x = hidden(x).relu()
        logits: Tensor = self.output(x)
        return logits


@dataclass(frozen=True)
class Width:
    """The MLP of Tsai's thesis (2018) at any width: 64 neurons make 59,210 parameters, for studies of many runs."""

    hidden: Annotated[int, Bounds(at_least=1), "neurons in each of the three hidden layers"] = 512

    def __post_init__(self) -> None:
        check(self)

    def __call__(self) -> nn.Module:
        return MLP(hidden=self.hidden)


class Linear(nn.Module):
    """The scores of two classes: 0, and the sum of a row's values times the weights of its keys. [B, keys] -> [B, 2].

    With the cross-entropy this is logistic regression without an intercept. The initial weights are 0. Inputs are dense
    rows [B, keys], or sparse rows (torch's CSR).
    """

    def __init__(self, keys: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(zeros(keys, 1, dtype=torch.get_default_dtype()))

    def forward(self, x: Tensor) -> Tensor:
        if x.layout == torch.sparse_csr:
            score = functional.embedding_bag(x.col_indices(), self.weight, x.crow_indices()[:-1], mode="sum",
                                             per_sample_weights=x.values())  # fmt: skip
        else:
            score = x.flatten(1) @ self.weight
        return torch.cat([torch.zeros_like(score), score], 1)


@dataclass(frozen=True)
class Regression:
    """Logistic regression of two classes, without an intercept: a weight for each key of the data."""

    keys: Annotated[int, Bounds(at_least=0, at_most=2**31 - 1), "the number of weights; 0: one for each key"] = 0

    def __post_init__(self) -> None:
        check(self)

    def __call__(self) -> nn.Module:
        if not self.keys:
            raise ValueError("linear has a weight for each key of the data, and there are no data: use linear:KEYS")
        return Linear(self.keys)


class CNN(nn.Module):
    """Two times convolution, batch normalization, ReLU and pooling, then a linear layer. [B, 1, 28, 28] -> [B, 10].

    16,186 parameters. The stride of 2 of the first convolution more than halves the time, and keeps the input of the
    linear layer small: with 1,568 features instead of 288, a learning rate of 0.1 with momentum 0.9 diverges.
    """

    def __init__(self, channels: int = 1, side: int = 28, classes: int = 10) -> None:
        super().__init__()
        # batch normalization subtracts the mean, so a bias before it would have no effect
        self.conv1 = nn.Conv2d(channels, 16, 5, stride=2, padding=2, bias=False)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 5, padding=2, bias=False)
        self.norm2 = nn.BatchNorm2d(32)
        self.output = nn.Linear(32 * ((side + 1) // 8) ** 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(self.norm1(self.conv1(x)).relu(), 2)
        x = functional.max_pool2d(self.norm2(self.conv2(x)).relu(), 2)
        logits: Tensor = self.output(x.flatten(1))
        return logits


def resolve_model(value: object) -> Factory:
    """Return the factory of a Run's `model`.

    A name of the table, such as "mlp:64"; "torchvision:NAME" (its default number of classes, no weights, no
    arguments); "package.module:factory", where the factory may be a class, a function or an nn.Module; a callable; an
    nn.Module, of which every call returns a copy with its own weights.

    Raises:
        ConfigError: the value is none of these; the message names the wrong part and the nearest known name.
    """
    if isinstance(value, str):
        value = _by_name(value)
    if isinstance(value, nn.Module):
        check_carried(value)  # now, because its copies would no longer show the problem
        return functools.partial(copied, value)
    if callable(value):
        return value
    raise ConfigError("model", value, f"must be one of {', '.join(names('model'))}, a callable or an nn.Module")


def fitted(value: Any, inputs: int) -> Any:
    """Return a Run's `model` unchanged, but "linear:INPUTS" for "linear", which has a weight for each input number."""
    return f"linear:{inputs}" if isinstance(value, str) and value.strip().lower() == "linear" else value


def build_model(value: object, seed: int) -> nn.Module:
    """Build the model, initialized from the run's random stream "init"; the global generators are unchanged.

    Raises:
        ConfigError: the factory raises or returns no nn.Module, or `resolve_model` refuses the value.
    """
    factory = resolve_model(value)
    with temporary_seed(seed):
        try:
            module = with_operators(factory)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError("model", _short(value), f"the factory raised {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise ConfigError("model", _short(value), f"the factory returned {type(module).__name__}, not an nn.Module")
    check_carried(module)
    return module


def in_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Convert the floating point parameters and buffers of a module to `dtype`, and return the module.

    Raises:
        ConfigError: a tensor is complex, and would lose its imaginary part, or float64, and would lose digits.
    """
    for kind, named in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
        for name, tensor in named:
            if tensor.dtype.is_complex:
                problem = f"{kind} {name} is complex ({tensor.dtype}), and a run computes in {dtype}"
                raise ConfigError("model", type(module).__name__, f"{problem}: split it into real and imaginary parts")
            if tensor.dtype != torch.float64 or dtype == torch.float64 or tensor.is_meta:
                continue
            if not torch.allclose(tensor, tensor.to(dtype).double(), rtol=0, atol=0, equal_nan=True):
                problem = f"{kind} {name} is float64, and would be rounded to the run's {dtype}"
                raise ConfigError("model", type(module).__name__, f"{problem}: set dtype='float64', or give {dtype}")
    return module.to(dtype)


def check_model(
    module: nn.Module, sample_x: Tensor, sample_y: Tensor, loss: Loss = cross_entropy,
    metric: Metric | None = accuracy, classes: int = 0, sizes: tuple[int, int] = (2, 2), seed: int = 0,
) -> tuple[str, ...]:  # fmt: skip
    """Run a copy of the module on two examples (or one), in training with a backward pass, and in evaluation mode.

    Return the names of the trainable parameters without a gradient. Module and global generators are unchanged.

    Args:
        sample_x: [B, ...], normalized, of the model's dtype; the first two are used.
        sample_y: [N, ...] targets for the loss, N >= B.
        loss, metric: the loss and the metric of the run; metric None: the mean loss.
        classes: the number of classes of all labels, for `cross_entropy`; 0: by the labels of the sample.
        sizes: the smallest batches in training and in evaluation; 2 stands for all larger sizes.
        seed: the seed of the model's random numbers.

    Raises:
        ConfigError: a pass raises; scores for labels are not [2, classes, ...]; the loss or the metric cannot be
            computed from outputs and targets; the loss has no gradient.
    """
    labels = loss is cross_entropy and sample_y.dtype == torch.int64
    classes = (classes or int(sample_y.max()) + 1) if labels else 0
    if labels and (lowest := int(sample_y.min())) < 0:
        problem = f"labels must be at least 0, and there is {lowest}: to ignore it, use"
        raise ConfigError("loss", "cross_entropy", f"{problem} loss=torch.nn.CrossEntropyLoss(ignore_index={lowest})")
    unreached = tuple[str, ...]()
    with temporary_seed(seed):
        for mode, size in zip(("training", "evaluation"), sizes, strict=True):
            x = sample_x if len(sample_x) <= size else sample_x[:size]
            with torch.set_grad_enabled(mode == "training"):  # as in a run; a notebook's cell may have changed the mode
                unreached += _check_mode(module, mode, x, sample_y[: len(x)], (loss, metric), classes)
    return unreached


def _probabilities(output: Any) -> bool:
    # a loss derived from CrossEntropyLoss may take other outputs than scores [B, classes, ...]
    scores = isinstance(output, Tensor) and output.ndim > 1
    return scores and bool((output >= 0).all() and (abs(output.sum(1) - 1) < ROUNDING).all())


def _check_mode(
    module: nn.Module, mode: str, x: Tensor, y: Tensor, objective: tuple[Loss, Metric | None], classes: int
) -> tuple[str, ...]:
    name, inputs = type(module).__name__, f"inputs {list(x.shape)} of {x.dtype}"
    trial, before = copied(module).train(mode == "training"), [parameter.grad for parameter in module.parameters()]
    trains = [(name, part, part.requires_grad) for name, part in trial.named_parameters()]
    loss, metric = (placed(part, x.device, training=mode == "training") for part in objective)
    problem = f"cannot learn from {inputs}" if mode == "training" else f"cannot be evaluated on {inputs}"
    try:
        output = trial(x)
    except Exception as error:
        raise ConfigError("model", name, f"{problem}: {type(error).__name__}: {error}") from error
    if classes:
        shape = list(output.shape) if isinstance(output, Tensor) else []
        if [*shape[:1], *shape[2:]] != list(y.shape) or not shape[1:] or shape[1] < classes:
            wanted = [len(x), "classes", *y.shape[1:]]
            where = f"{list(x.shape)}" + " in evaluation mode" * (mode == "evaluation")
            last = "; classes are dimension 1, as in torch: transpose" * (shape[1:-1] == [*y.shape[1:]] != [])
            must = f"must be logits [{', '.join(map(str, wanted))}], with at least {classes} classes for these labels"
            must += ", which count from 0" * (shape[1:2] == [classes - 1])
            raise ConfigError("model", name, f"gives {shape or 'no tensor'} for inputs {where}: {must}{last}")
    value = try_loss(loss, output, y, _short(objective[0]))
    takes_logits = classes or isinstance(objective[0], nn.CrossEntropyLoss)
    if takes_logits and mode == "training" and _probabilities(output):
        problem = f"the model {name} gives probabilities, and cross-entropy takes logits, as in torch"
        warnings.warn(f"{problem}: leave out the last softmax, or the model learns much more slowly", stacklevel=2)
    if mode == "evaluation":
        try_metric(metric, output, y, _short(objective[1]))
        return ()
    try:
        value.backward()  # type: ignore[no-untyped-call]
    except Exception as error:
        if not value.requires_grad and loss is not cross_entropy:
            why = "loss and model must not detach outputs (detach, item, torch.no_grad)"
            raise ConfigError("loss", _short(loss), f"has no gradient: {why}") from error
        raise ConfigError("model", name, f"{problem}: {type(error).__name__}: {error}") from error
    _check_own(module, trial, before)
    check_trains(trial, trains)
    if all(parameter.grad is None for parameter in trial.parameters()):
        raise ConfigError("loss", _short(loss), "must depend on a weight of the model, but has no gradient for any")
    return tuple(name for name, part in trial.named_parameters() if part.requires_grad and part.grad is None)


def _check_own(module: nn.Module, trial: nn.Module, before: list[Tensor | None]) -> None:
    """Refuse a model whose training pass changes its parameters, or uses another object's parameters."""
    for (name, parameter), tried, gradient in zip(module.named_parameters(), trial.parameters(), before, strict=True):
        if not torch.equal(parameter, tried) and not parameter.isnan().any():
            problem = (f"parameter {name} is changed by a training pass, but only a server's steps may change "
                       "parameters: use a buffer, such as for an average of weights")  # fmt: skip
            raise ConfigError("model", type(module).__name__, problem)
        if parameter.grad is not None and gradient is None:
            parameter.grad = None
            problem = (f"a function in it (a hook, a lambda) uses parameter {name} of this object, but a run trains "
                       "copies: let the function use the module that it gets as an argument")  # fmt: skip
            raise ConfigError("model", type(module).__name__, problem)


def check_sent(shell: nn.Module) -> None:
    """Refuse a model that cannot be pickled for a worker's process.

    Raises:
        ConfigError: pickling fails; the message names the innermost module.
    """
    try:
        cloudpickle.dumps(shell)
        return
    except Exception:
        modules = list(shell.named_modules())
    for path, module in reversed(modules):
        try:
            cloudpickle.dumps(module)
        except Exception as error:
            name, owner = type(shell).__name__, f"module {path} ({type(module).__name__})" if path else "it"
            problem = f"{owner} cannot be sent to a worker's process ({str(error).splitlines()[0]})"
            raise ConfigError("model", name, f"{problem}: use modules and attributes that can be pickled") from error


def _by_name(text: str) -> object:
    head, colon, rest = text.partition(":")
    name = head.strip().lower()
    if name == "torchvision" and colon:
        return _of_torchvision(text, rest.strip())
    if name in ROWS["model"] or not colon:
        return build("model", text)
    target = import_named("model", text)
    if not callable(target):  # an nn.Module is callable too
        raise ConfigError("model", text, f"is {type(target).__name__}: must be a class, a function or an nn.Module")
    return target


def _of_torchvision(text: str, name: str) -> Factory:
    known = torchvision().models.list_models()
    if name.lower() not in known:
        raise ConfigError("model", text, f"torchvision has no model {name!r} without arguments; {nearest(name, known)}")
    return functools.partial(_torchvision_model, name.lower())


def _torchvision_model(name: str) -> nn.Module:
    model: nn.Module = torchvision().models.get_model(name, weights=None)
    return model


class WeightsOnMeta(TorchFunctionMode):
    """A mode in which torch.empty, by which torch's layers allocate parameters, returns tensors without memory.

    Other tensors have values, unlike with `torch.device("meta")`: constructors such as RegNet's read such tensors.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **{**(kwargs or {}), **({"device": "meta"} if func is torch.empty else {})})


def _short(value: object) -> str:
    return value if isinstance(value, str) else str(getattr(value, "__qualname__", type(value).__name__))


def running_norms(module: nn.Module, sample: Tensor) -> tuple[str, ...]:
    """Return the paths of the norms whose statistics training changes, by running a copy on a sample [B, ...].

    The module and the global generators are unchanged.

    Raises:
        ConfigError: training changes another buffer that evaluation reads.
    """
    with temporary_seed(), torch.no_grad():
        trial = copied(module).train()
        norms = {path: part for path, part in trial.named_modules()
                 if isinstance(part, _NormBase) and part.track_running_stats and part.training}  # fmt: skip
        before, called = {name: buffer.clone() for name, buffer in trial.named_buffers()}, set[Any]()
        with hooked(norms.values(), lambda norm, _: called.add(norm)), torch.enable_grad():  # forward may need it
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
                       "torch's BatchNorm and InstanceNorm may do so: use one of these norms, or a buffer that "
                       "training does not change")  # fmt: skip
            raise ConfigError("model", type(module).__name__, problem)
    moved = {owned[name] for name in changed if not name.endswith(STATISTICS[-1]) and name in owned}
    return tuple(path for path, norm in norms.items() if path in moved or norm not in called)


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
