"""Local SGD: each worker takes several steps alone, then the models are averaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pslab.config.parameters import Bounds, OneOf, check
from pslab.policies.sync.bsp import BSP


@dataclass(frozen=True)
class LocalSGD(BSP):
    """Local SGD: each worker takes `period` steps alone, then the models are averaged (a superstep of BSP).

    A push is the change of the worker's weights. A push counts as its number of gradients, so budgets, schedules and
    curves are comparable with other policies. With `after` this is post-local SGD (Lin et al., ICLR 2020). With sparse
    data each weight becomes the average over its users, the workers that have its key: only these have moved it.

    Source: Stich (ICLR 2019).
    """

    period: Annotated[int, Bounds(at_least=1), "steps between two averagings; 1 is BSP"]
    after: Annotated[int, Bounds(at_least=0), "first iterations, by plain BSP"] = 0
    over: Annotated[str, OneOf("users", "all"), "the workers that a weight of sparse data is averaged over"] = "users"
    barrier: ClassVar[bool] = False  # a worker steps on its own weights

    def __post_init__(self) -> None:
        check(self)

    @property
    def method(self) -> str:
        return "average" if self.over == "users" else ""

    def gradients_before(self, iteration: int) -> int:
        """Return how many gradients a worker has computed before this iteration."""
        return min(iteration, self.after) + max(0, iteration - self.after) * self.period
