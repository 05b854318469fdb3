"""Optimizers by name: torch.optim's elementwise classes, which a server can apply to a range, and DelayedNesterov."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pslab.config.spec import split
from pslab.errors import ConfigError, nearest
from pslab.tensors.update.delayed_nesterov import DelayedNesterov

ELEMENTWISE: dict[str, type[torch.optim.Optimizer]] = {
    cls.__name__.lower(): cls
    for cls in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop,
                torch.optim.Adadelta, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam, torch.optim.ASGD,
                torch.optim.Rprop)
} | {"dn": DelayedNesterov}  # fmt: skip
WHOLE_TENSOR = {
    "lbfgs": "it needs the loss as a function, which a server does not have",
    "sparseadam": "it takes torch's sparse gradients only",
    "adafactor": "its state is one row and one column per matrix, not one value per element",
    "muon": "it works on whole matrices, and a range may hold part of one",
}
OPTIONS_OF_RUN = {"lr": "set learning_rate instead"}


@dataclass(frozen=True)
class OptimizerSpec:
    """A class of torch.optim and its options."""

    cls: type[torch.optim.Optimizer]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def plain_sgd(self) -> bool:
        """Whether a step is weights -= learning rate * gradient and nothing else."""
        return self.cls is torch.optim.SGD and not any(self.options.values())

    @property
    def without_momentum(self) -> bool:
        """Whether the optimizer is SGD without momentum, with or without weight decay."""
        return self.cls is torch.optim.SGD and not any(self.options.get(name) for name in ("momentum", "nesterov"))

    @property
    def usual_rate(self) -> float | None:
        """The default learning rate of the optimizer's class; None for SGD, which has no usual rate."""
        return None if self.cls is torch.optim.SGD else float(inspect.signature(self.cls).parameters["lr"].default)

    @property
    def divides(self) -> bool:
        """Whether the optimizer itself divides a single push, such as by the number of workers."""
        return self.cls is DelayedNesterov

    def of(self, steps: int) -> OptimizerSpec:
        """Return the optimizer with `steps`, the run's number of steps for one push of each worker, as the default of
        its option `period`."""
        return replace(self, options={"period": steps, **self.options})

    def make(self, parameters: Iterable[torch.Tensor], learning_rate: float) -> torch.optim.Optimizer:
        """Return a new optimizer of these parameters."""
        return self.cls(parameters, lr=learning_rate, **self.options)  # type: ignore[call-arg]


def resolve_optimizer(value: object, field: str = "optimizer") -> OptimizerSpec:
    """Return the optimizer that a Run names: "sgd", "sgd:momentum=0.9,nesterov=True", "adam:betas=(0.9;0.99)", or a
    class. An error names the `field`.

    Raises:
        ConfigError: the name is unknown, the optimizer is not elementwise, or its class refuses an option.
    """
    if isinstance(value, type) and value in ELEMENTWISE.values():
        return OptimizerSpec(value)
    if not isinstance(value, str):
        raise ConfigError(field, value, f"must be a name or class of torch.optim; {nearest('', ELEMENTWISE)}")
    name, positional, named = split(value)
    if name in WHOLE_TENSOR:
        raise ConfigError(field, value, f"{name} is not elementwise: {WHOLE_TENSOR[name]}; use adam or sgd")
    if name not in ELEMENTWISE:
        raise ConfigError(field, value, f"unknown name {name!r}; {nearest(name, ELEMENTWISE)}")
    if positional:
        raise ConfigError(field, value, f"options are given by name, as in '{name}:weight_decay=0.0001'")
    cls = ELEMENTWISE[name]
    known = [p for p in inspect.signature(cls).parameters if p not in ("params", "lr")]
    options = {}
    for key, text in named.items():
        if key not in known:
            problem = OPTIONS_OF_RUN.get(key) or f"no option {key!r}; {nearest(key, known)}"
            raise ConfigError(field, value, problem)
        try:
            options[key] = ast.literal_eval(text.replace(";", ","))
        except (ValueError, SyntaxError):
            raise ConfigError(field, value, f"{key}={text!r} must be a number, True, False or a tuple (1;2)") from None
    return _tried(value, OptimizerSpec(cls, options), field)


def _tried(value: str, spec: OptimizerSpec, field: str) -> OptimizerSpec:
    if spec.plain_sgd:
        return spec
    try:
        weight = torch.ones(2)
        weight.grad = torch.ones(2)
        spec.make([weight], 0.1).step()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(field, value, f"{spec.cls.__name__} refuses these options: {error}") from None
    return spec
