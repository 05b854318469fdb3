"""How speed is measured: calls that are compared take turns, and each measurement is a ratio of medians."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

from pslab.tensors.device import one_thread


@dataclass(frozen=True)
class Row:
    """One measurement.

    Args:
        value: in `unit`.
        against: what it is compared with.
        ratio: the value divided by that of `against`.
        bar: the largest ratio that reaches the goal; None if there is no goal.
    """

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
        """Whether the bar is reached; "" if there is none."""
        return "" if self.bar is None else "reached" if self.ratio <= self.bar else "missed"

    def plain(self) -> dict[str, Any]:
        """The row as JSON values."""
        return {**asdict(self), "verdict": self.verdict}


def interleaved(calls: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Median seconds per call. The calls take turns, so that a busy moment of the machine affects all of them."""
    for call in calls.values():
        call()  # without first touches of memory and compilations
    spent: dict[str, list[float]] = {name: [] for name in calls}
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s or min(map(len, spent.values())) < 3:
        for name, call in calls.items():
            start_s = time.perf_counter()
            call()
            spent[name].append(time.perf_counter() - start_s)
    return {name: median(found) for name, found in spent.items()}


def alternated(calls: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """Medians of what the calls themselves measure; they take turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            found[name].append(call())
    return {name: median(values) for name, values in found.items()}


def copy_s(size: int, seconds: float) -> float:
    """Seconds of one copy of `size` float32 on one thread, measured for some seconds."""
    source, target = torch.zeros(size), torch.zeros(size)
    with one_thread():
        return interleaved({"copy": lambda: target.copy_(source)}, seconds)["copy"]
