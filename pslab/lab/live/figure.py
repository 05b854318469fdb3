"""The two figures of a live view: growing curves, and strips of each worker's activity in the last seconds. Runs get
labels and looks that suit a light or a dark page."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pslab.config.metric import ACCURACY, metric_of
from pslab.config.parameters import plain
from pslab.config.run import FIELDS, Run
from pslab.lab.live.state import SAMPLES, UNDER_WAY, Doing, Track
from pslab.lab.plots.axes import axis
from pslab.lab.plots.charts.curves import quantity
from pslab.lab.plots.labels import SPACE, label_of
from pslab.lab.plots.theme import (
    DARK,
    DASHES,
    LEADING,
    PHASES,
    Look,
    ink,
    looks,
    on_dark,
    template,
    told_apart,
    variant,
)
from pslab.lab.records.frames import fields_of, labels, table

SLOTS = 16  # curves at once; the oldest are removed
LANES, LANE = 24, 24  # strips at once; height of one in px
EACH_S = 0.2  # seconds between two samples
HEIGHT, VISIBLE = 340, 45  # px; the y axis shows this many per cent below the best curve
WIDER = 1.03  # the axis is longer than the longest curve by this factor: room for its last marker
WORDS = {"computing": "computing", "transferring": "transferring", "waiting": "waiting (for)", "dead": "dead"}
LOOK = {"autosize": True, "font": {"size": 12}, "showlegend": True, "uirevision": "kept"}  # keeps zooms and choices
CLEAR = "rgba(0,0,0,0)"  # the page shows through
DEAD = "#9E1B32"
BESIDE = {"evaluate", "eval_every"}  # fields of a run that do not change its curve


class Ground(NamedTuple):
    """The background of a figure, and the colours that suit it."""

    page: str
    template: go.layout.Template
    doing: dict[str, str]  #: activity of a worker -> its colour

    @property
    def is_dark(self) -> bool:
        return self.page == DARK


_DOING = {"computing": PHASES["compute"], "transferring": PHASES["push"], "waiting": PHASES["wait"], "dead": DEAD}
LIGHT_PAGE = Ground("#FFFFFF", template(paper=CLEAR), _DOING)
DARK_PAGE = Ground(DARK, template("#E0E0E0", "#3A3A3A", CLEAR),
                   {**{doing: on_dark(colour) for doing, colour in _DOING.items()}, "waiting": "#484848"})  # fmt: skip


# -- names and looks -------------------------------------------------------------------------------


class Named(NamedTuple):
    """The label and the look of a run in a view."""

    label: str
    look: Look


class Session:
    """Labels and looks of the runs in one view. A run keeps its look while other runs come and go.

    One field gives the colour, as in the other figures: the first of LEADING in which the first runs differ, else
    `sync`. Runs that differ in other fields differ in dash and fill.
    """

    def __init__(self) -> None:
        self._lead = ""
        self._values: dict[str, Any] = {}  # values of the leading field, in the order in which they were seen
        self._bases: dict[str, Look] = {}
        self._ranks: dict[str, int] = {}  # the other fields of a run -> a number in the order of appearance
        self._looks: dict[str, Look] = {}  # by digest

    def names(self, tracks: Sequence[Track]) -> list[Named]:
        """Return each run's label (policy, other fields in which the runs differ, seed if seeds differ) and look."""
        runs = [track.run.but(evaluate="after", eval_every=None) for track in tracks]
        columns, seeds = labels(table(runs)), len({run.seed for run in runs}) > 1
        shown = columns if "sync" in columns or not columns else ["sync", *columns]
        self._lead = self._lead or next((name for name in LEADING if name in columns), "sync" if tracks else "")
        keys = [dict(zip(shown, fields_of(run, shown), strict=True)) for run in runs]
        names = [label_of(key, shown, run) + (f", seed {run.seed}" if seeds else "")
                  for key, run in zip(keys, runs, strict=True)]  # fmt: skip
        self._take(tracks)
        return [Named(label, self._looks[track.digest]) for label, track in zip(names, tracks, strict=True)]

    def _take(self, tracks: Sequence[Track]) -> None:
        """Give each new run a look unlike the looks of the other runs in view."""
        new = [track for track in tracks if track.digest not in self._looks]
        values = {repr(value): value for value in (plain(getattr(track.run, self._lead)) for track in new)}
        self._values |= {name: value for name, value in values.items() if name not in self._values}
        fresh = looks([{self._lead: value} for value in self._values.values()])
        self._bases = {**dict(zip(self._values, fresh, strict=True)), **self._bases}
        drawn = [self._looks[track.digest] for track in tracks if track.digest in self._looks]
        for track in new:
            base = self._bases[repr(plain(getattr(track.run, self._lead)))]
            rank = self._ranks.setdefault(self._rest(track.run), len(self._ranks))
            look = variant(base, rank, DASHES.index(base.dash)) if rank else base
            drawn.append(told_apart([*drawn, look], [{0}] * (len(drawn) + 1))[-1])
            self._looks[track.digest] = drawn[-1]

    def _rest(self, run: Run) -> str:
        return repr(fields_of(run, (name for name in FIELDS if name not in {self._lead, *BESIDE})))


# -- curves ----------------------------------------------------------------------------------------


def curves(tracks: Sequence[Track], named: Sequence[Named], ground: Ground = LIGHT_PAGE) -> go.Figure:
    """Draw accuracy against iterations and seconds, for the newest SLOTS runs."""
    workers = {track.run.workers for track in tracks if track.run.workers > 1}
    divisor = workers.pop() if len(workers) == 1 else 1
    drawn = [(track, name) for track, name in zip(tracks, named, strict=True) if track.points][-SLOTS:]
    pushes = max((track.run.pushes or track.points[-1].pushes for track, _ in drawn), default=divisor)
    seconds = max((track.points[-1].seconds for track, _ in drawn), default=0.0)
    metrics = {metric_of(track.run) for track in tracks} or {ACCURACY}
    titles = {quantity("accuracy", metric).title for metric in metrics}
    shown = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.03)
    for column, unit in ((1, divisor), (2, 0)):
        for track, name in drawn:
            shown.add_trace(_curve(track, name, unit, ground), 1, column)
    shown.update_traces(showlegend=False, col=2)
    shown.update_layout(height=HEIGHT, margin={"t": 10, "b": 40, "l": 56, "r": 12, "autoexpand": True},
                        legend={"orientation": "h", "y": -0.16}, template=ground.template, **LOOK)  # fmt: skip
    shown.update_xaxes(title_font_size=12, title_standoff=4)
    shown.update_xaxes(title_text=f"iteration ({divisor} pushes)" if divisor > 1 else "pushes",
                       range=[0, WIDER * pushes / divisor], col=1)  # fmt: skip
    shown.update_xaxes(title_text="training time (s)", range=[0, WIDER * seconds or 1.0], col=2)
    shown.update_yaxes(range=frame(tracks))
    shown.update_yaxes(title={"text": " or ".join(sorted(titles)), "font": {"size": 12}}, col=1)
    return shown


def frame(tracks: Sequence[Track]) -> tuple[float, float]:
    """Return the range of the y axis.

    For accuracies, in per cent, it begins about VISIBLE points below the best curve and moves up with it, so that the
    ends of curves can be told apart. If a metric is not a share (0 to 1), the range contains all values.
    """
    if not all(metric_of(track.run).share for track in tracks):
        values = [quantity("accuracy", metric_of(t.run)).factor * p.accuracy for t in tracks for p in t.points]
        shown = axis(values, zero=min(values, default=0.0) >= 0)
        return shown.low, shown.high
    tops = [100 * max(p.accuracy for p in t.points) for t in tracks if len(t.points) > 1]
    best = max(tops, default=100.0)
    low = max(0.0, 5.0 * math.floor((best - VISIBLE) / 5)) if tops else 0.0
    return low, min(100.0, best + 0.08 * (best - low))


def _curve(track: Track, name: Named, divisor: int, ground: Ground) -> go.Scatter:
    """Return a run's curve against pushes / divisor, or against seconds if `divisor` is 0."""
    label, sizes = escape(name.label + track.marks), [6.0] * len(track.points)
    look = name.look.dark if ground.is_dark else name.look
    sizes[-1] = 11.0 if track.state == UNDER_WAY else 6.0
    factor, metric = quantity("accuracy", metric_of(track.run)).factor, metric_of(track.run)
    hover = [f"{metric.text(p.accuracy, SPACE)}, loss {p.loss:.3f}<br>{p.pushes} pushes, {p.seconds:.2f}{SPACE}s"
             for p in track.points]  # fmt: skip
    return go.Scatter(x=[p.pushes / divisor if divisor else p.seconds for p in track.points], name=label,
                      y=[factor * p.accuracy for p in track.points], line={**look.line, "width": 2.2},
                      mode="lines+markers", marker=look.mark(sizes, ground.page), hovertext=hover,
                      hovertemplate=f"<b>{label}</b><br>%{{hovertext}}<extra></extra>",
                      legendgroup=track.digest, uid=f"{track.digest}-{divisor}")  # fmt: skip


# -- strips ----------------------------------------------------------------------------------------


def strips(tracks: Sequence[Track], named: Sequence[Named], ground: Ground = LIGHT_PAGE) -> go.Figure:
    """Draw a row of bars for each worker of the runs under way, the newest activity at the right.

    A bar's colour is an activity; a number in a grey bar is the worker that was waited for. If there are several runs,
    a row's name begins with its run.
    """
    runs = [f"{escape(name.label)}, " if len(tracks) > 1 else "" for name in named]
    rows = [(f"{run}{_row_name(track, worker)}{SPACE}{SPACE}", states) for track, run in zip(tracks, runs, strict=True)
            for worker, states in enumerate(track.workers)]  # fmt: skip
    bars = [(row, *stretch) for row, states in rows[:LANES] for stretch in stretches(list(states))]
    shown = go.Figure()
    for doing, colour in ground.doing.items():
        same = [bar for bar in bars if bar[1] == doing]
        shown.add_bar(y=[row for row, *_ in same], base=[first for *_, first, _, _ in same], name=WORDS[doing],
                      x=[length for *_, length, _ in same], text=[text for *_, text in same], orientation="h",
                      width=0.8, textposition="inside", textangle=0, insidetextanchor="middle", constraintext="none",
                      textfont={"size": 10, "color": ink(colour)}, hoverinfo="text",
                      marker={"color": colour, "line": {"width": 0}})  # fmt: skip
    shown.update_layout(barmode="overlay", height=80 + LANE * min(LANES, len(rows)), template=ground.template,
                        margin={"t": 30, "b": 34, "l": 60, "r": 12, "autoexpand": True},
                        legend={"orientation": "h", "y": 1, "yanchor": "bottom"}, **LOOK)  # fmt: skip
    more = f"; {len(rows) - LANES} more workers" if len(rows) > LANES else ""
    shown.update_xaxes(title={"text": f"seconds from now{more}", "font": {"size": 12}, "standoff": 4}, showgrid=False,
                       range=[-EACH_S * SAMPLES, 0])  # fmt: skip
    shown.update_yaxes(autorange="reversed", automargin=True, showgrid=False, ticks="", showline=False, type="category",
                       categoryarray=[row for row, _ in rows[:LANES]], dtick=1)  # fmt: skip
    return shown


def stretches(states: Sequence[Doing]) -> list[tuple[str, float, float, str]]:
    """Return a worker's activities as (activity, begin relative to now, length, text), in s. The text of a wait names
    the workers that it waits for, if there is room; other texts are ""."""
    lengths, at = [], -EACH_S * len(states)
    for (doing, whom), same in itertools.groupby(states, key=lambda state: (state.doing, state.whom)):
        count, text = len(list(same)), ",".join(map(str, whom))
        lengths.append((doing, at, EACH_S * count, text if doing == "waiting" and count >= len(text) else ""))
        at += EACH_S * count
    return lengths


def _row_name(track: Track, worker: int) -> str:
    """Return ``"worker 2, iteration 12 (+2), waiting 25 %, waits for 1"``: the worker's iteration and its lead over the
    slowest, the share of the last seconds that it waited, and its activity now."""
    states = track.workers[worker]
    now, clocks = states[-1], [other[-1].iteration for other in track.workers if other[-1].iteration is not None]
    words = [f"worker {worker}"]
    if now.iteration is not None:
        ahead = now.iteration - min(clocks)
        words.append(f"iteration {now.iteration}" + (f" (+{ahead})" if ahead else ""))
    words.append(f"waiting {100 * sum(state.doing == 'waiting' for state in states) / len(states):.0f}{SPACE}%")
    waits = f"waits for {', '.join(map(str, now.whom))}" if now.whom else "waits for its push"
    return ", ".join([*words, waits if now.doing == "waiting" else now.doing])
