"""Bar charts and heat maps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from pslab.lab.plots.arrange import WIDTHS, boxes, finish, names, panels, sample, text_px
from pslab.lab.plots.axes import Axis, categories, lane_px, lanes
from pslab.lab.plots.charts.panels import in_rows
from pslab.lab.plots.charts.prelude import Names, listed, shared_looks
from pslab.lab.plots.charts.tables import Table, Titled, bare, tabled
from pslab.lab.plots.labels import heading
from pslab.lab.plots.theme import SMALL, TYPE, Look
from pslab.lab.records.frames import Given
from pslab.lab.records.summary import METRIC, METRICS, cell, higher, unit_of
from pslab.lab.records.units import SPACE

EDGE = "#6E6E6E"  # the colour of ranges over seeds, which can be seen on dark bars, too
BAR, GROUPED, AROUND = 14.0, 11.0, 6.0  # px: a bar; a bar of a group; the space between bars or groups
BEST, WORST, FRAME = "#004488", "#EDF1F6", "#DDAA33"
CELL = 28.0  # px: the height of a cell


# -- bars ------------------------------------------------------------------------------------------


def bars(
    data: Given, y: Titled, *, by: Names = "label", group: str | None = None, row: str | None = None,
    goal: float | None = None, title: Any = None, notes: Iterable[str] = (), width: str = "page",
) -> go.Figure:  # fmt: skip
    """Draw a bar for each value of `by`, and a panel for each y: the median over seeds with its range and its number.

    Accuracies differ little, so they are drawn as markers on an axis that does not start at 0.

    Args:
        data, y, by, goal, title, notes, width: as in `points`.
        group: a column; its values are bars side by side for each value of `by`.
        row: a column; its values get a row of panels each.

    Raises:
        ConfigError: as in `points`.
    """
    table = tabled(data, by, (group, row), listed(y), goal)
    ys, columns = table.titled(y), [name for name in table.names if name not in (group, row)] or list(table.names)
    leading, members = [group] if group else columns, table.levels(group) or [None]
    made = shared_looks(table.rows, leading, [], table.orders, table.crowd)
    looks = {repr([bar[name] for name in leading]): look for bar, look in zip(table.rows, made, strict=True)}
    parts, block = table.parts(row), BAR if group is None else GROUPED * len(members)
    labels = [list(dict.fromkeys(part.label(bar, columns) for bar in part.rows)) for part in parts]
    y_axes = [lanes(names(texts, width)) for texts in labels]
    beside = max((text_px(text) for axis in y_axes for _, text in axis.ticks), default=0.0)
    x_axes = [_bar_axis(table, name, words, (WIDTHS[width] - beside) / len(ys) - 26) for name, words in ys.items()]
    fig = panels([x_axes] * len(parts), [[axis] * len(ys) for axis in y_axes], width, sides=table.heads(row), gap=26)
    step = block / (block + AROUND) / len(members)
    alike: dict[tuple[int, str], list[dict[str, Any]]] = {}  # by panel row and look
    for rank, (part, texts) in enumerate(zip(parts, labels, strict=True), start=1):
        for bar in part.rows:
            label = part.label(bar, columns)
            offset = step * (members.index(bar[str(group)]) - (len(members) - 1) / 2) if group else 0.0
            look = repr([bar[name] for name in leading])
            alike.setdefault((rank, look), []).append({**bar, "lane": texts.index(label) + offset, "label": label})
    size = TYPE if group is None else SMALL
    for column, (name, axis) in enumerate(zip(ys, x_axes, strict=True), start=1):
        for (rank, look), same in sorted(alike.items()):
            traces = _bars(same, name, looks[look], 0.94 * step, axis.low, size)
            if group:
                traces = [trace.update(legendgroup=table.word(group, same[0][group])) for trace in traces]
            fig.add_traces(traces, rank, column)
    for member in members if group else ():
        bars_ = [bar for bar in table.rows
                 if bar[str(group)] == member and any(math.isfinite(bar[name]) for name in ys)]  # fmt: skip
        if bars_ and {*ys} <= {*METRICS}:
            sample(fig, table.word(str(group), member), marker=looks[repr([member])].mark())
        elif bars_:
            boxes(fig, {table.word(str(group), member): looks[repr([member])].colour})
    words = heading(title, map(bare, ys.values()), columns=[*columns, *filter(None, (group, row))])
    heights = [len(axis.ticks) * lane_px(axis, block + AROUND) + 4 for axis in y_axes]
    return finish(fig, words, [*table.caption, *notes], width, heights, legend=group is not None)


def _ends(row: Mapping[Any, Any], name: str) -> tuple[float, float, float]:
    """Return value, low and high in the unit of the axis; not finite if a run did not reach the goal."""
    factor, value = unit_of(name, row[METRIC]).factor, row[name]
    return factor * value, factor * row.get(f"{name}_low", value), factor * row.get(f"{name}_high", value)


def _bar_axis(table: Table, name: str, title: str, room: float) -> Axis:
    """Return an axis with room for the numbers behind the bars, in a panel `room` px wide."""
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
    """Return the bars of one look (for accuracies, markers) with their ranges, and the numbers behind them."""
    ends = [_ends(row, name) for row in rows]
    known = [(row, *end) for row, end in zip(rows, ends, strict=True) if math.isfinite(end[0])]
    # an infinite high has no error bar; the number says how many seeds reach the goal
    more = [(high - value if math.isfinite(high) else 0.0) or math.nan for _, value, _, high in known]
    less = [value - low or math.nan for _, value, low, _ in known]
    common: dict[str, Any] = {
        "x": [value for _, value, *_ in known], "y": [row["lane"] for row, *_ in known], "orientation": "h",
        "name": "", "showlegend": False,
        "hovertext": [f"<b>{row['label']}</b><br>{cell(row, name)}" for row, *_ in known],
        "hovertemplate": "%{hovertext}<extra></extra>"}  # fmt: skip
    if any(error > 0 for error in (*more, *less)):
        common["error_x"] = {"array": more, "arrayminus": less, "symmetric": False, "thickness": 1.0, "width": 2.5,
                             "color": EDGE}  # fmt: skip
    tips = [max(filter(math.isfinite, end)) if math.isfinite(end[0]) else begin for end in ends]
    before = 3 * SPACE if name in METRICS else SPACE  # the space between a marker or a bar and its number
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
    """Draw a cell with its number for each x and y. The best cell of a panel has a frame; better cells are darker.

    Args:
        data, goal, title, notes, width: as in `points`.
        x, y, value: a column each, or {column: title}; with results, `value` names a measure.
        facet: the column whose values get a panel each.
        palest: a cell that is this many times worse than the best cell of its panel gets the palest colour.

    Raises:
        ConfigError: as in `points`.
    """
    x_name, y_name, name = (listed(column)[0] for column in (x, y, value))
    table = tabled(data, [x_name, y_name], [facet], [name], goal)
    x_words, y_words, words = (next(iter(table.titled(column).values())) for column in (x, y, value))
    x_axis = categories(table.place_names(x_name), x_words)
    y_axis = categories(names(table.place_names(y_name), width), y_words)
    parts, xs, ys = table.parts(facet), table.places(x_name), table.places(y_name)
    texts = [_text(row, name) for row in table.rows]
    wide = len(xs) * (max(map(text_px, texts), default=0.0) + 8)
    room = WIDTHS[width] - max((text_px(text) for _, text in y_axis.ticks), default=0.0) - 50
    rows = in_rows(parts, min(len(parts), max(1, int(room / (wide + 14)))))
    x_rows, y_rows = ([[axis] * len(line) for line in rows] for axis in (x_axis, y_axis))
    fig = panels(x_rows, y_rows, width, table.heads(facet))
    size = SMALL if room / len(rows[0]) - 14 < wide else TYPE
    for rank, part in enumerate(parts):
        panel = dict(zip(("row", "col"), (number + 1 for number in divmod(rank, len(rows[0]))), strict=True))
        best = part.frame[name].max() if higher(name, table.metric) else part.frame[name].min()
        shades, inside, hover = ([list[Any]([None] * len(xs)) for _ in ys] for _ in range(3))
        for row in part.rows:
            at, up, text = xs.index(row[x_name]), ys.index(row[y_name]), _text(row, name)
            less, many = (row[name], best) if higher(name, table.metric) else (best, row[name])
            times = 1.0 if less == many else many / less if less else math.inf
            first = times <= 1 + 1e-12
            shades[up][at] = min(times, palest) if math.isfinite(times) else None
            inside[up][at] = f"<b>{text}</b>" if first else text
            hover[up][at] = cell(row, name) + (f", {times:.2f} times the best" if math.isfinite(times) else "")
            if first:
                fig.add_shape(type="rect", x0=at - 0.48, x1=at + 0.48, y0=up - 0.47, y1=up + 0.47, **panel,
                              line={"width": 2.2, "color": FRAME})  # fmt: skip
            elif not math.isfinite(times):  # plotly writes no text into a cell without a value
                fig.add_annotation(text=text, x=at, y=up, showarrow=False, **panel, font={"size": size})
        fig.add_trace(go.Heatmap(
            z=shades, x=[*range(len(xs))], y=[*range(len(ys))], text=inside, customdata=hover, zmin=1, zmax=palest,
            texttemplate="%{text}", hovertemplate="%{customdata}<extra></extra>", hoverongaps=False, xgap=2, ygap=2,
            colorscale=[[0, BEST], [1, WORST]], showscale=False, name=name, textfont_size=size), **panel)  # fmt: skip
    lines = [*table.caption, f"in a cell: {words}; framed: the best of its panel; the worse a cell, the paler"]
    above = heading(title, [bare(words)], columns=[y_name, x_name, *filter(None, [facet])])
    high = max(CELL, max((15.0 * (text.count("<br>") + 1) + 8 for text in texts), default=0.0))
    return finish(fig, above, [*lines, *notes], width, [high * len(ys)] * len(rows), legend=False)


def _text(row: Mapping[Any, Any], name: str) -> str:
    """Return the number in a cell without its unit; "–" if the goal was not reached."""
    text = cell(row, name, brief=True).replace(f"{SPACE}s", "").replace(" (", "<br>(")
    return text.replace("not reached", "–").replace("reached by ", "–<br>")
