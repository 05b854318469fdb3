"""Consensus ADMM: each worker minimizes its own loss, with a penalty for its distance from the consensus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pslab.config.parameters import SHARE, Bounds, check
from pslab.policies.sync.bsp import BSP

BALANCED = 10.0  # ratio of the relative residuals above which rho changes
FACTOR = 2.0  # factor by which rho changes then


@dataclass(frozen=True)
class ADMM(BSP):
    """Consensus ADMM: in a round each worker minimizes its loss, with a penalty for its distance from the consensus z.

    For worker i, with the loss f_i on its own examples (the examples of its first pass over the data):

        x_i <- argmin f_i(x) + rho/2 |x - z + u_i|^2,    z <- argmin g(z) + rho/2 sum |x_i + u_i - z|^2,
        u_i <- u_i + x_i - z

    A push is x_i + u_i, as a change of z; z are the server's weights, and g(z) = l2/2 |z|^2. A worker approximates its
    argmin by `steps` proximal steps from the last x_i, each on a batch, at the run's learning rate. With a convex loss
    more steps come closer to the minimum; for a network nothing is guaranteed. The best rho grows with the loss;
    `balance` doubles rho if the relative primal residual is above ten times the relative dual residual, and halves it
    in the opposite case (Boyd et al., 3.4.1). The record has the residuals and rho of each round but the last. With
    sparse data each weight is a consensus of the workers that have its key.

    Source: Boyd et al. (FnT in Machine Learning 2011)
    """

    steps: Annotated[int, Bounds(at_least=1, at_most=1_000_000), "number of steps of a worker in a round"]
    rho: Annotated[float, Bounds(above=0), "the initial penalty"] = 1.0
    balance: Annotated[bool, "whether rho follows the residuals"] = True
    l2: Annotated[float, Bounds(at_least=0), "the factor of g"] = 0.0
    stop: Annotated[
        float | None,
        SHARE,
        "the run ends once both relative residuals are this small; none: at the end of the budget",
    ] = None
    barrier: ClassVar[bool] = False
    method: ClassVar[str] = "consensus"
    changes: ClassVar[bool] = True
    repeats: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self)

    def gradients_before(self, iteration: int) -> int:
        """Return how many gradients a worker has computed before this iteration."""
        return iteration * self.steps

    def balanced(self, rho: float, primal: float, dual: float) -> float:
        """Return the next rho, after a round with these relative residuals."""
        if not self.balance or (primal <= BALANCED * dual and dual <= BALANCED * primal):
            return rho
        return rho * FACTOR if primal > dual else rho / FACTOR

    def converged(self, primal: float, dual: float) -> bool:
        """Whether these relative residuals are small enough to end the run."""
        return self.stop is not None and max(primal, dual) <= self.stop
