"""Asynchronous local SGD: DiLoCo without rounds, in which no worker waits for the mean of all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pslab.config.parameters import Bounds, check
from pslab.policies.methods.diloco import DiLoCo
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.ssp import SSP
from pslab.protocol.messages import Decisions, SyncEvent
from pslab.protocol.window import Window


@dataclass(frozen=True)
class AsyncDiLoCo:
    """Asynchronous local SGD: DiLoCo whose outer optimizer takes a step by each change, as soon as it is pushed.

    No worker waits for another, or, with `staleness`, none that is at most so many exchanges ahead of the slowest. The
    run's fields are DiLoCo's; a worker's learning rate follows the gradients that the server has, of all workers, when
    its weights are read. The outer optimizer is delayed Nesterov with a period of as many pushes as there are workers,
    unless the run names another, by which a push counts `push_weight`. With one worker it is DiLoCo.

    Source: Liu et al. (arXiv 2401.09135, 2024)
    """

    period: Annotated[int, Bounds(at_least=1), "steps between two exchanges"]
    staleness: Annotated[
        int | None, Bounds(at_least=0), "exchanges that a worker may be ahead of the slowest; none: no bound"
    ] = None
    fresh: Annotated[bool, "a worker's optimizer begins anew after each exchange"] = False
    method: ClassVar[str] = "inner"
    changes: ClassVar[bool] = True
    counted: ClassVar[bool] = True
    inner: ClassVar[str] = DiLoCo.inner  #: of a run that names none
    outer: ClassVar[str] = "dn:momentum=0.9"
    outer_learning_rate: ClassVar[float] = DiLoCo.outer_learning_rate

    def __post_init__(self) -> None:
        check(self)

    @property
    def gate(self) -> ASP | SSP:
        """Who waits for whom."""
        return ASP() if self.staleness is None else SSP(self.staleness)

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
