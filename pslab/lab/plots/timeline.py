"""The time-line of runs: a lane for each worker and one for the server; who computes, waits for whom, and how stale
each push is when it is applied."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pslab.lab.plots.theme import FONT, INK, PHASES, SPACE, rgb, sync_colour, sync_name, template
from pslab.lab.records import intervals as spans
from pslab.lab.studies.studies import Curve, caption, curves

if TYPE_CHECKING:
    from pslab.lab.records.record import Result

WIDTH, HEIGHT, LEFT, RIGHT = 980, 900, 76, 22  # px; HEIGHT is shared by the lanes of all panels
LANE = (6.5, 30.0)  # px: the thinnest and the tallest lane
HEADING = 34  # px over each panel
MOST = 20_000  # bars of a panel
TITLE = "who waits for whom, and how stale each push is"
NUMBERS = ("a number in a computation is its iteration, in a circle the staleness of the push that is applied there: "
           "steps of the server since its worker pulled")  # fmt: skip
SHADES = "a circle is a push that is applied there: white where it is fresh, darker the staler it is (here up to {})"
BAR = 0.66  # of a lane
SHARES = dict(zip(spans.WAYS, (0.56, 0.2, 0.2), strict=True))  # of the bar, where links are used while one computes
APART = 0.02  # between them
#: Under its name in the legend: what a worker is doing.
WORDS = {"compute": "compute", "select": "select, encode", "push": "push", "apply": "server applies",
         "wait": "wait (for worker)", "serve": "server answers", "pull": "pull, decode"}  # fmt: skip
STALE = ("#FFFFFF", "#F3B79B", "#D1495B", "#7A1F5C", "#33104A")  # staleness 0, then up to the largest
AT = "<b>%{hovertext}</b><br>at %{x:.4f} s<extra></extra>"
ARROW = {"symbol": "arrow", "angleref": "previous", "color": INK, "opacity": 1}
BARRIER = {"color": INK, "width": 1.1, "dash": "4px,3px"}


@dataclass(frozen=True)
class _Panel:
    """One run in the window."""

    curve: Curve
    result: Result
    begin_s: float
    end_s: float
    lane_px: float
    stalest: int  #: the largest staleness in all panels
    colour: str

    @property
    def server(self) -> float:
        """Where the server's lane lies, in lanes under worker 0."""
        return self.result.run.workers - 0.5 + self.server_lanes / 2 + 0.15

    @property
    def server_lanes(self) -> float:
        return max(1.0, 15 / self.lane_px)

    @property
    def lanes(self) -> float:
        return self.server + self.server_lanes / 2 + 0.7

    @property
    def detailed(self) -> bool:
        """Whether a number has room in a lane."""
        return self.lane_px >= 17

    @property
    def numbered(self) -> bool:
        """Whether the pushes of a lane lie far enough apart for their staleness in numbers."""
        most = int(self.pushes.groupby("worker").size().max()) if len(self.pushes) else 0
        return self.lane_px >= 22 and most * 20 <= WIDTH - LEFT - RIGHT

    @cached_property
    def overlapped(self) -> bool:
        """Whether its workers' links are shown under their computing."""
        return spans.overlapped(self.result)

    @property
    def pushes(self) -> pd.DataFrame:
        return _applied(self.result, self.begin_s, self.end_s)


def timeline(
    result: Result, begin_s: float | None = None, end_s: float | None = None, title: str | None = None
) -> go.Figure:
    """What every worker and the server did between two instants, in seconds of the run.

    Without them: six iterations of the slowest worker, about the middle, whose waiting is most like the whole run's.
    """
    return compare([result], begin_s, end_s, title or f"{sync_name(result.run.sync)}: {TITLE}")


def compare(
    results: Iterable[Result], begin_s: float | None = None, end_s: float | None = None, title: str | None = None
) -> go.Figure:
    """The same window of several runs, one under the other; of several seeds the first, no single machine."""
    found = [c for c in curves(results) if not c.single]
    chosen = [c.results[0] for c in found]
    begin, end = _window(chosen, begin_s, end_s)
    lane_px = min(LANE[1], max(LANE[0], HEIGHT / max(1, sum(r.run.workers + 1 for r in chosen))))
    stalest = max((int(pushes.staleness.max()) for r in chosen if len(pushes := _applied(r, begin, end))), default=0)
    colours = [c.style.colour if len(found) > 1 else sync_colour(c.run.sync) for c in found]
    panels = [_Panel(curve, result, begin, end, lane_px, stalest, colour)
              for curve, result, colour in zip(found, chosen, colours, strict=True)]  # fmt: skip
    heights = [p.lanes * lane_px for p in panels] or [100.0]
    between = HEADING / (sum(heights) + HEADING * (len(heights) - 1))
    figure = make_subplots(len(heights), 1, shared_xaxes=True, row_heights=heights, vertical_spacing=between)
    notes: list[str] = []
    for row, panel in enumerate(panels, start=1):
        notes += _draw(figure, panel, row)
    figure.update_xaxes(range=[begin, end], showgrid=True)
    figure.update_xaxes(title_text="training time (s)", row=len(heights), col=1)
    return _finish(figure, title or f"{TITLE[0].upper()}{TITLE[1:]}", panels, heights, notes)


def _window(results: Sequence[Result], begin_s: float | None, end_s: float | None) -> tuple[float, float]:
    """The window asked for; one instant alone gets the usual length."""
    if begin_s is not None and end_s is not None:
        return begin_s, end_s
    low, high = spans.window(results)
    if begin_s is not None:
        return begin_s, begin_s + high - low
    return (low, high) if end_s is None else (max(0.0, end_s - (high - low)), end_s)


def _applied(result: Result, begin_s: float, end_s: float) -> pd.DataFrame:
    """The pushes that were applied in the window."""
    return result.pushes[(result.pushes.seconds >= begin_s) & (result.pushes.seconds <= end_s)]


def _draw(figure: go.Figure, panel: _Panel, row: int) -> list[str]:
    """One panel; what must be said of it."""
    place = {"row": row, "col": 1}
    bars, left_out = _bars(panel)
    for trace in [*bars, *_barriers(panel), *_links(panel), *_marks(panel)]:
        figure.add_trace(trace, **place)
    workers = panel.result.run.workers
    every = max(1, math.ceil(15 / panel.lane_px))
    named = list(range(0, workers, every))
    figure.update_yaxes(
        range=[panel.lanes - 0.65, -0.75], tickvals=[*named, panel.server], fixedrange=True, tickfont_size=12,
        ticktext=[*(f"worker {w}" for w in named), "server"], ticklabelstandoff=4, showgrid=False, showline=False,
        ticks="", **place)  # fmt: skip
    axis = "y" if row == 1 else f"y{row}"
    figure.add_annotation(text=_heading(panel), x=0, xref="paper", xanchor="left", y=1, yref=f"{axis} domain",
                          yanchor="bottom", yshift=2, font={"size": 13})  # fmt: skip
    return [f"{panel.curve.label}: the shortest {left_out} pieces are not drawn"] if left_out else []


def _heading(panel: _Panel) -> str:
    pushes, waits = panel.pushes, spans.waiting(panel.result, panel.begin_s, panel.end_s)
    words = [f"{len(pushes)} pushes applied" if len(pushes) else "no push applied",
             f"workers wait {100 * waits:.0f}{SPACE}% of the time"]  # fmt: skip
    if len(pushes):
        alike = pushes.staleness.nunique() == 1
        words.append(f"staleness {pushes.staleness.mean():.{0 if alike else 1}f}" + ("" if alike else " on average"))
    return f"<b style='color:{panel.colour}'>{panel.curve.legend}</b>   " + ", ".join(words)


# -- bars ------------------------------------------------------------------------------------------


def _bars(panel: _Panel) -> tuple[list[go.Bar], int]:
    """A trace for each activity, and how many bars would have been too many."""
    table = spans.inside(spans.spans(panel.result), panel.begin_s, panel.end_s)
    table = (_in_parts if panel.overlapped else _on_rows)(table.assign(lasts_s=table.end_s - table.begin_s))
    kept = table.sort_values("lasts_s", ascending=False, kind="stable").head(MOST).sort_index()
    at_server = kept[kept.phase.isin(spans.AT_SERVER)]
    at_server = at_server.assign(y=panel.server, width=BAR * panel.server_lanes)
    traces = []
    for activity in dict.fromkeys([*WORDS, *kept.activity]):
        own, there = kept[kept.activity == activity], at_server[at_server.activity == activity]
        if len(own):
            traces.append(_bar(panel, activity, pd.concat([own, there])))
    return traces, len(table) - len(kept)


def _in_parts(table: pd.DataFrame) -> pd.DataFrame:
    """Where each bar lies where computing and links overlap: computing above, then the way up, then the way down."""
    top, parts = -BAR / 2, []
    for way, share in SHARES.items():
        there = table[table.phase.isin(spans.WAYS[way])]
        taken = there.phase == "decode"  # while the next request is on its way
        own = pd.concat([_on_rows(there[~taken]), there[taken].assign(y=there.worker[taken].astype(float), width=BAR)])
        inner = (own.y - own.worker + BAR / 2) * share
        parts.append(own.assign(y=own.worker + top + inner, width=own.width * share))
        top += BAR * (share + APART)
    return pd.concat(parts)


def _on_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Where each bar lies: in its worker's lane, which is shared where spans overlap (several ranges)."""
    parts = []
    for worker, own in table.groupby("worker", sort=True):
        rows = spans.rows_of(list(own.begin_s), list(own.end_s))
        share = BAR / (max(rows) + 1)
        places = [float(str(worker)) - BAR / 2 + share * (row + 0.5) for row in rows]
        parts.append(own.assign(y=places, width=share))
    return pd.concat(parts) if parts else table.assign(y=0.0, width=BAR)


def _bar(panel: _Panel, activity: str, part: pd.DataFrame) -> go.Bar:
    colour = PHASES.get(activity, "#999999")
    rows = [(_says(row), f"{1000 * row.lasts_s:.3g}{SPACE}ms", f"{row.begin_s:.4f}", f"{row.end_s:.4f}")
            for row in spans.records(part)]  # fmt: skip
    return go.Bar(
        x=part.lasts_s, base=part.begin_s, y=part.y, width=part.width, orientation="h", legendgroup=activity,
        name=WORDS.get(activity, activity), marker={"color": colour, "line": {"width": 0}},
        text=[_text(panel, row) for row in spans.records(part)], textposition="inside", insidetextanchor="middle",
        textangle=0, constraintext="none", textfont={"size": 10, "color": "white" if sum(rgb(colour)) < 330 else INK},
        customdata=rows, hovertemplate="<b>%{customdata[0]}</b><br>%{customdata[1]}, from %{customdata[2]} s to "
                                       "%{customdata[3]} s<extra></extra>")  # fmt: skip


def _says(row: Any) -> str:
    """``"worker 2, iteration 46: waits for worker 3"``."""
    doing = {"apply": "the server applies its push", "serve": "the server answers its pull"}.get(row.phase, row.phase)
    if row.phase == "wait":
        doing = f"waits for worker {int(row.waits_for)}" if row.waits_for != spans.NOBODY else "waits"
    return f"worker {int(row.worker)}, iteration {int(row.iteration)}: {doing}"


def _text(panel: _Panel, row: Any) -> str:
    """In a computation its iteration, in a wait for whom; nothing where there is no room."""
    width = row.lasts_s / (panel.end_s - panel.begin_s) * (WIDTH - LEFT - RIGHT)
    if not panel.detailed or row.width < BAR * SHARES["computing"]:
        return ""
    if row.phase == "compute":
        return str(int(row.iteration)) if width > 6 * len(str(int(row.iteration))) + 3 else ""
    if row.phase != "wait" or row.waits_for == spans.NOBODY:
        return ""
    whom = int(row.waits_for)
    return next((text for text in (f"waits for {whom}", f"for {whom}") if width > 6 * len(text) + 10), "")


# -- marks -----------------------------------------------------------------------------------------


def _barriers(panel: _Panel) -> list[go.Scatter]:
    """A hairline through all lanes where one step applied several pushes."""
    found = spans.barriers(panel.result)
    found = found[(found.at_s >= panel.begin_s) & (found.at_s <= panel.end_s)]
    if not len(found):
        return []
    low, high = -0.55, panel.server + panel.server_lanes / 2
    said = [f"barrier: {int(s.pushes)} pushes in one step, version {int(s.version)}" for s in spans.records(found)]
    return [go.Scatter(
        x=[x for at in found.at_s for x in (at, at, None)], y=[low, high, None] * len(found), mode="lines",
        line=BARRIER, name="barrier", legendgroup="barrier",
        hovertext=[text for text in said for _ in range(3)], hovertemplate=AT)]  # fmt: skip


def _links(panel: _Panel) -> list[go.Scatter]:
    """From the worker whose push ended a waiting to the worker that waited."""
    found = spans.releases(panel.result)
    found = found[(found.at_s >= panel.begin_s) & (found.at_s <= panel.end_s)]
    if not len(found):
        return []
    x = [x for at in found.at_s for x in (at, at, None)]
    y = [y for r in spans.records(found) for y in (r.by, r.worker + math.copysign(BAR / 2, r.by - r.worker), None)]
    said = [f"iteration {r.by_iteration} of worker {r.by} releases worker {r.worker}" for r in spans.records(found)]
    size = 7 if panel.detailed else 4
    line, key = {"color": INK, "width": 0.9}, {"symbol": "triangle-right", "size": 8, "color": INK}
    return [go.Scatter(x=[None], y=[None], mode="lines+markers", line=line, marker=key, name="releases",
                       legendgroup="releases"), go.Scatter(
        x=x, y=y, mode="lines+markers", line=line, name="releases", legendgroup="releases",
        marker={**ARROW, "size": [0, size, 0] * len(found)},
        hovertext=[text for text in said for _ in range(3)], hovertemplate=AT)]  # fmt: skip


def _marks(panel: _Panel) -> list[go.Scatter]:
    """Over a worker's lane, where its push is applied: how stale it is."""
    table = panel.pushes
    if not len(table):
        return []
    size = 12.5 if panel.numbered else min(7.0, 0.75 * panel.lane_px)
    fills = [shade(int(s), panel.stalest) for s in table.staleness]
    said = [f"push {int(p.push)}: worker {int(p.worker)}, iteration {int(p.iteration)}<br>computed on version "
            f"{int(p.version_pulled)}, makes version {int(p.version_applied)}: staleness {int(p.staleness)}"
            for p in spans.records(table)]  # fmt: skip
    return [go.Scatter(
        x=table.seconds, y=table.worker + (BAR / 2 if panel.numbered else 0) * (1 if panel.overlapped else -1),
        mode="markers+text" if panel.numbered else "markers", name="staleness", legendgroup="staleness",
        marker={"symbol": "circle", "size": size, "color": fills, "opacity": 1, "line": {"color": INK, "width": 0.7}},
        text=[str(int(s)) for s in table.staleness] if panel.numbered else None,
        textfont={"size": 8.5, "color": ["white" if sum(rgb(fill)) < 400 else INK for fill in fills], "family": FONT},
        hovertext=said, hovertemplate=AT)]  # fmt: skip


def shade(staleness: int, most: int) -> str:
    """White for fresh, then darker up to the largest."""
    if staleness <= 0 or most <= 0:
        return STALE[0]
    place = (1 + (len(STALE) - 2) * (staleness - 1) / max(3, most - 1)) if most > 1 else 1.0
    step = min(len(STALE) - 2, int(place))
    low, high, share = rgb(STALE[step]), rgb(STALE[step + 1]), place - step
    return "#" + "".join(f"{round(a + share * (b - a)):02X}" for a, b in zip(low, high, strict=True))


# -- finish ----------------------------------------------------------------------------------------


def _finish(
    figure: go.Figure, title: str, panels: Sequence[_Panel], heights: Sequence[float], notes: Sequence[str]
) -> go.Figure:
    """The template, a headline with its caption, each name once in the legend."""
    seen: set[str] = set()
    for trace in figure.data:
        trace.showlegend = trace.legendgroup not in seen
        seen.add(trace.legendgroup)
    stalest = max((p.stalest for p in panels), default=0)
    numbers = [NUMBERS if all(p.numbered for p in panels) else SHADES.format(stalest)] if panels else []
    lines = [*caption([p.curve for p in panels], "the first of "), *numbers, *notes]
    small = [row for line in lines for row in textwrap.wrap(line, int(WIDTH / 6.1), break_long_words=False)]
    top, bottom = 52 + 16 * len(small) + HEADING - 8, 100
    height = top + bottom + sum(heights) + HEADING * (len(heights) - 1)
    figure.update_layout(
        template=template(), width=WIDTH, height=height, barmode="overlay",
        margin={"t": top, "b": bottom, "l": LEFT, "r": RIGHT},
        legend={"traceorder": "normal", "itemwidth": 30, "itemsizing": "constant"},
        title={"text": title, "subtitle": {"text": "<br>".join(small)}, "y": 1 - 14 / height},
    )  # fmt: skip
    return figure
