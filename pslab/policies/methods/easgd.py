"""Elastic averaging: each worker has its own weights; a force draws them to a center, and the center to them."""

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
    """Elastic averaging SGD: each worker trains its own weights x, and the server stores their center c.

    After `period` steps of its optimizer, the run's `inner`, each of M workers moves by the elastic difference d
    towards its copy of the center, and the center by the same d towards x; evaluations use the center:

        d = beta / M (x - c),    x <- x - d,    c <- c + the sum of d over all workers

    In rounds the differences of all workers are taken from the same center. With `alone`, no worker waits for another,
    and a worker's copy of the center is the center that it received after its last exchange.

    While only m of M workers are present, rounds move the center by M / m times the sum of their d, so that the center
    still moves by beta times the mean of x - c. A worker that joins, or returns after a round without it, begins with
    the center and a new optimizer.

    Source: Zhang et al. (NIPS 2015)
    """

    period: Annotated[int, Bounds(at_least=1), "steps between two exchanges"]
    beta: Annotated[float, Bounds(above=0, at_most=1), "the elastic force, summed over all workers"] = 0.9
    alone: Annotated[bool, "no worker waits for another"] = False
    method: ClassVar[str] = "elastic"
    changes: ClassVar[bool] = True
    fresh: ClassVar[bool] = False
    keeps_own: ClassVar[bool] = True
    inner: ClassVar[str] = "sgd"  #: the default of a run's `inner`
    outer: ClassVar[str] = "sgd"
    outer_learning_rate: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        check(self)

    @property
    def gate(self) -> ASP | BSP:
        """Return the synchronization policy by which workers wait for each other."""
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
        """Return how many gradients a worker has computed before this iteration."""
        return iteration * self.period

    def initial(self, workers: tuple[int, ...]) -> Any:
        return self.gate.initial(workers)

    def step(self, state: Any, event: SyncEvent, clocks: Window) -> tuple[Any, Decisions]:
        return self.gate.step(state, event, clocks)
