"""Curves in panels: one tidy frame of all curves, drawn by plotly.express."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import plotly.express as px
import plotly.graph_objects as go

from pslab.errors import ConfigError
from pslab.lab.plots.arrange import WIDTHS, scale
from pslab.lab.plots.axes import Axis
from pslab.lab.plots.charts.prelude import Facets
from pslab.lab.plots.theme import Look, translucent

T = TypeVar("T")
WRAP = 4  # the most facets side by side; more facets take several rows if no column has the rows
FEW, MARKED = 4, 11  # with this many curves in a panel, bands are paler; the most markers on a line
COLUMNS = ["x", "y", "low", "high", "hover"]


@dataclass(frozen=True)
class Curve:
    """A curve with its data. A curve whose key has no value of the panels' column is drawn in every panel."""

    label: str
    look: Look
    key: Mapping[str, Any]  #: the values of its columns
    behind: bool = False
    sign: str = ""  #: a mark at its end
    frames: Mapping[tuple[str, str], pd.DataFrame] = field(default_factory=dict)  #: (x, y) -> COLUMNS
    crosses: Mapping[tuple[str, str], Sequence[tuple[float, float]]] = field(default_factory=dict)
    joined: bool = True  #: whether a line joins the points; a curve without line and markers is only a band
    marked: bool = True  #: whether points have markers
    bars: bool = False  #: whether the range is drawn as error bars, not as a band
    steps: bool = False  #: whether the line keeps a value until the next point

    def stands_in(self, column: str | None, value: Any) -> bool:
        """Whether the panel for a value of a column shows this curve; True if the column is None."""
        return column is None or self.key.get(column, value) == value


def compose(
    drawn: Sequence[Curve], across: Facets, down: Facets, x_axes: Mapping[str, Axis], y_axes: Mapping[str, Axis],
    width: str, everywhere: Any = None,
) -> tuple[go.Figure, dict[tuple[str, str], tuple[str, str]]]:  # fmt: skip
    """Draw each curve in its panels, curves behind the others first. Return the figure, and by the names of a panel's
    axes the names (x, y) of its quantities.

    Args:
        everywhere: a value of the `across` column without a panel, because its curve is drawn in every panel.

    Raises:
        ConfigError: several x or y need panels, but facet and row take both directions.
    """
    ordered = sorted(drawn, key=lambda curve: not curve.behind)
    columns, rows = _sides(across, down, [*x_axes], [*y_axes])
    facets = [(value, head) for value, head in zip(across.values, across.heads, strict=True) if value != everywhere or
              everywhere is None] or [(None, "")]  # fmt: skip
    parts = []
    for facet, head in facets:
        for row, side in list(zip(down.values, down.heads, strict=True)) or [(None, "")]:
            for x in x_axes:
                for y in y_axes:
                    for rank, curve in enumerate(ordered):
                        if curve.stands_in(across.column, facet) and curve.stands_in(down.column, row):
                            frame = _shown(curve.frames.get((x, y)), x_axes[x])
                            parts.append(frame.assign(curve=str(rank), facet=head, row=side, x_name=x, y_name=y))
    frame = pd.concat(parts, ignore_index=True)
    count = frame[columns].nunique() if columns else 1
    wrap = math.ceil(count / math.ceil(count / WRAP)) if columns == "facet" and not rows and count > WRAP else 0
    fig = px.line(
        frame, x="x", y="y", color="curve", facet_col=columns or None, facet_row=rows or None, facet_col_wrap=wrap,
        facet_col_spacing={"y_name": 60, "x_name": 26}.get(columns, 14) / WIDTHS[width], facet_row_spacing=0.01,
        render_mode="svg", hover_name="hover", custom_data=["low", "high", "x_name", "y_name"], category_orders={
            "curve": [*map(str, range(len(ordered)))], "facet": [head for _, head in facets], "row": [*down.heads],
            "x_name": [*x_axes], "y_name": [*y_axes]})  # fmt: skip
    fig.layout.annotations = [note for note in fig.layout.annotations if not note.text.startswith(("x_name", "y_name"))]
    panels = {(trace.xaxis, trace.yaxis): tuple(trace.customdata[0][2:]) for trace in fig.data}
    scale(fig, {axes: (x_axes[x], y_axes[y]) for axes, (x, y) in panels.items()}, width)
    most = max(sum((trace.xaxis, trace.yaxis) == panel for trace in fig.data) for panel in panels)
    lines, behind, over, seen = list(fig.data), list[Any](), list[Any](), set[str]()
    for trace in lines:
        curve, (x, y) = ordered[int(trace.name)], panels[trace.xaxis, trace.yaxis]
        crosses = [(at, max(y_axes[y].low, value)) for at, value in curve.crosses.get((x, y), ())]
        behind += _style(trace, curve, 0.09 if most >= FEW else 0.15)
        over += _ends(trace, curve, crosses, x_axes[x])
        trace.showlegend = bool(curve.label) and curve.label not in seen and any(map(math.isfinite, trace.x))
        seen |= {curve.label} if trace.showlegend else set()
    fig.add_traces([*behind, *over])
    fig.data = [*fig.data[len(lines) : len(lines) + len(behind)], *lines, *fig.data[len(lines) + len(behind) :]]
    return fig, panels


def _sides(across: Facets, down: Facets, xs: Sequence[str], ys: Sequence[str]) -> tuple[str, str]:
    """Return the frame's columns whose values get panels side by side, and one under another; "" for none."""
    several = [name for name, values in (("x_name", xs), ("y_name", ys)) if len(values) > 1]
    columns = "facet" if across.values else several.pop(0) if several else ""
    rows = "row" if down.values else several.pop(0) if several else ""
    if several:
        names = [*xs] if several[0] == "x_name" else [*ys]
        raise ConfigError(several[0][0], names, "facet and row leave no direction for panels of several quantities: "
                          "leave one of them out, or draw a figure for each quantity")  # fmt: skip
    return columns, rows


def _shown(frame: pd.DataFrame | None, shown: Axis) -> pd.DataFrame:
    """Return the points that an axis can show; without points a row of NaN, because each panel needs its axes."""
    points = pd.DataFrame(columns=COLUMNS) if frame is None else frame
    points = points[points.x > 0] if shown.log else points  # plotly would draw a line to values that are not positive
    return points if len(points) else pd.DataFrame([[math.nan] * 4 + [""]], columns=COLUMNS)


def _style(trace: Any, curve: Curve, opacity: float) -> list[go.Scatter]:
    """Give a trace its curve's look, and its range as error bars if `curve.bars`; else return the range as a band."""
    look, (low, high) = curve.look, np.asarray([values[:2] for values in trace.customdata], dtype=float).T
    x, y, wide = np.asarray(trace.x, float), np.asarray(trace.y, float), bool(np.any(high > low))
    kinds = [kind for kind, there in (("lines", curve.joined), ("markers", curve.marked)) if there]
    alone = not kinds and wide and not curve.bars
    shape = {"shape": "hv"} if curve.steps else {}
    trace.update(
        name=curve.label, legendgroup=curve.label, customdata=None,
        mode="none" if alone else "+".join(kinds) or "lines", line={**look.line, **shape},
        marker={**look.mark(), "maxdisplayed": MARKED if curve.joined else 0},
        hovertemplate=f"<b>{curve.label}</b><br>%{{hovertext}}<extra></extra>")  # fmt: skip
    if wide and curve.bars:
        more, less = (np.where(high > low, size, np.nan) for size in (high - y, y - low))  # a range of 0 has no caps
        trace.error_y = {"array": more, "arrayminus": less, "symmetric": False, "thickness": 1.0, "width": 2.0,
                         "color": look.colour}  # fmt: skip
    return [go.Scatter(
        x=np.concatenate([x, x[::-1]]), y=np.concatenate([high, low[::-1]]), fill="toself", mode="lines",
        name=curve.label, fillcolor=translucent(look.colour, opacity), line={"width": 0, **shape},
        hoverinfo="skip", showlegend=False, legendgroup=curve.label,
        xaxis=trace.xaxis, yaxis=trace.yaxis)] if wide and not curve.bars else []  # fmt: skip


def _ends(trace: Any, curve: Curve, crosses: Sequence[tuple[float, float]], x_axis: Axis) -> list[go.Scatter]:
    """Return the crosses of a curve, where seeds diverged or missed a goal, and the sign at its end."""
    common = {"name": curve.label, "legendgroup": curve.label, "showlegend": False, "cliponaxis": False,
              "xaxis": trace.xaxis, "yaxis": trace.yaxis}  # fmt: skip
    mark = {"symbol": "x-thin", "size": 7, "color": curve.look.colour, "line": {"color": curve.look.colour, "width": 2}}
    marks = []
    if crosses:
        marks.append(go.Scatter(
            x=[x for x, _ in crosses], y=[y for _, y in crosses], mode="markers", marker=mark,
            hovertemplate=f"<b>{curve.label}</b><br>diverged here<extra></extra>", **common))  # fmt: skip
    if curve.sign and math.isfinite(trace.y[-1]):
        side = "left" if trace.x[-1] > (x_axis.low + x_axis.high) / 2 else "right"  # within the panel
        marks.append(go.Scatter(x=trace.x[-1:], y=trace.y[-1:], mode="text", text=[curve.sign], hoverinfo="skip",
                                textposition=f"top {side}", **common))  # fmt: skip
    return marks


def grey(drawn: Iterable[Curve]) -> list[str]:
    """Return a line for the caption that names the curve behind the others; [] if there is none."""
    labels = dict.fromkeys(curve.label for curve in drawn if curve.behind and curve.label)
    return [f"grey: {', '.join(labels)}"] if labels else []


def in_rows(values: Sequence[T], most: int) -> list[list[T]]:
    """Split values into rows of at most `most`, about equally long."""
    side_by_side = math.ceil(len(values) / math.ceil(len(values) / most))
    return [list(values[first : first + side_by_side]) for first in range(0, len(values), side_by_side)]
