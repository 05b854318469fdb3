"""A time line of runs, with a lane for each worker and one for the server: who computes, who waits for whom, and how
stale each push is when it is applied."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from pslab.lab.plots.arrange import WIDTHS, boxes, finish, panels, sample
from pslab.lab.plots.axes import Axis
from pslab.lab.plots.charts.prelude import Names, grouped
from pslab.lab.plots.labels import heading, marks, under
from pslab.lab.plots.theme import INK, PHASES, SMALL, Look, ink
from pslab.lab.records import intervals
from pslab.lab.records.frames import Given
from pslab.lab.records.record import Result
from pslab.lab.records.units import SPACE

LANE, HEIGHT = (4.5, 22.0), 620.0  # px: the thinnest and the thickest lane; all lanes of all panels
MARGIN = 64.0  # px left and right of the lanes together
TITLE = "Who waits for whom, and how stale each push is"
NUMBERS = ("a number in a computation is its iteration, in a circle the staleness of the push that is applied there: "
           "steps of the server since its worker pulled")  # fmt: skip
CIRCLES, APPLIED = "a circle is a push that is applied there", "push applied"
BAR, APART = 0.66, 0.02  # shares of a lane: a bar; the space between the parts of a bar
BESIDE = 0.5  # from the middle of a lane to a circle with a number, as a share of the lane: it hides no bar's text
SHARES = dict(zip(intervals.WAYS, (0.56, 0.2, 0.2), strict=True))  # shares of a bar if pulls overlap
#: Activity of a worker -> its name in the legend.
WORDS = {"compute": "compute", "select": "compress", "push": "push", "apply": "server applies",
         "wait": "wait (for worker)", "serve": "server answers", "pull": "pull, decode"}  # fmt: skip
AT = "<b>%{hovertext}</b><br>at %{x:.4f} s<extra></extra>"
BARRIER = {"color": INK, "width": 0.9, "dash": "4px,3px"}


@dataclass(frozen=True)
class _Panel:
    """A run in the window, with the sizes of its panel."""

    label: str
    result: Result
    begin_s: float
    end_s: float
    lane_px: float
    wide_px: float

    @property
    def server_lanes(self) -> float:
        return max(1.0, 13 / self.lane_px)

    @property
    def server(self) -> float:
        """The y coordinate of the server's lane, below the workers' lanes."""
        return self.result.run.workers - 0.5 + self.server_lanes / 2 + 0.15

    @property
    def lanes(self) -> float:
        return self.server + self.server_lanes / 2 + 0.7

    @property
    def detailed(self) -> bool:
        """Whether lanes have room for numbers."""
        return self.lane_px >= 13

    @property
    def numbered(self) -> bool:
        """Whether pushes are far enough apart to write their staleness."""
        most = int(self.pushes.groupby("worker").size().max()) if len(self.pushes) else 0
        return self.lane_px >= 17 and most * 15 <= self.wide_px

    @cached_property
    def overlapped(self) -> bool:
        """Whether pulls overlap with computing, so that computing, pushing and pulling are drawn one under another."""
        return intervals.overlapped(self.result)

    @cached_property
    def pushes(self) -> pd.DataFrame:
        """The pushes that were applied in the window."""
        return self.within(self.result.pushes, "seconds")

    def within(self, table: pd.DataFrame, column: str) -> pd.DataFrame:
        """Return the rows whose instant lies in the window."""
        return table[(table[column] >= self.begin_s) & (table[column] <= self.end_s)]

    @property
    def axis(self) -> Axis:
        """The y axis: worker 0 at the top, the server at the bottom."""
        named = range(0, self.result.run.workers, max(1, math.ceil(12 / self.lane_px)))
        ticks = (*((worker, f"worker {worker}") for worker in named), (self.server, "server"))
        return Axis("", self.lanes - 0.65, -0.75, ticks=ticks, bare=True)

    @property
    def heading(self) -> str:
        pushes, waits = self.pushes, intervals.waiting(self.result, self.begin_s, self.end_s)
        words = [f"{len(pushes)} pushes applied" if len(pushes) else "no push applied",
                 f"workers wait {100 * waits:.0f}{SPACE}% of the time"]  # fmt: skip
        if len(pushes):
            mean, alike = pushes.staleness.mean(), pushes.staleness.nunique() == 1
            words.append(f"staleness {mean:.0f}" if alike else f"staleness {mean:.1f} on average")
        return f"<b>{self.label}</b>\u2003 {', '.join(words)}"


def timeline(
    results: Given, begin_s: float | None = None, end_s: float | None = None, *,
    by: Names = "label", title: Any = None, notes: Iterable[str] = (), width: str = "page",
) -> go.Figure:  # fmt: skip
    """Draw the activities of each worker and of the server over time.

    Several runs are drawn one under another, each with its first seed. Single machines are left out.

    Args:
        begin_s, end_s: the window in seconds of the run; None: six iterations of the slowest worker, near the middle,
            whose waiting is most like the whole runs'.

    Raises:
        ConfigError: an unknown column; runs of one name that differ in more than the seed.
    """
    shown = grouped(results, by)
    chosen = [group.results[0] for group in shown.groups]
    first, last = window(chosen, begin_s, end_s)
    lane_px = min(LANE[1], max(LANE[0], HEIGHT / max(1, sum(result.run.workers + 1 for result in chosen))))
    runs = [_Panel(group.label + marks([result]), result, first, last, lane_px, WIDTHS[width] - MARGIN)
            for group, result in zip(shown.groups, chosen, strict=True)]  # fmt: skip
    time = Axis("training time (s)", first, last)
    fig = panels([[time]] * len(runs), [[panel.axis] for panel in runs], width, [panel.heading for panel in runs])
    for row, panel in enumerate(runs, start=1):
        for trace in (*_bars(panel), *_barriers(panel), *_marks(panel)):
            fig.add_trace(trace, row, 1)
        fig.layout.annotations += tuple(map(go.layout.Annotation, _links(panel, str(row) if row > 1 else "")))
    _name(fig, first, last)
    numbers = NUMBERS if all(panel.numbered for panel in runs) else CIRCLES
    lines = under(shown.crowd, shown.columns, numbers, notes=notes, spread="the first of")
    fig.update_layout(barmode="overlay")
    return finish(fig, heading(title, [TITLE]), lines, width, [panel.lanes * lane_px for panel in runs], left=True)


def _name(fig: go.Figure, begin_s: float, end_s: float) -> None:
    """Add the names of drawn activities, barriers, releases and pushes to the legend."""
    least = 1e-6 * (end_s - begin_s)
    drawn = {trace.legendgroup for trace in fig.data if trace.type != "bar"}
    bars = {trace.legendgroup: trace.marker.color for trace in fig.data if trace.type == "bar" and max(trace.x) > least}
    boxes(fig, {word: bars[word] for word in dict.fromkeys([*WORDS.values(), *bars]) if word in bars})
    if "barrier" in drawn:
        sample(fig, "barrier", "lines", line=BARRIER)
    if fig.layout.annotations[len({trace.yaxis for trace in fig.data if trace.yaxis}) or 1 :]:  # after the headings
        sample(fig, "releases", "lines+markers", line={"color": INK, "width": 0.9},
               marker={"symbol": "triangle-right", "color": INK})  # fmt: skip
    if APPLIED in drawn:
        sample(fig, APPLIED, marker=Look(INK, marker="circle-open").mark())


def window(
    results: Sequence[Result], begin_s: float | None, end_s: float | None, iterations: int = 6
) -> tuple[float, float]:
    """Return begin and end, in seconds of the run, of the window to draw; an instant that is not None is kept. If one
    is None, the window lasts `iterations` iterations of the slowest worker, or as long as the shortest run. If both are
    None, it is the window of this length whose share of waiting is most like the share in the whole runs."""
    if begin_s is not None and end_s is not None:
        return begin_s, end_s
    low, high = intervals.window(results, iterations)
    if begin_s is not None:
        return begin_s, begin_s + high - low
    return (low, high) if end_s is None else (max(0.0, end_s - (high - low)), end_s)


def _bars(panel: _Panel) -> list[go.Bar]:
    table = intervals.inside(intervals.spans(panel.result), panel.begin_s, panel.end_s)
    table = table.assign(lasts_s=table.end_s - table.begin_s)
    table = (_in_parts if panel.overlapped else _on_rows)(table).sort_index()
    at_server = table[table.phase.isin(intervals.AT_SERVER)]
    at_server = at_server.assign(y=panel.server, width=BAR * panel.server_lanes)
    both = pd.concat([table, at_server])
    drawn = {*table.activity}
    return [_bar(panel, activity, both[both.activity == activity])
            for activity in dict.fromkeys([*WORDS, *table.activity]) if activity in drawn]  # fmt: skip


def _in_parts(table: pd.DataFrame) -> pd.DataFrame:
    """Lay out bars if pulls overlap with computing: computing at the top, then pushing, then pulling."""
    top, parts = -BAR / 2, []
    for direction, share in SHARES.items():
        present = table[table.phase.isin(intervals.WAYS[direction])]
        whole = present.phase == "decode"  # has the full height of the lane
        decoded = present[whole].assign(y=present.worker[whole].astype(float), width=BAR)
        rows = pd.concat([_on_rows(present[~whole]), decoded])
        inner = (rows.y - rows.worker + BAR / 2) * share
        parts.append(rows.assign(y=rows.worker + top + inner, width=rows.width * share))
        top += BAR * (share + APART)
    return pd.concat(parts)


def _on_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Lay out bars in their workers' lanes; overlapping spans, as of several ranges, share a lane's height."""
    parts = []
    for worker, spans in table.groupby("worker", sort=True):
        rows = intervals.rows_of(list(spans.begin_s), list(spans.end_s))
        share = BAR / (max(rows) + 1)
        middles = [float(str(worker)) - BAR / 2 + share * (row + 0.5) for row in rows]
        parts.append(spans.assign(y=middles, width=share))
    return pd.concat(parts) if parts else table.assign(y=0.0, width=BAR)


def _bar(panel: _Panel, activity: str, part: pd.DataFrame) -> go.Bar:
    colour, word = PHASES.get(activity, "#999999"), WORDS.get(activity, activity)
    rows = [(_describes(row), f"{1000 * row.lasts_s:.3g}{SPACE}ms", f"{row.begin_s:.4f}", f"{row.end_s:.4f}")
            for row in intervals.records(part)]  # fmt: skip
    return go.Bar(
        x=part.lasts_s, base=part.begin_s, y=part.y, width=part.width, orientation="h", legendgroup=word,
        name=word, showlegend=False, marker={"color": colour, "line": {"width": 0}},
        text=[_text(panel, row) for row in intervals.records(part)], textposition="inside", insidetextanchor="middle",
        textangle=0, constraintext="none", textfont={"size": SMALL, "color": ink(colour)},
        customdata=rows, hovertemplate="<b>%{customdata[0]}</b><br>%{customdata[1]}, from %{customdata[2]} s to "
                                       "%{customdata[3]} s<extra></extra>")  # fmt: skip


def _describes(row: Any) -> str:
    """Return a span in words: ``"worker 2, iteration 46: waits for worker 3"``."""
    doing = {"apply": "the server applies its push", "serve": "the server answers its pull"}.get(row.phase, row.phase)
    if row.phase == "wait":
        doing = f"waits for worker {int(row.waits_for)}" if row.waits_for != intervals.NOBODY else "waits"
    return f"worker {int(row.worker)}, iteration {int(row.iteration)}: {doing}"


def _text(panel: _Panel, row: Any) -> str:
    """Return the text in a bar: a computation's iteration, or the worker that a wait is for; "" if there is no room."""
    width = row.lasts_s / (panel.end_s - panel.begin_s) * panel.wide_px
    if not panel.detailed or row.width < BAR * SHARES["computing"]:
        return ""
    if row.phase == "compute":
        return str(int(row.iteration)) if width > 5.5 * len(str(int(row.iteration))) + 3 else ""
    if row.phase != "wait" or row.waits_for == intervals.NOBODY:
        return ""
    return str(int(row.waits_for)) if width > 8 else ""


def _barriers(panel: _Panel) -> list[go.Scatter]:
    """Return vertical lines through all lanes, at each step that applied several pushes."""
    steps = panel.within(intervals.barriers(panel.result), "at_s")
    if not len(steps):
        return []
    low, high = -0.55, panel.server + panel.server_lanes / 2
    texts = [f"barrier: {int(s.pushes)} pushes in one step, version {int(s.version)}" for s in intervals.records(steps)]
    return [go.Scatter(
        x=[x for at in steps.at_s for x in (at, at, None)], y=[low, high, None] * len(steps), mode="lines",
        line=BARRIER, name="barrier", legendgroup="barrier", showlegend=False,
        hovertext=[text for text in texts for _ in range(3)], hovertemplate=AT)]  # fmt: skip


def _links(panel: _Panel, number: str) -> list[dict[str, Any]]:
    """Return arrows from the worker whose push ended a wait to the worker that waited."""
    x_name, y_name = f"x{number}", f"y{number}"
    return [{"x": row.at_s, "ax": row.at_s, "ay": row.by, "y": row.worker + math.copysign(BAR / 2, row.by - row.worker),
             "xref": x_name, "axref": x_name, "yref": y_name, "ayref": y_name, "showarrow": True, "arrowhead": 2,
             "arrowsize": 1 if panel.detailed else 0.6, "arrowwidth": 0.8, "arrowcolor": INK, "text": "",
             "hovertext": f"iteration {row.by_iteration} of worker {row.by} releases worker {row.worker}"}
            for row in intervals.records(panel.within(intervals.releases(panel.result), "at_s"))]  # fmt: skip


def _marks(panel: _Panel) -> list[go.Scatter]:
    """Return a circle where each push is applied, with its staleness as a number if there is room."""
    table = panel.pushes
    if not len(table):
        return []
    texts = [f"push {int(p.push)}: worker {int(p.worker)}, iteration {int(p.iteration)}<br>computed on version "
            f"{int(p.version_pulled)}, makes version {int(p.version_applied)}: staleness {int(p.staleness)}"
            for p in intervals.records(table)]  # fmt: skip
    return [go.Scatter(
        x=table.seconds, y=table.worker + (BESIDE if panel.numbered else 0) * (1 if panel.overlapped else -1),
        mode="markers+text" if panel.numbered else "markers", name="staleness", legendgroup=APPLIED,
        cliponaxis=False,  # a circle at the edge is not cut off
        marker={"symbol": "circle", "size": 12.0 if panel.numbered else min(6.0, 0.75 * panel.lane_px),
                "color": "white", "opacity": 1, "line": {"color": INK, "width": 0.6}},
        text=[str(int(s)) for s in table.staleness] if panel.numbered else None, showlegend=False,
        textfont={"size": SMALL, "color": INK}, hovertext=texts, hovertemplate=AT)]  # fmt: skip
