"""The goal that runs are compared at, and the best of the choices that were tried."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pslab.config.metric import ACCURACY, Metric, metric_of, one_metric
from pslab.config.run import FIELDS, Run
from pslab.errors import ConfigError, nearest
from pslab.lab.records.grid_axes import CHOICE, GridPoint, key_of
from pslab.lab.records.record import Result
from pslab.lab.records.results import Choice, Results, single
from pslab.lab.records.summary import (
    MEASURES,
    By,
    best_accuracy,
    higher,
    measured,
)

PER_CENT = (30, 40, 50, 60, 70, 75, 80, 85, 88, 90, 92, 93, 94, 95, 96, 97, 97.5, 98, 98.5, 99)  # goals to speak of


def goal(
    results: Result | Iterable[Result], *, share: float = 0.5, within: float = 1.0, over: By = "learning_rate"
) -> float:
    """The best round accuracy (0 to 1), or value of the runs' metric, that this share of the groups reaches with every
    seed.

    A group is what differs in `over` and the seed alone, and reaches what it does with its best choice of `over`,
    within the first `within` of its pushes. The single machine is no group. If none is reached: the lowest of all.

    Raises:
        ConfigError: runs of several metrics.
    """
    found = results if isinstance(results, Results) else Results(results)
    runs = [result.run for result in found]
    metric = one_metric(runs)
    fixed = [name for name in FIELDS if name not in ("seed", *_names(over))]
    best: dict[tuple[Any, ...], dict[tuple[Any, ...], float]] = {}
    for result in found:
        if not single(result.run, runs):
            choices = best.setdefault(key_of(result.run, {}, fixed), {})
            choice = key_of(result.run, {}, _names(over))
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
    results: Result | Iterable[Result],
    *,
    over: By = "learning_rate",
    goal: float | None = None,
    measure: str = "seconds_to_goal",
) -> Results:
    """Of each group that differs in `over` and the seed alone, the results of its best choice; later captions say how.

    Best is the best median over seeds of the measure; of equals, or where none reaches the goal, the best final
    metric (a run that diverged has got nowhere); then the smaller value. By a measure of seconds, a run whose
    emulation was not kept counts as one that never reaches the goal.

    Raises:
        ConfigError: an unknown column or measure, or no goal where the measure needs one.
    """
    found = results if isinstance(results, Results) else Results(results)
    names = _names(over)
    for name in names:
        if name not in FIELDS:
            raise ConfigError("over", name, f"must be fields of Run; {nearest(name, FIELDS)}")
    rows = list(found.rows())
    groups: dict[tuple[Any, ...], dict[tuple[Any, ...], list[int]]] = {}
    for number, (_, run, point) in enumerate(rows):
        choices = groups.setdefault(_separate(run, point, names), {})
        choices.setdefault(key_of(run, point, names), []).append(number)
    noted: dict[int, dict[str, Choice]] = {}  # of the rows that are chosen
    for among in groups.values():
        rank = {choice: _rank(found, names, choice, [found[rows[number][0]] for number in own], measure, goal)
                for choice, own in among.items()}  # fmt: skip
        choice = min(rank, key=rank.__getitem__)
        aimed = goal if MEASURES[measure].to_goal else None
        how = Choice(" and ".join(names), _words(measure), aimed, len(among), _at_end(choice, among),
                     beyond(choice, among))  # fmt: skip
        noted |= dict.fromkeys(among[choice], {CHOICE: how} if len(among) > 1 else {})
    return found.at([(rows[number][0], {**rows[number][2], **noted[number]}) for number in sorted(noted)],
                    {name: found.levels(name) for name in dict.fromkeys([*FIELDS, *found.axes()])})  # fmt: skip


def _names(over: By) -> list[str]:
    return [over] if isinstance(over, str) else list(over)


def _words(measure: str) -> str:
    """A measure in a caption: ``"seconds"``, ``"time, held"``."""
    plain = measure.removesuffix("_to_goal")
    return MEASURES[measure].words if plain == measure else plain.replace("_", " ")


def _separate(run: Run, point: GridPoint, over: Sequence[str]) -> tuple[Any, ...]:
    """What a choice does not change: the other fields, and the other axes."""
    fields = [name for name in FIELDS if name not in ("seed", *over)]
    axes = sorted(name for name in point if name not in ("seed", CHOICE, *over, *FIELDS))
    return (*key_of(run, {}, fields), *key_of(run, point, axes))


def _rank(
    results: Results, names: Sequence[str], choice: Sequence[Any], group: Sequence[Result], measure: str,
    goal: float | None,
) -> tuple[float, float, tuple[float, ...]]:  # fmt: skip
    seconds = measure in MEASURES and MEASURES[measure].of_seconds
    values = [measured(r, measure, goal) if r.emulation_ok or not seconds else math.nan for r in group]
    metric = metric_of(group[0].run)
    sign = -1.0 if higher(measure, metric) else 1.0
    middle = float(np.median([sign * value if not math.isnan(value) else math.inf for value in values]))
    finals = [metric.worst if result.diverged else result.final for result in group]
    ends = float(np.median([metric.rank(metric.worst if math.isnan(final) else final) for final in finals]))
    places = tuple(float(value) if isinstance(value, (int, float)) else float(results.levels(name).index(value))
                   for name, value in zip(names, choice, strict=True))  # fmt: skip
    return middle, -ends, places


def _at_end(choice: Sequence[Any], among: Iterable[Sequence[Any]]) -> bool:
    """Whether one of the numbers chosen is the smallest or the largest that was tried."""
    return any(isinstance(value, (int, float)) and len({*tried}) > 1 and value in (min(tried), max(tried))
               for value, tried in zip(choice, zip(*among, strict=True), strict=True))  # fmt: skip


def beyond(choice: Sequence[Any], among: Iterable[Sequence[Any]]) -> float | None:
    """Where one number was chosen, and is at an end of those that were tried: the next one beyond it."""
    if len(choice) > 1 or not _at_end(choice, among):
        return None
    (value,), tried = choice, sorted({float(other[0]) for other in among})
    if tried[0] <= 0:
        return None
    following = float(value) ** 2 / (tried[-2] if value == tried[-1] else tried[1])
    return float(f"{following:.12g}")  # 0.8, not 0.8000000000000002
