"""Runs and results as one DataFrame: a row for each point of a grid, a column for each axis, and the columns `run` and
`result`. pandas filters, joins and groups it: `results[results.sync == "bsp"]`, concat, assign, groupby.

A run may be in several rows: a run with dense gradients is in a row of every pruning family. Functions of results count
each record once. A field of Run is read from the row's run if the table has no such column, or NaN in this row.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import filterfalse
from typing import Any

import numpy as np
import pandas as pd

from pslab.config.metric import metric_of
from pslab.config.parameters import plain
from pslab.config.run import FIELDS, Run
from pslab.errors import ConfigError, nearest
from pslab.lab.records.record import Result

Given = Result | Iterable[Result] | pd.DataFrame  # the arguments that functions of results accept
By = str | Sequence[str]
RUN, RESULT, CHOICE = "run", "result", "choice"
ITEMS = (RUN, RESULT, CHOICE)  # columns that contain objects, and are no axes
AXES, ORDERS = "axes", "orders"  # keys of `attrs`: the grid's axes; all values of each column in the grid's order


@dataclass(frozen=True)
class Choice:
    """How `best` chose a run among the runs that differ only in `over`."""

    over: str
    measure: str  #: words for the measure
    goal: float | None  #: the goal, if the measure has one
    among: int  #: the number of values tried
    at_end: bool  #: whether the chosen value is the smallest or the largest value tried
    beyond: float | None = None  #: if so, the number to try next; see `tuning.beyond`

    def __str__(self) -> str:
        return f"best of {self.among}" + ", at an end" * self.at_end


# -- tables ----------------------------------------------------------------------------------------


def table(
    items: Sequence[Run | Result], points: Iterable[Mapping[str, Any]] | None = None,
    orders: Mapping[str, Sequence[Any]] | None = None,
) -> pd.DataFrame:  # fmt: skip
    """Return a table with a row for each run or result.

    Columns: the axes of the points, the other fields in which the runs differ, `run`, and for results `result`. All
    have the dtype object, so that None and whole numbers are unchanged.

    Args:
        points: for each item, its values on the axes of a grid; of equal rows only the first is kept.
        orders: for each axis, values in the grid's order.
    """
    rows: list[tuple[Run | Result, Mapping[str, Any]]] = [(item, {}) for item in items]
    if points is not None:
        pairs = zip(items, points, strict=True)
        rows = [*{(identity(item), repr(dict(point))): (item, point) for item, point in pairs}.values()]
    runs = [item if isinstance(item, Run) else item.run for item, _ in rows]
    named = [name for name in dict.fromkeys(name for _, point in rows for name in point) if name != CHOICE]
    columns: dict[str, list[Any]] = {name: [point.get(name, math.nan) for _, point in rows] for name in named}
    fields = {name: [plain(getattr(run, name)) for run in runs] for name in FIELDS if name not in named}
    columns |= {name: cells for name, cells in fields.items() if len({*cells}) > 1}
    known = {name: [*dict.fromkeys([*(orders or {}).get(name, ()), *filterfalse(missing, cells)])]
             for name, cells in columns.items()}  # fmt: skip
    columns |= {RUN: runs, RESULT: [item for item, _ in rows], CHOICE: [point.get(CHOICE) for _, point in rows]}
    shown = pd.DataFrame({name: pd.Series(cells, dtype=object) for name, cells in columns.items()})
    shown.attrs |= {AXES: named, ORDERS: known}
    unused = {RESULT: any(isinstance(item, Run) for item in items), CHOICE: not any(columns[CHOICE])}
    return shown.drop(columns=[name for name, empty in unused.items() if empty])


def identity(item: Run | Result) -> Hashable:
    """Return a key that is equal for equal items; a run whose digest does not describe it completely equals no other
    run."""
    run = item if isinstance(item, Run) else item.run
    return run.digest, id(item) if run.unknown else "" if isinstance(item, Run) else str(item.path)


def runs_in(given: Run | Iterable[Run] | pd.DataFrame) -> pd.DataFrame:
    """Return a table with a row for each given run; of a given table, check that each row has a run.

    Raises:
        ConfigError: an item, or a cell of the column `run`, is no Run.
    """
    return _checked(given, Run, RUN, "grid(base, ...) gives a table with the column 'run'")


def results_in(given: Given) -> pd.DataFrame:
    """Return a table with a row for each given result; of a given table, check that each row has a result.

    Raises:
        ConfigError: an item, or a cell of the column `result`, is no Result.
    """
    frame = _checked(given, Result, RESULT, "sweep(runs) gives the column 'result' and executes missing runs; "
                     "dropna(subset='result') drops rows without one; [*table.result] lists the results")  # fmt: skip
    return frame if RUN in frame else frame.assign(run=[result.run for result in frame[RESULT]])


def _checked(given: Any, kind: type[Run] | type[Result], name: str, remedy: str) -> pd.DataFrame:
    items: list[Any]
    if isinstance(given, pd.DataFrame):
        items = [*given[name]] if name in given else [None] * max(1, len(given))
    else:
        items = [given] if isinstance(given, (Run, Result)) else list(given)
    if wrong := [item for item in items if not isinstance(item, kind)]:
        rows = f"{len(wrong)} of {len(items)} rows have none"
        raise ConfigError(f"{name}s", wrong[0], f"must be a {kind.__name__}, but {rows}: {remedy}")
    return given if isinstance(given, pd.DataFrame) else table(items)


def unique(given: Given) -> list[Result]:
    """Return the results of a table, each record once."""
    return list({identity(result): result for result in results_in(given)[RESULT]}.values())


def distinct(runs: pd.DataFrame) -> dict[Hashable, Run]:
    """Return the runs of a table by their `identity`, each run once."""
    first: dict[Hashable, Run] = {}
    for run in runs[RUN]:
        first.setdefault(identity(run), run)
    return first


def finished(runs: pd.DataFrame, results: Mapping[Hashable, Result]) -> pd.DataFrame:
    """Return the rows whose run has a result, with a column `result`; `results` has the results by `identity`."""
    items = [results.get(identity(run)) for run in runs[RUN]]
    rows = runs.assign(result=pd.Series(items, index=runs.index, dtype=object)).dropna(subset=RESULT)
    return rows.assign(run=rows[RESULT].map(lambda result: result.run))


# -- columns ---------------------------------------------------------------------------------------


def values(frame: pd.DataFrame, name: str) -> list[Any]:
    """Return the value of a column in each row: an axis, another column of the table, or a field of the row's run.

    Raises:
        ConfigError: an unknown column.
    """
    if name in ITEMS or (name not in frame and name not in FIELDS):
        known = nearest(str(name), FIELDS, [str(other) for other in frame if other not in ITEMS])
        raise ConfigError("column", name, f"is neither an axis of the table nor a field of Run; {known}")
    cells = frame[name].tolist() if name in frame else [math.nan] * len(frame)
    return [plain(cell) if not missing(cell) else plain(getattr(run, name)) if name in FIELDS else None
            for cell, run in zip(cells, frame[RUN], strict=True)]  # fmt: skip


def fields_of(run: Run, names: Iterable[str]) -> tuple[Any, ...]:
    """Return the values of some fields of a run in the form that tables have."""
    return tuple(plain(getattr(run, name)) for name in names)


def missing(cell: object) -> bool:
    """Whether a cell is NaN, which marks a missing value in a table; None is an ordinary value of a field."""
    return cell is pd.NA or (isinstance(cell, float) and math.isnan(cell))


def levels(frame: pd.DataFrame, name: str) -> list[Any]:
    """Return the distinct values of a column in the grid's order.

    Raises:
        ConfigError: an unknown column.
    """
    present = dict.fromkeys(value for value in values(frame, name) if value is not None or name in FIELDS)
    known = frame.attrs.get(ORDERS, {}).get(name, ())
    return [*(value for value in known if value in present), *(value for value in present if value not in known)]


def axes(frame: pd.DataFrame) -> list[str]:
    """Return the columns that are axes: the grid's axes, and columns that the user added, except columns of numbers. If
    a concat of different grids has removed `attrs`, each column that is a field of Run is an axis."""
    known = frame.attrs.get(AXES, FIELDS)
    return [str(name) for name in frame if name not in ITEMS and (
        name in known or not (name in FIELDS or all(map(_measured, frame[name]))))]  # fmt: skip


def _measured(cell: object) -> bool:
    return cell is None or missing(cell) or (isinstance(cell, (int, float, np.number)) and not isinstance(cell, bool))


def labels(frame: pd.DataFrame) -> list[str]:
    """Return the columns that are needed to distinguish these runs; the seed is never among them."""
    cells = {name: values(frame, name) for name in dict.fromkeys([*axes(frame), *FIELDS]) if name != "seed"}
    chosen, digests = [name for name, column in cells.items() if len({*column}) > 1], seedless(frame)
    for name in reversed(chosen):
        others = [cells[other] for other in chosen if other != name]
        if len({*zip(*others, strict=True)}) == len({*zip(digests, *others, strict=True)}) or len({*digests}) == 1:
            chosen.remove(name)  # the other columns distinguish the runs
    return chosen


def seedless(frame: pd.DataFrame) -> list[str]:
    """Return for each row the digest of its run with seed 0: it is equal for runs that differ in the seed alone."""
    return [run.but(seed=0).digest for run in frame[RUN]]


def columns_of(frame: pd.DataFrame, *by: By) -> list[str]:
    """Return the names of columns, each once; "label" is replaced by the columns in which the runs differ (`labels`).

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
    """Return the rows of a table of runs or results that have these values in these columns or fields of Run.

    If a value is a list, a row may have any of its entries.

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
    """Return groups of results by their values in these columns, in the grid's order.

    The results of a group may differ only in the seed. `label` stands for all columns that distinguish the results.
    `others` are columns given in other options of a figure, such as facet="sync".

    Raises:
        ConfigError: an unknown column, or a group whose runs differ in more than the seed.
    """
    frame = results_in(given)
    names = columns_of(frame, by, *filter(None, others.values()))
    known = {name: levels(frame, name) for name in names}
    split: dict[tuple[Any, ...], list[int]] = {}
    for row, key in enumerate(zip([0] * len(frame), *(values(frame, name) for name in names), strict=True)):
        split.setdefault(key[1:], []).append(row)

    def rank(key: tuple[Any, ...]) -> list[int]:  # results without a value on an axis are last
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
    problem = (f"{len(unique(group))} runs of {which} differ in {words}: name {names[0]} in {options}, keep one value "
               f"with where(results, {names[0]}=...), or choose with best(results, over={names[0]!r})")  # fmt: skip
    raise ConfigError("by", [by] if isinstance(by, str) else list(by), problem)


def words(runs: pd.DataFrame, name: Hashable) -> str:
    """Return words that distinguish the run with this `identity` from the table's other runs: ``"sync ssp:3, seed 1
    (0123456789abcdef)"``."""
    row = next(row for _, row in runs.iterrows() if identity(row[RUN]) == name)
    columns = [str(column) for column in runs if column not in ITEMS and len({*runs[column]}) > 1]
    text = ", ".join(f"{column} {row[column]}" for column in columns)
    return f"{text} ({row[RUN].digest})" if text else str(row[RUN].digest)


def notes(frame: pd.DataFrame) -> list[str]:
    """Return sentences for a caption that say how `best` chose these results, one for each kind of choice."""
    kinds: dict[str, set[tuple[str, Choice]]] = {}
    for digest, run, how in zip(seedless(frame), frame[RUN], frame.get(CHOICE, [None] * len(frame)), strict=True):
        if isinstance(how, Choice):
            aim = "" if how.goal is None else f" to {metric_of(run).goal(how.goal, ' ')}"
            kind = f"each at its best {how.over.replace('_', ' ')} by {how.measure}{aim}"
            kinds.setdefault(kind, set()).add((digest, how))
    ends = [sum(how.at_end for _, how in chosen) for chosen in kinds.values()]
    return [kind + (f"; {count} of {len(chosen)} lie at an end of their grid" if count else "")
            for (kind, chosen), count in zip(kinds.items(), ends, strict=True)]  # fmt: skip


def single(run: Run, others: Iterable[Run]) -> bool:
    """Whether the run has one worker while others have several: the single machine to compare with."""
    return run.workers == 1 and any(other.workers > 1 for other in others)
