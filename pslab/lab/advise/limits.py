"""What the advised policy has to keep, such as a number of bytes, or a final accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pslab.config.metric import Metric
from pslab.errors import ConfigError, PslabError, nearest
from pslab.lab.records.merit import MERITS
from pslab.lab.records.record import Result
from pslab.lab.records.summary import MEASURES, higher, measured, unit_of


class LimitsBroken(PslabError):
    """Every policy that holds the target breaks a limit; the runs are records."""


class Limits:
    """Bounds on what a run needs until it holds a target (seconds, bytes, gradients), or on other measures of
    `summary`: at least so much where more is better, as of the accuracy, and at most so much elsewhere.

    Raises:
        ConfigError: they are no mapping to numbers, or one of an unknown measure.
    """

    def __init__(self, given: Mapping[str, float], metric: Metric) -> None:
        if not isinstance(given, Mapping):
            raise ConfigError("limits", given, "must map measures to numbers, as in {'bytes': 1e9, 'accuracy': 0.9}")
        self.given, self._metric = dict(given), metric
        for name, limit in self.given.items():
            if name not in MERITS and name not in MEASURES:
                raise ConfigError("limits", name, nearest(str(name), {*MERITS, *MEASURES}))
            if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not math.isfinite(limit):
                raise ConfigError("limits", {name: limit}, "must be a number, such as 1e9")

    @property
    def whole(self) -> bool:
        """Whether one of them is on a whole run, to its last push: such as on the accuracy that it ends with."""
        return not all(MEASURES[_measure(name)].to_goal for name in self.given)

    def broken(self, result: Result, target: float) -> str:
        """The limits that a run breaks, and what it has instead: ``"breaks bytes ≤ 1.0 GB: 3.2 GB"``; "" if it keeps
        them, or does not hold the target."""
        if math.isinf(measured(result, "held_pushes", target)):
            return ""
        found = []
        for name, limit in self.given.items():
            measure = _measure(name)
            value, least = measured(result, measure, target), higher(measure, self._metric)
            if not (value >= limit if least else value <= limit):
                text = MERITS[name].text if name in MERITS else unit_of(measure, self._metric).form
                has = text(value) if math.isfinite(value) else "none"
                found.append(f"{name} {'≥' if least else '≤'} {text(limit)}: {has}")
        return f"breaks {', '.join(found)}" if found else ""


def _measure(name: str) -> str:
    return MERITS[name].measure if name in MERITS else name
