"""Local SGD: each worker takes several steps by itself, then the models are averaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pslab.config.parameters import Bounds, OneOf, check
from pslab.policies.sync.bsp import BSP
from pslab.policies.sync.ssp import Waiting
from pslab.protocol.messages import Decisions, SyncEvent
from pslab.protocol.window import Window


@dataclass(frozen=True)
class LocalSGD:
    """Local SGD: each worker takes `period` steps of its own, then the models are averaged (a superstep of BSP).

    A push is the change of the worker's weights. It counts as the gradients that it is made of, so budgets, schedules
    and curves are those of the other policies. `after` makes it post-local SGD (Lin et al., ICLR 2020). Of sparse data
    each weight becomes the average of its users, the workers that have its key: others have not moved it.

    Source: Stich (ICLR 2019).
    """

    period: Annotated[int, Bounds(at_least=1), "steps between two averagings; 1 is BSP"]
    after: Annotated[int, Bounds(at_least=0), "iterations of plain BSP before that"] = 0
    over: Annotated[str, OneOf("users", "all"), "the workers that a weight of sparse data is averaged over"] = "users"

    def __post_init__(self) -> None:
        check(self)

    @property
    def method(self) -> str:
        return "average" if self.over == "users" else ""

    @property
    def window(self) -> int:
        return 1

    def gradients_before(self, iteration: int) -> int:
        """The gradients that a worker has computed before this iteration."""
        return min(iteration, self.after) + max(0, iteration - self.after) * self.period

    def initial(self, workers: tuple[int, ...]) -> tuple[Waiting, Waiting]:
        return BSP().initial(workers)

    def step(
        self, state: tuple[Waiting, Waiting], event: SyncEvent, clocks: Window
    ) -> tuple[tuple[Waiting, Waiting], Decisions]:
        return BSP().step(state, event, clocks)
