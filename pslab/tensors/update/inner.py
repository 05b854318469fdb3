"""Steps of an optimizer of each worker's own between two exchanges: a worker's half of DiLoCo and its kin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pslab.config.spec import split
from pslab.errors import ConfigError
from pslab.tensors.entries import KeptVector
from pslab.tensors.update.optimizers import OptimizerSpec, resolve_optimizer
from pslab.tensors.update.steps import Course, Local

NUMBERS = "inner numbers"  # the memory of scalars: the iteration before which they are (0: none), then each scalar


@dataclass(frozen=True)
class InnerOptimizer:
    """An elementwise class of torch.optim over a worker's flat weights."""

    spec: OptimizerSpec
    clip: float | None = None  #: the largest norm of a gradient
    fresh: bool = False  #: it begins anew after each exchange

    def state(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """The optimizer's state of two weights, by name, after one step: [2] of a vector; a number has one element. The
        first step of a process also imports torch's compiler."""
        weights = torch.ones(2, dtype=dtype)
        weights.grad = torch.ones(2, dtype=dtype)
        optimizer = self.spec.make([weights], 0.1)
        optimizer.step()
        return {name: value for name, value in optimizer.state[weights].items() if isinstance(value, torch.Tensor)}

    def memories(self, size: int, dtype: torch.dtype) -> dict[str, KeptVector]:
        """The vectors that a worker keeps for it."""
        if self.fresh or not (state := self.state(dtype)):
            return {}
        vectors = [name for name, value in state.items() if value.numel() > 1]
        numbers = KeptVector(1 + len(state) - len(vectors), torch.float64, scalars=True)
        return {f"inner {name}": KeptVector(size, dtype) for name in vectors} | {NUMBERS: numbers}


def resolve_inner(value: str, fresh: bool) -> InnerOptimizer:
    """The optimizer that a Run's `inner` names: as a server's (see `resolve_optimizer`), and perhaps `clip=1`.

    Raises:
        ConfigError: as `resolve_optimizer`; a clip that is no number above 0.
    """
    name, positional, named = split(value)
    text = named.pop("clip", "")
    try:
        clip = float(text) if text else None
    except ValueError:
        clip = 0.0
    if clip is not None and not clip > 0:
        raise ConfigError("inner", value, f"clip={text} must be a number above 0, the largest norm of a gradient")
    options = [*positional, *(f"{key}={option}" for key, option in named.items())]
    spec = resolve_optimizer(f"{name}:{','.join(options)}" if options else name, "inner")
    return InnerOptimizer(spec, clip, fresh)


class InnerSteps(Local):
    """A worker's steps. A push is the movement of its weights, old minus new.

    Args:
        kept: its `memories`.
    """

    keeps = True  # an iteration of one step is one of its own optimizer, too

    def __init__(self, inner: InnerOptimizer, kept: Mapping[str, torch.Tensor], dtype: torch.dtype) -> None:
        self._inner, self._kept, self._numbers = inner, kept, kept.get(NUMBERS)
        self._names = inner.state(dtype)  # here, and not while a run is timed
        self._next: dict[str, Any] = {}  # the state after the course that was run

    def run(self, course: Course) -> float:
        weights, held = course.weights, course.weights.clone()
        losses, self._next = self._steps(course, range(len(course.batches)), self._state(course))
        torch.sub(held, weights, out=course.gradient)
        weights.copy_(held)
        return sum(losses) / len(losses)

    def commit(self, course: Course) -> None:
        if self._numbers is None:
            return
        numbers = [course.iteration + 1.0]
        for name, example in self._names.items():
            if example.numel() > 1:
                self._kept[f"inner {name}"].copy_(self._next[name])
            else:
                numbers.append(float(self._next[name]))
        self._numbers.copy_(torch.tensor(numbers, dtype=torch.float64))

    def _steps(self, course: Course, steps: range, state: Mapping[str, Any]) -> tuple[list[float], dict[str, Any]]:
        """Take steps of a course from where its weights are: their losses, and the optimizer's state after them."""
        weights, losses = course.weights, list[float]()
        optimizer = self._inner.spec.make([weights], course.rates[0])
        optimizer.state[weights].update(state)
        for step in steps:
            losses.append(course.at(course.batches[step]))
            gradient, clip = course.gradient, self._inner.clip
            weights.grad = gradient if clip is None else clipped(gradient, clip)
            optimizer.param_groups[0]["lr"] = course.rates[step]
            optimizer.step()
        weights.grad = None
        return losses, optimizer.state[weights]

    def _state(self, course: Course) -> dict[str, torch.Tensor]:
        """A copy of the optimizer's state before a course, which steps change; empty at first, and after the
        worker was away."""
        if self._numbers is None or not course.iteration or self._numbers[0] != course.iteration:
            return {}
        numbers = iter(self._numbers[1:].tolist())
        return {name: self._kept[f"inner {name}"].clone() if example.numel() > 1
                else torch.full_like(example, next(numbers)) for name, example in self._names.items()}  # fmt: skip


def clipped(gradient: torch.Tensor, norm: float) -> torch.Tensor:
    """Return the gradient, scaled down to this norm if its own is larger, as torch.nn.utils.clip_grad_norm_ does."""
    own = float(torch.linalg.vector_norm(gradient, dtype=torch.float64)) + 1e-6
    return gradient * (norm / own) if own > norm else gradient
