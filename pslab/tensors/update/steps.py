"""The steps of a worker between two exchanges, and the interface of a method at a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch


class Iteration(NamedTuple):
    """The steps that a worker takes for one push, and the vectors that it uses."""

    batches: Sequence[int]  #: the number of each step's batch
    rates: Sequence[float]  #: the learning rate of each step
    at: Callable[[int], float]  #: returns the loss on a batch at `weights`, and writes its gradient to `gradient`
    weights: torch.Tensor  #: [size], as received; changed during the iteration and restored
    gradient: torch.Tensor  #: [size]; the push after the iteration
    fetched: bool  #: whether weights have arrived since the last push
    pushed: bool  #: whether the push will have content
    number: int = 0  #: the iteration's number
    late: int = 0  #: the number of first steps that the worker takes right after the last push, before weights arrive


class Local(Protocol):
    """The part of a method that runs at a worker: it takes the steps of each iteration.

    `run` changes no stored vector, so that an iteration can be computed again. `commit` stores the vectors that `run`
    has computed, after the result has been found finite.
    """

    keeps: bool  #: whether the worker stores vectors from one push to the next

    def follow(self, iteration: Iteration) -> None:
        """Take the `late` steps of an iteration before its weights arrive. Without this call, `run` takes them."""
        return

    def run(self, iteration: Iteration) -> float:
        """Compute an iteration; return its mean loss."""

    def commit(self, iteration: Iteration) -> None:
        """Store the vectors that `run` has computed: its result will be pushed, now or with a later push."""


class LocalSteps(Local):
    """Plain steps of gradient descent.

    A push is one gradient: a single step by it, with the first step's rate, would move the weights as far as all steps.
    Without stored vectors this is local SGD. A replica stores two vectors if its pushes and fetches have different
    periods.

    Args:
        scale: the factor of each step's learning rate.
        accrued: [size], the sum of the gradients that are not yet pushed; None if all are pushed.
        moved: [size], the change of the weights since the last fetch; None if each iteration fetches.
        literal: whether a fetch discards steps that are not yet pushed, or they are applied to the fetched weights.
    """

    def __init__(
        self, scale: float = 1.0, accrued: torch.Tensor | None = None, moved: torch.Tensor | None = None,
        literal: bool = False,
    ) -> None:  # fmt: skip
        self._scale, self._accrued, self._moved, self._literal = scale, accrued, moved, literal
        self.keeps = accrued is not None
        self._there: torch.Tensor | None = None  # the change of the weights after `run`, stored by `commit`

    def run(self, iteration: Iteration) -> float:
        weights, first = iteration.weights, iteration.rates[0] or 1.0  # a schedule may end at 0: avoid 0 / 0
        before, total, losses = weights.clone(), torch.zeros_like(weights), []
        begin = self._begin(before, iteration.fetched, first * self._scale)
        weights.copy_(begin)
        for batch, rate in zip(iteration.batches, iteration.rates, strict=True):
            losses.append(iteration.at(batch))
            total.add_(iteration.gradient, alpha=rate / first)
            torch.sub(begin, total, alpha=first * self._scale, out=weights)
        if self._accrued is not None:
            self._there = weights - before
            total.add_(self._accrued)
        weights.copy_(before)
        iteration.gradient.copy_(total)
        return sum(losses) / len(losses)

    def commit(self, iteration: Iteration) -> None:
        if self._accrued is None or self._moved is None or self._there is None:
            return
        self._moved.copy_(self._there)
        if iteration.pushed:
            self._accrued.zero_()
        else:
            self._accrued.copy_(iteration.gradient)

    def _begin(self, before: torch.Tensor, fetched: bool, rate: float) -> torch.Tensor:
        if self._accrued is None or self._moved is None:
            return before
        if not fetched:
            return before + self._moved
        return before if self._literal else torch.sub(before, self._accrued, alpha=rate)
