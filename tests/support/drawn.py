"""What is drawn in a figure: curves, texts, and whether a reader can tell curves apart."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import plotly.graph_objects as go


def lines(figure: go.Figure, axis: str = "x") -> dict[str, Any]:
    """The curves of one panel by their names: not bands, crosses, signs or samples."""
    return {trace.name: trace for trace in figure.data
            if trace.type == "scatter" and trace.hovertemplate and trace.mode != "none"
            and "diverged" not in trace.hovertemplate and (trace.xaxis or "x") == axis}  # fmt: skip


def texts(figure: go.Figure) -> list[str]:
    """All texts of the figure, its title first, without their tags, and with plain spaces."""
    axes = [*figure.select_xaxes(), *figure.select_yaxes()]
    titles = [figure.layout.title.text, *(axis.title.text for axis in axes)]
    found = [*titles, *(note.text for note in figure.layout.annotations)]
    return [re.sub(r"<[^>]*>", " ", str(text)).strip().replace("\u00a0", " ") for text in found if text]


def legend(figure: go.Figure) -> list[str]:
    shown = figure.layout.showlegend
    return [trace.name for trace in figure.data if shown and trace.showlegend is not False and trace.name]


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
