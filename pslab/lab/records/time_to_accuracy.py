"""When runs reach an accuracy, and which learning rate of a grid gets there soonest.

A run is there at its first evaluation at or above the accuracy. Nothing is interpolated: it is right to one period of
evaluation. A seed that never gets there counts as later than all others, and is never left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pslab.lab.records.record import Result

PER_CENT = (30, 40, 50, 60, 70, 75, 80, 85, 88, 90, 92, 93, 94, 95, 96, 97, 97.5, 98, 98.5, 99)  # to speak of
Grid = Mapping[float, Sequence["Result"]]  # learning rate -> the results of each seed


def first(result: Result, accuracy: float) -> dict[str, float]:
    """Seconds, iterations and pushes at a run's first evaluation at or above `accuracy`; NaN if there is none."""
    evaluated = result.accuracy
    there = np.flatnonzero(evaluated.accuracy.to_numpy() >= accuracy - 1e-11)
    if not len(there):
        return dict.fromkeys(("seconds", "iterations", "pushes"), math.nan)
    seconds, pushes = (float(evaluated[name].to_numpy()[there[0]]) for name in ("seconds", "pushes"))
    return {"seconds": seconds, "iterations": pushes / result.run.workers, "pushes": pushes}


def arrival(result: Result, accuracy: float, measure: str) -> float:
    """One of the measures of `first`; infinite if the run never gets there."""
    at = first(result, accuracy)[measure]
    return math.inf if math.isnan(at) else at


def middle(results: Sequence[Result], accuracy: float, measure: str = "seconds") -> float:
    """The median over seeds of `arrival`."""
    return float(np.median([arrival(result, accuracy, measure) for result in results]))


def final(result: Result) -> float:
    """The last evaluation's accuracy, 0 to 1."""
    return float(result.accuracy.accuracy.iloc[-1])


def ends(results: Sequence[Result]) -> float:
    """The median over seeds of the final accuracy; a run that diverged has got nowhere."""
    return float(np.median([np.nan_to_num(final(result)) for result in results]))


def best_rate(grid: Grid, accuracy: float, measure: str = "seconds") -> float:
    """The learning rate that is soonest there; where none is, or of equals, the higher end; then the smaller one."""
    return min(grid, key=lambda rate: (middle(grid[rate], accuracy, measure), -ends(grid[rate]), rate))


def rounded(accuracy: float) -> float:
    """The highest round accuracy (0 to 1) that is not above this one; the lowest of all if there is none."""
    return max((level / 100 for level in PER_CENT if level / 100 <= accuracy + 1e-9), default=PER_CENT[0] / 100)


def round_below(bests: Sequence[float]) -> float:
    """The highest round accuracy that at least half of these reach."""
    return rounded(sorted(bests)[len(bests) // 2] if bests else 0.0)
