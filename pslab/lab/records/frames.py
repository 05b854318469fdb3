"""Runs and results as one DataFrame: a row for each point of a grid, a column for each axis, and the columns `run` and
`result`. pandas filters, joins and groups it: `results[results.sync == "bsp"]`, concat, assign, groupby.

A run may stand in several rows: a run with dense gradients belongs to the row of every pruning family. Functions of
results count each record once. Where a row has no value in a column (NaN), or the table has no such column, a field of
Run is read from the row's run.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pslab.config.metric import metric_of
from pslab.config.parameters import plain
from pslab.config.run import FIELDS, Run
from pslab.errors import ConfigError, nearest
from pslab.lab.records.record import Result

Given = Result | Iterable[Result] | pd.DataFrame  # what a function of results takes
By = str | Sequence[str]
RUN, RESULT, CHOICE = "run", "result", "choice"
ITEMS = (RUN, RESULT, CHOICE)  # columns that hold objects, and are no axes
AXES, ORDERS = "axes", "orders"  # in `attrs`: the grid's axes; of each column all values in the grid's order


@dataclass(frozen=True)
class Choice:
    """How `best` chose a run among the runs that differ in `over` alone."""

    over: str
    measure: str  #: in words
    goal: float | None  #: of a measure to a goal
    among: int  #: the number of values
    at_end: bool  #: whether the chosen value is the smallest or the largest of them
    beyond: float | None = None  #: the next number beyond that end, by the ratio of the last two

    def __str__(self) -> str:
        return f"best of {self.among}" + ", at an end" * self.at_end


# -- tables ----------------------------------------------------------------------------------------


def table(
    items: Iterable[Run | Result], points: Iterable[Mapping[str, Any]] | None = None,
    orders: Mapping[str, Sequence[Any]] | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Return a row for each run or result; with points, at its point, equal rows once.

    Columns: the axes of the points, the other fields in which the runs differ, `run`, and `result` if all items are
    results. All columns have the dtype object, so that None and whole numbers stay as they are.

    Args:
        points: for each item its values by axis; None: there are no axes.
        orders: of each axis all values in the grid's order.
    """
    items = list(items)
    rows: list[tuple[Run | Result, Mapping[str, Any]]] = [(item, {}) for item in items]
    if points is not None:
        pairs = zip(items, points, strict=True)
        rows = [*{(_identity(item), repr(dict(point))): (item, point) for item, point in pairs}.values()]
    runs = [item if isinstance(item, Run) else item.run for item, _ in rows]
    named = dict.fromkeys(name for _, point in rows for name in point)
    columns = {name: [point.get(name) for _, point in rows] for name in named if name != CHOICE}
    for name in FIELDS:
        fields = [plain(getattr(run, name)) for run in runs]
        if name not in columns and len({*fields}) > 1:
            columns[name] = fields
    columns[RUN] = runs
    if all(isinstance(item, Result) for item in items):
        columns[RESULT] = [item for item, _ in rows]
    if CHOICE in named:
        columns[CHOICE] = [point.get(CHOICE) for _, point in rows]
    made = pd.DataFrame({name: pd.Series(cells, dtype=object) for name, cells in columns.items()})
    made.attrs |= {AXES: [name for name in named if name != CHOICE], ORDERS: {
        name: [*(orders or {}).get(name, dict.fromkeys(made[name]))] for name in made if name not in ITEMS}}
    return made


def _identity(item: Run | Result) -> Hashable:
    """What equal items have in common; a run that its digest does not name completely is equal to no other."""
    run = item if isinstance(item, Run) else item.run
    return run.digest, id(item) if run.unknown else "" if isinstance(item, Run) else str(item.path)


def runs_in(given: Run | Iterable[Run] | pd.DataFrame) -> pd.DataFrame:
    """Return a table of runs.

    Raises:
        ConfigError: an item is no Run, or the table has no column `run`.
    """
    if not isinstance(given, pd.DataFrame):
        items = [given] if isinstance(given, (Run, Result)) else list(given)
        for item in items:
            if not isinstance(item, Run):
                raise ConfigError("runs", item, "must be a Run, or the table that grid(...) gives")
        return table(items)
    if RUN not in given and RESULT not in given:
        raise ConfigError("runs", [*given.columns], "this table has no column 'run': grid(base, ...) gives one")
    frame = given if RUN in given else results_in(given)
    for item in frame[RUN]:
        if not isinstance(item, Run):
            raise ConfigError("run", item, "each row of a table needs a Run in its column 'run'")
    return frame


def results_in(given: Given) -> pd.DataFrame:
    """Return a table of results.

    Raises:
        ConfigError: an item is no Result, the table has no column `result`, or some of its rows have no result.
    """
    if not isinstance(given, pd.DataFrame):
        items = [given] if isinstance(given, (Run, Result)) else list(given)
        for item in items:
            if not isinstance(item, Result):
                way = ("is executed by run(it), which gives its result" if isinstance(item, Run) else
                       "is none: a table's results are its column, as in [*results.result]")  # fmt: skip
                raise ConfigError("results", item, f"must be a Result, and this {way}")
        return table(items)
    if RESULT not in given:
        problem = "this table has no column 'result': results = sweep(runs) adds it to the table of a grid"
        raise ConfigError("results", [*map(str, given.columns)], problem)
    missing = [not isinstance(item, Result) for item in given[RESULT]]
    if any(missing):
        first = given[missing].iloc[0].drop([name for name in ITEMS if name in given]).to_dict()
        problem = (f"{sum(missing)} of {len(given)} rows have none, the first is {first}: sweep(table) executes their "
                   "runs, table.dropna(subset='result') leaves them out")  # fmt: skip
        raise ConfigError("result", given[RESULT][missing].iloc[0], problem)
    return given if RUN in given else given.assign(run=[result.run for result in given[RESULT]])


def unique(given: Given) -> list[Result]:
    """The results of a table, each record once."""
    first: dict[Hashable, Result] = {}
    for result in results_in(given)[RESULT]:
        first.setdefault(_identity(result), result)
    return list(first.values())


def distinct(runs: pd.DataFrame) -> tuple[list[Run], list[int]]:
    """The runs of a table, each once, and for each row the number of its run."""
    first: dict[Hashable, Run] = {}
    for run in runs[RUN]:
        first.setdefault(_identity(run), run)
    numbers = {name: number for number, name in enumerate(first)}
    return list(first.values()), [numbers[_identity(run)] for run in runs[RUN]]


def finished(runs: pd.DataFrame, results: Mapping[int, Result]) -> pd.DataFrame:
    """Return the rows of the runs that have a result, with a column `result`; results go by the numbers of their runs,
    see `distinct`."""
    numbers = distinct(runs)[1]
    rows = runs[np.array([number in results for number in numbers], dtype=bool)]
    items = pd.Series([results[number] for number in numbers if number in results], dtype=object, index=rows.index)
    last = [CHOICE] if CHOICE in rows else []
    made = rows.assign(run=items.map(lambda result: result.run), result=items)
    return made[[*(name for name in made if name != CHOICE), *last]]


# -- columns ---------------------------------------------------------------------------------------


def values(frame: pd.DataFrame, name: str) -> list[Any]:
    """Return the value of a column in each row: an axis, another column of the table, or a field of the row's run.

    Raises:
        ConfigError: an unknown column.
    """
    if name in ITEMS or (name not in frame and name not in FIELDS):
        known = nearest(str(name), [*FIELDS, *(str(other) for other in frame if other not in ITEMS)])
        raise ConfigError("column", name, f"no axis and no field of Run; {known}")
    cells = frame[name].tolist() if name in frame else [None] * len(frame)
    return [plain(cell) if not absent(cell) else plain(getattr(run, name)) if name in FIELDS else None
            for cell, run in zip(cells, frame[RUN], strict=True)]  # fmt: skip


def fields_of(run: Run, names: Iterable[str]) -> tuple[Any, ...]:
    """The values of some fields of a run, as a table has them."""
    return tuple(plain(getattr(run, name)) for name in names)


def absent(value: object) -> bool:
    """Whether this is None, or the NaN by which a table marks a missing value."""
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def levels(frame: pd.DataFrame, name: str) -> list[Any]:
    """Return the distinct values of a column in the grid's order.

    Raises:
        ConfigError: an unknown column.
    """
    present = dict.fromkeys(value for value in values(frame, name) if value is not None or name in FIELDS)
    known = frame.attrs.get(ORDERS, {}).get(name, ())
    return [*(value for value in known if value in present), *(value for value in present if value not in known)]


def orders_of(frame: pd.DataFrame, names: Iterable[str]) -> dict[str, list[Any]]:
    """For each of these columns its values in the grid's order, with the values that a filter left out."""
    known = frame.attrs.get(ORDERS, {})
    return {name: list(dict.fromkeys([*known.get(name, ()), *levels(frame, name)])) for name in names}


def axes(frame: pd.DataFrame) -> list[str]:
    """The columns that are axes: those of the grid, and what was assigned, unless it is numbers, such as a measure.

    After a concat of tables with several axes, which lose their `attrs`, also the fields of Run.
    """
    known = frame.attrs.get(AXES)
    return [name for name in frame if name not in ITEMS and (name in (known or ()) or (
        known is None if name in FIELDS else not _measured(frame[name])))]  # fmt: skip


def _measured(column: pd.Series[Any]) -> bool:
    return all((isinstance(cell, (int, float, np.number)) and not isinstance(cell, bool)) or absent(cell)
               for cell in column)  # fmt: skip


def labels(frame: pd.DataFrame) -> list[str]:
    """The columns, but for the seed, that together tell these runs apart, as few as the axes and fields allow."""
    names = [name for name in axes(frame) if name != "seed"]
    cells = {name: values(frame, name) for name in (*names, *FIELDS)}
    digests = seedless(frame)

    def count(names: Sequence[str], *more: Sequence[Any]) -> int:
        return len({*zip([0] * len(frame), *(cells[name] for name in names), *more, strict=True)})

    chosen = [name for name in names if count([name]) > 1]
    for name in FIELDS:
        if name != "seed" and count([*chosen, name]) > count(chosen):
            chosen.append(name)
    for name in reversed(chosen):
        others = [other for other in chosen if other != name]
        if count(others) == count(others, digests):
            chosen = others  # they tell the runs apart without this one
    return chosen


def seedless(frame: pd.DataFrame) -> list[str]:
    """For each row the digest of its run with seed 0: equal for runs that differ in the seed alone."""
    runs = {id(run): run for run in frame[RUN]}
    digests = {name: run.but(seed=0).digest for name, run in runs.items()}
    return [digests[id(run)] for run in frame[RUN]]


def columns_of(frame: pd.DataFrame, *by: By) -> list[str]:
    """The names of columns, each once, with the columns that "label" stands for.

    Raises:
        ConfigError: an unknown column.
    """
    asked = [name for names in by for name in ([names] if isinstance(names, str) else names)]
    plainly = [name for name in asked if name != "label"]
    for name in plainly:
        values(frame, name)
    spelt = [[other for other in labels(frame) if other not in plainly] if name == "label" else [name]
             for name in asked]  # fmt: skip
    return list(dict.fromkeys(name for names in spelt for name in names))


def where(table: pd.DataFrame, /, **wanted: Any) -> pd.DataFrame:
    """Return the rows of runs or results with these values in these columns or fields of Run; a list admits any of its
    entries.

    Raises:
        ConfigError: an unknown column, or a value that no run has.
    """
    rows = runs_in(table)
    for name, value in wanted.items():
        present, known = values(rows, name), levels(rows, name)
        entries = [*map(plain, value if isinstance(value, (list, tuple, set, frozenset)) else [value])]
        for entry in entries:
            if entry not in known:
                raise ConfigError(name, entry, f"no run has this value; {nearest(str(entry), map(str, known))}")
        rows = rows[np.array([cell in entries for cell in present], dtype=bool)]
    return rows


# -- groups ----------------------------------------------------------------------------------------


def groups(given: Given, by: By = "label", **others: By | None) -> dict[tuple[Any, ...], list[Result]]:
    """Return the results by the values of these columns, in the grid's order; within a group they differ in the seed
    alone.

    `label` stands for the columns that tell the results apart. `others`, such as facet="sync", are named in messages.

    Raises:
        ConfigError: an unknown column, or a group whose runs differ in more than the seed.
    """
    frame = results_in(given)
    names = columns_of(frame, by, *filter(None, others.values()))
    known = {name: levels(frame, name) for name in names}
    split: dict[tuple[Any, ...], list[int]] = {}
    for row, key in enumerate(zip([0] * len(frame), *(values(frame, name) for name in names), strict=True)):
        split.setdefault(key[1:], []).append(row)

    def rank(key: tuple[Any, ...]) -> list[int]:  # what has no value of an axis comes last
        return [known[name].index(value) if value in known[name] else len(known[name])
                for name, value in zip(names, key, strict=True)]  # fmt: skip

    digests = seedless(frame)
    for key, rows in split.items():
        if len({digests[row] for row in rows}) > 1:
            _refuse(key, frame.iloc[rows], by, others)
    return {key: unique(frame.iloc[split[key]]) for key in sorted(split, key=rank)}


def _refuse(key: Sequence[Any], group: pd.DataFrame, by: By, others: Mapping[str, Any]) -> None:
    names = labels(group)
    words = " and ".join(f"{name} ({', '.join(map(str, levels(group, name)))})" for name in names)
    which = ", ".join(map(str, key)) or "all"
    options = "by=, facet= or row=" if others or "facet" in others else "by="
    problem = (f"{len(unique(group))} runs of {which} differ in {words}: name it in {options}, take one with "
               f"where(results, {names[0]}=...), or choose with best(results, over={names[0]!r})")  # fmt: skip
    raise ConfigError("by", [by] if isinstance(by, str) else list(by), problem)


def words(runs: pd.DataFrame, number: int) -> str:
    """What distinguishes a run of this table, by its number, from the others: ``"sync ssp:3, seed 1
    (0123456789abcdef)"``."""
    names = [*labels(runs), *(["seed"] if len(levels(runs, "seed")) > 1 else [])]
    row = distinct(runs)[1].index(number)
    text = ", ".join(f"{name} {values(runs, name)[row]}" for name in names)
    digest = runs[RUN].iloc[row].digest
    return f"{text} ({digest})" if text else str(digest)


def notes(frame: pd.DataFrame) -> list[str]:
    """How `best` chose among these results, in a sentence for each kind of choice."""
    kinds: dict[tuple[str, str, str], list[Choice]] = {}
    rows = zip(seedless(frame), frame[RUN], frame[CHOICE], strict=True) if CHOICE in frame else ()
    chosen = {(digest, choice): run for digest, run, choice in rows if isinstance(choice, Choice)}
    for (_, choice), run in sorted(chosen.items(), key=lambda pair: pair[0][0]):
        aim = "" if choice.goal is None else metric_of(run).goal(choice.goal, " ")
        kinds.setdefault((choice.over, choice.measure, aim), []).append(choice)
    return [_sentence(*kind, choices) for kind, choices in kinds.items()]


def _sentence(over: str, measure: str, aim: str, choices: Sequence[Choice]) -> str:
    ends = sum(choice.at_end for choice in choices)
    edge = f"; {ends} of {len(choices)} lie at an end of their grid" if ends else ""
    return f"each at its best {over.replace('_', ' ')} by {measure}{f' to {aim}' if aim else ''}{edge}"


def single(run: Run, others: Iterable[Run]) -> bool:
    """Whether this is the single machine beside runs of several workers."""
    return run.workers == 1 and any(other.workers > 1 for other in others)
