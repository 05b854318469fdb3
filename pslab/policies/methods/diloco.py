"""DiLoCo: each worker trains by itself for many steps, and an outer optimizer takes the mean change as a gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pslab.config.parameters import Bounds, check
from pslab.policies.sync.bsp import BSP


@dataclass(frozen=True)
class DiLoCo(BSP):
    """DiLoCo: `period` steps of an optimizer of each worker's own, then one step of an outer one by their mean change.

    The worker's optimizer is the run's `inner`, at its `learning_rate` and `schedule`; its state stays at the worker,
    and is never sent. A push is by how much the worker's weights have moved, old minus new. The server's `optimizer`
    takes the mean of them as a gradient, at the run's `outer_learning_rate`. Left at their defaults these are the
    paper's: AdamW inside, Nesterov's momentum of 0.9 outside, 0.7. With sgd inside and `sgd:momentum=0` at 1 outside it
    is local SGD, with one worker Lookahead. A push counts as the gradients that it is made of.

    Source: Douillard et al. (arXiv 2311.08105, 2023); the first steps after Lin et al. (ICLR 2020)
    """

    period: Annotated[int, Bounds(at_least=1), "steps between two exchanges"]
    after: Annotated[int, Bounds(at_least=0), "steps before that, each of which ends with the plain mean"] = 0
    fresh: Annotated[bool, "a worker's optimizer begins anew after each exchange"] = False
    barrier: ClassVar[bool] = False  # a worker's steps are on weights of its own
    method: ClassVar[str] = "inner"
    changes: ClassVar[bool] = True
    inner: ClassVar[str] = "adamw:betas=(0.9;0.95),weight_decay=0.1,clip=1"  #: of a run that names none
    outer: ClassVar[str] = "sgd:momentum=0.9,nesterov=True"
    outer_learning_rate: ClassVar[float] = 0.7

    def __post_init__(self) -> None:
        check(self)

    def gradients_before(self, iteration: int) -> int:
        """The gradients that a worker has computed before this iteration."""
        return min(iteration, self.after) + max(0, iteration - self.after) * self.period

    def averages(self, iteration: int) -> bool:
        """Whether the step of an iteration is the plain mean."""
        return iteration < self.after
