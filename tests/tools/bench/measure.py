"""How speed is measured: calls that are compared take turns, and each measurement is a ratio of medians."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from pslab.config.run import Run
from pslab.engines.execute import execute
from pslab.lab.runs.resolve import resolve
from pslab.tensors.device import one_thread

SCALES = {"s": 1.0, "ms": 1e3, "us": 1e6, "%": 100.0, "GiB": 2.0**-30}  # units in which figures are shown


@dataclass(frozen=True)
class Row:
    """One measurement, and the reference that it is compared with.

    Args:
        ours, reference: in seconds, or in bytes, shares, ... where `unit` is no unit of time.
        against: the reference in words.
        bar: the largest ratio of ours to the reference that reaches the goal; None if there is no goal.
        unit: in which ours is shown.
    """

    name: str
    ours: float
    reference: float
    against: str
    bar: float | None = None
    unit: str = "ms"
    note: str = ""

    @property
    def value(self) -> float:
        """What is measured, in its unit."""
        return self.ours * SCALES.get(self.unit, 1.0)

    @property
    def ratio(self) -> float:
        """To the reference."""
        return self.ours / self.reference

    @property
    def verdict(self) -> str:
        """Whether the bar is reached; "" if there is none."""
        return "" if self.bar is None else "reached" if self.ratio <= self.bar else "missed"

    def plain(self, section: str) -> dict[str, Any]:
        """The row as JSON values."""
        return {"section": section, "name": self.name, "value": self.value, "unit": self.unit, "against": self.against,
                "ratio": self.ratio, "bar": self.bar, "note": self.note, "verdict": self.verdict}  # fmt: skip


def interleaved(calls: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Median seconds per call. The calls take turns, so that a busy moment of the machine affects all of them."""
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
    """Medians of what the calls themselves measure; they take turns."""
    found = [{name: call() for name, call in calls.items()} for _ in range(repeats)]
    return {name: median(values[name] for values in found) for name in calls}


def facts_of(run: Run) -> dict[str, Any]:
    """What a run says of itself, on its engine and without a record."""
    return execute(resolve(run), ignore).facts


def ignore(news: dict[str, Any]) -> None:
    """Show no progress of a run."""


def copy_s(size: int, seconds: float) -> float:
    """Seconds of one copy of `size` float32 on one thread, measured for some seconds."""
    source, target = torch.zeros(size), torch.zeros(size)
    with one_thread():
        return interleaved({"copy": lambda: target.copy_(source)}, seconds)["copy"]
