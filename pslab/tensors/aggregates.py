"""What a server makes of the pushes of a step, where that is not their mean: votes, estimates, factors, coefficients.

A pruning or quantization rule names its own by `aggregate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from pslab.protocol.server import Step
from pslab.tensors.codec import Entries
from pslab.tensors.device import zeros
from pslab.tensors.matrices.frames import Matrix, MatrixFrames
from pslab.tensors.pruning.rules import rule_traits
from pslab.tensors.quantize.push_frames import PushFrames
from pslab.tensors.quantize.rules import quantization_traits
from pslab.tensors.update.store import Gradient, Part
from pslab.tensors.update.vectors import dense, inside, mean, mean_over_users, outside


class StepAggregate(Protocol):
    """What the server keeps of one range's pushes."""

    memory: torch.Tensor  #: what it keeps from one step to the next

    def adjust(self, step: Step, gradients: Sequence[Gradient]) -> Sequence[Gradient]:
        """The gradients whose mean is applied in a step, of those of its pushes as they were read, at least one."""

    def stated(self, turn: int) -> np.ndarray:
        """What is stated with the weights, for the rule, for push number `turn`."""
        return np.empty(0)


class Vote(StepAggregate):
    """Signs by majority: the sign of the sum, and 1 of a tie. A push that is applied alone stays as it is.

    Source: Bernstein et al. (ICLR 2019)
    """

    def __init__(self, part: Part) -> None:
        self._part, self.memory = part, torch.empty(0)

    def adjust(self, step: Step, gradients: Sequence[Gradient]) -> Sequence[Gradient]:
        if not step.aggregate:
            return gradients
        total = dense(mean([inside(self._part, gradient) for gradient in gradients]))
        return [outside(torch.where(total < 0, -1.0, 1.0).to(total.dtype))]


class Estimates(StepAggregate):
    """The mean of the estimates that workers have of their gradients, to which each push adds a difference.

    Source: Richtárik et al. (NeurIPS 2021)
    """

    def __init__(self, part: Part, dtype: torch.dtype) -> None:
        self._part, self.memory = part, zeros(part.size, dtype=dtype)

    def adjust(self, step: Step, gradients: Sequence[Gradient]) -> Sequence[Gradient]:
        for gradient in gradients:
            vector = inside(self._part, gradient)
            if isinstance(vector, torch.Tensor):
                self.memory.add_(vector, alpha=1 / len(gradients))
            else:
                where = torch.from_numpy(np.asarray(vector.indices, np.int64))
                self.memory.index_add_(0, where, torch.from_numpy(vector.values), alpha=1 / len(gradients))
        return [outside(self.memory)]


class Matrices(StepAggregate):
    """A range's matrices, of what workers push of them.

    `memory` is what a worker keeps of this range, as it is stated with the weights.
    """

    def __init__(self, rule: Any, part: Part, matrices: Sequence[Matrix], seed: int, dtype: torch.dtype) -> None:
        self._rule, self._part, self._matrices, self._seed = rule, part, tuple(matrices), seed
        room = sum(each.kept.stop - each.kept.start for each in matrices)
        self.memory = torch.zeros(room, dtype=dtype)

    @property
    def kept(self) -> np.ndarray:
        """What a worker keeps of this range, as an array."""
        return self.memory.numpy()

    def decoded(self, values: Sequence[np.ndarray], turn: int) -> Entries:
        """All entries of the range, of the values of each matrix."""
        found = [each.decode(self._rule, own, turn, self.kept[self._room(each)], self._seed)
                 for each, own in zip(self._matrices, values, strict=True)]  # fmt: skip
        return Entries(self._part.size, None, np.concatenate(found).astype(self.kept.dtype))

    def _room(self, matrix: Matrix) -> slice:
        first = self._matrices[0].kept.start
        return slice(matrix.kept.start - first, matrix.kept.stop - first)


class Factors(Matrices):
    """The mean of the workers' factors, times the factor that all of them have; then it is made that for the next."""

    def adjust(self, step: Step, gradients: Sequence[Gradient]) -> Sequence[Gradient]:
        turn = step.pushes[0].iteration
        own = mean([inside(self._part, gradient) for gradient in gradients])
        counts = [each.values(self._rule, turn) for each in self._matrices]
        values = np.split(dense(own).numpy(), np.cumsum(counts)[:-1])
        found = self.decoded(values, turn)
        for each, mine in zip(self._matrices, values, strict=True):
            if size := self._rule.stated(each.shape, turn + 1):
                self.kept[self._room(each)][:size] = each.following(self._rule, mine, self._seed)
        return [found]

    def stated(self, turn: int) -> np.ndarray:
        return np.concatenate([self.kept[self._room(each)][: self._rule.stated(each.shape, turn)]
                               for each in self._matrices])  # fmt: skip


class Coefficients(Matrices):
    """The sign of the vector whose coefficients are the mean over the workers that sent them, or over all."""

    def adjust(self, step: Step, gradients: Sequence[Gradient]) -> Sequence[Gradient]:
        pushed: list[Any] = list(gradients)
        joined = mean(pushed) if self._rule.by == "all" else mean_over_users(pushed)[0]
        values = [dense(joined).numpy()[each.inside] for each in self._matrices]
        found = self.decoded(values, step.pushes[0].iteration)
        return [Entries(found.n, None, np.sign(found.values))]


AGGREGATES = ("vote", "estimates", "factors", "coefficients")


def named(prune: Any, quantize: Any) -> str:
    """What the server makes of pushes by these rules, by name; "" if their mean."""
    return rule_traits(prune).aggregate or quantization_traits(quantize).aggregate


def at_server(prune: Any, quantize: Any, parts: Sequence[Part], frames: PushFrames, seed: int, dtype: torch.dtype
              ) -> list[StepAggregate]:  # fmt: skip
    """What the server keeps, of each range; empty if pushes are averaged."""
    name = named(prune, quantize)
    if name == "vote":
        return [Vote(part) for part in parts]
    if name == "estimates":
        return [Estimates(part, dtype) for part in parts]
    if isinstance(frames, MatrixFrames) and name:
        made: Any = {"factors": Factors, "coefficients": Coefficients}[name]
        return [made(prune, part, own, seed, dtype) for part, own in zip(parts, frames.matrices, strict=True)]
    return []
