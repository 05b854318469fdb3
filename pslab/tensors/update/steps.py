"""A worker's own steps between two exchanges: its half of a method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch


class Course(NamedTuple):
    """The gradients that a worker computes for one push, and the vectors that it computes them in."""

    batches: Sequence[int]  #: the numbers of its batches, one a step
    rates: Sequence[float]  #: the learning rate of each step
    at: Callable[[int], float]  #: the loss on a batch at `weights`; its gradient is left in `gradient`
    weights: torch.Tensor  #: [size], as they have come; moved meanwhile, and put back
    gradient: torch.Tensor  #: [size]; in the end, the push
    fetched: bool  #: whether weights have come since the last push
    pushed: bool  #: whether the push will hold anything
    iteration: int = 0  #: whose push it is for
    late: int = 0  #: of its steps so many are the first, which the iteration before takes after its push


class Local(Protocol):
    """A worker's half of a method.

    `run` changes none of its memories, so that an iteration can be computed again; `commit` does, once what it has
    computed is known to be finite.
    """

    keeps: bool  #: whether it has memories

    def follow(self, course: Course) -> None:
        """Take the late steps of a course, perhaps before its weights are here; else `run` takes them."""
        return

    def run(self, course: Course) -> float:
        """Compute; the mean loss."""

    def commit(self, course: Course) -> None:
        """Keep the result of `run`: it is going to be pushed, or held back for a later push."""


class LocalSteps(Local):
    """Plain steps of gradient descent.

    The push is the gradient that moves the weights as far in one step with the first rate. Without memories this
    is local SGD; a replica that pushes more seldom than it fetches, or more often, has two.

    Args:
        scale: a step's rate, in learning rates.
        accrued: [size], the sum of the gradients that are not yet pushed; None if all are pushed.
        moved: [size], by how much it has moved since weights were fetched; None if they always are.
        literal: a fetch overwrites steps that are not yet pushed, which otherwise follow it again.
    """

    def __init__(
        self, scale: float = 1.0, accrued: torch.Tensor | None = None, moved: torch.Tensor | None = None,
        literal: bool = False,
    ) -> None:  # fmt: skip
        self._scale, self._accrued, self._moved, self._literal = scale, accrued, moved, literal
        self.keeps = accrued is not None
        self._there: torch.Tensor | None = None  # by how much it has moved when the course is run

    def run(self, course: Course) -> float:
        weights, first = course.weights, course.rates[0] or 1.0  # at the end of its schedule nothing moves
        held, total, losses = weights.clone(), torch.zeros_like(weights), []
        begin = self._begin(held, course.fetched, first * self._scale)
        weights.copy_(begin)
        for batch, rate in zip(course.batches, course.rates, strict=True):
            losses.append(course.at(batch))
            total.add_(course.gradient, alpha=rate / first)
            torch.sub(begin, total, alpha=first * self._scale, out=weights)
        if self._accrued is not None:
            self._there = weights - held
            total.add_(self._accrued)
        weights.copy_(held)
        course.gradient.copy_(total)
        return sum(losses) / len(losses)

    def commit(self, course: Course) -> None:
        if self._accrued is None or self._moved is None or self._there is None:
            return
        self._moved.copy_(self._there)
        if course.pushed:
            self._accrued.zero_()
        else:
            self._accrued.copy_(course.gradient)

    def _begin(self, held: torch.Tensor, fetched: bool, rate: float) -> torch.Tensor:
        """The weights from which the first step is taken."""
        if self._accrued is None or self._moved is None:
            return held
        if not fetched:
            return held + self._moved
        return held if self._literal else torch.sub(held, self._accrued, alpha=rate)
