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
from pslab.lab.plots.charts.prelude import Facets, Names, listed, shared_looks, spread
from pslab.lab.plots.charts.tables import Table, Titled, bare, numeric, tabled
from pslab.lab.plots.labels import heading
from pslab.lab.plots.theme import BACK, DASHES, SMALL
from pslab.lab.records.frames import Given
from pslab.lab.records.summary import cell, missing, unit_of

FEW = 8  # so many values on x, with ranges, have places of equal width
SHORT = 6  # characters of a number that is a setting, as far as one can tell: measured ones are longer
DODGE, SPREAD = 0.08, 0.5  # of such a place: from one curve to the next; and from the first to the last
ABOVE = 0.14  # of the axis: the position of goals that were not reached, above all others
FAR_APART = 0.5  # of the highest value: an axis of lower ones starts at 0
MARKED = 40  # points of a line with markers; more are a line


def points(
    data: Given, x: Titled, y: Titled, *, by: Names = "label", facet: str | None = None, row: str | None = None,
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
        join: whether points are joined; the values of `by` whose points are; or "steps".
        title: a sentence or a Claim; None: the names of the shown quantities.
        notes: more lines for the caption.
        width: page (7.16 in) or column (3.5 in).

    Raises:
        ConfigError: an unknown column; points that differ in more than the seed.
    """
    several = (len(listed(x)) > 1) + (len(listed(y)) > 1)
    facet, row = spread(data, by, facet, row, several=several, taken=listed(x))
    table = tabled(data, by, [*listed(x), facet, row], listed(y), goal)
    xs, ys, sides = table.titled(x), table.titled(y), [*filter(None, (facet, row))]
    columns = list(dict.fromkeys([*table.names, *sides]))
    keys = list({repr(key): key for key in ({name: each[name] for name in columns} for each in table.rows)}.values())
    one = facet is not None and {*table.names} <= {facet}  # each panel has its own curve, and its heading names it
    x_axes = {name: _x_axis(table, name, words, ys, log) for name, words in xs.items()}
    at = {name: {repr(value): rank for rank, value in enumerate(table.places(name)) if shown.bare}
          for name, shown in x_axes.items()}  # fmt: skip
    y_axes = {name: _y_axis(table, name, words, "y" in log) for name, words in ys.items()}
    curves = {repr([key[name] for name in table.names]): None for key in keys}
    pairs = [(x_, y_) for x_ in xs for y_ in ys]
    drawn, dashes = [], dict[str, str]()  # the dashes are all that is seen of lines without markers
    for key, look in zip(keys, shared_looks(keys, table.names, [], table.orders, table.crowd), strict=True):
        own, values = table.where(**key), [key[name] for name in table.names]
        back = behind is not None and behind in values
        rank = list(curves).index(repr(values)) - (len(curves) - 1) / 2
        offset = rank * min(DODGE, SPREAD / max(1, len(curves) - 1))
        joined = join in (True, "steps") or (not isinstance(join, (bool, str)) and any(each in join for each in values))
        marked = not joined or len(own.frame) <= MARKED or len(curves) > len(DASHES)
        if not marked:
            taken = {dash for label, dash in dashes.items() if label != table.label(key)}
            dash = next((each for each in (look.dash, *DASHES) if each not in taken), look.dash)
            look = dataclasses.replace(look, dash=dashes.setdefault(table.label(key), dash))
        places = {name: value for name, value in key.items() if name != (facet if back and one else None)}
        drawn.append(Curve(
            table.label(key), BACK if back else look, places, back, "",
            {pair: _points(own, *pair, at[pair[0]], y_axes, offset) for pair in pairs},
            {pair: _unreached(own, *pair, at[pair[0]], y_axes, offset) for pair in pairs}, joined=joined, marked=marked,
            bars=True, steps=join == "steps"))  # fmt: skip
    across, down = (Facets(column, table.levels(column), table.heads(column)) for column in (facet, row))
    fig, panels = compose(drawn, across, down, x_axes, y_axes, width, behind if one else None)
    for name, shown in y_axes.items():
        if _some_missing(table, name):
            own_panels = [axes for axes, (_, y_) in panels.items() if y_ == name]
            level(fig, own_panels, _value(shown, 1 - 1.5 * ABOVE / (1 + 2 * ABOVE)))
            for x_name, y_name in own_panels[:1]:
                fig.add_annotation(text="not reached", x=0, y=1, xref=f"{x_name} domain", yref=f"{y_name} domain",
                                   xanchor="left", yanchor="top", showarrow=False, borderpad=0,
                                   font_size=SMALL)  # fmt: skip
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
    """The axis of a measure, with room above where some points are not reached."""
    unit = unit_of(name, table.metric)
    ends = [f"{name}{end}" for end in ("", "_low", "_high") if f"{name}{end}" in table.frame]
    values = [unit.factor * value for end in ends for value in table.frame[end]]
    finite = [value for value in values if math.isfinite(value)]
    zero = bool(finite) and 0 <= min(finite) < FAR_APART * max(finite)
    shown = axis(values, title, log=log, zero=zero, sized=unit.tick is not None, pad=0.05)
    if not _some_missing(table, name):
        return shown
    low, high = shown.range
    ticks = () if log or shown.sized else numbered(nice(low, high))  # none above the line
    return shown._replace(high=_power(high + 2 * ABOVE * (high - low), log), ticks=ticks)


def _top(shown: Axis) -> float:
    """Return the height of points that never reached the goal."""
    return _value(shown, 1 - ABOVE / (1 + 2 * ABOVE))


def _power(value: float, log: bool) -> float:
    return 10.0**value if log else value


def _value(shown: Axis, share: float) -> float:
    """The value at so large a share of an axis."""
    low, high = shown.range
    return _power(low + share * (high - low), shown.log)


def _some_missing(table: Table, name: str) -> bool:
    return any(missing(row, name) for row in table.rows)


# -- points ----------------------------------------------------------------------------------------


def _points(
    own: Table, x: str, y: str, places: Mapping[str, int], y_axes: Mapping[str, Axis], offset: float
) -> pd.DataFrame:
    """x, y, low, high and hover of one curve; the range of one that not all seeds reach ends above all others."""
    found, factor = [], unit_of(y, own.metric).factor
    for row in own.rows:
        value, low, high = (factor * row.get(f"{y}{end}", row[y]) for end in ("", "_low", "_high"))
        highest = _top(y_axes[y]) if missing(row, y) else value
        ends = [end if math.isfinite(end) else other for end, other in ((low, value), (high, highest))]
        found.append((_at(row[x], places, offset), value, *ends, f"{own.word(x, row[x])}: {cell(row, y)}"))
    return pd.DataFrame(found, columns=["x", "y", "low", "high", "hover"]).sort_values("x", kind="stable")


def _unreached(
    own: Table, x: str, y: str, places: Mapping[str, int], y_axes: Mapping[str, Axis], offset: float
) -> list[tuple[float, float]]:
    rows = [row for row in own.rows if missing(row, y) and not math.isfinite(row[y])]
    return [(_at(row[x], places, offset), _top(y_axes[y])) for row in rows]


def _at(value: Any, places: Mapping[str, int], offset: float) -> float:
    """Return the position of a value on an axis, of equal steps if its values are names."""
    return places[repr(value)] + offset if places else float(value)
