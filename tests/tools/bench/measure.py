"""How speed is measured: calls that are compared take turns, and each measurement is a ratio of medians."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, NamedTuple

from pslab.config.run import Run
from pslab.engines.execute import execute
from pslab.lab.runs.resolve import resolve

SCALES = {"s": 1.0, "ms": 1e3, "us": 1e6, "%": 100.0}  # units in which figures are shown


class Row(NamedTuple):
    """One measurement and its reference, both in seconds or both shares."""

    name: str
    ours: float
    reference: float
    against: str  #: the reference in words
    bar: float | None = None  #: the largest ratio of ours to the reference that reaches the goal, if there is one
    unit: str = "ms"  #: of SCALES
    note: str = ""

    def plain(self, section: str) -> dict[str, Any]:
        """Return the row as JSON values."""
        ratio = self.ours / self.reference
        verdict = "" if self.bar is None else "reached" if ratio <= self.bar else "missed"
        return {"section": section, "name": self.name, "value": self.ours * SCALES[self.unit], "unit": self.unit,
                "against": self.against, "ratio": ratio, "bar": self.bar, "note": self.note,
                "verdict": verdict}  # fmt: skip


def interleaved(calls: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Return median seconds per call. The calls take turns: a busy moment of the machine affects all of them."""
    for call in calls.values():
        call()  # without first touches of memory and compilations
    until_s, times, spent = time.perf_counter() + seconds, 0, dict[str, list[float]]()
    while time.perf_counter() < until_s or times < 3:
        for name, call in calls.items():
            start_s = time.perf_counter()
            call()
            spent.setdefault(name, []).append(time.perf_counter() - start_s)
        times += 1
    return {name: median(found) for name, found in spent.items()}


def alternated(calls: Mapping[Any, Callable[[], float]], repeats: int) -> dict[Any, float]:
    """Return medians of what the calls themselves measure; they take turns."""
    found = [{name: call() for name, call in calls.items()} for _ in range(repeats)]
    return {name: median(values[name] for values in found) for name in calls}


def facts_of(run: Run) -> dict[str, Any]:
    """Return the facts of a run on its engine, which is not recorded."""
    return execute(resolve(run), ignore).facts


def ignore(news: dict[str, Any]) -> None:
    """Show no progress of a run."""
