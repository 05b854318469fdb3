"""Points against a column: medians with their range over seeds, joined or not."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from pslab.lab.plots.accuracy import apart, as_results
from pslab.lab.plots.charts.tables import Data, Table, Titled, bare, numeric, tabled, titled
from pslab.lab.plots.page.axes import Axis, axis, categories, nice
from pslab.lab.plots.page.panels import Curve, Names, cells, compose, grey, headline, shared_looks, spread, words_of
from pslab.lab.plots.page.theme import BACK, DASHES
from pslab.lab.records.summary import cell, missing, unit_of
from pslab.lab.records.units import plain

FEW = 8  # so many values on x, with ranges, have places of equal width
DODGE, SPREAD = 0.08, 0.5  # of such a place: from one curve to the next; and from the first to the last
ABOVE = 0.14  # of the axis: where what was not reached stands, above all others
FAR_APART = 0.5  # of the highest value: an axis of lower ones starts at 0
MARKED = 40  # points of a line with markers; more are a line


def points(
    data: Data, x: Titled, y: Titled, *, by: Names = "label", facet: str | None = None, row: str | None = None,
    behind: Any = None, goal: float | None = None, log: str = "", join: bool | str | Collection[Any] = True,
    title: Any = None, notes: Iterable[str] = (), width: str = "page",
) -> go.Figure:  # fmt: skip
    """Values against a column: medians over seeds with their range; what never reached the goal stands above a line.

    Args:
        data: results, of which y names measures; or a table with these columns.
        x, y: names of columns, or {name: title}; one may have several: a panel for each.
        by, facet, row: columns whose values get a curve or a panel each.
        behind: the value of `by` that stands grey behind the others.
        goal: the accuracy (0 to 1), or value of the runs' metric, of measures to a goal.
        log: the logarithmic axes, of "x" and "y". Few values of x, with ranges, otherwise have places of equal width.
        join: whether points are joined; the values of `by` that are; or "steps".
        title: a sentence or a Claim; None: what is shown.
        notes: more lines for the caption.
        width: page (7.16 in) or column (3.5 in).

    Raises:
        ConfigError: an unknown column; points that differ in more than the seed.
    """
    data = data if isinstance(data, pd.DataFrame) else as_results(data)
    xs, ys = titled(x, goal, data), titled(y, goal, data)
    if not isinstance(data, pd.DataFrame):
        free = 2 - (len(xs) > 1) - (len(ys) > 1) - bool(facet) - bool(row)
        facet, row = spread(apart(data)[0], by, facet, row, list(xs), free)
    panels = [*filter(None, (facet, row))]
    table = tabled(data, by, [*xs, *panels], list(ys), goal)
    columns = list(dict.fromkeys([*table.names, *panels]))
    keys = list({repr(key): key for key in ({name: each[name] for name in columns} for each in table.rows)}.values())
    one = facet is not None and {*table.names} <= {facet}  # each panel has its own curve, and its heading names it
    x_axes = {name: _x_axis(table, name, words, ys, log) for name, words in xs.items()}
    at = {name: {repr(value): rank for rank, value in enumerate(table.places(name)) if shown.bare}
          for name, shown in x_axes.items()}  # fmt: skip
    y_axes = {name: _y_axis(table, name, words, "y" in log) for name, words in ys.items()}
    curves = {repr([key[name] for name in table.names]): None for key in keys}
    drawn, dashes = [], dict[str, str]()  # the dashes are all that is seen of lines without markers
    for key, look in zip(keys, shared_looks(keys, table.names, panels, table.orders, table.crowd), strict=True):
        own, values = table.where(**key), [key[name] for name in table.names]
        back = behind is not None and behind in values
        rank = list(curves).index(repr(values)) - (len(curves) - 1) / 2
        aside = rank * min(DODGE, SPREAD / max(1, len(curves) - 1))
        joined = join in (True, "steps") or (not isinstance(join, (bool, str)) and any(each in join for each in values))
        marked = not joined or len(own.frame) <= MARKED or len(curves) > len(DASHES)
        if not marked:
            taken = {dash for label, dash in dashes.items() if label != table.label(key)}
            dash = next((each for each in (look.dash, *DASHES) if each not in taken), look.dash)
            look = dataclasses.replace(look, dash=dashes.setdefault(table.label(key), dash))
        how = {"joined": joined, "marked": marked, "bars": True, "steps": join == "steps"}
        pairs = [(x_, y_) for x_ in xs for y_ in ys]
        drawn.append(Curve(
            table.label(key), BACK if back else look, ... if back and one else key.get(facet or ""),
            key.get(row or ""), back, "", {pair: _points(own, *pair, at[pair[0]], y_axes, aside) for pair in pairs},
            {pair: _unreached(own, *pair, at[pair[0]], y_axes, aside) for pair in pairs}, how))  # fmt: skip
    facets = [value for value in table.levels(facet) if not (one and value == behind)]
    page = compose(drawn, cells(facets, table.levels(row), list(xs), list(ys)), x_axes, y_axes,
                   [table.word(facet or "", value) for value in facets], table.heads(row), width)  # fmt: skip
    for name, shown in y_axes.items():
        if _some_missing(table, name):
            page.level(_value(shown, 1 - 1.5 * ABOVE / (1 + 2 * ABOVE)), "", shown)
    shown_as = headline(map(bare, ys.values()), map(bare, xs.values()), columns)
    lines = [*table.caption, *grey(drawn, one), *notes]
    return page.finish(words_of(title) or shown_as, lines, () if one or not table.names else None)


# -- axes ------------------------------------------------------------------------------------------


def _x_axis(table: Table, name: str, title: str, ys: Iterable[str], log: str) -> Axis:
    values = table.levels(name)
    ranges = any(f"{y}_low" in table.frame and (table.frame[f"{y}_high"] > table.frame[f"{y}_low"]).any() for y in ys)
    if not numeric(values) or (ranges and "x" not in log and len(values) <= FEW):
        return categories(table.place_names(name), title)
    ticks = tuple((value, plain(value)) for value in sorted(values)) if "x" in log and len(values) <= FEW else ()
    shown = axis(values, title, log="x" in log, pad=0.04)
    return Axis(title, shown.low, shown.high, shown.log, ticks or shown.ticks)


def _y_axis(table: Table, name: str, title: str, log: bool) -> Axis:
    unit = unit_of(name, table.metric)
    ends = [f"{name}{end}" for end in ("", "_low", "_high") if f"{name}{end}" in table.frame]
    values = [unit.factor * value for end in ends for value in table.frame[end]]
    finite = [value for value in values if math.isfinite(value)]
    zero = bool(finite) and 0 <= min(finite) < FAR_APART * max(finite)
    shown = axis(values, title, log=log, zero=zero, form=unit.tick, pad=0.05)
    if not _some_missing(table, name):
        return shown
    low, high = shown.range
    top = Axis(title, shown.low, _power(high + 2 * ABOVE * (high - low), log), log)
    ticks = shown.ticks or tuple((tick, plain(tick)) for tick in nice(low, high) if tick <= high)
    return Axis(title, top.low, top.high, log, (*ticks, (_value(top, 1 - ABOVE / (1 + 2 * ABOVE)), "not<br>reached")))


def _power(value: float, log: bool) -> float:
    return 10.0**value if log else value


def _value(shown: Axis, share: float) -> float:
    """The value at so large a share of an axis."""
    low, high = shown.range
    return _power(low + share * (high - low), shown.log)


def _some_missing(table: Table, name: str) -> bool:
    return any(missing(each, name) for each in table.rows)


# -- points ----------------------------------------------------------------------------------------


def _points(
    own: Table, x: str, y: str, places: Mapping[str, int], y_axes: Mapping[str, Axis], aside: float
) -> pd.DataFrame:
    """x, y, low, high and hover of one curve; the range of one that not all seeds reach ends above all others."""
    found, factor = [], unit_of(y, own.metric).factor
    for row in own.rows:
        value, low, high = (factor * row.get(f"{y}{end}", row[y]) for end in ("", "_low", "_high"))
        highest = y_axes[y].ticks[-1][0] if missing(row, y) else value
        ends = [end if math.isfinite(end) else other for end, other in ((low, value), (high, highest))]
        found.append((_at(row[x], places, aside), value, *ends, f"{own.word(x, row[x])}: {cell(row, y)}"))
    return pd.DataFrame(found, columns=["x", "y", "low", "high", "hover"]).sort_values("x", kind="stable")


def _unreached(
    own: Table, x: str, y: str, places: Mapping[str, int], y_axes: Mapping[str, Axis], aside: float
) -> list[tuple[float, float]]:
    rows = [row for row in own.rows if missing(row, y) and not math.isfinite(row[y])]
    return [(_at(row[x], places, aside), y_axes[y].ticks[-1][0]) for row in rows]


def _at(value: Any, places: Mapping[str, int], aside: float) -> float:
    """Where a value lies: at its place, if the axis has places of equal width."""
    return places[repr(value)] + aside if places else float(value)
