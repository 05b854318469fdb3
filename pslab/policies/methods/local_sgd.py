"""Local SGD: each worker takes several steps by itself, then the models are averaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pslab.config.parameters import Bounds, OneOf, check
from pslab.policies.sync.bsp import BSP


@dataclass(frozen=True)
class LocalSGD(BSP):
    """Local SGD: each worker takes `period` steps of its own, then the models are averaged (a superstep of BSP).

    A push is the change of the worker's weights. It counts as the gradients that it is made of, so budgets, schedules
    and curves are comparable with other policies. `after` makes it post-local SGD (Lin et al., ICLR 2020).
    Of sparse data each weight becomes the average of its users, the workers that have its key: others have not moved
    it.

    Source: Stich (ICLR 2019).
    """

    period: Annotated[int, Bounds(at_least=1), "steps between two averagings; 1 is BSP"]
    after: Annotated[int, Bounds(at_least=0), "iterations of plain BSP before that"] = 0
    over: Annotated[str, OneOf("users", "all"), "the workers that a weight of sparse data is averaged over"] = "users"
    barrier: ClassVar[bool] = False  # a worker's steps are on weights of its own

    def __post_init__(self) -> None:
        check(self)

    @property
    def method(self) -> str:
        return "average" if self.over == "users" else ""

    def gradients_before(self, iteration: int) -> int:
        """The gradients that a worker has computed before this iteration."""
        return min(iteration, self.after) + max(0, iteration - self.after) * self.period
