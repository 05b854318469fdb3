"""Results in one table: measures of runs, as the median and the range over seeds.

A run reaches a goal at its first evaluation that is at least as good; nothing is interpolated. If a run never reaches
the goal, the measure is infinity, so a median exists only if more than half of the seeds reach the goal. One lucky
evaluation is enough to reach a goal; `held_s`, `held_pushes` and `held_bytes` are stricter and interpolate: see `held`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from shutil import get_terminal_size
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from pslab.config.metric import ACCURACY, Metric, medians, metric_of, one_metric
from pslab.errors import ConfigError, nearest
from pslab.lab.records.card import recovered
from pslab.lab.records.frames import By, Given, columns_of, groups, results_in, single, unique
from pslab.lab.records.intervals import lead, waiting
from pslab.lab.records.record import Result
from pslab.lab.records.results import evaluations
from pslab.lab.records.units import DASH, SPACE, UNITS, Unit, plain

MIDDLE = 0.1  # share of a run's pushes that `iteration_s` leaves out at the start, and as many at the end
Seeds = Sequence[tuple[int, float]]  # the value of each seed


# -- measures --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """A number measured on a finished run; `of` computes it from the result and the goal, and may return inf or NaN."""

    words: str
    unit: str  #: s, B, share, pushes, iterations, pushes/s, steps
    of: Callable[[Result, float], float]
    of_seconds: bool = False  #: whether it depends on seconds, which mean nothing if the emulation was not kept
    to_goal: bool = False
    counted: str = "reached"  #: for a measure to the goal, the summary's column with the number of seeds that reach it
    higher: bool = False  #: whether more is better
    exchange: bool = False  #: whether it is about messages between workers and server; a single machine sends none


def arrival(column: str) -> Callable[[Result, float], float]:
    """Return a measure: a column's value at the first evaluation that is as good as the goal; infinity without one."""

    def at(result: Result, goal: float) -> float:
        table, metric = evaluations(result), metric_of(result.run)
        reached = np.flatnonzero([metric.reaches(value, goal) for value in table.accuracy])
        return float(table[column].to_numpy()[reached[0]]) if len(reached) else math.inf

    return at


def held(result: Result, goal: float) -> tuple[float, float]:
    """Return the seconds and pushes at which a run holds the goal; both are infinite if it never does.

    A run holds the goal when the running median of three evaluations (the previous, this one and the next) first is as
    good as the goal; the point is interpolated linearly between this median and the previous one. The first evaluation
    also counts as its own previous one; the last evaluation has no next one, and cannot hold a goal.
    """
    seconds, pushes = held_at(result, goal, "seconds", "pushes")
    return seconds, pushes


def held_at(result: Result, goal: float, *columns: str) -> tuple[float, ...]:
    """Return the values of some columns of `evaluations` at the point where a run holds the goal; see `held`."""
    table, metric = evaluations(result), metric_of(result.run)
    middle, places = medians(table.accuracy.tolist()), table[list(columns)].to_numpy(float)
    first = next((at for at, value in enumerate(middle) if metric.reaches(value, goal)), None)
    if first is None:
        return (math.inf,) * len(columns)
    reached = places[first]
    if first > 0:  # the goal may equal the median up to the tolerance of `reaches`
        share = min(1.0, (goal - middle[first - 1]) / (middle[first] - middle[first - 1]))
        reached = places[first - 1] + share * (places[first] - places[first - 1])
    return tuple(map(float, reached))


def best_accuracy(result: Result, within: float = 1.0) -> float:
    """Return the best evaluation by the run's metric within the first share `within` of the run's pushes."""
    table = evaluations(result)
    early = table[table.pushes <= within * table.pushes.max()] if len(table) else table
    return float(metric_of(result.run).best(early.accuracy))


def applied(result: Result) -> int:
    """Return the number of applied gradients, without dropped pushes and pushes that still waited for their step."""
    return int(result.manifest["pushes"])


def iteration_s(result: Result) -> float:
    """Return the mean seconds in which as many gradients are applied as there are workers, in the middle of the run.

    The first and the last tenth of the pushes are left out: the start and the end of a run are not typical. If workers
    differ in speed, this is not the time of any one worker's iteration.
    """
    pushes = result.pushes.sort_values("seconds", kind="stable").drop_duplicates(["worker", "iteration"], keep="last")
    instants, workers = pushes.seconds.to_numpy(float), result.run.workers
    gradients = applied(result) / len(instants) if len(instants) else math.nan  # several a push under local SGD
    first = workers * math.ceil(MIDDLE * len(instants) / workers)
    last = workers * math.floor((1 - MIDDLE) * len(instants) / workers)
    if not 0 < first < last:
        return result.seconds * workers / applied(result) if applied(result) else math.nan
    return float((instants[last - 1] - instants[first - 1]) / (last - first) * workers / gradients)


def _rate(result: Result) -> float:
    return applied(result) / result.seconds if result.seconds > 0 else math.nan


def _total(column: str) -> Callable[[Result, float], float]:
    return lambda result, goal: float(result.pushes[column].sum())


def _crossed(result: Result) -> float:
    """Return the manifest's bytes across the network; without this fact, the bytes of all pushes and pulls."""
    listed = result.pushes[["bytes_up", "bytes_down"]].to_numpy().sum()
    return float(result.manifest.get("network_bytes", listed))


MEASURES: Mapping[str, Measure] = MappingProxyType({
    "accuracy": Measure("final test accuracy", "share", lambda r, _: r.final, higher=True),
    "best_accuracy": Measure("best test accuracy", "share", lambda r, _: best_accuracy(r), higher=True),
    "seconds_to_goal": Measure("time", "s", arrival("seconds"), of_seconds=True, to_goal=True),
    "pushes_to_goal": Measure("pushes", "pushes", arrival("pushes"), to_goal=True),
    "iterations_to_goal": Measure("iterations", "iterations", arrival("iteration"), to_goal=True),
    "rounds_to_goal": Measure("rounds", "rounds", arrival("rounds"), to_goal=True, exchange=True),
    "bytes_to_goal": Measure("bytes sent", "B", arrival("bytes"), to_goal=True, exchange=True),
    "bytes_up_to_goal": Measure("bytes pushed", "B", arrival("bytes_up"), to_goal=True, exchange=True),
    "bytes_down_to_goal": Measure("bytes pulled", "B", arrival("bytes_down"), to_goal=True, exchange=True),
    "held_s": Measure("time, held", "s", lambda r, goal: held(r, goal)[0], of_seconds=True, to_goal=True,
                      counted="held"),
    "held_pushes": Measure("pushes, held", "pushes", lambda r, goal: held(r, goal)[1], to_goal=True, counted="held"),
    "held_bytes": Measure("bytes sent, held", "B", lambda r, goal: held_at(r, goal, "bytes")[0], to_goal=True,
                          counted="held", exchange=True),
    "seconds": Measure("training time", "s", lambda r, _: r.seconds, of_seconds=True),
    "pushes": Measure("pushes applied", "pushes", lambda r, _: float(applied(r)), higher=True),
    "rate": Measure("pushes applied per second", "pushes/s", lambda r, _: _rate(r), of_seconds=True, higher=True),
    "iteration_s": Measure("time per iteration", "s", lambda r, _: iteration_s(r), of_seconds=True),
    "waiting": Measure("time waiting", "share", lambda r, _: waiting(r), of_seconds=True, exchange=True),
    "staleness": Measure("mean staleness (steps)", "steps", lambda r, _: float(r.pushes.staleness.mean())),
    "lead": Measure("largest lead (iterations)", "iterations", lambda r, _: float(lead(r))),
    "bytes_up": Measure("bytes pushed", "B", _total("bytes_up"), exchange=True),
    "bytes_down": Measure("bytes pulled", "B", _total("bytes_down"), exchange=True),
    "network_bytes": Measure("bytes across the network", "B", lambda r, _: _crossed(r), exchange=True),
})  # fmt: skip
TEN = 10  # most columns that a summary prints
METRICS = ("accuracy", "best_accuracy")  # measures that are values of the runs' metric, which may have another name
METRIC = "(metric)"  # key in a row: the metric of its runs
LARGEST = "(largest)"  # key in a row: the largest value of each column, which decides the unit
#: LaTeX for characters that have another meaning in LaTeX, or exist in its mathematics alone.
TEX = str.maketrans({
    **{sign: f"\\{sign}" for sign in "&%$#_{}"}, "\\": r"\textbackslash{}", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "\u00a0": "~", "\u202f": r"\,", "–": "--", **{sign: f"${sign}$" for sign in "<>|"},
    **{sign: f"${tex}$" for sign, tex in {"×": r"\times", "−": "-", "≥": r"\ge", "≤": r"\le", "∞": r"\infty",
                                          "η": r"\eta", "σ": r"\sigma", "µ": r"\mu"}.items()},
})  # fmt: skip
NEGATIVE = re.compile(r"(?<!\w)-(?=\d)")
TO_GOAL = ("seconds_to_goal", "pushes_to_goal", "bytes_to_goal", "accuracy", "waiting")
WITHOUT_GOAL = ("accuracy", "seconds", "rate", "waiting", "staleness")


def measured(result: Result, measure: str, goal: float | None = None) -> float:
    """Return a measure of one run; infinite if the run never reaches the goal.

    Raises:
        ConfigError: the measure is unknown, or needs a goal and none is given; or the metric cannot have this goal.
    """
    if measure not in MEASURES:
        raise ConfigError("measure", measure, nearest(str(measure), MEASURES))
    if MEASURES[measure].to_goal and goal is None:
        raise ConfigError("goal", None, f"{measure} needs an accuracy from 0 to 1 (or a value of the runs' metric), "
                                        "such as goal(results)")  # fmt: skip
    if goal is not None:
        metric_of(result.run).check_goal("goal", goal)
    return MEASURES[measure].of(result, math.nan if goal is None else goal)


def higher(measure: str, metric: Metric) -> bool:
    """Whether a higher value of a measure is better, for runs with this metric."""
    return measure in MEASURES and MEASURES[measure].higher and not (measure in METRICS and metric.lower)


def metric_among(results: Given, measures: Iterable[object]) -> Metric:
    """Return the metric on which some measures of these results depend; the accuracy if they depend on none.

    Raises:
        ConfigError: the results have several metrics.
    """
    about = any(name in METRICS or (name in MEASURES and MEASURES[name].to_goal) for name in map(str, measures))
    return one_metric(result.run for result in unique(results)) if about else ACCURACY


# -- over seeds ------------------------------------------------------------------------------------


def over_seeds(values: Iterable[float]) -> tuple[float, float, float]:
    """Return median, lowest and highest; infinite values become NaN. Runs without a value (NaN) are left out."""
    known = np.array([value for value in values if not math.isnan(value)])
    if not len(known):
        return math.nan, math.nan, math.nan
    with np.errstate(invalid="ignore"):
        reduced = float(np.median(known)), float(known.min()), float(known.max())
    return tuple(value if math.isfinite(value) else math.nan for value in reduced)  # type: ignore[return-value]


def sound(results: Iterable[Result]) -> list[Result]:
    """Return the runs that did not diverge, or all runs if all did."""
    unmarked = list(results)
    return [result for result in unmarked if not result.diverged] or unmarked


def summary(
    results: Given, *, by: By = "label", goal: float | None = None,
    measures: Sequence[str | Callable[[Result], float]] | None = None, paired: bool = False,
) -> Summary:  # fmt: skip
    """Return a row for each group of runs that differ in the seed alone, indexed by the raw values of `by`.

    Columns: the numbers of seeds, of seeds that reach the goal (reached) or hold it (held; only with a measure of
    this), of diverged runs (diverged) and of runs that recovered from a failure (recovered); emulation_ok; the largest
    dilation; and for each measure m its median (m) and its range (m_low, m_high). `attrs` has the goal and the metric.

    A median to the goal is NaN unless more than half of the seeds reach the goal. Diverged seeds are left out of
    accuracies, unless all diverged; seeds whose emulation was not kept are left out of measures in seconds.

    Args:
        measures: names in MEASURES, or functions of a Result; "accuracy" is the metric of the runs.
        paired: whether to add m_ratio, m_ratio_low and m_ratio_high: the median and range of the ratios to the first
            row's value with the same seed, over seeds with a value in both rows.

    Raises:
        ConfigError: a group whose runs differ in more than the seed, an unknown column or measure, several metrics.
    """
    frame = results_in(results)
    wanted = tuple(measures) if measures is not None else WITHOUT_GOAL if goal is None else TO_GOAL
    names, rows = columns_of(frame, by), reduced(frame, by, goal, wanted, paired)
    keys = [key for key, _ in rows]
    index = pd.MultiIndex.from_tuples(keys, names=names) if len(names) > 1 else pd.Index(
        [key[0] if key else "all" for key in keys], name=names[0] if names else None, dtype=object)  # fmt: skip
    table = Summary([row for _, row in rows], index=index)
    table.attrs |= {"goal": goal, "metric": metric_among(frame, wanted)}
    return table


def reduced(
    frame: pd.DataFrame, by: By, goal: float | None, measures: Sequence[str | Callable[[Result], float]],
    paired: bool = False,
) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:  # fmt: skip
    """Return the rows of `summary`, each as the values of `by` and a dict of its columns."""
    results, rows = unique(frame), []
    runs = [result.run for result in results]
    held_asked = any(MEASURES[name].counted == "held" for name in map(str, measures) if name in MEASURES)
    counts = {"reached": "pushes_to_goal", **({"held": "held_pushes"} if held_asked else {})}
    first: dict[str, Seeds] = {}  # for each measure, the first row's values by seed
    for key, group in groups(frame, by).items():
        row: dict[str, Any] = {"seeds": len(group)}
        if goal is not None:
            row |= {counted: sum(math.isfinite(measured(result, measure, goal)) for result in group)
                    for counted, measure in counts.items()}  # fmt: skip
        row |= {
            "diverged": sum(result.diverged for result in group),
            "emulation_ok": all(result.emulation_ok for result in group),
            "dilation": max(float(result.manifest.get("dilation", 1.0)) for result in group),
        }
        if any(recovered(result.manifest) for result in results):
            row["recovered"] = sum(bool(recovered(result.manifest)) for result in group)
        for chosen in measures:
            name = chosen if isinstance(chosen, str) else chosen.__name__
            values = _by_seed(group, chosen, goal, runs)
            row |= _spread(name, values)
            if paired:
                row |= _spread(f"{name}_ratio", _ratios(values, dict(first.setdefault(name, values))))
        rows.append((key, row))
    return rows


def _spread(name: str, values: Seeds) -> dict[str, float]:
    return dict(zip((name, f"{name}_low", f"{name}_high"), over_seeds(value for _, value in values), strict=True))


def _ratios(values: Seeds, first: Mapping[int, float]) -> Seeds:
    return [(seed, value / first[seed]) for seed, value in values if 0 < abs(first.get(seed, 0.0)) < math.inf]


def _by_seed(
    group: Sequence[Result], measure: str | Callable[[Result], float], goal: float | None, runs: Sequence[Any]
) -> Seeds:
    if not isinstance(measure, str):
        return [(result.run.seed, measure(result)) for result in group]
    if measure in MEASURES and MEASURES[measure].exchange and single(group[0].run, runs):
        return []
    chosen = sound(group) if measure in METRICS else list(group)
    if measure in MEASURES and MEASURES[measure].of_seconds:
        chosen = [result for result in chosen if result.emulation_ok]
    return [(result.run.seed, measured(result, measure, goal)) for result in chosen]


# -- for people ------------------------------------------------------------------------------------


class Summary(pd.DataFrame):
    """The table of `summary`. It prints the measures, in the requested order, with units and the range over seeds, and
    other columns if they have an unusual value, such as diverged seeds."""

    @property
    def _constructor(self) -> type[pd.DataFrame]:  # a table derived from it is printed as a plain table
        return pd.DataFrame

    def __repr__(self) -> str:
        return "\n".join([self.read().to_string(line_width=get_terminal_size().columns), *self._more()])

    def _repr_html_(self) -> str:
        return self.read().to_html() + "".join(f"<p>{line}</p>" for line in self._more())

    def read(self) -> pd.DataFrame:
        """Return the printed columns, at most TEN, with their cells as text."""
        rows = facts_of(self)
        shown = {column: [cell(row, column) for row in rows] for column in asked(self)}
        return pd.DataFrame({**shown, **telling(self)}, index=self.index).iloc[:, :TEN]

    def _more(self) -> list[str]:
        names = [*asked(self), *telling(self)][TEN:]
        return [f"and {', '.join(names)}: all are columns of the frame"] if names else []

    def to_latex(self) -> str:  # type: ignore[override]
        r"""Return the table that `plots.show` shows as a LaTeX `tabular`, for the package booktabs.

        It has at most TEN columns, including the index. Columns with the same value in every row are left out first;
        a comment names all columns that are left out. A caption and a label belong to the float around it:
        ``\begin{table} \caption{Policies} \label{tab:policies} \input{table.tex} \end{table}``.
        """
        shown, caption = import_module("pslab.lab.plots.charts.tables").shown(self)  # uses the words of figures
        same = [column for column in shown if len(shown) > 1 and shown[column].nunique() == 1]
        further = [*(column for column in shown if column not in same), *same][max(1, TEN - shown.index.nlevels) :]
        shown = shown.drop(columns=further)
        head = [*(str(name or "") for name in shown.index.names), *shown.columns]
        rows = [[*(key if isinstance(key, tuple) else (key,)), *cells]
                for key, cells in zip(shown.index, shown.to_numpy().tolist(), strict=True)]  # fmt: skip
        lines = [" & ".join(NEGATIVE.sub("−", str(cell)).translate(TEX) for cell in row) + r" \\"
                 for row in (head, *rows)]  # fmt: skip
        sides = "l" * shown.index.nlevels + "r" * len(shown.columns)
        notes = [caption, *([f"left out: {'; '.join(further)}"] if further else [])]
        return "\n".join([*(f"% {note}" for note in notes), rf"\begin{{tabular}}{{{sides}}}", r"\toprule", lines[0],
                          r"\midrule", *lines[1:], r"\bottomrule", r"\end{tabular}", ""])  # fmt: skip


def asked(table: pd.DataFrame) -> list[str]:
    """Return the names of a summary's measures."""
    return [column for column in table.columns if f"{column}_low" in table]


def telling(table: pd.DataFrame) -> dict[str, list[str]]:
    """Return the cells, as text, of a summary's columns beside the measures that have an unusual value."""
    dull = {"seeds": 1, "diverged": 0, "emulation_ok": True, "dilation": 1.0, "recovered": 0}
    names = [name for name, usual in dull.items() if name in table and (table[name] != usual).any()]
    return {name: [plain(value) for value in table[name].tolist()] for name in names}


def facts_of(table: pd.DataFrame) -> list[dict[Any, Any]]:
    """Return the rows of a summary with the keys METRIC and LARGEST, which `cell` needs."""
    metric, most = table.attrs.get("metric", ACCURACY), largest(table, asked(table))
    return [{METRIC: metric, LARGEST: most, **row} for row in table.to_dict("records")]


def unit_of(column: str, metric: Metric) -> Unit:
    """Return the unit of a column's values, for runs with this metric."""
    if column in METRICS:
        return UNITS["accuracy"] if metric.share else UNITS[""]._replace(title=metric.in_unit)
    return UNITS.get(MEASURES[column].unit if column in MEASURES else "", UNITS[""])


def largest(frame: pd.DataFrame, values: Iterable[str]) -> dict[str, float]:
    """Return the largest median of each measure that is written in the unit of its largest value; 0 without one."""
    chosen = [value for value in values if value in MEASURES and UNITS.get(MEASURES[value].unit, UNITS[""]).beside]
    return {value: max((number for number in frame[value].tolist() if math.isfinite(number)), default=0.0)
            for value in chosen}  # fmt: skip


def cell(row: Mapping[Any, Any], column: str, brief: bool = False) -> str:
    """Return a cell as text: the median with the range over seeds; if `brief`, with the seeds that reach the goal."""
    unit, value = unit_of(column, row.get(METRIC, ACCURACY)), row[column]
    form = unit.form if unit.beside is None else partial(unit.beside, most=row.get(LARGEST, {}).get(column, value))
    low, high = row.get(f"{column}_low", value), row.get(f"{column}_high", value)
    missed = missing(row, column)
    some = row[MEASURES[column].counted] if missed else 0
    few = f"{some} of {row['seeds']}" if some else ""
    if not math.isfinite(value):
        return f"reached by {few}{'' if brief else ' seeds'}" if few else "not reached" if missed else DASH
    if brief:
        return f"{form(value)} ({few})" if few else form(value)
    if row.get("seeds", 1) == 1 or form(low) == form(high):
        return form(value)
    near = [] if unit.beside or all(float(number).is_integer() for number in (value, low, high)) else [value]
    median, *ends = (form(number, *near) if math.isfinite(number) else "never" for number in (value, low, high))
    if all(end.partition(SPACE)[2] in (median.partition(SPACE)[2], "") for end in ends):
        ends = [end.partition(SPACE)[0] for end in ends]  # the median's unit is theirs
    return f"{median} ({' to '.join(ends)})"


def missing(row: Mapping[Any, Any], column: str) -> bool:
    """Whether some of the seeds never reach the goal of this measure."""
    measure = MEASURES.get(column)
    return measure is not None and measure.to_goal and bool(row.get(measure.counted, 0) < row.get("seeds", 0))
