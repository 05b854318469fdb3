"""The goal that runs are compared at, and the best of the choices that were tried."""

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

PER_CENT = (30, 40, 50, 60, 70, 75, 80, 85, 88, 90, 92, 93, 94, 95, 96, 97, 97.5, 98, 98.5, 99)  # goals to speak of


def goal(
    results: Given, *, share: float = 0.5, within: float = 1.0, over: By = "learning_rate"
) -> float:
    """The best round accuracy (0 to 1), or value of the runs' metric, that this share of the groups reaches with every
    seed.

    A group is what differs in `over` and the seed alone, and reaches what it does with its best choice of `over`,
    within the first `within` of its pushes. The single machine is no group. If none is reached: the lowest of all.

    Raises:
        ConfigError: runs of several metrics.
    """
    found = unique(results)
    runs = [result.run for result in found]
    metric = one_metric(runs)
    fixed = [name for name in FIELDS if name not in ("seed", *_names(over))]
    best: dict[tuple[Any, ...], dict[tuple[Any, ...], float]] = {}
    for result in found:
        if not single(result.run, runs):
            choices = best.setdefault(fields_of(result.run, fixed), {})
            choice = fields_of(result.run, _names(over))
            choices[choice] = min(choices.get(choice, math.inf), metric.rank(best_accuracy(result, within)))
    reached = sorted(max(choices.values()) for choices in best.values())
    if not reached:
        return rounded(metric.worst, metric)
    return rounded(metric.rank(reached[min(len(reached) - 1, int(len(reached) * (1 - share) + 1e-9))]), metric)


def rounded(value: float, metric: Metric = ACCURACY) -> float:
    """The best round value that is not better than this one: of two digits; of accuracies one of PER_CENT, or the
    lowest of them."""
    if metric.share:
        return max((level / 100 for level in PER_CENT if level / 100 <= value + 1e-9), default=PER_CENT[0] / 100)
    if not math.isfinite(value) or value == 0:
        return value
    step = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    steps = math.floor(metric.rank(value) / step + 1e-9)  # in the direction that is not better
    return float(f"{metric.rank(steps * step):.12g}")


def best(
    results: Given, *, over: By = "learning_rate", goal: float | None = None, measure: str = "seconds_to_goal"
) -> pd.DataFrame:
    """Return the rows of the best choice of each group that differs in `over` and the seed alone, with a column
    `choice`, which captions read: the best of how many, and whether at an end.

    Best is the best median over seeds of the measure; of equals, or where none reaches the goal, the best final
    metric (a run that diverged counts as the worst); then the smaller value. By a measure of seconds, a run whose
    emulation was not kept counts as one that never reaches the goal.

    Raises:
        ConfigError: an unknown column or measure, or no goal where the measure needs one.
    """
    frame, names = results_in(results), _names(over)
    for name in names:
        if name not in FIELDS:
            raise ConfigError("over", name, f"must be fields of Run; {nearest(name, FIELDS)}")
    orders = {name: levels(frame, name) for name in names}
    choices = [*zip(*(values(frame, name) for name in names), strict=True)]
    groups: dict[tuple[Any, ...], dict[tuple[Any, ...], list[int]]] = {}
    for row, group in enumerate(_separate(frame, names)):
        groups.setdefault(group, {}).setdefault(choices[row], []).append(row)
    chosen: dict[int, Choice | None] = {}  # by row
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
    """A measure in a caption: ``"seconds"``, ``"time, held"``."""
    plain = measure.removesuffix("_to_goal")
    return MEASURES[measure].words if plain == measure else plain.replace("_", " ")


def _separate(frame: pd.DataFrame, over: Sequence[str]) -> list[tuple[Any, ...]]:
    """For each row the values that a choice does not change: the other fields of the run, and the other axes."""
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
    """A choice as numbers: other values by their rank in the grid."""
    return tuple(float(value) if isinstance(value, (int, float)) else float(known.index(value))
                 for value, known in zip(choice, orders.values(), strict=True))  # fmt: skip


def _at_end(choice: Sequence[Any], among: Iterable[Sequence[Any]]) -> bool:
    """Whether one of the numbers chosen is the smallest or the largest that was tried."""
    numbers = [[value for value in tried if isinstance(value, (int, float))] for tried in zip(*among, strict=True)]
    return any(isinstance(value, (int, float)) and len({*tried}) > 1 and value in (min(tried), max(tried))
               for value, tried in zip(choice, numbers, strict=True))  # fmt: skip


def beyond(choice: Sequence[Any], among: Iterable[Sequence[Any]]) -> float | None:
    """The next number beyond the chosen one, if that is at an end of the tried ones; else None."""
    if len(choice) > 1 or not _at_end(choice, among):
        return None
    (value,), tried = choice, sorted({float(each[0]) for each in among if isinstance(each[0], (int, float))})
    if tried[0] <= 0:
        return None
    following = float(value) ** 2 / (tried[-2] if value == tried[-1] else tried[1])
    return float(f"{following:.12g}")  # 0.8, not 0.8000000000000002
