"""The first step of every chart: its runs in groups that differ in the seed alone, with names and looks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import pandas as pd

from pslab.config.parameters import plain
from pslab.config.table import find
from pslab.errors import ConfigError
from pslab.lab.plots.labels import heads_of, label_of, marks
from pslab.lab.plots.theme import LEADING, Look, looks
from pslab.lab.records.frames import ITEMS, ORDERS, Given, columns_of, groups, levels, results_in, single, values
from pslab.lab.records.record import Result

Names = str | Sequence[str]
CROWD = 12  # curves that a reader tells apart in one panel


class Group(NamedTuple):
    """The runs of one curve, one lane or one bar: they differ in the seed alone."""

    key: dict[str, Any]  #: the values of the figure's columns
    results: Sequence[Result]
    label: str  #: what tells it apart from the others of its panel
    marks: str
    look: Look


class Facets(NamedTuple):
    """The panels side by side, or one under the other: a column, its values and their names."""

    column: str | None = None
    values: Sequence[Any] = ()
    heads: Sequence[str] = ()


@dataclass(frozen=True)
class Shown:
    """The runs of a figure."""

    results: pd.DataFrame  #: all of them
    crowd: pd.DataFrame  #: the results of several workers
    names: Sequence[str]  #: the columns that tell groups of one panel apart
    columns: Sequence[str]  #: these and the columns of panels
    groups: Sequence[Group]
    singles: Sequence[Group]  #: the single machines beside them
    across: Facets
    down: Facets
    one: bool  #: whether each panel has a curve of its own, which its heading names


def grouped(
    results: Given, by: Names, facet: str | None = None, row: str | None = None, *,
    several: int | None = None,
) -> Shown:  # fmt: skip
    """The runs of several workers in groups by the columns `by`, and by the panels' columns, in the grid's order.

    Args:
        several: how many directions have a panel for each x, or for each y; then the others may have panels for a
            column that is not asked for: see `spread`.

    Raises:
        ConfigError: there is no run; an unknown column; a group that differs in more than the seed.
    """
    crowd, alone = separated(results)
    if several is not None:
        facet, row = spread(crowd, by, facet, row, several=several)
    names, columns, groups = _groups(crowd, by, [*filter(None, (facet, row))])
    singles = []
    if len(alone):
        differing, _, own = _groups(alone, "label", [])
        singles = [each._replace(label="single machine" + (f", {each.label}" if differing else "")) for each in own]
    across, down = (Facets() if column is None else Facets(column, levels(crowd, column), heads_of(
        column, levels(crowd, column), crowd)) for column in (facet, row))  # fmt: skip
    one = facet is not None and {*names} <= {facet}
    return Shown(results_in(results), crowd, names, columns, groups, singles, across, down, one)


def _groups(results: pd.DataFrame, by: Names, panels: Sequence[str]) -> tuple[list[str], list[str], list[Group]]:
    """The columns that tell groups of one panel apart, the columns of all panels, and the groups."""
    columns = columns_of(results, by, *panels)
    split = groups(results, by, **dict(zip(("facet", "row"), panels, strict=False)))
    names = [name for name in columns if name not in panels or name in listed(by)]
    keys = [dict(zip(columns, key, strict=True)) for key in split]
    firsts = [group[0].run for group in split.values()]
    looked = names or ([] if panels else ["sync"])  # a curve alone has its policy's look
    made = shared_looks([{"sync": run.sync, **key} for run, key in zip(firsts, keys, strict=True)], looked, panels,
                        results.attrs.get(ORDERS, {}), results)  # fmt: skip
    found = [Group(key, group, label_of(key, names, run), marks(group), look)
             for key, group, run, look in zip(keys, split.values(), firsts, made, strict=True)]  # fmt: skip
    return names, columns, found


def is_table(data: Given) -> TypeGuard[pd.DataFrame]:
    """Whether this is a table of numbers, and not of runs or results."""
    return isinstance(data, pd.DataFrame) and not {*data.columns} & {*ITEMS}


def separated(results: Given) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The runs of several workers, and the single machine beside them.

    Raises:
        ConfigError: there is no run.
    """
    frame = results_in(results)
    if not len(frame):
        raise ConfigError("results", 0, "there is no run to draw")
    runs = frame.run.tolist()
    alone = np.array([single(run, runs) for run in runs])
    return frame[~alone], frame[alone]


def listed(names: Iterable[str]) -> list[str]:
    """Return one name, or several, as a list."""
    return [names] if isinstance(names, str) else list(names)


# -- panels ----------------------------------------------------------------------------------------


def spread(
    data: Given, by: Names, facet: str | None, row: str | None, *, several: int, taken: Iterable[str] = ()
) -> tuple[str | None, str | None]:
    """The columns of panels: those asked for, and where "label" would crowd them, of what differs as many more as have
    a place: the one with the fewest values that leaves no crowd, else the one with most.

    Args:
        several: the number of places that have a panel for each x, or for each y.
        taken: columns that are drawn otherwise.
    """
    panels = [facet, row]
    if by != "label" or is_table(data):
        return facet, row
    results, _ = separated(data)
    for _ in range(panels.count(None) - several):
        names = [name for name in columns_of(results, "label") if name not in {*panels, *taken}]
        sizes = {name: (_curves(results, [other for other in names if other != name]), len(levels(results, name)))
                 for name in names}  # fmt: skip
        if len(names) < 2 or _curves(results, names) <= CROWD:
            break
        least = {name: (few > CROWD, many if few <= CROWD else -many, name in LEADING)
                 for name, (few, many) in sizes.items()}  # fmt: skip
        panels[panels.index(None)] = min(names, key=least.__getitem__)
    return panels[0], panels[1]


def _curves(results: pd.DataFrame, names: Sequence[str]) -> int:
    """How many curves a panel has at most, if these columns tell them apart."""
    return len(_keys(results, names))


def _keys(results: pd.DataFrame, names: Sequence[str]) -> dict[str, list[int]]:
    """The rows by their values of these columns."""
    rows: dict[str, list[int]] = {}
    cells = [values(results, name) for name in names]
    for row in range(len(results)):
        rows.setdefault(repr([column[row] for column in cells]), []).append(row)
    return rows


# -- looks -----------------------------------------------------------------------------------------


def shared_looks(
    keys: Sequence[Mapping[str, Any]], names: Sequence[str], panels: Sequence[str],
    orders: Mapping[str, Sequence[Any]], results: pd.DataFrame | None = None,
) -> list[Look]:  # fmt: skip
    """A look for each key, by the columns `names`, the same in all panels, which the columns `panels` make; where these
    are names of the reader's own for policies of the results, those have their colours."""
    own = [repr([key[name] for name in names]) for key in keys]
    policies = _policies(results, names) if results is not None else {}
    places: dict[str, list[str]] = {}
    for which, key in zip(own, keys, strict=True):
        places.setdefault(which, []).append(repr([key[name] for name in panels]))
    distinct = {which: {**policies.get(which, {}), **{name: key[name] for name in names}}
                for which, key in zip(own, keys, strict=True)}  # fmt: skip
    made = looks(list(distinct.values()), [places[which] for which in distinct], orders)
    found = dict(zip(distinct, made, strict=True))
    return [found[which] for which in own]


def _policies(results: pd.DataFrame, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The first field of LEADING that these columns decide, with its value by theirs."""
    for leading in LEADING if not {*names} & {*LEADING} else ():
        of = [plain(getattr(run, leading)) for run in results.run]
        found = {which: {of[row] for row in rows} for which, rows in _keys(results, names).items()}
        rows = Counter(find(leading, value) for own in found.values() for value in own)
        crowded = max(rows.values(), default=0) > max(2, len(found) // 2)  # one colour of most of them tells little
        if None not in rows and len(rows) > 1 and not crowded and all(len(own) == 1 for own in found.values()):
            return {which: {leading: value} for which, (value,) in found.items()}
    return {}
