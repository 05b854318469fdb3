"""Results in one table: what each run says by a measure, reduced over seeds and over nothing else.

A run reaches a goal at its first evaluation that is as good; nothing is interpolated. A run that never does counts
as infinite, so a median exists only where more than half of the seeds arrive. One lucky evaluation is enough for that;
the measures `held_s`, `held_pushes` and `held_bytes` ask for more, and interpolate: see `held`.
"""

from __future__ import annotations

import math
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
from pslab.lab.records.units import DASH, UNITS, Unit, plain

MIDDLE = 0.1  # share of a run's pushes at either end that says nothing of its steady state
Seeds = Sequence[tuple[int, float]]  # what each seed says


# -- measures --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """A number that a finished run has; `of` takes the result and the goal, and may give inf or NaN."""

    words: str
    unit: str  #: s, B, share, pushes, iterations, pushes/s, steps
    of: Callable[[Result, float], float]
    of_seconds: bool = False  #: whether it says nothing where the emulation was not kept
    to_goal: bool = False
    counted: str = "reached"  #: of one to the goal: the column of a summary that says how many seeds get there
    higher: bool = False  #: whether more is better
    exchange: bool = False  #: of what workers and server exchange: a single machine has none


def arrival(column: str) -> Callable[[Result, float], float]:
    """A column of `evaluations` at the first one that is as good as the goal; infinite if there is none."""

    def at(result: Result, goal: float) -> float:
        table, metric = evaluations(result), metric_of(result.run)
        reached = np.flatnonzero([metric.reaches(value, goal) for value in table.accuracy])
        return float(table[column].to_numpy()[reached[0]]) if len(reached) else math.inf

    return at


def held(result: Result, goal: float) -> tuple[float, float]:
    """The seconds and pushes at which a run holds the goal; both are infinite if it never does.

    It does where the running median of three evaluations (the one before, this one and the next) is first as good as
    the goal, interpolated linearly on these medians between it and the one before. The first evaluation stands for the
    one before it, too; the last one has none after it, and is not held.
    """
    seconds, pushes = held_at(result, goal, "seconds", "pushes")
    return seconds, pushes


def held_at(result: Result, goal: float, *columns: str) -> tuple[float, ...]:
    """The values of some columns of `evaluations` where a run holds the goal; see `held`."""
    table, metric = evaluations(result), metric_of(result.run)
    middle, places = medians(table.accuracy.tolist()), table[list(columns)].to_numpy(float)
    first = next((at for at, value in enumerate(middle) if metric.reaches(value, goal)), None)
    if first is None:
        return (math.inf,) * len(columns)
    found = places[first]
    if first > 0:  # the goal may be the median itself, but for the slack of `reaches`
        share = min(1.0, (goal - middle[first - 1]) / (middle[first] - middle[first - 1]))
        found = places[first - 1] + share * (places[first] - places[first - 1])
    return tuple(map(float, found))


def best_accuracy(result: Result, within: float = 1.0) -> float:
    """The best evaluation by the run's metric, within the first so large a share of the run's pushes."""
    table = evaluations(result)
    early = table[table.pushes <= within * table.pushes.max()] if len(table) else table
    return float(metric_of(result.run).best(early.accuracy))


def applied(result: Result) -> int:
    """The number of gradients in the weights: the server accepted them and did not drop them."""
    manifest = result.manifest
    if not manifest["pushes"]:  # some were accepted for a step that did not come
        return 0
    return int(manifest.get("accepted", manifest["pushes"])) - int(manifest.get("dropped", 0))


def iteration_s(result: Result) -> float:
    """Seconds in which as many gradients are applied as there are workers: workers / rate, in the middle of the run.

    The first and the last tenth are left out: filling and emptying the pipeline belong to no iteration. What a single
    worker's iteration takes is another matter where workers differ in speed.
    """
    pushes = result.pushes.sort_values("seconds", kind="stable").drop_duplicates(["worker", "iteration"], keep="last")
    instants, workers = pushes.seconds.to_numpy(float), result.run.workers
    each = applied(result) / len(instants) if len(instants) else math.nan  # gradients: more than one under local SGD
    first = workers * math.ceil(MIDDLE * len(instants) / workers)
    last = workers * math.floor((1 - MIDDLE) * len(instants) / workers)
    if not 0 < first < last:
        return result.seconds * workers / applied(result) if applied(result) else math.nan
    return float((instants[last - 1] - instants[first - 1]) / (last - first) * workers / each)


def _rate(result: Result) -> float:
    return applied(result) / result.seconds if result.seconds > 0 else math.nan


def _total(column: str) -> Callable[[Result, float], float]:
    return lambda result, goal: float(result.pushes[column].sum())


def _crossed(result: Result) -> float:
    """All bytes pushed and pulled, if no server stands on a worker's machine and no keys are asked for."""
    listed = result.pushes[["bytes_up", "bytes_down"]].to_numpy().sum()
    return float(result.manifest.get("network_bytes", listed))


MEASURES: Mapping[str, Measure] = MappingProxyType({
    "accuracy": Measure("final accuracy", "share", lambda r, _: r.final, higher=True),
    "best_accuracy": Measure("best accuracy", "share", lambda r, _: best_accuracy(r), higher=True),
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
    "staleness": Measure("mean staleness", "steps", lambda r, _: float(r.pushes.staleness.mean())),
    "lead": Measure("largest lead", "iterations", lambda r, _: float(lead(r))),
    "bytes_up": Measure("bytes pushed", "B", _total("bytes_up"), exchange=True),
    "bytes_down": Measure("bytes pulled", "B", _total("bytes_down"), exchange=True),
    "network_bytes": Measure("bytes across the network", "B", lambda r, _: _crossed(r), exchange=True),
})  # fmt: skip
TEN = 10  # columns that a summary prints
METRICS = ("accuracy", "best_accuracy")  # measures by the run's metric, of any name
METRIC = "(metric)"  # in a row: the metric of its runs
LARGEST = "(largest)"  # in a row: the largest value of each column, whose unit all are written in
#: How LaTeX writes characters that it takes for something else, or has in mathematics alone.
TEX = str.maketrans({
    **{sign: f"\\{sign}" for sign in "&%$#_{}"}, "\\": r"\textbackslash{}", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "\u00a0": "~", "\u202f": r"\,", "–": "--", **{sign: f"${sign}$" for sign in "<>|"},
    **{sign: f"${tex}$" for sign, tex in {"×": r"\times", "−": "-", "≥": r"\ge", "≤": r"\le", "∞": r"\infty",
                                          "η": r"\eta", "σ": r"\sigma", "µ": r"\mu"}.items()},
})  # fmt: skip
TO_GOAL = ("seconds_to_goal", "pushes_to_goal", "bytes_to_goal", "accuracy", "waiting")
WITHOUT_GOAL = ("accuracy", "seconds", "rate", "waiting", "staleness")


def measured(result: Result, measure: str, goal: float | None = None) -> float:
    """A measure of one run; infinite where it never reaches the goal.

    Raises:
        ConfigError: an unknown measure, or one that needs a goal without one.
    """
    if measure not in MEASURES:
        raise ConfigError("measure", measure, nearest(str(measure), MEASURES))
    if MEASURES[measure].to_goal and goal is None:
        raise ConfigError("goal", None, f"{measure} needs an accuracy from 0 to 1 (or a value of the runs' metric), "
                                        "such as goal(results)")  # fmt: skip
    return MEASURES[measure].of(result, math.nan if goal is None else goal)


def higher(measure: str, metric: Metric) -> bool:
    """Whether more of a measure is better, in runs with this metric."""
    return measure in MEASURES and MEASURES[measure].higher and not (measure in METRICS and metric.lower)


def metric_among(results: Given, measures: Iterable[object]) -> Metric:
    """The metric that some measures of these results are about; the accuracy if they are about none.

    Raises:
        ConfigError: they are about several.
    """
    about = any(name in METRICS or (name in MEASURES and MEASURES[name].to_goal) for name in map(str, measures))
    return one_metric(result.run for result in unique(results)) if about else ACCURACY


# -- over seeds ------------------------------------------------------------------------------------


def over_seeds(values: Iterable[float]) -> tuple[float, float, float]:
    """Median, lowest and highest; infinite ones are NaN. Runs without a value (NaN) are left out."""
    known = np.array([value for value in values if not math.isnan(value)])
    if not len(known):
        return math.nan, math.nan, math.nan
    with np.errstate(invalid="ignore"):
        reduced = float(np.median(known)), float(known.min()), float(known.max())
    return tuple(value if math.isfinite(value) else math.nan for value in reduced)  # type: ignore[return-value]


def sound(results: Iterable[Result]) -> list[Result]:
    """The runs that did not diverge, or all if all did."""
    found = list(results)
    return [result for result in found if not result.diverged] or found


def summary(
    results: Given, *, by: By = "label", goal: float | None = None,
    measures: Sequence[str | Callable[[Result], float]] | None = None, paired: bool = False,
) -> Summary:  # fmt: skip
    """A row for each group of runs that differ in the seed alone, indexed by the raw values of `by`.

    Columns: seeds, reached (with a goal), held (with a measure of that), diverged, emulation_ok, dilation (the
    largest), recovered (runs that went on after an end; if there are any); and for each measure m its median over
    seeds, m_low and m_high; a function of a result is a measure of the function's name. A median to the goal is NaN
    unless more than half of the seeds get there. Diverged seeds count in no accuracy, unless all diverged; seeds whose
    emulation was not kept count in nothing that is about seconds. `accuracy` is the runs' metric, of any name.
    With `paired`, m_ratio, m_ratio_low and m_ratio_high are the same of how many times the first row's value it is with
    the same seed, over the seeds with which both have one and the first row gets there. `attrs` has
    the goal and the metric. Printed, it is what a person reads: see Summary.

    Raises:
        ConfigError: a group whose runs differ in more than the seed, an unknown column or measure, several metrics.
    """
    found = results_in(results)
    wanted = tuple(measures) if measures is not None else WITHOUT_GOAL if goal is None else TO_GOAL
    names, rows = columns_of(found, by), reduced(found, by, goal, wanted, paired)
    keys = [key for key, _ in rows]
    index = (
        pd.MultiIndex.from_tuples(keys, names=names)
        if len(names) > 1
        else (pd.Index([key[0] if key else "all" for key in keys], name=names[0] if names else None, dtype=object))
    )
    table = Summary([row for _, row in rows], index=index)
    table.attrs |= {"goal": goal, "metric": metric_among(found, wanted)}
    return table


def reduced(
    found: pd.DataFrame, by: By, goal: float | None, measures: Sequence[str | Callable[[Result], float]],
    paired: bool = False,
) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:  # fmt: skip
    """The rows of `summary`: the values of `by`, and what its columns say of them."""
    results, rows = unique(found), []
    runs = [result.run for result in results]
    held_asked = any(MEASURES[name].counted == "held" for name in map(str, measures) if name in MEASURES)
    counts = {"reached": "pushes_to_goal", **({"held": "held_pushes"} if held_asked else {})}
    first: dict[str, Seeds] = {}  # of each measure, the first row's values by seed
    for key, group in groups(found, by).items():
        row: dict[str, Any] = {"seeds": len(group)}
        if goal is not None:
            row |= {counted: sum(math.isfinite(measured(result, measure, goal)) for result in group)
                    for counted, measure in counts.items()}  # fmt: skip
        row |= {"diverged": sum(result.diverged for result in group),
                "emulation_ok": all(result.emulation_ok for result in group),
                "dilation": max(float(result.manifest.get("dilation", 1.0)) for result in group)}
        if any(recovered(result.manifest) for result in results):
            row["recovered"] = sum(bool(recovered(result.manifest)) for result in group)
        for each in measures:
            name = each if isinstance(each, str) else each.__name__
            values = _by_seed(group, each, goal, runs)
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
    """The value of a measure by seed, of the runs that count."""
    if not isinstance(measure, str):
        return [(result.run.seed, measure(result)) for result in group]
    name = measure
    if name in MEASURES and MEASURES[name].exchange and single(group[0].run, runs):
        return []
    chosen = sound(group) if name in METRICS else list(group)
    if name in MEASURES and MEASURES[name].of_seconds:
        chosen = [result for result in chosen if result.emulation_ok]
    return [(result.run.seed, measured(result, name, goal)) for result in chosen]


# -- for people ------------------------------------------------------------------------------------


class Summary(pd.DataFrame):
    """The table of `summary`. It has all columns; it prints its measures with units, in the order in which
    they were asked for, a range where there are several seeds, and the other columns whose values differ."""

    @property
    def _constructor(self) -> type[pd.DataFrame]:  # a table made of it prints itself
        return pd.DataFrame

    def __repr__(self) -> str:
        return "\n".join([self.read().to_string(line_width=get_terminal_size().columns), *self._more()])

    def _repr_html_(self) -> str:
        return self.read().to_html() + "".join(f"<p>{line}</p>" for line in self._more())

    def read(self) -> pd.DataFrame:
        """The printed columns, at most TEN."""
        rows = facts_of(self)
        shown = {column: [cell(row, column) for row in rows] for column in asked(self)}
        return pd.DataFrame({**shown, **telling(self)}, index=self.index).iloc[:, :TEN]

    def _more(self) -> list[str]:
        names = [*asked(self), *telling(self)][TEN:]
        return [f"and {', '.join(names)}: all are columns of the frame"] if names else []

    def to_latex(self) -> str:  # type: ignore[override]
        """Return the table that `plots.show` shows as a `tabular` with rules (of the package booktabs), escaped, at
        most TEN columns with its index: further ones are left out, first columns with the same value in every row, and
        named in a comment."""
        shown, caption = import_module("pslab.lab.plots.charts.tables").shown(self)  # with the words of figures
        same = [column for column in shown if len(shown) > 1 and shown[column].nunique() == 1]
        further = [*(column for column in shown if column not in same), *same][max(1, TEN - shown.index.nlevels) :]
        shown = shown.drop(columns=further)
        head = [*(str(name or "") for name in shown.index.names), *shown.columns]
        rows = [[*(key if isinstance(key, tuple) else (key,)), *cells]
                for key, cells in zip(shown.index, shown.to_numpy().tolist(), strict=True)]  # fmt: skip
        lines = [" & ".join(str(cell).translate(TEX) for cell in row) + r" \\" for row in (head, *rows)]
        sides = "l" * shown.index.nlevels + "r" * len(shown.columns)
        notes = [caption, *([f"left out: {'; '.join(further)}"] if further else [])]
        return "\n".join([*(f"% {note}" for note in notes), rf"\begin{{tabular}}{{{sides}}}", r"\toprule", lines[0],
                          r"\midrule", *lines[1:], r"\bottomrule", r"\end{tabular}", ""])  # fmt: skip


def asked(table: pd.DataFrame) -> list[str]:
    """The measures of a summary."""
    return [column for column in table.columns if f"{column}_low" in table]


def telling(table: pd.DataFrame) -> dict[str, list[str]]:
    """The other columns of a summary that say something, in words."""
    dull = {"seeds": 1, "diverged": 0, "emulation_ok": True, "dilation": 1.0, "recovered": 0}
    names = [name for name, usual in dull.items() if name in table and (table[name] != usual).any()]
    return {name: [plain(value) for value in table[name].tolist()] for name in names}


def facts_of(table: pd.DataFrame) -> list[dict[Any, Any]]:
    """The rows of a summary for `cell`."""
    metric, most = table.attrs.get("metric", ACCURACY), largest(table, asked(table))
    return [{METRIC: metric, LARGEST: most, **row} for row in table.to_dict("records")]


def unit_of(column: str, metric: Metric) -> Unit:
    """How the values of a column are drawn and written, where runs have this metric."""
    if column in METRICS:
        return UNITS["accuracy"] if metric.share else UNITS[""]._replace(title=metric.in_unit)
    return UNITS.get(MEASURES[column].unit if column in MEASURES else "", UNITS[""])


def largest(frame: pd.DataFrame, values: Iterable[str]) -> dict[str, float]:
    """The largest median of each measure that has a unit to choose."""
    chosen = [value for value in values if value in MEASURES and UNITS.get(MEASURES[value].unit, UNITS[""]).beside]
    return {value: max((each for each in frame[value].tolist() if math.isfinite(each)), default=0.0)
            for value in chosen}  # fmt: skip


def cell(row: Mapping[Any, Any], column: str, brief: bool = False) -> str:
    """An entry: the median, and the range over seeds where there are several; in brief, how many reach the goal."""
    unit, value = unit_of(column, row.get(METRIC, ACCURACY)), row[column]
    form = unit.form if unit.beside is None else partial(unit.beside, most=row.get(LARGEST, {}).get(column, value))
    low, high = row.get(f"{column}_low", value), row.get(f"{column}_high", value)
    missed = missing(row, column)
    some = row[MEASURES[column].counted] if missed else 0
    few = f" ({some} of {row['seeds']}{'' if brief else ' seeds'})" if some else ""
    if not math.isfinite(value):
        return f"not reached{few}" if missed else DASH
    if brief:
        return form(value) + few
    if row.get("seeds", 1) == 1 or form(low) == form(high):
        return form(value)
    return f"{form(value)} ({form(low)} to {form(high) if math.isfinite(high) else 'never'})"


def missing(row: Mapping[Any, Any], column: str) -> bool:
    """Whether some of the seeds never reach the goal that this value is about."""
    measure = MEASURES.get(column)
    return measure is not None and measure.to_goal and bool(row.get(measure.counted, 0) < row.get("seeds", 0))
