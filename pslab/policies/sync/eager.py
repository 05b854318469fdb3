"""Decoupled push and pull (PS+): the next weights are asked for as a computation begins, not after its push."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pslab.policies.sync.asp import ASP
from pslab.policies.sync.ssp import SSP
from pslab.protocol.messages import Decisions, SyncEvent
from pslab.protocol.window import Window


@dataclass(frozen=True)
class Eager:
    """Push and pull overlap with computing: the weights of iteration t + 1 are asked for as t begins.

    An iteration takes max(C, P, Q) of computation, pull and push, not their sum. The price: weights are an iteration
    older. From the paper's abstract, which is all of it that is public: how a worker sees its own staleness, and reads
    its own writes, is this project's design.

    Source: Jin et al. (TPDS 2022).
    Example: eager

    Args:
        staleness: iterations that nobody may be ahead of the slowest, from 1; none: nobody waits.
        rmw: read my writes: a worker adds its own pushes that are not in its weights yet. For plain SGD.
    """

    staleness: int | None = None
    rmw: bool = True

    def __post_init__(self) -> None:
        if self.staleness is not None and self.staleness < 1:
            raise ValueError("staleness must be 1 or more iterations: a worker asks before it has pushed")

    @property
    def eager(self) -> bool:
        return True

    @property
    def window(self) -> int | None:
        return self._gate.window

    def initial(self, workers: tuple[int, ...]) -> Any:
        return self._gate.initial(workers)

    def step(self, state: Any, event: SyncEvent, clocks: Window) -> tuple[Any, Decisions]:
        return self._gate.step(state, event, clocks)

    @property
    def _gate(self) -> ASP | SSP:
        return ASP() if self.staleness is None else SSP(self.staleness)
