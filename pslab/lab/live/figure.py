"""The growing curves of a live view: test accuracy against iterations and against seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pslab.config.run import Run
from pslab.lab.live.state import UNDER_WAY, Track
from pslab.lab.plots.theme import Style, styles, template
from pslab.lab.studies.studies import labels

SLOTS = 24  # curves at once; the oldest give way
HEIGHT, VISIBLE = 340, 45  # per cent below the best curve that are in the frame


def names(tracks: Sequence[Track]) -> list[tuple[str, Style]]:
    """Label and style of each run: those of the other figures, and the seed where seeds differ."""
    shown = [track.run.but(evaluate="after", eval_every=None) for track in tracks]
    kinds = {run.but(seed=0).digest: run for run in shown}
    runs = list(kinds.values())
    found = dict(zip(kinds, zip(labels(runs), styles(runs), strict=True), strict=True))
    seeds = len({run.seed for run in shown}) > 1

    def name(run: Run) -> tuple[str, Style]:
        label, style = found[run.but(seed=0).digest]
        return (f"{label}, seed {run.seed}" if seeds else label), style

    return [name(run) for run in shown]


def figure() -> go.FigureWidget:
    """Two panels with room for SLOTS curves; all traces are there from the beginning, as front ends want it."""
    drawn = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.03)
    for column in (1, 2):
        for _ in range(SLOTS):
            drawn.add_trace(go.Scatter(x=[], y=[], mode="lines+markers", visible=False), 1, column)
    drawn.update_layout(
        template=template(), height=HEIGHT, autosize=True, showlegend=False,
        margin={"t": 12, "b": 46, "l": 58, "r": 14},
        xaxis={"title": {"text": "iteration"}, "rangemode": "tozero", "range": [0, 1]},
        xaxis2={"title": {"text": "training time (s)"}, "rangemode": "tozero", "range": [0, 1]},
        yaxis={"title": {"text": "test accuracy (%)"}, "range": [0, 100]}, yaxis2={"range": [0, 100]},
    )  # fmt: skip
    shown = go.FigureWidget(drawn)
    shown._config = {**shown._config, "responsive": True, "displaylogo": False}
    return shown


def draw(shown: go.FigureWidget, tracks: Sequence[Track], named: Sequence[tuple[str, Style]]) -> None:
    """Bring the curves up to date, in one message to the front end."""
    per_iteration = _per_iteration(tracks)
    low, high = frame(tracks)
    drawn = [(t, *n) for t, n in zip(tracks, named, strict=True) if t.points][-SLOTS:]
    ends = [max((x for t, _, _ in drawn for x in _xs(t, axis, per_iteration)), default=1.0) for axis in (0, 1)]
    with shown.batch_update():
        for axis in (0, 1):
            for slot in range(SLOTS):
                trace = shown.data[axis * SLOTS + slot]
                if slot < len(drawn):
                    trace.update(_curve(*drawn[slot], axis, per_iteration))
                elif trace.visible:
                    trace.visible = False
        for place, end in zip((shown.layout.xaxis, shown.layout.xaxis2), ends, strict=True):
            place.range = [0, 1.02 * max(end, 1e-9)]
        for place in (shown.layout.yaxis, shown.layout.yaxis2):
            place.range = [low, high]
        each = f" ({per_iteration} pushes)" if per_iteration > 1 else ""
        shown.layout.xaxis.title.text = f"iteration{each}" if per_iteration > 1 else "pushes"


def frame(tracks: Sequence[Track]) -> tuple[float, float]:
    """Per cent between which the ends of the curves can be told apart; it follows them upwards."""
    tops = [100 * max(p.accuracy for p in t.points) for t in tracks if len(t.points) > 1]
    best = max(tops, default=100.0)
    low = max(0.0, 5.0 * math.floor((best - VISIBLE) / 5)) if tops else 0.0
    return low, min(100.0, best + 0.08 * (best - low))


def _per_iteration(tracks: Sequence[Track]) -> int:
    workers = {track.run.workers for track in tracks if track.run.workers > 1}
    return workers.pop() if len(workers) == 1 else 1


def _xs(track: Track, axis: int, per_iteration: int) -> list[float]:
    return [point.seconds if axis else point.pushes / per_iteration for point in track.points]


def _curve(track: Track, label: str, style: Style, axis: int, per_iteration: int) -> dict[str, Any]:
    """One curve; a run that is under way has a larger head."""
    count = len(track.points)
    step = max(1, math.ceil(count / 11))
    sizes = [6.5 if (count - 1 - place) % step == 0 or place == 0 else 0.0 for place in range(count)]
    edges = [0.8] * count
    if track.state == UNDER_WAY:
        sizes[-1], edges[-1] = 11.0, 2.0
    return {
        "x": _xs(track, axis, per_iteration), "y": [100 * point.accuracy for point in track.points],
        "visible": True, "name": label,
        "line": {"color": style.colour, "dash": style.dash, "width": style.width + 0.2},
        "marker": {"symbol": style.marker, "color": style.colour, "size": sizes, "opacity": 1,
                   "line": {"color": "white", "width": edges}},
        "customdata": [[p.loss, p.pushes, p.seconds, 100 * p.accuracy] for p in track.points],
        "hovertemplate": f"<b>{label}</b><br>%{{customdata[3]:.2f}} %, loss %{{customdata[0]:.3f}}<br>"
                         "%{customdata[1]} pushes, %{customdata[2]:.2f} s<extra></extra>",
    }  # fmt: skip

