"""Decoupled push and pull (PS+): the next weights are requested when a computation starts, not after its push."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pslab.config.parameters import Bounds, check
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.ssp import SSP
from pslab.protocol.messages import Decisions, SyncEvent
from pslab.protocol.window import Window


@dataclass(frozen=True)
class Eager:
    """Push and pull overlap with computing: the weights of iteration t + 1 are requested when iteration t starts.

    An iteration takes the longest of computation, pull and push instead of their sum. In exchange, weights are one
    iteration older. Only the paper's abstract is public; the rules by which a worker observes its own staleness and
    reads its own writes are pslab's design.

    Source: Jin et al. (TPDS 2022).
    """

    staleness: Annotated[
        int | None,
        Bounds(at_least=1),
        "iterations that a worker may be ahead of the slowest, at least 1, because it asks before it has pushed; none: "
        "no worker waits",
    ] = None
    rmw: Annotated[bool, "read my writes: a worker adds its own pushes that its weights lack; for plain SGD"] = True
    eager: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self)

    @property
    def window(self) -> int | None:
        return self._bound.window

    def initial(self, workers: tuple[int, ...]) -> Any:
        return self._bound.initial(workers)

    def step(self, state: Any, event: SyncEvent, clocks: Window) -> tuple[Any, Decisions]:
        return self._bound.step(state, event, clocks)

    @property
    def _bound(self) -> ASP | SSP:
        return ASP() if self.staleness is None else SSP(self.staleness)
