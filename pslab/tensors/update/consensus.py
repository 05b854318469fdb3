"""Consensus ADMM: both halves (see `pslab.policies.methods`). The policy supplies scalars; the vectors are here.

A worker states three sums of squares beside each push, and the server states rho beside each reply: both lie in shared
memory, where gradients and weights lie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from pslab.protocol.server import Step
from pslab.tensors.entries import Entries
from pslab.tensors.update.part import Gradient, Part
from pslab.tensors.update.states import State
from pslab.tensors.update.steps import Course, Local
from pslab.tensors.update.vectors import Vector, inside, mean_over_users, outside, positions

FAR, LARGE, DUAL, RHO = range(4)  # of a round: |x - z|^2, |x|^2, |u|^2, and the rho that it was computed with


class Solving(Local):
    """A worker's half: its x and its u, and what it makes of a new z.

    Args:
        x, u: [at least size], zero before the first round; a worker of sparse data has the same keys in each.
        stated: [4] of float64; its rho is zero before the first round.
        rho: [1] of float64, as the server states it.
    """

    keeps = True

    def __init__(self, x: torch.Tensor, u: torch.Tensor, stated: torch.Tensor, rho: torch.Tensor) -> None:
        self._x, self._u, self._stated, self._rho = x, u, stated, rho
        self._next: tuple[torch.Tensor, torch.Tensor, list[float]] | None = None  # x, u, stated after this round

    def run(self, course: Course) -> float:
        z, rho = course.weights.clone(), float(self._rho[0])
        x, u, norms = self._begin(z, rho)
        x, loss = self._solve(course, x, z - u, rho)
        course.weights.copy_(z)
        course.gradient.copy_(z - (x + u))
        self._next = x, u, [*norms, rho]
        return loss

    def commit(self, course: Course) -> None:
        if self._next is not None:
            x, u, stated = self._next
            self._x[: len(x)] = x
            self._u[: len(u)] = u
            self._stated.copy_(torch.tensor(stated, dtype=torch.float64))

    def _begin(self, z: torch.Tensor, rho: float) -> tuple[torch.Tensor, torch.Tensor, list[float]]:
        """x, u with the z that has come, and the squares of that round."""
        before = float(self._stated[RHO])
        if not before:
            return z.clone(), torch.zeros_like(z), [0.0, 0.0, 0.0]
        x = self._x[: len(z)].clone()
        far = x - z
        u = self._u[: len(z)] + far
        return x, u * (before / rho), list(map(_square, (far, x, u)))  # what u stands for is rho times it

    def _solve(self, course: Course, x: torch.Tensor, near: torch.Tensor, rho: float) -> tuple[torch.Tensor, float]:
        """Gradient steps on the loss, each followed by the proximal step of the penalty: stable at any rho."""
        losses = []
        for batch, rate in zip(course.batches, course.rates, strict=True):
            course.weights.copy_(x)
            losses.append(course.at(batch))
            x = x.sub(course.gradient, alpha=rate).add_(near, alpha=rate * rho).div_(1 + rate * rho)
        return x, sum(losses) / len(losses)


class Consensus:
    """The server's half: z is the proximal point of the mean, over the workers that have a weight, of x + u.

    Args:
        policy: it has `rho`, `l2`, `balanced` and `converged`.
        part: the range of all weights.
        weights: [size], z.
        stated: of each worker what its half states.
        shared_rho: [1], where the halves read rho.
    """

    def __init__(
        self, policy: Any, part: Part, weights: torch.Tensor, stated: Sequence[torch.Tensor], shared_rho: torch.Tensor
    ) -> None:  # fmt: skip
        self._policy, self._part, self._weights = policy, part, weights
        self._stated, self._shared_rho = stated, shared_rho
        self.rho = shared_rho[0] = float(policy.rho)
        self._last: tuple[float, float, float] | None = None  # of the last round: s^2, sum of lambda z^2, rho
        self.converged = False  #: whether the policy ends the run
        self.residuals: list[list[float]] = []  #: of each round: its number, rho, primal, dual, and both, relative

    def adjust(self, step: Step, gradients: Sequence[Gradient]) -> Sequence[Gradient]:
        """The change to be subtracted from z. First the round before is judged, whose residuals are known now."""
        used = self.rho
        if self._last is not None:
            self._judge(step, *self._last)
        vectors = [inside(self._part, gradient) for gradient in gradients]
        change, counts = mean_over_users(vectors)
        z = self._weights if isinstance(change, torch.Tensor) else self._weights[positions(change)]
        moved, users = _tensor(change), torch.from_numpy(counts).to(z.dtype)
        if self._policy.l2:
            kept = used * users / (self._policy.l2 + used * users)
            moved = z * (1 - kept) + kept * moved
        self._last = used**2 * _square(moved, users), _square(z - moved, users), used
        if isinstance(change, torch.Tensor):
            return [outside(moved)]
        return [Entries(change.n, change.indices, moved.numpy())]

    def state(self) -> State:
        """Return rho, whether it has converged, the last round and the residuals."""
        return {"rho": torch.tensor([self.rho, self.converged], dtype=torch.float64),
                "last": torch.tensor(self._last or (), dtype=torch.float64),
                "residuals": torch.tensor(self.residuals, dtype=torch.float64).reshape(-1, 6)}  # fmt: skip

    def restore(self, state: State) -> None:
        """Restore a saved state."""
        self.rho, converged = state["rho"].tolist()
        self.converged = bool(converged)
        if last := state["last"].tolist():
            square, z_square, rho = last
            self._last = square, z_square, rho
        self.residuals = [[int(version), *row] for version, *row in state["residuals"].tolist()]

    def state_rho(self) -> None:
        """Write rho beside the weights that are about to be sent. (Not when it changes: a server that goes on from a
        checkpoint has the rho of then.)"""
        self._shared_rho[0] = self.rho

    def facts(self) -> dict[str, object]:
        """The residuals of all rounds, for the manifest."""
        return {"residuals": self.residuals}

    def _judge(self, step: Step, dual_square: float, z_square: float, rho: float) -> None:
        """Compute the residuals of the round before this step, and adapt rho to them."""
        far, large, dual = (sum(float(self._stated[push.worker][name]) for push in step.pushes)
                            for name in (FAR, LARGE, DUAL))  # fmt: skip
        primal, dual_residual = math.sqrt(far), math.sqrt(dual_square)
        relative = _ratio(primal, math.sqrt(max(large, z_square))), _ratio(dual_residual, rho * math.sqrt(dual))
        self.residuals.append([step.version - 1, rho, primal, dual_residual, *relative])
        self.converged = self._policy.converged(*relative)
        if rho == self.rho:  # else it has just changed: what that does is seen in the next round
            self.rho = self._policy.balanced(rho, *relative)


def _tensor(vector: Vector) -> torch.Tensor:
    return vector if isinstance(vector, torch.Tensor) else torch.from_numpy(vector.values)


def _square(vector: torch.Tensor, weights: torch.Tensor | None = None) -> float:
    """The sum of squares, in float64."""
    wide = vector.double()
    return float((wide * wide if weights is None else wide * wide * weights).sum())


def _ratio(residual: float, size: float) -> float:
    return residual / size if size else math.inf * residual if residual else 0.0
