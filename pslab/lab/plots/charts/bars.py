"""Bars and heat maps: a block for each value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import plotly.graph_objects as go

from pslab.lab.plots.charts.panels import in_rows
from pslab.lab.plots.charts.prelude import Data, Names, listed, shared_looks
from pslab.lab.plots.charts.tables import Table, Titled, bare, tabled
from pslab.lab.plots.labels import heading
from pslab.lab.plots.page.axes import NAMED, Axis, categories, fitting, text_px
from pslab.lab.plots.page.page import GAP, Key, Page
from pslab.lab.plots.page.theme import SMALL, TYPE, WIDTHS, Look, ink, ramp
from pslab.lab.records.summary import METRIC, METRICS, cell, higher, unit_of
from pslab.lab.records.units import SPACE, plain

EDGE = "#6E6E6E"  # of ranges: seen on dark bars, too
BAR, GROUPED, AROUND = 13.0, 9.0, 6.0  # px: a bar; one of several in a place; between places
BEST, WORST, FRAME = "#004488", "#EDF1F6", "#DDAA33"
CELL = 28.0  # px: the height of a cell


# -- bars ------------------------------------------------------------------------------------------


def bars(
    data: Data, y: Titled, *, by: Names = "label", group: str | None = None, row: str | None = None,
    goal: float | None = None, title: Any = None, notes: Iterable[str] = (), width: str = "page",
) -> go.Figure:  # fmt: skip
    """A bar for each value of `by`: the median over seeds with its range and its number; a panel for each y.

    Accuracies, whose differences are small, are marks on an axis that does not start at 0.

    Args:
        data, y, by, goal, title, notes, width: as in `points`.
        group: the column whose values stand together in each place.
        row: the column whose values get a row of panels each.

    Raises:
        ConfigError: as in `points`.
    """
    table = tabled(data, by, (group, row), listed(y), goal)
    ys, names = table.titled(y), [name for name in table.names if name not in (group, row)] or list(table.names)
    leading = [group] if group else names
    colours = dict(zip((repr([each[name] for name in leading]) for each in table.rows),
                       shared_looks(table.rows, leading, [], table.orders, table.crowd), strict=True))  # fmt: skip
    parts = table.parts(row)
    labels = [list(dict.fromkeys(part.label(each, names) for each in part.rows)) for part in parts]
    members = table.levels(group) or [None]
    block = BAR if group is None else GROUPED * len(members)
    lanes = [categories(own, downwards=True, widest=NAMED * WIDTHS[width]) for own in labels]
    room = (WIDTHS[width] - max((own.ticks_px for own in lanes), default=0.0) - 30) / len(ys)
    x_axes = [_bar_axis(table, name, words, room) for name, words in ys.items()]
    page = Page([x_axes] * len(parts), [[own] * len(ys) for own in lanes], (), table.heads(row), width,
                [len(own) * (block + AROUND) + 4 for own in labels])  # fmt: skip
    for rank, (part, own) in enumerate(zip(parts, labels, strict=True)):
        for each in part.rows:
            step = block / (block + AROUND) / len(members)
            offset = 0.0 if group is None else step * (members.index(each[group]) - (len(members) - 1) / 2)
            at, look = own.index(part.label(each, names)) + offset, colours[repr([each[name] for name in leading])]
            for column, (name, shown) in enumerate(zip(ys, x_axes, strict=True)):
                page.add(rank, column, *_bar(each, name, at, 0.94 * step, look, part.label(each, names)))
                page.write_in(rank, column, cell(each, name, brief=True), _end(each, name, shown), at, xanchor="left",
                              xshift=4, font={"size": TYPE if group is None else SMALL})  # fmt: skip
    kind = "markers" if {*ys} <= {*METRICS} else "box"
    keys = [Key(table.word(group, member), colours[repr([member])], kind) for member in members
            if any(math.isfinite(each[name]) for each in table.rows for name in ys if each[group] == member)
            ] if group else []  # fmt: skip
    words = heading(title, map(bare, ys.values()), columns=[*names, *filter(None, (group, row))])
    return page.finish(words, [*table.caption, *notes], keys)


def _ends(row: Mapping[str, Any], name: str) -> tuple[float, float, float]:
    """Value, low and high as they are drawn; those beyond the goal are not finite."""
    factor, value = unit_of(name, row[METRIC]).factor, row[name]
    return factor * value, factor * row.get(f"{name}_low", value), factor * row.get(f"{name}_high", value)


def _end(row: Mapping[str, Any], name: str, shown: Axis) -> float:
    """Where a bar ends with its range; the axis' begin where there is none."""
    value, *_ = ends = _ends(row, name)
    return max(end for end in ends if math.isfinite(end)) if math.isfinite(value) else shown.low


def _bar_axis(table: Table, name: str, title: str, room: float) -> Axis:
    """An axis with room for the numbers behind the bars, in a panel of so many px."""
    known = [end for row in table.rows for end in _ends(row, name) if math.isfinite(end)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    low = low - 0.15 * ((high - low) or 1.0) if name in METRICS else min(0.0, low)
    text = max(text_px(cell(row, name, brief=True)) for row in table.rows) + 10
    end = low + ((high - low) or 1.0) / (1 - min(0.6, text / room))
    if not known:
        return Axis(title, low, end, ticks=((0.0, "0"),))
    tick = unit_of(name, table.metric).tick
    written = partial(tick, most=high) if tick else plain
    return Axis(title, low, end, ticks=fitting(low, high, room * (high - low) / (end - low), written))


def _bar(
    row: Mapping[str, Any], name: str, at: float, wide: float, look: Look, label: str
) -> list[go.Bar | go.Scatter]:
    value, low, high = _ends(row, name)
    if not math.isfinite(value):
        return []
    high = high if math.isfinite(high) else value  # the number shows how many seeds reach the goal
    common: dict[str, Any] = {"x": [value], "y": [at], "showlegend": False, "name": label, "orientation": "h",
                              "hovertemplate": f"<b>{label}</b><br>{cell(row, name)}<extra></extra>"}  # fmt: skip
    if high > low:
        common["error_x"] = {"array": [high - value], "arrayminus": [value - low], "symmetric": False, "thickness": 1.0,
                             "width": 2.5, "color": EDGE}  # fmt: skip
    if name in METRICS:
        return [go.Scatter(mode="markers", marker=look.mark(7), **common)]
    return [go.Bar(width=wide, marker={"color": look.colour, "line": {"width": 0}}, **common)]


# -- heat maps -------------------------------------------------------------------------------------


def heat(
    data: Data, x: Titled, y: Titled, value: Titled, *, facet: str | None = None, goal: float | None = None,
    palest: float = 2.5, title: Any = None, notes: Iterable[str] = (), width: str = "page",
) -> go.Figure:  # fmt: skip
    """A cell with its number for each x and y, the darker the nearer to the best of its panel, which is framed.

    Args:
        data, goal, title, notes, width: as in `points`.
        x, y, value: columns, or {name: title}; of results value is a measure.
        facet: the column whose values get a panel each.
        palest: so many times the best of its panel is as pale as a cell gets.

    Raises:
        ConfigError: as in `points`.
    """
    x_name, y_name, name = (listed(each)[0] for each in (x, y, value))
    table = tabled(data, [x_name, y_name], [facet], [name], goal)
    x_words, y_words, words = (table.titled(each)[column] for each, column in ((x, x_name), (y, y_name), (value, name)))
    x_axis, y_axis = (categories(table.place_names(column), text, widest=widest) for column, text, widest
                      in ((x_name, x_words, 0.0), (y_name, y_words, NAMED * WIDTHS[width])))  # fmt: skip
    parts = table.parts(facet)
    more, count = higher(name, table.metric), len(table.places(x_name))
    widest = max((text_px(_text(row, name)) for row in table.rows), default=0.0) + 8
    room = WIDTHS[width] - y_axis.ticks_px - 50
    rows = in_rows(parts, min(len(parts), max(1, int(room / (count * widest + GAP)))))
    turned = room / len(rows[0]) - GAP < count * widest
    page = Page([[x_axis] * len(line) for line in rows], [[y_axis] * len(line) for line in rows], table.heads(facet),
                width=width)  # fmt: skip
    page.heights = [max(CELL, widest * turned) * len(table.places(y_name))] * len(rows)
    for rank, part in enumerate(parts):
        at = divmod(rank, len(rows[0]))
        best = part.frame[name].max() if more else part.frame[name].min()
        for row in part.rows:
            place = table.places(x_name).index(row[x_name]), table.places(y_name).index(row[y_name])
            less, many = (row[name], best) if more else (best, row[name])
            times = 1.0 if less == many else many / less if less else math.inf
            _cell(page, at, row, name, place, times, palest, turned)
    lines = [*table.caption, f"in a cell: {words}; framed: the best of its panel; the others are the paler, the worse"]
    above = heading(title, [bare(words)], columns=[y_name, x_name, *filter(None, [facet])])
    return page.finish(above, [*lines, *notes], ())


def _cell(
    page: Page, panel: tuple[int, int], row: Mapping[str, Any], name: str, at: tuple[int, int], times: float,
    palest: float, turned: bool,
) -> None:  # fmt: skip
    """One cell, so many times as far as the best."""
    known, (x, y) = math.isfinite(times), at
    colour = ramp([BEST, WORST], min(1.0, (times - 1) / (palest - 1))) if known else "#FFFFFF"
    best = known and times <= 1 + 1e-12
    text = _text(row, name)
    page.figure.add_shape(type="rect", x0=x - 0.48, x1=x + 0.48, y0=y - 0.47, y1=y + 0.47, fillcolor=colour,
                          line={"width": 2.2 if best else 0, "color": FRAME}, layer="below", row=panel[0] + 1,
                          col=panel[1] + 1, exclude_empty_subplots=False)  # fmt: skip
    page.add(*panel, go.Scatter(
        x=[x], y=[y], mode="markers", marker={"size": CELL / 2, "opacity": 0}, showlegend=False, name=name,
        hovertemplate=f"{cell(row, name)}" + (f", {times:.2f} times the best" if known else "") + "<extra></extra>"))
    page.write_in(*panel, f"<b>{text}</b>" if best else text, x, y, textangle=-90 if turned else 0,
                  font={"size": SMALL if "<br>" in text else TYPE, "color": ink(colour)})  # fmt: skip


def _text(row: Mapping[str, Any], name: str) -> str:
    """What stands in a cell."""
    return cell(row, name, brief=True).replace(f"{SPACE}s", "").replace(" (", "<br>(").replace("not reached", "–")
