"""Schedules: the factor of the learning rate over the run's budget of pushes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

from pslab.config.parameters import Bounds, check


class Schedule(Protocol):
    """A learning-rate schedule."""

    @property
    def needs_budget(self) -> bool:
        """Whether the factor depends on progress: then the run needs a budget of pushes."""

    def factor(self, progress: float) -> float:
        """The factor at `progress`: pushes applied before this step / budget, from 0 to 1."""


@dataclass(frozen=True)
class Steady:
    """The same rate throughout."""

    @property
    def needs_budget(self) -> bool:
        return False

    def factor(self, progress: float) -> float:
        return 1.0


@dataclass(frozen=True)
class Linear:
    """Linear decay to zero at the end of the budget."""

    @property
    def needs_budget(self) -> bool:
        return True

    def factor(self, progress: float) -> float:
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

    def factor(self, progress: float) -> float:
        return self.factor_each ** sum(progress >= share for share in self.shares)
