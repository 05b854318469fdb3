"""Consensus ADMM at the workers and at the server (see `pslab.policies.methods`). The policy computes only scalars.

A worker writes three sums of squares beside each push, and the server writes rho beside each reply, into the shared
memory of gradients and weights.
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
from pslab.tensors.update.steps import Iteration, Local
from pslab.tensors.update.vectors import Vector, inside, mean_over_users, outside, positions

FAR, LARGE, DUAL, RHO = range(4)  # |x - z|^2, |x|^2, |u|^2 of a round, and the rho that it was computed with


class Solving(Local):
    """A worker's part: updates the vectors x and u by the server's new z, and minimizes the worker's loss.

    Args:
        x, u: [at least size], zero before the first round; with sparse data both have the keys of the worker.
        stated: float64 [4], which the worker writes: |x - z|^2, |x|^2, |u|^2, and rho (0 before the first round).
        rho: float64 [1], which the server writes.
    """

    keeps = True

    def __init__(self, x: torch.Tensor, u: torch.Tensor, stated: torch.Tensor, rho: torch.Tensor) -> None:
        self._x, self._u, self._stated, self._rho = x, u, stated, rho
        self._next: tuple[torch.Tensor, torch.Tensor, list[float]] | None = None  # x, u, stated after this round

    def run(self, iteration: Iteration) -> float:
        z, rho = iteration.weights.clone(), float(self._rho[0])
        x, u, norms = self._begin(z, rho)
        x, loss = self._solve(iteration, x, z - u, rho)
        iteration.weights.copy_(z)
        iteration.gradient.copy_(z - (x + u))
        self._next = x, u, [*norms, rho]
        return loss

    def commit(self, iteration: Iteration) -> None:
        if self._next is not None:
            x, u, stated = self._next
            self._x[: len(x)] = x
            self._u[: len(u)] = u
            self._stated.copy_(torch.tensor(stated, dtype=torch.float64))

    def _begin(self, z: torch.Tensor, rho: float) -> tuple[torch.Tensor, torch.Tensor, list[float]]:
        """Return x, u updated by the new z, and |x - z|^2, |x|^2 and |u|^2 (zeros in the first round)."""
        before = float(self._stated[RHO])
        if not before:
            return z.clone(), torch.zeros_like(z), [0.0, 0.0, 0.0]
        x = self._x[: len(z)].clone()
        far = x - z
        u = self._u[: len(z)] + far
        return x, u * (before / rho), list(map(_square, (far, x, u)))  # u is scaled: the dual variable is rho * u

    def _solve(
        self, iteration: Iteration, x: torch.Tensor, near: torch.Tensor, rho: float
    ) -> tuple[torch.Tensor, float]:
        """Take gradient steps on the loss, each followed by the penalty's proximal step, which is stable at any rho;
        return the new x and the mean loss."""
        losses = []
        for batch, rate in zip(iteration.batches, iteration.rates, strict=True):
            iteration.weights.copy_(x)
            losses.append(iteration.at(batch))
            x = x.sub(iteration.gradient, alpha=rate).add_(near, alpha=rate * rho).div_(1 + rate * rho)
        return x, sum(losses) / len(losses)


class Consensus:
    """The server's part: z is the proximal point of the mean of x + u; each weight's mean is over the workers that use
    the weight.

    Args:
        policy: has `rho`, `l2`, `balanced` and `converged`.
        part: the range of all weights.
        weights: [size], z.
        stated: the array `stated` of each worker.
        shared_rho: [1], from which the workers read rho.
    """

    def __init__(
        self, policy: Any, part: Part, weights: torch.Tensor, stated: Sequence[torch.Tensor], shared_rho: torch.Tensor
    ) -> None:  # fmt: skip
        self._policy, self._part, self._weights = policy, part, weights
        self._stated, self._shared_rho = stated, shared_rho
        self.rho = shared_rho[0] = float(policy.rho)
        self._last: tuple[float, float, float] | None = None  # s^2, sum of lambda z^2 and rho of the last round
        self.converged = False  #: whether the policy ends the run
        self.residuals: list[list[float]] = []  #: each round's number, rho, primal, dual, relative primal and dual

    def adjust(self, step: Step, gradients: Sequence[Gradient]) -> Sequence[Gradient]:
        """Return the change to subtract from z. First compute the residuals of the round before: the workers have
        written that round's sums with these pushes."""
        used = self.rho
        if self._last is not None:
            self._judge(step, *self._last)
        vectors = [inside(self._part, gradient) for gradient in gradients]
        change, counts = mean_over_users(vectors)
        z = self._weights if isinstance(change, torch.Tensor) else self._weights[positions(change)]
        moved, users = _tensor(change), torch.from_numpy(counts).to(z.dtype)
        if self._policy.l2:
            share = used * users / (self._policy.l2 + used * users)
            moved = z * (1 - share) + share * moved
        self._last = used**2 * _square(moved, users), _square(z - moved, users), used
        if isinstance(change, torch.Tensor):
            return [outside(moved)]
        return [Entries(change.n, change.indices, moved.numpy())]

    def state(self) -> State:
        """Return the values of a checkpoint: rho, whether residuals have converged, the last sums, all residuals."""
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
        """Write rho to the memory that workers read; call it before weights are sent."""
        # not when rho changes: a server that resumes from a checkpoint has another rho than the memory
        self._shared_rho[0] = self.rho

    def facts(self) -> dict[str, object]:
        """Return the residuals of all rounds, for the manifest."""
        return {"residuals": self.residuals}

    def _judge(self, step: Step, dual_square: float, z_square: float, rho: float) -> None:
        """Compute the residuals of the last round, and adapt rho to them."""
        far, large, dual = (sum(float(self._stated[push.worker][name]) for push in step.pushes)
                            for name in (FAR, LARGE, DUAL))  # fmt: skip
        primal, dual_residual = math.sqrt(far), math.sqrt(dual_square)
        relative = _ratio(primal, math.sqrt(max(large, z_square))), _ratio(dual_residual, rho * math.sqrt(dual))
        self.residuals.append([step.version - 1, rho, primal, dual_residual, *relative])
        self.converged = self._policy.converged(*relative)
        if rho == self.rho:  # otherwise rho has just changed, and its effect shows only in the next round
            self.rho = self._policy.balanced(rho, *relative)


def _tensor(vector: Vector) -> torch.Tensor:
    return vector if isinstance(vector, torch.Tensor) else torch.from_numpy(vector.values)


def _square(vector: torch.Tensor, weights: torch.Tensor | None = None) -> float:
    wide = vector.double()
    return float((wide * wide if weights is None else wide * wide * weights).sum())


def _ratio(residual: float, size: float) -> float:
    return residual / size if size else math.inf * residual if residual else 0.0
