"""How speed is measured: in turn with what it is compared with, medians, and each figure as a ratio."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Row:
    """One figure. `ratio`: how many times what `against` names; `bar`: the ratio to reach, at most."""

    section: str
    name: str
    value: float
    unit: str
    against: str
    ratio: float
    bar: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """Whether the bar is reached; nothing where there is none."""
        return "" if self.bar is None else "reached" if self.ratio <= self.bar else "missed"

    def plain(self) -> dict[str, Any]:
        """The row as JSON can hold it."""
        return {**asdict(self), "verdict": self.verdict}


def interleaved(calls: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Median seconds per call. The calls take turns, so that a busy moment of the machine hits all of them alike."""
    for call in calls.values():
        call()  # first touches and compilations are nobody's speed
    spent: dict[str, list[float]] = {name: [] for name in calls}
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s or min(map(len, spent.values())) < 3:
        for name, call in calls.items():
            begin_s = time.perf_counter()
            call()
            spent[name].append(time.perf_counter() - begin_s)
    return {name: median(found) for name, found in spent.items()}


def alternated(calls: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """Medians of what the calls themselves measure, taken in turn."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            found[name].append(call())
    return {name: median(values) for name, values in found.items()}
