"""Bars and heat maps: a block for each value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import plotly.graph_objects as go

from pslab.lab.plots.arrange import WIDTHS, boxes, finish, names, panels, sample, text_px
from pslab.lab.plots.axes import Axis, categories, lanes
from pslab.lab.plots.charts.panels import in_rows
from pslab.lab.plots.charts.prelude import Names, listed, shared_looks
from pslab.lab.plots.charts.tables import Table, Titled, bare, tabled
from pslab.lab.plots.labels import heading
from pslab.lab.plots.theme import SMALL, TYPE, Look
from pslab.lab.records.frames import Given
from pslab.lab.records.summary import METRIC, METRICS, cell, higher, unit_of
from pslab.lab.records.units import SPACE

EDGE = "#6E6E6E"  # of ranges: seen on dark bars, too
BAR, GROUPED, AROUND = 14.0, 11.0, 6.0  # px: a bar; one of several that stand together; between them
BEST, WORST, FRAME = "#004488", "#EDF1F6", "#DDAA33"
CELL = 28.0  # px: the height of a cell


# -- bars ------------------------------------------------------------------------------------------


def bars(
    data: Given, y: Titled, *, by: Names = "label", group: str | None = None, row: str | None = None,
    goal: float | None = None, title: Any = None, notes: Iterable[str] = (), width: str = "page",
) -> go.Figure:  # fmt: skip
    """Draw a bar for each value of `by`: the median over seeds with its range and its number; a panel for each y.

    Accuracies, whose differences are small, are marks on an axis that does not start at 0.

    Args:
        data, y, by, goal, title, notes, width: as in `points`.
        group: the column whose values stand together for each value of `by`.
        row: the column whose values get a row of panels each.

    Raises:
        ConfigError: as in `points`.
    """
    table = tabled(data, by, (group, row), listed(y), goal)
    ys, columns = table.titled(y), [name for name in table.names if name not in (group, row)] or list(table.names)
    leading = [group] if group else columns
    looks = dict(zip((repr([each[name] for name in leading]) for each in table.rows),
                     shared_looks(table.rows, leading, [], table.orders, table.crowd), strict=True))  # fmt: skip
    parts = table.parts(row)
    labels = [list(dict.fromkeys(part.label(each, columns) for each in part.rows)) for part in parts]
    members = table.levels(group) or [None]
    block = BAR if group is None else GROUPED * len(members)
    y_axes = [lanes(names(own, width)) for own in labels]
    beside = max((text_px(text) for each in y_axes for _, text in each.ticks), default=0.0)
    room = (WIDTHS[width] - beside) / len(ys) - 26
    x_axes = [_bar_axis(table, name, words, room) for name, words in ys.items()]
    fig = panels([x_axes] * len(parts), [[each] * len(ys) for each in y_axes], width, sides=table.heads(row), gap=26)
    step = block / (block + AROUND) / len(members)
    shown = [
        {**each, "lane": own.index(part.label(each, columns)) + step * (members.index(each[str(group)]) - (
            len(members) - 1) / 2 if group else 0.0), "label": part.label(each, columns), "part": rank,
         "look": repr([each[name] for name in leading])}
        for rank, (part, own) in enumerate(zip(parts, labels, strict=True), start=1) for each in part.rows]  # fmt: skip
    for column, (name, axis) in enumerate(zip(ys, x_axes, strict=True), start=1):
        for (part, look), same in groupby(sorted(shown, key=itemgetter("part", "look")), itemgetter("part", "look")):
            size = TYPE if group is None else SMALL
            fig.add_traces(_bars(list(same), name, looks[look], 0.94 * step, axis.low, size), part, column)
    for member in members if group else ():
        own = [each for each in table.rows
               if each[str(group)] == member and any(math.isfinite(each[name]) for name in ys)]  # fmt: skip
        if own and {*ys} <= {*METRICS}:
            sample(fig, table.word(str(group), member), looks[repr([member])])
        elif own:
            boxes(fig, {table.word(str(group), member): looks[repr([member])].colour})
    words = heading(title, map(bare, ys.values()), columns=[*columns, *filter(None, (group, row))])
    return finish(fig, words, [*table.caption, *notes], width, [len(own) * (block + AROUND) + 4 for own in labels],
                  legend=group is not None)  # fmt: skip


def _ends(row: Mapping[Any, Any], name: str) -> tuple[float, float, float]:
    """Value, low and high as they are drawn; values beyond the goal are not finite."""
    factor, value = unit_of(name, row[METRIC]).factor, row[name]
    return factor * value, factor * row.get(f"{name}_low", value), factor * row.get(f"{name}_high", value)


def _bar_axis(table: Table, name: str, title: str, room: float) -> Axis:
    """An axis with room for the numbers behind the bars, in a panel of so many px."""
    known = [end for row in table.rows for end in _ends(row, name) if math.isfinite(end)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    low = low - 0.15 * ((high - low) or 1.0) if name in METRICS else min(0.0, low)
    text = max(text_px(cell(row, name, brief=True)) for row in table.rows) + 10
    end = low + ((high - low) or 1.0) / (1 - min(0.6, text / room))
    ticks = () if known else ((0.0, "0"),)
    return Axis(title, low, end, ticks=ticks, sized=unit_of(name, table.metric).tick is not None)


def _bars(
    rows: Sequence[Mapping[Any, Any]], name: str, look: Look, wide: float, begin: float, size: float
) -> list[go.Bar | go.Scatter]:
    """The bars, or marks, of one look with their ranges, and the numbers behind them."""
    ends = [_ends(row, name) for row in rows]
    known = [(row, *own) for row, own in zip(rows, ends, strict=True) if math.isfinite(own[0])]
    # a high that is not finite: the number says how many seeds reach the goal
    spread = [(max(0.0, high - value) if math.isfinite(high) else 0.0, value - low) for _, value, low, high in known]
    more, less = ([each or math.nan for each in side] for side in zip(*spread, strict=True)) if known else ((), ())
    common: dict[str, Any] = {
        "x": [value for _, value, *_ in known], "y": [row["lane"] for row, *_ in known], "orientation": "h",
        "name": "", "showlegend": False,
        "hovertext": [f"<b>{row['label']}</b><br>{cell(row, name)}" for row, *_ in known],
        "hovertemplate": "%{hovertext}<extra></extra>"}  # fmt: skip
    if any(each > 0 for pair in spread for each in pair):
        common["error_x"] = {"array": more, "arrayminus": less, "symmetric": False, "thickness": 1.0, "width": 2.5,
                             "color": EDGE}  # fmt: skip
    tips = [max(end for end in own if math.isfinite(end)) if math.isfinite(own[0]) else begin for own in ends]
    before = 3 * SPACE if name in METRICS else SPACE  # beside a mark, or behind a bar
    numbers = go.Scatter(
        x=tips, y=[row["lane"] for row in rows], mode="text", name="",
        text=[before + cell(row, name, brief=True) for row in rows], textposition="middle right",
        textfont={"size": size}, showlegend=False, hoverinfo="skip", cliponaxis=False, orientation="h")  # fmt: skip
    if name in METRICS:
        return [go.Scatter(mode="markers", marker=look.mark(8), cliponaxis=False, **common), numbers]
    return [go.Bar(width=wide, marker={"color": look.colour, "line": {"width": 0}}, **common), numbers]


# -- heat maps -------------------------------------------------------------------------------------


def heat(
    data: Given, x: Titled, y: Titled, value: Titled, *, facet: str | None = None, goal: float | None = None,
    palest: float = 2.5, title: Any = None, notes: Iterable[str] = (), width: str = "page",
) -> go.Figure:  # fmt: skip
    """Draw a cell with its number for each x and y, the darker the nearer to the best of its panel, which is framed.

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
    x_axis = categories(table.place_names(x_name), x_words)
    y_axis = categories(names(table.place_names(y_name), width), y_words)
    parts, count = table.parts(facet), len(table.places(x_name))
    texts = [_text(row, name) for row in table.rows]
    widest = max(map(text_px, texts), default=0.0) + 8
    room = WIDTHS[width] - max((text_px(text) for _, text in y_axis.ticks), default=0.0) - 50
    rows = in_rows(parts, min(len(parts), max(1, int(room / (count * widest + 14)))))
    x_rows, y_rows = ([[axis] * len(line) for line in rows] for axis in (x_axis, y_axis))
    fig = panels(x_rows, y_rows, width, table.heads(facet))
    small = room / len(rows[0]) - 14 < count * widest
    for rank, part in enumerate(parts):
        row, column = divmod(rank, len(rows[0]))
        best = part.frame[name].max() if higher(name, table.metric) else part.frame[name].min()
        grids: list[list[list[Any]]] = [[[None] * count for _ in table.places(y_name)] for _ in range(3)]
        for each in part.rows:
            at, up = table.places(x_name).index(each[x_name]), table.places(y_name).index(each[y_name])
            less, many = (each[name], best) if higher(name, table.metric) else (best, each[name])
            times = 1.0 if less == many else many / less if less else math.inf
            first = math.isfinite(times) and times <= 1 + 1e-12
            grids[0][up][at] = min(times, palest) if math.isfinite(times) else None
            grids[1][up][at] = f"<b>{_text(each, name)}</b>" if first else _text(each, name)
            grids[2][up][at] = cell(each, name) + (f", {times:.2f} times the best" if math.isfinite(times) else "")
            if first:
                fig.add_shape(type="rect", x0=at - 0.48, x1=at + 0.48, y0=up - 0.47, y1=up + 0.47, row=row + 1,
                              col=column + 1, line={"width": 2.2, "color": FRAME})  # fmt: skip
            elif not math.isfinite(times):  # a heat map writes into no cell without a value
                fig.add_annotation(text=_text(each, name), x=at, y=up, showarrow=False, row=row + 1, col=column + 1,
                                   font={"size": SMALL if small else TYPE})  # fmt: skip
        fig.add_trace(go.Heatmap(
            z=grids[0], x=[*range(count)], y=[*range(len(grids[0]))], text=grids[1], customdata=grids[2], zmin=1,
            zmax=palest, texttemplate="%{text}", hovertemplate="%{customdata}<extra></extra>", hoverongaps=False,
            xgap=2, ygap=2, colorscale=[[0, BEST], [1, WORST]], showscale=False, name=name,
            textfont_size=SMALL if small else TYPE), row + 1, column + 1)  # fmt: skip
    lines = [*table.caption, f"in a cell: {words}; framed: the best of its panel; the others are the paler, the worse"]
    above = heading(title, [bare(words)], columns=[y_name, x_name, *filter(None, [facet])])
    high = max(CELL, max((15.0 * (text.count("<br>") + 1) + 8 for text in texts), default=0.0))
    return finish(fig, above, [*lines, *notes], width, [high * len(table.places(y_name))] * len(rows), legend=False)


def _text(row: Mapping[Any, Any], name: str) -> str:
    """The number in a cell, without its unit."""
    return cell(row, name, brief=True).replace(f"{SPACE}s", "").replace(" (", "<br>(").replace("not reached", "–")
