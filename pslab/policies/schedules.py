"""Schedules: the factor of the learning rate over the run's budget of pushes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Protocol

from pslab.config.parameters import Bounds, check
from pslab.config.spec import resolve
from pslab.errors import ConfigError
from pslab.protocol.traits import Lengths


class Schedule(Protocol):
    """A learning-rate schedule. It may have a method `sized`: for some `Lengths`, the schedule of such a run."""

    @property
    def needs_budget(self) -> bool:
        """Whether the factor depends on progress: then the run needs a budget of pushes."""

    def factor(self, progress: float, epoch: float) -> float:
        """The factor at `progress`, pushes applied before this step / budget, from 0 to 1; `epoch` are the passes over
        the training data that these pushes made, of all workers together."""


@dataclass(frozen=True)
class Steady:
    """The same rate throughout."""

    @property
    def needs_budget(self) -> bool:
        return False

    def factor(self, progress: float, epoch: float) -> float:
        return 1.0


@dataclass(frozen=True)
class Linear:
    """Linear decay to zero at the end of the budget."""

    @property
    def needs_budget(self) -> bool:
        return True

    def factor(self, progress: float, epoch: float) -> float:
        return max(0.0, 1.0 - progress)


@dataclass(frozen=True)
class Steps:
    """Multiplied by `factor_each` at each of the shares of the budget in `at`."""

    factor_each: Annotated[float, Bounds(above=0, at_most=1), "by which the rate is multiplied each time"] = 0.1
    at: Annotated[str, "shares of the budget between 0 and 1, with slashes between them"] = "0.5/0.75"

    def __post_init__(self) -> None:
        check(self)
        if not self.shares or any(not 0 < share < 1 for share in self.shares):
            raise ValueError("at must be shares of the budget between 0 and 1, as in at=0.5/0.75")

    @property
    def shares(self) -> tuple[float, ...]:
        return tuple(float(part) for part in self.at.split("/"))

    @property
    def needs_budget(self) -> bool:
        return True

    def factor(self, progress: float, epoch: float) -> float:
        return self.factor_each ** sum(progress >= share for share in self.shares)


@dataclass(frozen=True)
class Cosine:
    """Linear growth to 1 in the first steps, then half a wave of the cosine down to 0, or to a share of the rate.

    A step is a gradient of each worker: `warm` steps are so many times `workers` pushes. Step t of the growth, from 0,
    has the factor (t + 1) / warm.

    Source: Loshchilov and Hutter (ICLR 2017)
    """

    warm: Annotated[int, Bounds(at_least=0, at_most=10**12), "steps of growth, fewer than the budget has"] = 0
    end: Annotated[float, Bounds(at_least=0, at_most=1), "the factor at the end of the budget"] = 0.0
    steps: Annotated[int, Bounds(at_least=0, at_most=10**12), "of each worker in the budget; 0: as the run has"] = 0

    def __post_init__(self) -> None:
        check(self)
        if 0 < self.steps <= self.warm:
            problem = f"must be fewer than the {self.steps} steps that each worker's share of the budget has"
            raise ConfigError("schedule", f"cosine:warm={self.warm}", f"{problem}: use a shorter one, or more pushes")

    @property
    def needs_budget(self) -> bool:
        return True

    def sized(self, lengths: Lengths) -> Cosine:
        """The schedule with the steps of a run of these lengths."""
        return self if self.steps else replace(self, steps=lengths.budget or 0)

    def factor(self, progress: float, epoch: float) -> float:
        step = progress * self.steps
        if step < self.warm:
            return min(1.0, (step + 1) / self.warm)
        warm = self.warm / self.steps if self.warm else 0.0
        angle = math.pi * (progress - warm) / (1.0 - warm)
        return self.end + (1.0 - self.end) * (1.0 + math.cos(angle)) / 2


@dataclass(frozen=True)
class WarmUp:
    """Linear growth from `start` to 1 over the first epochs, times another schedule, which sees the whole budget.

    With start = 1 / workers it is the gradual warm-up of large batches, which deep gradient compression begins with,
    too.

    Source: Goyal et al. (2017); Lin et al. (ICLR 2018)
    """

    epochs: Annotated[float, Bounds(above=0, at_most=1e6), "passes over the training data that it takes"]
    then: Annotated[str, "the other schedule, with semicolons for its commas, as in steps:0.1;at=0.5/0.75"] = "constant"
    start: Annotated[float, Bounds(at_least=0, at_most=1), "the first factor"] = 0.25

    def __post_init__(self) -> None:
        check(self)
        if isinstance(self.after, WarmUp) or (isinstance(self.after, Cosine) and self.after.warm > 0):
            raise ValueError("then must be another schedule, which does not warm up itself")

    @cached_property
    def after(self) -> Schedule:
        """The schedule that it is the beginning of."""
        schedule: Schedule = resolve("schedule", self.then.replace(";", ","))
        return schedule

    @property
    def needs_budget(self) -> bool:
        return self.after.needs_budget

    def factor(self, progress: float, epoch: float) -> float:
        ramp = min(1.0, self.start + (1.0 - self.start) * epoch / self.epochs)
        return ramp * self.after.factor(progress, epoch)
