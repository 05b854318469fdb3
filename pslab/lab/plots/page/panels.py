"""Which panel shows what: curves by their columns, spread over facets and rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import pandas as pd

from pslab.config.parameters import plain
from pslab.config.table import find
from pslab.errors import ConfigError
from pslab.lab.plots.page.axes import Axis
from pslab.lab.plots.page.line import Line
from pslab.lab.plots.page.page import Page
from pslab.lab.plots.page.theme import LEADING, Look, looks
from pslab.lab.records.grid_axes import key_of
from pslab.lab.records.results import Results
from pslab.lab.records.summary import columns_of

Names = str | Sequence[str]
T = TypeVar("T")
COLUMNS = {"sync": "synchronization policy", "prune": "pruning rule", "rate": "learning-rate policy",
           "order": "request order", "learning_rate": "learning rate", "push_weight": "push weight"}  # fmt: skip


CROWD = 12  # curves that a reader tells apart in one panel
WRAP = 4  # facets side by side; more take several rows where there is no column for rows


class Cell(NamedTuple):
    """What a panel shows."""

    facet: Any
    row: Any
    x: str
    y: str


@dataclass(frozen=True)
class Curve:
    """One curve and its places; where facet or row is ... it stands in every panel."""

    label: str
    look: Look
    facet: Any = None
    row: Any = None
    behind: bool = False
    sign: str = ""
    frames: Mapping[tuple[str, str], pd.DataFrame] = field(default_factory=dict)  #: (x, y) -> x, y, low, high, hover
    crosses: Mapping[tuple[str, str], Sequence[tuple[float, float]]] = field(default_factory=dict)
    how: Mapping[str, Any] = field(default_factory=dict)  #: more fields of its Line


def cells(facets: Sequence[Any], rows: Sequence[Any], xs: Sequence[str], ys: Sequence[str]) -> list[list[Cell]]:
    """The panels: facets, or several x or y, side by side; rows, or what is left of those, one under the other.

    Many facets alone take several rows, of which the last may be shorter.

    Raises:
        ConfigError: no room is left for several x or y.
    """
    several = [name for name, values in (("x", xs), ("y", ys)) if len(values) > 1]
    across = "facet" if facets else several.pop(0) if several else ""
    down = "row" if rows else several.pop(0) if several else ""
    if several:
        names = [*xs] if several[0] == "x" else [*ys]
        raise ConfigError(several[0], names, "facet and row leave no place for a panel each: draw a figure for each")
    values: dict[str, Sequence[Any]] = {"facet": facets, "row": rows, "x": xs, "y": ys, "": [None]}
    first = Cell(None, None, xs[0], ys[0])
    found = [[first._replace(**{name: value for name, value in ((down, below), (across, beside)) if name})
              for beside in values[across]] for below in values[down]]  # fmt: skip
    return in_rows(found[0], WRAP) if across == "facet" and not down else found


def in_rows(values: Sequence[T], most: int) -> list[list[T]]:
    """In rows of at most so many, about equally long."""
    side_by_side = math.ceil(len(values) / math.ceil(len(values) / most))
    return [list(values[first : first + side_by_side]) for first in range(0, len(values), side_by_side)]


def spread(
    results: Results, by: Names, facet: str | None, row: str | None, taken: Sequence[str], free: int
) -> tuple[str | None, str | None]:
    """The columns of panels: those asked for, and where "label" would crowd them, of what differs as many more as have
    a place: the one with the fewest values that leaves no crowd, else the one with most."""
    panels = [facet, row]
    while by == "label" and free > 0 and None in panels:
        names = [name for name in columns_of(results, "label") if name not in {*panels, *taken}]
        sizes = {name: (_curves(results, [other for other in names if other != name]), len(results.levels(name)))
                 for name in names}  # fmt: skip
        if len(names) < 2 or _curves(results, names) <= CROWD:
            break
        least = {name: (few > CROWD, many if few <= CROWD else -many, name in LEADING)
                 for name, (few, many) in sizes.items()}  # fmt: skip
        panels[panels.index(None)], free = min(names, key=least.__getitem__), free - 1
    return panels[0], panels[1]


def _curves(results: Results, names: Sequence[str]) -> int:
    """How many curves a panel has at most, if these columns tell them apart."""
    return len({repr(key_of(result.run, place, names)) for place, result in results.placed()})


def compose(
    drawn: Sequence[Curve], grid: Sequence[Sequence[Cell]], x_axes: Mapping[str, Axis], y_axes: Mapping[str, Axis],
    heads: Sequence[str] = (), sides: Sequence[str] = (), width: str = "page",
) -> Page:  # fmt: skip
    """A page with each curve in its panels, those that stand behind first."""
    page = grid_of([[x_axes[cell.x] for cell in line] for line in grid],
                   [[y_axes[cell.y] for cell in line] for line in grid], heads, sides, width)  # fmt: skip
    for row, line in enumerate(grid):
        for column, cell in enumerate(line):
            own = [each for each in drawn if each.facet in (cell.facet, ...) and each.row in (cell.row, ...)]
            for each in sorted(own, key=lambda curve: not curve.behind):
                frame = each.frames.get((cell.x, cell.y))
                if frame is None or not len(frame):
                    continue
                if x_axes[cell.x].log:  # plotly would draw a line to what has no place there
                    frame = frame[frame.x > 0]
                lowest = y_axes[cell.y].low
                crosses = [(x, max(lowest, y)) for x, y in each.crosses.get((cell.x, cell.y), ())]
                page.add(row, column, Line(
                    each.label, each.look, list(frame.x), list(frame.y), list(frame.low), list(frame.high),
                    list(frame.hover), crosses, each.sign, **each.how))  # fmt: skip
    return page


def grid_of(
    xs: Sequence[Sequence[Axis]], ys: Sequence[Sequence[Axis]], heads: Sequence[str], sides: Sequence[str], width: str
) -> Page:
    """A page of rows of which the last may be shorter."""
    blank = range(len(xs[-1]), len(xs[0]))
    full_x, full_y = ([*lines[:-1], [*lines[-1], *(lines[-1][-1] for _ in blank)]] for lines in (xs, ys))
    return Page(full_x, full_y, heads, sides, width, blank=[(len(xs) - 1, column) for column in blank])


def shared_looks(
    keys: Sequence[Mapping[str, Any]], names: Sequence[str], panels: Sequence[str],
    orders: Mapping[str, Sequence[Any]], results: Results | None = None,
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


def _policies(results: Results, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The first field of LEADING that these columns decide, with its value by theirs."""
    for leading in LEADING if not {*names} & {*LEADING} else ():
        found: dict[str, set[Any]] = {}
        for place, result in results.placed():
            found.setdefault(repr([*key_of(result.run, place, names)]), set()).add(plain(getattr(result.run, leading)))
        rows = {find(leading, value) for values in found.values() for value in values}
        if None not in rows and len(rows) > 1 and all(len(values) == 1 for values in found.values()):
            return {which: {leading: value} for which, (value,) in found.items()}
    return {}


def grey(drawn: Iterable[Curve], unlabelled: bool) -> list[str]:
    """The name of the curve that stands behind the others, where no label does."""
    found = dict.fromkeys(curve.label for curve in drawn if curve.behind and unlabelled)
    return [f"grey: {', '.join(found)}"] if found else []


def listed(names: Names) -> list[str]:
    """One name, or several."""
    return [names] if isinstance(names, str) else list(names)


def words_of(title: Any) -> str:
    """The sentence of a title, which may be a Claim; "" for None."""
    return title if isinstance(title, str) else str(getattr(title, "title", "") or "")


def headline(what: Iterable[str], against: Iterable[str], columns: Iterable[str]) -> str:
    """What a figure shows: ``"Test accuracy against time, by pruning rule"``."""
    by = _enumerated(COLUMNS.get(name, name.replace("_", " ")) for name in columns)
    text = " against ".join(filter(None, (_enumerated(what), _enumerated(against))))
    return f"{text[0].upper()}{text[1:]}" + (f", by {by}" if by else "")


def _enumerated(words: Iterable[str]) -> str:
    *others, last = [*words] or [""]
    return " and ".join(filter(None, (", ".join(others), last)))
