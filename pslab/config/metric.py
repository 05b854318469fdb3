"""The metric of an evaluation, for engines, tables and figures: its name and its direction."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

from pslab.config.table import find
from pslab.errors import ConfigError

LOWER = ":lower"  # ends the name of a user's metric if lower is better: records are read without the user's module
SLACK = 1e-11  # tolerance of a goal, which may be the rounded quotient of two numbers


class Measured(Protocol):
    """An object with a metric: a Run, or the run in a record."""

    @property
    def metric(self) -> object: ...
    @property
    def loss(self) -> object: ...
    @property
    def data(self) -> object: ...


@dataclass(frozen=True)
class Metric:
    """The number by which runs are compared. The accuracy is a share, 0 to 1, and is written in per cent."""

    name: str = "accuracy"
    lower: bool = False  #: whether lower is better
    share: bool = True
    unit: str = ""  #: such as ``"nats per byte"``; "" if the metric has none

    @property
    def in_unit(self) -> str:
        """Return the unit as the end of a title, ``" (nats per byte)"``; "" without a unit."""
        return f" ({self.unit})" if self.unit else ""

    @property
    def worst(self) -> float:
        """Return the worst value that the metric can have."""
        return 0.0 if self.share else math.inf if self.lower else -math.inf

    def rank(self, value: float) -> float:
        """Return a number that is higher if the value is better."""
        return -value if self.lower else value

    def reaches(self, value: float, goal: float) -> bool:
        """Whether a value is at least as good as the goal; a value that is not finite never is."""
        return math.isfinite(value) and self.rank(value) >= self.rank(goal) - SLACK * max(1.0, abs(goal))

    def best(self, values: Iterable[float]) -> float:
        """Return the best of some values; `worst` if there are none."""
        return max(values, key=self.rank, default=self.worst)

    def text(self, value: float, space: str = "") -> str:
        """Return a value in words, ``"97.12%"`` or ``"mean error 0.05"``; `space` is put before the per cent sign."""
        return f"{100 * value:.2f}{space}%" if self.share else f"{self.name} {value:.4g}"

    def goal(self, value: float, space: str = "") -> str:
        """Return a goal, which has few digits, in words: ``"97%"`` or ``"mean error 0.05"``."""
        return f"{100 * value:g}{space}%" if self.share else f"{self.name} {value:g}"

    def check_goal(self, field: str, goal: Any) -> None:
        """Refuse a goal that the metric cannot have, such as 85 where 85 % is meant: a ConfigError about `field`."""
        number = isinstance(goal, Real) and math.isfinite(goal)
        if not number or (self.share and not 0 < goal <= 1):
            bounds = "above 0 and at most 1" if self.share else f"that the {self.name} can reach"
            percent = f": {goal:g}\u00a0% is {goal / 100:g}" if number and self.share and 1 < goal <= 100 else ""
            raise ConfigError(field, goal, f"must be a number {bounds}{percent}")


def medians(values: Sequence[float]) -> list[float]:
    """Return the running medians of three consecutive evaluations, one fewer than there are evaluations: the first of
    them is the median of the first evaluation, counted twice, and the second."""
    return [sorted(three)[1] for three in zip([*values[:1], *values], values, values[1:], strict=False)]


ACCURACY = Metric()


def metric_of(run: Measured) -> Metric:
    """Return the metric of a run, or of the run in a record."""
    given = run.metric
    if not isinstance(given, str):
        name = getattr(given, "__name__", type(given).__name__)
        return Metric(_words(name), bool(getattr(given, "lower_is_better", False)), share=False)
    name, name_of_own, rest = given.partition("#")
    if name_of_own:
        return Metric(_words(name), rest.endswith(LOWER), share=False)
    _, colon, path = given.removesuffix(LOWER).partition(":")
    if colon:
        return Metric(_words(path.rpartition(".")[2]), given.endswith(LOWER), share=False)
    return ACCURACY if name.strip().lower() == ACCURACY.name else loss_of(run)


def loss_of(run: Measured) -> Metric:
    """Return the mean test loss of a run as a metric, in nats per byte if it is the cross-entropy of bytes."""
    units = [row.unit if (row := find(kind, value)) else "" for kind, value in (("loss", run.loss), ("data", run.data))]
    return Metric("loss", lower=True, share=False, unit=" per ".join(units) if all(units) else "")


def one_metric(runs: Iterable[Measured]) -> Metric:
    """Return the metric that all these runs share; the accuracy if there are no runs.

    Raises:
        ConfigError: the runs have several metrics.
    """
    metrics = [*dict.fromkeys(map(metric_of, runs))]
    if len(metrics) > 1:
        names = " and ".join(metric.name + metric.in_unit for metric in metrics)
        field = "metric" if len({metric.name for metric in metrics}) > 1 else "data"  # or the loss
        raise ConfigError(
            "metric", names, f"these runs cannot be compared: keep one {field} with results.where({field}=...)"
        )
    return metrics[0] if metrics else ACCURACY


def _words(name: str) -> str:
    return name.strip("<>").replace("_", " ")
