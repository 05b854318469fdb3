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
    """A learning-rate schedule. An optional method `sized(lengths)` returns the schedule for a run of these lengths."""

    @property
    def needs_budget(self) -> bool:
        """Whether the factor depends on progress, so that the run needs a budget of pushes."""

    def factor(self, progress: float, epoch: float) -> float:
        """Return the factor of the learning rate. `progress`, from 0 to 1, is the share of the budget of pushes applied
        before this step; `epoch` is the number of passes over the training data in these pushes."""


@dataclass(frozen=True)
class Steady:
    """The learning rate does not change."""

    @property
    def needs_budget(self) -> bool:
        return False

    def factor(self, progress: float, epoch: float) -> float:
        return 1.0


@dataclass(frozen=True)
class Linear:
    """Linear decay from the full rate to zero at the end of the budget."""

    @property
    def needs_budget(self) -> bool:
        return True

    def factor(self, progress: float, epoch: float) -> float:
        return max(0.0, 1.0 - progress)


@dataclass(frozen=True)
class Steps:
    """The rate is multiplied by `factor_each` at each share of the budget in `at`."""

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
    """Linear growth to the full rate in the first steps, then half a cosine wave down to 0 or to a share of the rate.

    A step is one gradient of each worker, so `warm` steps are `warm` x `workers` pushes. Step t of the growth, counted
    from 0, has the factor (t + 1) / warm.

    Source: Loshchilov and Hutter (ICLR 2017)
    """

    warm: Annotated[int, Bounds(at_least=0, at_most=10**12), "steps of growth, fewer than in the budget"] = 0
    end: Annotated[float, Bounds(at_least=0, at_most=1), "the factor at the end of the budget"] = 0.0
    steps: Annotated[
        int, Bounds(at_least=0, at_most=10**12), "of each worker in the budget; 0: by the run's budget"
    ] = 0

    def __post_init__(self) -> None:
        check(self)
        if 0 < self.steps <= self.warm:
            problem = f"warm must be fewer than the {self.steps} steps of each worker in the budget"
            raise ConfigError("schedule", f"cosine:warm={self.warm}", f"{problem}: lower warm, or raise pushes")

    @property
    def needs_budget(self) -> bool:
        return True

    def sized(self, lengths: Lengths) -> Cosine:
        """Return the schedule with `steps` by the budget of these lengths, unless `steps` is given."""
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
    """Linear growth from `start` to 1 over the first epochs, times another schedule over the whole budget.

    With start = 1 / workers this is the gradual warm-up of large batches, which deep gradient compression also uses.

    Source: Goyal et al. (2017); Lin et al. (ICLR 2018)
    """

    epochs: Annotated[float, Bounds(above=0, at_most=1e6), "passes over the training data during the growth"]
    then: Annotated[str, "the other schedule, with semicolons for its commas, as in steps:0.1;at=0.5/0.75"] = "constant"
    start: Annotated[float, Bounds(at_least=0, at_most=1), "the first factor"] = 0.25

    def __post_init__(self) -> None:
        check(self)
        if isinstance(self.after, WarmUp) or (isinstance(self.after, Cosine) and self.after.warm > 0):
            raise ValueError("then must be a schedule without a warm-up, such as linear")

    @cached_property
    def after(self) -> Schedule:
        """Return the schedule that multiplies the growth."""
        schedule: Schedule = resolve("schedule", self.then.replace(";", ","))
        return schedule

    @property
    def needs_budget(self) -> bool:
        return self.after.needs_budget

    def factor(self, progress: float, epoch: float) -> float:
        ramp = min(1.0, self.start + (1.0 - self.start) * epoch / self.epochs)
        return ramp * self.after.factor(progress, epoch)
