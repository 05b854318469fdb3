"""What a server makes of the pushes of a step, where that is not their mean: votes, estimates, factors, coefficients,
sketches, and changes that are averaged in another way.

A pruning or quantization rule names its own by `aggregate`, or else the policy does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from pslab.protocol.messages import Pull
from pslab.protocol.server import Step
from pslab.protocol.traits import traits_of
from pslab.tensors.codec import Entries
from pslab.tensors.device import zeros
from pslab.tensors.matrices.frames import Matrix, MatrixFrames
from pslab.tensors.pruning.rules import rule_traits
from pslab.tensors.quantize.push_frames import PushFrames
from pslab.tensors.quantize.rules import quantization_traits
from pslab.tensors.selection import select
from pslab.tensors.update.methods import by_steps
from pslab.tensors.update.store import Gradient, Part
from pslab.tensors.update.vectors import cuts, dense, inside, mean, mean_over_users, outside, radial_directional
from pslab.tensors.workload.keyspace import Keyspace

NOTHING = np.empty(0)  # is kept of a matrix beside a sketch
EMBEDDINGS = nn.Embedding, nn.EmbeddingBag  # whose rows move by themselves: a tensor of them has no one direction


class StepAggregate(Protocol):
    """What the server keeps of one range's pushes."""

    memory: torch.Tensor  #: what it keeps from one step to the next

    def adjust(self, step: Step, gradients: Sequence[Gradient]) -> Sequence[Gradient]:
        """The gradients whose mean is applied in a step, of those of its pushes as they were read, at least one."""

    def stated(self, turn: int) -> np.ndarray:
        """What is stated with the weights, for the rule, for push number `turn`."""
        return np.empty(0)

    def answered(self, pull: Pull) -> None:
        """A worker is sent the range."""
        return


class Vote(StepAggregate):
    """Signs by majority: the sign of the sum, 1 of a tie, 0 where no push has an entry. A push that is applied alone
    stays as it is.

    Source: Bernstein et al. (ICLR 2019)
    """

    def __init__(self, part: Part) -> None:
        self._part, self.memory = part, torch.empty(0)

    def adjust(self, step: Step, gradients: Sequence[Gradient]) -> Sequence[Gradient]:
        if not step.aggregate:
            return gradients
        votes = [inside(self._part, gradient) for gradient in gradients]
        total = dense(mean(votes))
        signs = torch.where(total < 0, -1.0, 1.0).to(total.dtype)
        if not any(isinstance(vote, torch.Tensor) for vote in votes):  # else one has all entries
            signs[sum(dense(vote).abs() for vote in votes) == 0] = 0.0
        return [outside(signs)]


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


class Sketches(Matrices):
    """The largest estimated entries of an error, which with the momentum behind it is a sketch, as pushes are.

    Source: Rothchild et al. (ICML 2020)
    """

    def __init__(self, rule: Any, part: Part, matrices: Sequence[Matrix], seed: int, dtype: torch.dtype) -> None:
        super().__init__(rule, part, matrices, seed, dtype)
        (self._own,) = matrices
        self.memory = torch.zeros(2 * self._own.values(rule, 0), dtype=torch.float64)  # momentum and error

    def adjust(self, step: Step, gradients: Sequence[Gradient]) -> Sequence[Gradient]:
        turn, (momentum, error) = step.pushes[0].iteration, self.kept.reshape(2, -1)
        pushed = dense(mean([inside(self._part, gradient) for gradient in gradients])).numpy()
        momentum *= self._rule.decay
        momentum += pushed
        error += momentum
        found = torch.from_numpy(self._own.decode(self._rule, error, turn, NOTHING, self._seed))
        indices = select.top(found, min(self._rule.applied, len(found)))
        values = found[indices].numpy().astype(pushed.dtype)
        applied = Entries(len(found), indices.numpy(), values)
        error -= self._own.encode(self._rule, applied.dense(), turn, NOTHING, self._seed, 0)[0]
        return [applied]


class Changes(StepAggregate):
    """The mean of changes of the weights, each of which counts by the steps that its worker has taken since it was sent
    the range; of some tensors the radial-directional average.

    Source: Douillard et al. (arXiv 2604.21428, 2026)

    Args:
        tensors: those, as slices of the range.
    """

    def __init__(self, sync: Any, part: Part, tensors: Sequence[slice]) -> None:
        self._sync, self._part, self._tensors, self.memory = sync, part, tuple(tensors), torch.empty(0)
        self._sent: dict[int, int] = {}  # by worker: the iteration for which it was sent the range last

    def answered(self, pull: Pull) -> None:
        self._sent[pull.worker] = pull.iteration

    def adjust(self, step: Step, gradients: Sequence[Gradient]) -> Sequence[Gradient]:
        if len(gradients) == 1:
            return gradients
        traits = traits_of(self._sync)  # of methods, which a checkpoint does not take: it is read anew
        steps = [traits.gradients_before(push.iteration + 1) - traits.gradients_before(self._sent.get(push.worker, 0))
                 - traits.overlap for push in step.pushes]  # fmt: skip
        counted = by_steps(self._part, gradients, steps)
        if not self._tensors:
            return counted
        found = dense(mean([inside(self._part, each) for each in counted]))
        vectors = [dense(inside(self._part, each)) for each in gradients]
        for tensor in self._tensors:
            found[tensor] = radial_directional([vector[tensor] for vector in vectors], steps)
        return [outside(found)]


AGGREGATES = ("vote", "estimates", "factors", "coefficients", "sketches", "changes")


def named(prune: Any, quantize: Any, sync: Any) -> str:
    """What the server makes of pushes by these rules and this policy, by name; "" if their mean."""
    return rule_traits(prune).aggregate or quantization_traits(quantize).aggregate or traits_of(sync).aggregate


def at_server(
    prune: Any, quantize: Any, sync: Any, parts: Sequence[Part], keyspace: Keyspace, module: nn.Module,
    frames: PushFrames, seed: int,
) -> list[StepAggregate]:  # fmt: skip
    """What the server keeps, of each range; empty if pushes are averaged.

    Args:
        parts: the ranges of the model that `keyspace` and `module`, or a shell of it, describe.
    """
    name, dtype = named(prune, quantize, sync), keyspace.dtype
    if name == "vote":
        return [Vote(part) for part in parts]
    if name == "estimates":
        return [Estimates(part, dtype) for part in parts]
    if name == "changes":
        rows = {f"{path}.weight" for path, each in module.named_modules() if isinstance(each, EMBEDDINGS)}
        tensors = [slice(slot.offset, slot.offset + slot.size) for slot in keyspace.parameters
                   if getattr(sync, "average", "rda") == "rda" and slot.name not in rows]  # fmt: skip
        return [Changes(sync, part, cuts(part, tensors)) for part in parts]
    if isinstance(frames, MatrixFrames) and name:
        made: Any = {"factors": Factors, "coefficients": Coefficients, "sketches": Sketches}[name]
        return [made(prune, part, own, seed, dtype) for part, own in zip(parts, frames.matrices, strict=True)]
    return []
