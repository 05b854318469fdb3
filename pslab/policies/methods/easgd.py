"""Elastic averaging: workers keep weights of their own, which a force draws to a center, and the center to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pslab.config.parameters import Bounds, check
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.bsp import BSP
from pslab.protocol.messages import Decisions, SyncEvent
from pslab.protocol.window import Window


@dataclass(frozen=True)
class EASGD:
    """Elastic averaging SGD: each worker trains weights x of its own, and the server holds their center c.

    After `period` steps of a worker's optimizer, the run's `inner`, one of M workers moves by the elastic difference d
    towards the center that it holds, and the center by the same towards x; the center is evaluated:

        d = beta / M (x - c),    x <- x - d,    c <- c + the sum of d over all workers

    In rounds all workers' differences are from one center. `alone`, each worker exchanges in its own time: then the
    center that it holds is the one that it got after its last exchange.

    While m of M workers are there, rounds move the center by M / m times the sum of their d: beta times the mean of
    x - c, as ever. A worker that joins, new or back after a round without it, begins with the center and a new
    optimizer.

    Source: Zhang et al. (NIPS 2015)
    """

    period: Annotated[int, Bounds(at_least=1), "steps between two exchanges"]
    beta: Annotated[float, Bounds(above=0, at_most=1), "the elastic force of all workers"] = 0.9
    alone: Annotated[bool, "no worker waits for another"] = False
    method: ClassVar[str] = "elastic"
    changes: ClassVar[bool] = True
    fresh: ClassVar[bool] = False
    keeps_own: ClassVar[bool] = True
    inner: ClassVar[str] = "sgd"  #: of a run that names none
    outer: ClassVar[str] = "sgd"
    outer_learning_rate: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        check(self)

    @property
    def gate(self) -> ASP | BSP:
        """The rule by which workers wait for each other."""
        return ASP() if self.alone else BSP()

    @property
    def rounds(self) -> bool:
        return not self.alone

    @property
    def counted(self) -> bool:
        return self.alone

    @property
    def window(self) -> int | None:
        return self.gate.window

    def gradients_before(self, iteration: int) -> int:
        """The gradients that a worker has computed before this iteration."""
        return iteration * self.period

    def initial(self, workers: tuple[int, ...]) -> Any:
        return self.gate.initial(workers)

    def step(self, state: Any, event: SyncEvent, clocks: Window) -> tuple[Any, Decisions]:
        return self.gate.step(state, event, clocks)
