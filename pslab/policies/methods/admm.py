"""Consensus ADMM: each worker solves a problem of its own, and pays for being far from the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pslab.config.parameters import SHARE, Bounds, check
from pslab.policies.sync.bsp import BSP

BALANCED = 10.0  # times the other: a relative residual that changes rho
FACTOR = 2.0  # by which it changes then


@dataclass(frozen=True)
class ADMM(BSP):
    """Consensus ADMM: in a round each worker minimizes its loss, with a penalty for its distance from the consensus z.

    Of worker i, with the loss f_i on its own examples (of its first pass over the data):

        x_i <- argmin f_i(x) + rho/2 |x - z + u_i|^2,    z <- argmin g(z) + rho/2 sum |x_i + u_i - z|^2,
        u_i <- u_i + x_i - z

    A push is x_i + u_i, as a change of z; z are the server's weights, and g(z) = l2/2 |z|^2. A worker's problem is
    solved by so many proximal steps from the last x_i, each on a batch, at the run's learning rate: the longer a round,
    the closer to the minimum of a convex loss; of a network's nothing is guaranteed. The best rho grows with the loss;
    `balance` doubles it where the relative primal residual is above ten times the relative dual one, and halves it
    where that is the other way round (Boyd et al., 3.4.1). The record has the residuals of each round but the last, and
    their rho. Of sparse data each weight is a consensus of those workers that have it.

    Source: Boyd et al. (FnT in Machine Learning 2011)
    """

    steps: Annotated[int, Bounds(at_least=1, at_most=1_000_000), "of a worker in a round"]
    rho: Annotated[float, Bounds(above=0), "the penalty, at first"] = 1.0
    balance: Annotated[bool, "rho follows the residuals"] = True
    l2: Annotated[float, Bounds(at_least=0), "the factor of g"] = 0.0
    stop: Annotated[
        float | None, SHARE, "the run ends once both relative residuals are as small; none: at the end of its budget"
    ] = None
    barrier: ClassVar[bool] = False
    method: ClassVar[str] = "consensus"
    changes: ClassVar[bool] = True
    repeats: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self)

    def gradients_before(self, iteration: int) -> int:
        """The gradients that a worker has computed before this iteration."""
        return iteration * self.steps

    def balanced(self, rho: float, primal: float, dual: float) -> float:
        """The next rho, after a round with these relative residuals."""
        if not self.balance or (primal <= BALANCED * dual and dual <= BALANCED * primal):
            return rho
        return rho * FACTOR if primal > dual else rho / FACTOR

    def converged(self, primal: float, dual: float) -> bool:
        """Whether relative residuals are so small that the run ends."""
        return self.stop is not None and max(primal, dual) <= self.stop
