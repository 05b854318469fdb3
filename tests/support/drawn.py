"""What is drawn in a figure: curves, texts, and whether a reader can tell curves apart."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import plotly.graph_objects as go


def lines(figure: go.Figure, axis: str = "x") -> dict[str, Any]:
    """The curves of one panel by their names: not bands, crosses, signs or samples."""
    return {trace.name: trace for trace in figure.data
            if trace.type == "scatter" and trace.hovertemplate and "diverged" not in trace.hovertemplate
            and (trace.xaxis or "x") == axis}  # fmt: skip


def crosses(figure: go.Figure) -> list[Any]:
    """Where runs diverged."""
    return [trace for trace in figure.data if trace.type == "scatter" and trace.marker.symbol == "x-thin"]


def bands(figure: go.Figure) -> list[Any]:
    return [trace for trace in figure.data if trace.type == "scatter" and trace.fill]


def texts(figure: go.Figure) -> list[str]:
    """All texts that stand in the figure, without their tags, and with plain spaces."""
    found = [str(note.text) for note in figure.layout.annotations]
    return [text.replace("<b>", "").replace("</b>", "").replace("<br>", " ").replace("\u00a0", " ") for text in found]


def sizes(figure: go.Figure) -> set[float]:
    """The sizes (pt) of all that is written in the figure."""
    usual = figure.layout.template.layout.font.size
    found = [note.font.size or usual for note in figure.layout.annotations]
    found += [trace.textfont.size or usual for trace in figure.data if getattr(trace, "text", None) is not None]
    found += [axis.tickfont.size or usual for axis in (*figure.select_xaxes(), *figure.select_yaxes())]
    found += [figure.layout.legend.font.size] if figure.layout.showlegend else []
    return {round(72 / 96 * size, 2) for size in found}


def legend(figure: go.Figure) -> list[str]:
    return [trace.name for trace in figure.data if trace.showlegend is not False and figure.layout.showlegend]


def caption(figure: go.Figure) -> str:
    return " ".join(figure.layout.meta["caption"]).replace("\u00a0", " ").replace("\u202f", " ")


def alike(figure: go.Figure) -> list[tuple[str, str]]:
    """Pairs of curves in one panel that differ in neither dash nor marker, but for marks in rows of their own."""
    panels = {trace.xaxis or "x" for trace in figure.data}
    curves = [[each for each in lines(figure, panel).values() if each.orientation != "h"] for panel in panels]
    pairs = [pair for own in curves for pair in combinations(own, 2)]
    return [(one.name, other.name) for one, other in pairs if shape(one) & shape(other) == shape(one) | shape(other)]


def shape(trace: Any) -> set[str]:
    """What is seen of a curve without its colour."""
    dash = {f"dash {trace.line.dash}"} if "lines" in trace.mode else set()
    return dash | ({f"marker {trace.marker.symbol}"} if "markers" in trace.mode else set())


def outside(figure: go.Figure) -> list[str]:
    """Texts that do not lie within the figure, by the usual width of their letters."""
    slack, wide, high = 4, figure.layout.width, figure.layout.height
    return [text for text, (left, top, right, bottom) in boxes(figure)
            if left < -slack or right > wide + slack or top < -slack or bottom > high + slack]  # fmt: skip


def overlapping(figure: go.Figure) -> list[tuple[str, str]]:
    """Pairs of texts that lie over each other, but for a few pixels."""
    slack = 3
    return [(one, other) for (one, a), (other, b) in combinations(boxes(figure), 2)
            if min(a[2], b[2]) - max(a[0], b[0]) > slack and min(a[3], b[3]) - max(a[1], b[1]) > slack]  # fmt: skip


def boxes(figure: go.Figure) -> list[tuple[str, tuple[float, float, float, float]]]:
    """The texts outside of panels: left, top, right and bottom in px, by the usual width of their letters."""
    found = []
    for note in figure.layout.annotations:
        if note.xref != "paper" or note.yref != "paper":
            continue
        size = note.font.size or 10.7
        rows = [re.sub(r"<[^>]+>", "", row) for row in str(note.text).split("<br>")]
        wide, high = 0.46 * size * max(map(len, rows)), 1.3 * size * len(rows)
        if abs(note.textangle or 0) == 90:
            wide, high = high, wide
        left = note.x * figure.layout.width - (wide / 2 if note.xanchor == "center" else 0)
        top = (1 - note.y) * figure.layout.height - high / 2
        found.append((str(note.text), (left, top, left + wide, top + high)))
    return found
