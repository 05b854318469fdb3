"""Steps of an optimizer at each worker between two exchanges: the worker's part of DiLoCo and related methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pslab.config.spec import split
from pslab.errors import ConfigError
from pslab.tensors.entries import KeptVector
from pslab.tensors.update.optimizers import OptimizerSpec, resolve_optimizer
from pslab.tensors.update.steps import Iteration, Local
from pslab.tensors.update.vectors import clipped

NUMBERS = "inner numbers"  # the memory of scalars: the iteration that they are valid for (0: none), then each scalar


@dataclass(frozen=True)
class InnerOptimizer:
    """An elementwise class of torch.optim over a worker's flat weights."""

    spec: OptimizerSpec
    clip: float | None = None  #: the largest norm of a gradient; None: no limit
    fresh: bool = False  #: whether its state is reset after each exchange

    def state(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Return the optimizer's state for two weights after one step: vectors have two elements, scalars one.

        The first call in a process is slow, because it imports torch's compiler.
        """
        weights = torch.ones(2, dtype=dtype)
        weights.grad = torch.ones(2, dtype=dtype)
        optimizer = self.spec.make([weights], 0.1)
        optimizer.step()
        return {name: value for name, value in optimizer.state[weights].items() if isinstance(value, torch.Tensor)}

    def memories(self, size: int, dtype: torch.dtype) -> dict[str, KeptVector]:
        """Return the vectors that a worker stores for the optimizer; none if its state is reset at each exchange."""
        if self.fresh or not (state := self.state(dtype)):
            return {}
        vectors = [name for name, value in state.items() if value.numel() > 1]
        numbers = KeptVector(1 + len(state) - len(vectors), torch.float64, scalars=True)
        return {f"inner {name}": KeptVector(size, dtype) for name in vectors} | {NUMBERS: numbers}


def resolve_inner(value: str, fresh: bool) -> InnerOptimizer:
    """Return the optimizer that a Run's `inner` names, as `resolve_optimizer` does; it may have the option `clip=1`.

    Raises:
        ConfigError: `resolve_optimizer` refuses the name or its options, or clip is not a number above 0.
    """
    name, positional, named = split(value)
    text = named.pop("clip", "")
    try:
        clip = float(text) if text else None
    except ValueError:
        clip = 0.0
    if clip is not None and not clip > 0:
        raise ConfigError("inner", value, f"clip={text}, the largest norm of a gradient, must be a number above 0")
    options = [*positional, *(f"{key}={option}" for key, option in named.items())]
    spec = resolve_optimizer(f"{name}:{','.join(options)}" if options else name, "inner")
    return InnerOptimizer(spec, clip, fresh)


class InnerSteps(Local):
    """A worker's steps. A push is the weights before the steps minus the weights after them.

    Args:
        memory: the vectors of `InnerOptimizer.memories`.
    """

    keeps = True  # also with one step per iteration, because the step is the inner optimizer's

    def __init__(self, inner: InnerOptimizer, memory: Mapping[str, torch.Tensor], dtype: torch.dtype) -> None:
        self._inner, self._kept, self._numbers = inner, memory, memory.get(NUMBERS)
        self._names = inner.state(dtype)  # at set-up, because it is slow and runs are timed
        self._next: dict[str, Any] = {}  # the optimizer's state after `run`, stored by `commit`

    def run(self, iteration: Iteration) -> float:
        weights, before = iteration.weights, iteration.weights.clone()
        losses, self._next = self._steps(iteration, range(len(iteration.batches)), self._state(iteration))
        torch.sub(before, weights, out=iteration.gradient)
        weights.copy_(before)
        return sum(losses) / len(losses)

    def commit(self, iteration: Iteration) -> None:
        if self._numbers is None:
            return
        numbers = [iteration.number + 1.0]
        for name, example in self._names.items():
            if example.numel() > 1:
                self._kept[f"inner {name}"].copy_(self._next[name])
            else:
                numbers.append(float(self._next[name]))
        self._numbers.copy_(torch.tensor(numbers, dtype=torch.float64))

    def _steps(
        self, iteration: Iteration, steps: range, state: Mapping[str, Any]
    ) -> tuple[list[float], dict[str, Any]]:
        """Take some steps of an iteration; return their losses, and the optimizer's state after them."""
        weights, losses = iteration.weights, list[float]()
        optimizer = self._inner.spec.make([weights], iteration.rates[0])
        optimizer.state[weights].update(state)
        for step in steps:
            losses.append(iteration.at(iteration.batches[step]))
            gradient, clip = iteration.gradient, self._inner.clip
            weights.grad = gradient if clip is None else clipped(gradient, clip)
            optimizer.param_groups[0]["lr"] = iteration.rates[step]
            optimizer.step()
        weights.grad = None
        return losses, optimizer.state[weights]

    def _state(self, iteration: Iteration) -> dict[str, torch.Tensor]:
        """Return a copy of the optimizer's state before an iteration; empty in the first iteration, and in the first
        after an absence of the worker."""
        if self._numbers is None or not iteration.number or self._numbers[0] != iteration.number:
            return {}
        numbers = iter(self._numbers[1:].tolist())
        return {name: self._kept[f"inner {name}"].clone() if example.numel() > 1
                else torch.full_like(example, next(numbers)) for name, example in self._names.items()}  # fmt: skip
