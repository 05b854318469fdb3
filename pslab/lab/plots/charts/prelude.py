"""The first step of every chart: groups of runs that differ only in the seed, with a label and a look each."""

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


class Group(NamedTuple):
    """The runs of one curve, one lane or one bar; they differ only in the seed."""

    key: dict[str, Any]  #: the values of the figure's columns
    results: Sequence[Result]
    label: str  #: unique among the groups of a panel
    marks: str
    look: Look


class Facets(NamedTuple):
    """The panels in one direction: their column, its values, and the headings of panels."""

    column: str | None = None
    values: Sequence[Any] = ()
    heads: Sequence[str] = ()


@dataclass(frozen=True)
class Shown:
    """The runs of a figure in groups."""

    results: pd.DataFrame  #: all results
    crowd: pd.DataFrame  #: the results without single machines
    names: Sequence[str]  #: the columns in which groups of one panel differ
    columns: Sequence[str]  #: `names` and the columns of panels
    groups: Sequence[Group]
    singles: Sequence[Group]  #: the single machines drawn beside the groups
    across: Facets  #: the panels side by side
    down: Facets  #: the panels one under another
    one: bool  #: whether each panel has only one curve, which its heading names


def grouped(results: Given, by: Names, facet: str | None = None, row: str | None = None) -> Shown:
    """Return the runs in groups by the columns `by` and the panels' columns; single machines are groups of their own.

    Raises:
        ConfigError: there is no run; an unknown column; a group that differs in more than the seed.
    """
    crowd, alone = separated(results)
    panels = [*filter(None, (facet, row))]
    names, columns, made = _groups(crowd, by, panels)
    singles = []
    if len(alone):
        differing, _, machines = _groups(alone, "label", [])
        singles = [machine._replace(label="single machine" + (f", {machine.label}" if differing else ""))
                   for machine in machines]  # fmt: skip
    across, down = (Facets() if column is None else Facets(column, levels(crowd, column), heads_of(
        column, levels(crowd, column), crowd)) for column in (facet, row))  # fmt: skip
    one = facet is not None and {*names} <= {facet}
    return Shown(results_in(results), crowd, names, columns, made, singles, across, down, one)


def _groups(results: pd.DataFrame, by: Names, panels: Sequence[str]) -> tuple[list[str], list[str], list[Group]]:
    """Return the columns in which groups of one panel differ, these with the columns of panels, and the groups."""
    columns = columns_of(results, by, *panels)
    split = groups(results, by, **dict(zip(("facet", "row"), panels, strict=False)))
    names = [name for name in columns if name not in panels or name in listed(by)]
    keys = [dict(zip(columns, key, strict=True)) for key in split]
    firsts = [group[0].run for group in split.values()]
    looked = names or ([] if panels else ["sync"])  # a single curve has its policy's look
    made = shared_looks([{"sync": run.sync, **key} for run, key in zip(firsts, keys, strict=True)], looked, panels,
                        results.attrs.get(ORDERS, {}), results)  # fmt: skip
    made_of = zip(keys, split.values(), firsts, made, strict=True)
    return names, columns, [Group(key, group, label_of(key, names, run), marks(group), look)
                            for key, group, run, look in made_of]  # fmt: skip


def is_table(data: Given) -> TypeGuard[pd.DataFrame]:
    """Whether this is a table of numbers, not of runs or results."""
    return isinstance(data, pd.DataFrame) and not {*data.columns} & {*ITEMS}


def separated(results: Given) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return two tables: the runs without single machines, and the single machines beside runs of several workers.

    Raises:
        ConfigError: there is no run.
    """
    frame = results_in(results)
    if not len(frame):
        raise ConfigError("results", 0, "there is no run to draw: a chart needs one finished run, as sweep(runs) gives")
    runs = frame.run.tolist()
    alone = np.array([single(run, runs) for run in runs])
    return frame[~alone], frame[alone]


def listed(names: Iterable[str]) -> list[str]:
    """Return one name, or several, as a list."""
    return [names] if isinstance(names, str) else list(names)


# -- looks -----------------------------------------------------------------------------------------


def shared_looks(
    keys: Sequence[Mapping[str, Any]], names: Sequence[str], panels: Sequence[str],
    orders: Mapping[str, Sequence[Any]], results: pd.DataFrame | None = None,
) -> list[Look]:  # fmt: skip
    """Return a look for each key, by its values in the columns `names`, the same in all panels. If these columns have
    the user's own names for policies of `results`, the policies' colours are used."""
    curves = [repr([key[name] for name in names]) for key in keys]
    policies = _policies(results, names) if results is not None else {}
    where: dict[str, list[str]] = {}
    for curve, key in zip(curves, keys, strict=True):
        where.setdefault(curve, []).append(repr([key[name] for name in panels]))
    distinct = {curve: {**policies.get(curve, {}), **{name: key[name] for name in names}}
                for curve, key in zip(curves, keys, strict=True)}  # fmt: skip
    made = dict(zip(distinct, looks(list(distinct.values()), [where[curve] for curve in distinct], orders),
                    strict=True))  # fmt: skip
    return [made[curve] for curve in curves]


def _policies(results: pd.DataFrame, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return, by values of the columns `names`, the first field of LEADING that they determine, with its value."""
    keys = [repr(list(cells)) for cells in zip(*(values(results, name) for name in names), strict=True)]
    for leading in LEADING if not {*names} & {*LEADING} else ():
        policies: dict[str, set[Any]] = {}
        for key, run in zip(keys, results.run, strict=False):
            policies.setdefault(key, set()).add(plain(getattr(run, leading)))
        rows = Counter(find(leading, value) for members in policies.values() for value in members)
        crowded = max(rows.values(), default=0) > max(2, len(policies) // 2)  # most would have one colour
        if None not in rows and len(rows) > 1 and not crowded and all(len(some) == 1 for some in policies.values()):
            return {key: {leading: value} for key, (value,) in policies.items()}
    return {}
