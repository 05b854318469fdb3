"""The goal at which runs are compared, and the choice of the best value of a field, such as the learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pslab.config.metric import ACCURACY, Metric, metric_of, one_metric
from pslab.config.run import FIELDS
from pslab.errors import ConfigError, nearest
from pslab.lab.records.frames import By, Choice, Given, axes, fields_of, levels, results_in, single, unique, values
from pslab.lab.records.record import Result
from pslab.lab.records.summary import MEASURES, best_accuracy, higher, measured

PER_CENT = (30, 40, 50, 60, 70, 75, 80, 85, 88, 90, 92, 93, 94, 95, 96, 97, 97.5, 98, 98.5, 99)  # possible goals


def goal(results: Given, *, share: float = 0.5, within: float = 1.0, over: By = "learning_rate") -> float:
    """Return the best round accuracy (0 to 1), or value of the runs' metric, that this share of the groups reaches with
    every seed; the lowest round value if no other is reached.

    A group has the runs that differ only in `over` and the seed; it is judged by its best value of `over`, within the
    first share `within` of its pushes. The single machine does not count.

    Raises:
        ConfigError: the runs have several metrics.
    """
    compared = unique(results)
    runs = [result.run for result in compared]
    metric = one_metric(runs)
    fixed = [name for name in FIELDS if name not in ("seed", *_names(over))]
    best: dict[tuple[Any, ...], dict[tuple[Any, ...], float]] = {}
    for result in compared:
        if not single(result.run, runs):
            choices = best.setdefault(fields_of(result.run, fixed), {})
            choice = fields_of(result.run, _names(over))
            choices[choice] = min(choices.get(choice, math.inf), metric.rank(best_accuracy(result, within)))
    reached = sorted(max(choices.values()) for choices in best.values())
    if not reached:
        return rounded(metric.worst, metric)
    return rounded(metric.rank(reached[min(len(reached) - 1, int(len(reached) * (1 - share) + 1e-9))]), metric)


def rounded(value: float, metric: Metric = ACCURACY) -> float:
    """Return the best round value that is not better than `value`. An accuracy becomes one of PER_CENT, at least the
    lowest; a value of another metric becomes a number of two digits."""
    if metric.share:
        return max((level / 100 for level in PER_CENT if level / 100 <= value + 1e-9), default=PER_CENT[0] / 100)
    if not math.isfinite(value) or value == 0:
        return value
    step = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    steps = math.floor(metric.rank(value) / step + 1e-9)  # rounded in the direction that is not better
    return float(f"{metric.rank(steps * step):.12g}")


def best(
    results: Given, *, over: By = "learning_rate", goal: float | None = None, measure: str = "seconds_to_goal"
) -> pd.DataFrame:
    """Return the rows with the best value of `over` in each group of runs that differ only in `over` and the seed, and
    add a column `choice` for captions (see Choice).

    The best value has the best median of the measure over seeds; among equals, or if none reaches the goal, the best
    final metric (a diverged run counts as the worst); then the smaller value wins. For a measure in seconds, a run
    whose emulation was not kept counts as never reaching the goal.

    Raises:
        ConfigError: the column or measure is unknown, or the measure needs a goal and none is given.
    """
    frame, names = results_in(results), _names(over)
    for name in names:
        if name not in FIELDS:
            raise ConfigError("over", name, f"is not a field of Run; {nearest(name, FIELDS)}")
    orders = {name: levels(frame, name) for name in names}
    choices = [*zip(*(values(frame, name) for name in names), strict=True)]
    groups: dict[tuple[Any, ...], dict[tuple[Any, ...], list[int]]] = {}
    for row, group in enumerate(_separate(frame, names)):
        groups.setdefault(group, {}).setdefault(choices[row], []).append(row)
    chosen: dict[int, Choice | None] = {}  # for each row
    for among in groups.values():
        rank = {choice: (*_rank([frame.result.iloc[row] for row in rows], measure, goal), _size(choice, orders))
                for choice, rows in among.items()}  # fmt: skip
        choice = min(rank, key=rank.__getitem__)
        aim = goal if MEASURES[measure].to_goal else None
        how = Choice(" and ".join(names), _words(measure), aim, len(among), _at_end(choice, among),
                     beyond(choice, among))  # fmt: skip
        chosen |= dict.fromkeys(among[choice], how if len(among) > 1 else None)
    rows = sorted(chosen)
    before = list(frame.get("choice", [None] * len(frame)))
    notes = [chosen[row] or before[row] for row in rows]
    return frame.iloc[rows].assign(choice=np.array(notes, dtype=object))


def _names(over: By) -> list[str]:
    return [over] if isinstance(over, str) else list(over)


def _words(measure: str) -> str:
    # a measure's name in a caption: "seconds", "time, held"
    plain = measure.removesuffix("_to_goal")
    return MEASURES[measure].words if plain == measure else plain.replace("_", " ")


def _separate(frame: pd.DataFrame, over: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return for each row the values of all fields and axes except `over` and the seed; equal rows form a group."""
    fields = [name for name in FIELDS if name not in ("seed", *over)]
    others = [values(frame, name) for name in sorted({*axes(frame)} - {"seed", *over, *FIELDS})]
    return [(*fields_of(run, fields), *cells) for run, *cells in zip(frame.run, *others, strict=True)]


def _rank(group: Sequence[Result], measure: str, goal: float | None) -> tuple[float, float]:
    seconds = measure in MEASURES and MEASURES[measure].of_seconds
    readings = [measured(r, measure, goal) if r.emulation_ok or not seconds else math.nan for r in group]
    metric = metric_of(group[0].run)
    sign = -1.0 if higher(measure, metric) else 1.0
    middle = float(np.median([sign * value if not math.isnan(value) else math.inf for value in readings]))
    finals = [metric.worst if result.diverged else result.final for result in group]
    ends = float(np.median([metric.rank(metric.worst if math.isnan(final) else final) for final in finals]))
    return middle, -ends


def _size(choice: Sequence[Any], orders: Mapping[str, Sequence[Any]]) -> tuple[float, ...]:
    # numbers, or else the rank of a value in the grid
    return tuple(float(value) if isinstance(value, (int, float)) else float(known.index(value))
                 for value, known in zip(choice, orders.values(), strict=True))  # fmt: skip


def _at_end(choice: Sequence[Any], among: Iterable[Sequence[Any]]) -> bool:
    # whether one of the chosen numbers is the smallest or the largest that was tried
    numbers = [[value for value in tried if isinstance(value, (int, float))] for tried in zip(*among, strict=True)]
    return any(isinstance(value, (int, float)) and len({*tried}) > 1 and value in (min(tried), max(tried))
               for value, tried in zip(choice, numbers, strict=True))  # fmt: skip


def beyond(choice: Sequence[Any], among: Iterable[Sequence[Any]]) -> float | None:
    """Return the next number to try, at the ratio of the last two, if the choice is the smallest or largest number
    tried. Return None if it is not, if several fields were varied, or if a number is not positive."""
    if len(choice) > 1 or not _at_end(choice, among):
        return None
    (value,), tried = choice, sorted({float(pair[0]) for pair in among if isinstance(pair[0], (int, float))})
    if tried[0] <= 0:
        return None
    following = float(value) ** 2 / (tried[-2] if value == tried[-1] else tried[1])
    return float(f"{following:.12g}")  # 0.8, not 0.8000000000000002
