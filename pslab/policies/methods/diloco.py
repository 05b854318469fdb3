"""DiLoCo: each worker trains by itself for many steps, and an outer optimizer takes the mean change as a gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pslab.config.parameters import Bounds, OneOf, check
from pslab.policies.sync.bsp import BSP
from pslab.protocol.messages import Decisions, Start, SyncEvent
from pslab.protocol.window import Window


@dataclass(frozen=True)
class DiLoCo(BSP):
    """DiLoCo: `period` steps of an optimizer of each worker's own, then one step of an outer one by their mean change.

    The worker's optimizer is the run's `inner`, at its `learning_rate` and `schedule`; its state stays at the worker,
    and is never sent. A push is by how much the worker's weights have moved, old minus new. The server's `optimizer`
    takes the mean of them as a gradient, at the run's `outer_learning_rate`. Left at their defaults these are the
    paper's: AdamW inside, Nesterov's momentum of 0.9 outside, 0.7. With sgd inside and `sgd:momentum=0` at 1 outside it
    is local SGD, with one worker Lookahead. A push counts as the gradients that it is made of.

    `periods` gives each worker steps of its own, so that none waits for slow ones; the largest is the `period`. The
    workers' learning rates then follow the gradients that the server has, of all of them.

    Source: Douillard et al. (arXiv 2311.08105, 2023); the first steps after Lin et al. (ICLR 2020)
    """

    period: Annotated[int, Bounds(at_least=1), "steps between two exchanges"]
    after: Annotated[int, Bounds(at_least=0), "steps before that, each of which ends with the plain mean"] = 0
    fresh: Annotated[bool, "a worker's optimizer begins anew after each exchange"] = False
    periods: Annotated[str, "the steps of each worker, as in 50;50;25;12; '': the period of all"] = ""
    by: Annotated[str, OneOf("workers", "steps"), "what changes count equally by in their mean"] = "workers"
    barrier: ClassVar[bool] = False  # a worker's steps are on weights of its own
    method: ClassVar[str] = "inner"
    changes: ClassVar[bool] = True
    inner: ClassVar[str] = "adamw:betas=(0.9;0.95),weight_decay=0.1,clip=1"  #: of a run that names none
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
        """The steps of each worker, if workers differ."""
        return tuple(map(int, self.periods.split(";"))) if self.periods else ()

    @property
    def assigns(self) -> bool:
        return bool(self.periods)

    counted = assigns  # workers that do not take as many steps follow the number of all

    def step(self, state: Any, event: SyncEvent, clocks: Window) -> tuple[Any, Decisions]:
        state, decisions = super().step(state, event, clocks)
        if not self.periods:
            return state, decisions
        return state, tuple(order._replace(steps=self.steps_of(order.worker, order.iteration))
                            if isinstance(order, Start) else order for order in decisions)  # fmt: skip

    def steps_of(self, worker: int, iteration: int) -> int:
        """The steps of a worker's iteration."""
        if iteration < self.after:
            return 1
        return self.each[worker % len(self.each)] if self.periods else self.period  # a checker has other workers

    def gradients_before(self, iteration: int) -> int:
        """The gradients that a worker has computed before this iteration."""
        return min(iteration, self.after) + max(0, iteration - self.after) * self.period

    def averages(self, iteration: int) -> bool:
        """Whether the step of an iteration is the plain mean."""
        return iteration < self.after
