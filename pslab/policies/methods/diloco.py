"""DiLoCo: each worker trains alone for many steps, and an outer optimizer uses the mean change as a gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pslab.config.parameters import Bounds, OneOf, check
from pslab.policies.sync.bsp import BSP
from pslab.protocol.messages import Decisions, Start, SyncEvent
from pslab.protocol.window import Window


@dataclass(frozen=True)
class DiLoCo(BSP):
    """DiLoCo: each worker takes `period` steps of its own optimizer, then an outer optimizer steps by the mean change.

    The worker's optimizer is the run's `inner`, at its `learning_rate` and `schedule`; the optimizer's state is never
    sent. A push is the movement of the worker's weights, old minus new. The server's `optimizer` uses the mean of the
    pushes as a gradient, at the run's `outer_learning_rate`. The defaults are the paper's: AdamW for the workers,
    Nesterov's momentum of 0.9 at the rate 0.7 for the server. With sgd for the workers and `sgd:momentum=0` at the rate
    1 for the server this is local SGD, with one worker Lookahead. A push counts as its number of gradients.

    `periods` gives each worker its own number of steps, so that no worker waits for slow ones; the largest of them must
    equal `period`. The workers' learning rates then follow the gradients of all workers at the server.

    Source: Douillard et al. (arXiv 2311.08105, 2023); the first steps after Lin et al. (ICLR 2020)
    """

    period: Annotated[int, Bounds(at_least=1), "steps between two exchanges"]
    after: Annotated[int, Bounds(at_least=0), "first steps, after each of which the models are averaged"] = 0
    fresh: Annotated[bool, "whether a worker's optimizer begins anew after each exchange"] = False
    periods: Annotated[str, "the steps of each worker, as in 50;50;25;12; '': the period of all"] = ""
    by: Annotated[str, OneOf("workers", "steps"), "what has equal weight in the mean of the changes"] = "workers"
    barrier: ClassVar[bool] = False  # a worker steps on its own weights
    method: ClassVar[str] = "inner"
    changes: ClassVar[bool] = True
    inner: ClassVar[str] = "adamw:betas=(0.9;0.95),weight_decay=0.1,clip=1"  #: the default of a run's `inner`
    outer: ClassVar[str] = "sgd:momentum=0.9,nesterov=True"
    outer_learning_rate: ClassVar[float] = 0.7

    def __post_init__(self) -> None:
        check(self)
        if self.periods and (not all(period.strip().isdecimal() for period in self.periods.split(";"))
                             or min(self.each) < 1 or max(self.each) != self.period):  # fmt: skip
            raise ValueError(f"periods={self.periods} must be whole numbers of at least 1, as in 50;50;25;12, the "
                             f"largest of them the period, {self.period}")  # fmt: skip
        if self.by == "steps" and not self.periods:
            raise ValueError("by=steps needs the steps of each worker: give periods, as in periods=50;50;25;12")

    @property
    def each(self) -> tuple[int, ...]:
        """Return the number of steps of each worker; empty if all have `period`."""
        return tuple(map(int, self.periods.split(";"))) if self.periods else ()

    @property
    def assigns(self) -> bool:
        return bool(self.periods)

    counted = assigns  # workers with different numbers of steps follow the gradients of all

    def step(self, state: Any, event: SyncEvent, clocks: Window) -> tuple[Any, Decisions]:
        state, decisions = super().step(state, event, clocks)
        if not self.periods:
            return state, decisions
        return state, tuple(order._replace(steps=self.steps_of(order.worker, order.iteration))
                            if isinstance(order, Start) else order for order in decisions)  # fmt: skip

    def steps_of(self, worker: int, iteration: int) -> int:
        """Return the number of steps in a worker's iteration."""
        if iteration < self.after:
            return 1
        return self.each[worker % len(self.each)] if self.periods else self.period  # the checker may have more workers

    def gradients_before(self, iteration: int) -> int:
        """Return how many gradients a worker has computed before this iteration."""
        return min(iteration, self.after) + max(0, iteration - self.after) * self.period

    def averages(self, iteration: int) -> bool:
        """Whether the step of an iteration is the plain mean of the pushes, without the outer optimizer."""
        return iteration < self.after
