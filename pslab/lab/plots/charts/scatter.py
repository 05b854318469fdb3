"""Points against a column: medians with their range over seeds, joined or not."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from pslab.config.run import FIELDS
from pslab.lab.plots.arrange import finish, level
from pslab.lab.plots.axes import Axis, axis, categories, nice, numbered
from pslab.lab.plots.charts.panels import Curve, compose, grey
from pslab.lab.plots.charts.prelude import Facets, Names, listed, shared_looks
from pslab.lab.plots.charts.tables import Table, Titled, bare, numeric, tabled
from pslab.lab.plots.labels import heading
from pslab.lab.plots.theme import BACK, DASHES, SMALL
from pslab.lab.records.frames import Given
from pslab.lab.records.summary import cell, missing, unit_of

FEW = 8  # at most this many values of x with ranges are spaced equally
SHORT = 6  # a number of x with at most this many characters is probably a setting; measured numbers are longer
DODGE, SPREAD = 0.08, 0.5  # shares of this spacing: from one curve to the next; and from the first to the last
ABOVE = 0.14  # the height of missed goals above all other points, as a share of the axis
FAR_APART = 0.5  # if the lowest value is below this share of the highest, the axis starts at 0
MARKED = 40  # a line with more points has no markers


def points(
    data: Given, x: Titled, y: Titled, *, by: Names = "label", facet: str | None = None, row: str | None = None,
    behind: Any = None, goal: float | None = None, log: str = "", join: bool | str | Collection[Any] = True,
    title: Any = None, notes: Iterable[str] = (), width: str = "page",
) -> go.Figure:  # fmt: skip
    """Draw values against a column: medians over seeds with ranges. Points that miss the goal are crosses at the top.

    Args:
        data: results, whose measures y names; or a table with these columns.
        x, y: names of columns, or {name: title}; one may have several: a panel for each.
        by, facet, row: columns whose values get a curve or a panel each.
        behind: the value of `by` whose curve is grey, behind the others.
        goal: for measures to a goal, the accuracy (0 to 1) or the value of the runs' metric.
        log: the logarithmic axes: "x", "y" or "xy". On a linear x axis, few values with ranges are spaced equally.
        join: whether lines join the points ("steps": as steps); a collection: only for these values of `by`.
        title: a sentence or a Claim; None: the names of the shown quantities.
        notes: more lines for the caption.
        width: page (7.16 in) or column (3.5 in).

    Raises:
        ConfigError: an unknown column; points that differ in more than the seed.
    """
    table = tabled(data, by, [*listed(x), facet, row], listed(y), goal)
    xs, ys, sides = table.titled(x), table.titled(y), [*filter(None, (facet, row))]
    columns = list(dict.fromkeys([*table.names, *sides]))
    points_ = [{name: point[name] for name in columns} for point in table.rows]
    keys = list({repr(key): key for key in points_}.values())
    one = facet is not None and {*table.names} <= {facet}  # each panel has its own curve, and its heading names it
    x_axes = {name: _x_axis(table, name, words, ys, log) for name, words in xs.items()}
    ranks = {name: {repr(value): rank for rank, value in enumerate(table.places(name)) if axis.bare}
             for name, axis in x_axes.items()}  # fmt: skip
    y_axes = {name: _y_axis(table, name, words, "y" in log) for name, words in ys.items()}
    curves = list(dict.fromkeys(repr([key[name] for name in table.names]) for key in keys))
    pairs = [(x_, y_) for x_ in xs for y_ in ys]
    drawn, dashes = [], dict[str, str]()  # lines without markers need different dashes
    for key, look in zip(keys, shared_looks(keys, table.names, [], table.orders, table.crowd), strict=True):
        part, values, label = table.where(**key), [key[name] for name in table.names], table.label(key)
        back = behind is not None and behind in values
        step = min(DODGE, SPREAD / max(1, len(curves) - 1))
        offset = step * (curves.index(repr(values)) - (len(curves) - 1) / 2)
        some = () if isinstance(join, (bool, str)) else join
        joined = join in (True, "steps") or any(value in some for value in values)
        marked = not joined or len(part.frame) <= MARKED or len(curves) > len(DASHES)
        if not marked:
            taken = {dash for other, dash in dashes.items() if other != label}
            dash = next((dash for dash in (look.dash, *DASHES) if dash not in taken), look.dash)
            look = dataclasses.replace(look, dash=dashes.setdefault(label, dash))
        where = {name: value for name, value in key.items() if name != (facet if back and one else None)}
        made = {(x_, y_): _points(part, x_, y_, ranks[x_], y_axes[y_], offset) for x_, y_ in pairs}
        drawn.append(Curve(
            label, BACK if back else look, where, back, "", {pair: frame for pair, (frame, _) in made.items()},
            {pair: crosses for pair, (_, crosses) in made.items()}, joined=joined, marked=marked, bars=True,
            steps=join == "steps"))  # fmt: skip
    across, down = (Facets(column, table.levels(column), table.heads(column)) for column in (facet, row))
    fig, panels = compose(drawn, across, down, x_axes, y_axes, width, behind if one else None)
    for name, shown in y_axes.items():
        if _some_missing(table, name):
            missed = [axes for axes, (_, y_) in panels.items() if y_ == name]
            level(fig, missed, _value(shown, 1 - 1.5 * ABOVE / (1 + 2 * ABOVE)))
            x_ref, y_ref = (f"{axis} domain" for axis in missed[0])
            fig.add_annotation(text="not reached", x=0, y=1, xref=x_ref, yref=y_ref, xanchor="left", yanchor="top",
                               showarrow=False, borderpad=0, font_size=SMALL)  # fmt: skip
    words = heading(title, map(bare, ys.values()), map(bare, xs.values()), columns)
    lines = [*table.caption, *(grey(drawn) if one else ()), *notes]
    return finish(fig, words, lines, width, legend=not one and bool(table.names))


# -- axes ------------------------------------------------------------------------------------------


def _x_axis(table: Table, name: str, title: str, ys: Iterable[str], log: str) -> Axis:
    values = table.levels(name)
    ranges = any(f"{y}_low" in table.frame and (table.frame[f"{y}_high"] > table.frame[f"{y}_low"]).any() for y in ys)
    if not numeric(values) or (ranges and "x" not in log and len(values) <= FEW):
        return categories(table.place_names(name), title)
    given = len(values) <= FEW and (name in FIELDS or all(len(f"{value:g}") <= SHORT for value in values))
    shown = axis(values, title, log="x" in log, pad=0.04)
    return shown._replace(ticks=numbered(values)) if "x" in log and given else shown


def _y_axis(table: Table, name: str, title: str, log: bool) -> Axis:
    """Return the axis of a measure, with room above it for goals that were not reached."""
    unit = unit_of(name, table.metric)
    ends = [f"{name}{end}" for end in ("", "_low", "_high") if f"{name}{end}" in table.frame]
    values = [unit.factor * value for end in ends for value in table.frame[end]]
    finite = [value for value in values if math.isfinite(value)]
    if unit.factor != 1 and unit.title.strip() not in title:
        title += unit.title  # the caller's title lacks the unit: a share is drawn in per cent
    zero = bool(finite) and 0 <= min(finite) < FAR_APART * max(finite)
    shown = axis(values, title, log=log, zero=zero, sized=unit.tick is not None, pad=0.05)
    if not _some_missing(table, name):
        return shown
    low, high = shown.range
    ticks = () if log or shown.sized else numbered(nice(low, high))  # no ticks above the line
    return shown._replace(high=_value(shown, 1 + 2 * ABOVE), ticks=ticks)


def _value(shown: Axis, share: float) -> float:
    """Return the value at a share of the length of an axis."""
    low, high = shown.range
    value = low + share * (high - low)
    return 10.0**value if shown.log else value


def _some_missing(table: Table, name: str) -> bool:
    return any(missing(row, name) for row in table.rows)


# -- points ----------------------------------------------------------------------------------------


def _points(
    table: Table, x: str, y: str, ranks: Mapping[str, int], y_axis: Axis, offset: float
) -> tuple[pd.DataFrame, list[tuple[float, float]]]:
    """Return x, y, low, high and hover of a curve, and crosses for points that never reach the goal. If some seeds miss
    it, `high` is the height of the crosses. With `ranks`, the position of a value is its rank and the curve's offset.
    """
    rows, crosses, factor = [], list[tuple[float, float]](), unit_of(y, table.metric).factor
    top = _value(y_axis, 1 - ABOVE / (1 + 2 * ABOVE))
    for row in table.rows:
        at, missed = ranks[repr(row[x])] + offset if ranks else float(row[x]), missing(row, y)
        value, low, high = (factor * row.get(f"{y}{end}", row[y]) for end in ("", "_low", "_high"))
        ends = [end if math.isfinite(end) else other for end, other in ((low, value), (high, top if missed else value))]
        rows.append((at, value, *ends, f"{table.word(x, row[x])}: {cell(row, y)}"))
        crosses += [(at, top)] if missed and not math.isfinite(row[y]) else []
    return pd.DataFrame(rows, columns=["x", "y", "low", "high", "hover"]).sort_values("x", kind="stable"), crosses
