"""The two figures of a live view: curves that grow, and strips of what each worker did in its last seconds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pslab.config.metric import metric_of
from pslab.lab.live.looks import LIGHT_PAGE, Ground, Named
from pslab.lab.live.state import SAMPLES, UNDER_WAY, Doing, Track
from pslab.lab.plots.accuracy import QUANTITIES, quantity
from pslab.lab.plots.labels import SPACE
from pslab.lab.plots.page.axes import axis
from pslab.lab.plots.page.theme import ink

SLOTS = 16  # curves at once; the oldest give way
LANES, LANE = 24, 24  # strips at once; px of one
EACH_S = 0.2  # between two samples
HEIGHT, VISIBLE = 340, 45  # px; per cent below the best curve that are in the frame
WIDER = 1.03  # than the longest curve: room for its last marker
WORDS = {"computing": "computing", "transferring": "transferring", "waiting": "waiting (for)", "dead": "dead"}
LOOK = {"template": LIGHT_PAGE.template, "autosize": True, "font": {"size": 12}, "showlegend": True}


# -- curves ----------------------------------------------------------------------------------------


def curves() -> go.FigureWidget:
    """Accuracy against iterations and seconds, with room for SLOTS curves: front ends want all traces at once."""
    drawn = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.03)
    for column in (1, 2):
        for slot in range(SLOTS):
            drawn.add_trace(go.Scatter(x=[], y=[], mode="lines+markers", visible=False, legendgroup=str(slot),
                                       showlegend=column == 1), 1, column)  # fmt: skip
    drawn.update_layout(height=HEIGHT, margin={"t": 10, "b": 40, "l": 56, "r": 12, "autoexpand": True},
                        legend={"orientation": "h", "y": -0.16}, **LOOK)  # fmt: skip
    drawn.update_xaxes(title_font_size=12, title_standoff=4)
    drawn.update_xaxes(title_text="training time (s)", col=2)
    drawn.update_yaxes(title={"text": "test accuracy (%)", "font": {"size": 12}}, col=1)
    return _widget(drawn)


def draw(shown: go.FigureWidget, tracks: Sequence[Track], named: Sequence[Named], ground: Ground = LIGHT_PAGE) -> None:
    """Bring the curves up to date, in one message to the front end."""
    workers = {track.run.workers for track in tracks if track.run.workers > 1}
    each = workers.pop() if len(workers) == 1 else 1
    drawn = [(track, name) for track, name in zip(tracks, named, strict=True) if track.points][-SLOTS:]
    low, high = frame(tracks)
    pushes = max((track.run.pushes or track.points[-1].pushes for track, _ in drawn), default=each)
    seconds = max((track.points[-1].seconds for track, _ in drawn), default=0.0)
    titles = {quantity("accuracy", track.run).title for track in tracks} or {QUANTITIES["accuracy"].title}
    with shown.batch_update():
        for slot in range(SLOTS):
            for first in (0, SLOTS):
                trace = shown.data[first + slot]
                if slot < len(drawn):
                    trace.update(_curve(*drawn[slot], 0 if first else each, ground))
                elif trace.visible:
                    trace.visible = False
        shown.layout.template = ground.template
        shown.update_yaxes(range=[low, high])
        shown.update_xaxes(range=[0, WIDER * pushes / each], col=1)
        shown.update_xaxes(range=[0, WIDER * seconds or 1.0], col=2)
        shown.update_yaxes(title_text=" or ".join(sorted(titles)), col=1)
        shown.update_xaxes(title_text=f"iteration ({each} pushes)" if each > 1 else "pushes", col=1)


def frame(tracks: Sequence[Track]) -> tuple[float, float]:
    """Per cent between which the ends of the curves are distinguishable; it follows them upwards.

    Where there are other metrics than the accuracy: all values.
    """
    if not all(metric_of(track.run).share for track in tracks):
        values = [quantity("accuracy", t.run).factor * p.accuracy for t in tracks for p in t.points]
        shown = axis(values, zero=min(values, default=0.0) >= 0)
        return shown.low, shown.high
    tops = [100 * max(p.accuracy for p in t.points) for t in tracks if len(t.points) > 1]
    best = max(tops, default=100.0)
    low = max(0.0, 5.0 * math.floor((best - VISIBLE) / 5)) if tops else 0.0
    return low, min(100.0, best + 0.08 * (best - low))


def _curve(track: Track, name: Named, each: int, ground: Ground) -> dict[str, Any]:
    """One curve against iterations of so many pushes, or against seconds (0); under way, it has a larger head."""
    label, sizes = escape(name.label + track.marks), [6.0] * len(track.points)
    look = name.look.dark if ground.is_dark else name.look
    sizes[-1] = 11.0 if track.state == UNDER_WAY else 6.0
    factor, metric = quantity("accuracy", track.run).factor, metric_of(track.run)
    hover = [f"{metric.text(p.accuracy, SPACE)}, loss {p.loss:.3f}<br>{p.pushes} pushes, {p.seconds:.2f}{SPACE}s"
             for p in track.points]  # fmt: skip
    return {"x": [p.pushes / each if each else p.seconds for p in track.points], "visible": True, "name": label,
            "y": [factor * p.accuracy for p in track.points], "line": {**look.line, "width": 2.2},
            "marker": look.mark(sizes, ground.page), "hovertext": hover,
            "hovertemplate": f"<b>{label}</b><br>%{{hovertext}}<extra></extra>"}  # fmt: skip


# -- strips ----------------------------------------------------------------------------------------


def strips() -> go.FigureWidget:
    """A row for each worker: colours say what it did, numbers in grey for whom it waited; the newest at the right."""
    drawn = go.Figure([go.Bar(
        x=[], y=[], base=[], text=[], visible=False, name=WORDS[doing], orientation="h", width=0.8,
        textposition="inside", textangle=0,
        insidetextanchor="middle", constraintext="none", textfont={"size": 10, "color": ink(colour)}, hoverinfo="text",
        marker={"color": colour, "line": {"width": 0}}) for doing, colour in LIGHT_PAGE.doing.items()])  # fmt: skip
    drawn.update_layout(barmode="overlay", height=80, margin={"t": 30, "b": 34, "l": 60, "r": 12, "autoexpand": True},
                        legend={"orientation": "h", "y": 1, "yanchor": "bottom"}, **LOOK)  # fmt: skip
    drawn.update_xaxes(title={"text": "seconds from now", "font": {"size": 12}, "standoff": 4}, showgrid=False,
                       range=[-EACH_S * SAMPLES, 0])  # fmt: skip
    drawn.update_yaxes(autorange="reversed", automargin=True, showgrid=False, ticks="", showline=False, type="category")
    return _widget(drawn)


def draw_strips(
    shown: go.FigureWidget, tracks: Sequence[Track], named: Sequence[Named], ground: Ground = LIGHT_PAGE
) -> None:
    """The workers of the runs under way; the run is named where there are several."""
    runs = [f"{escape(name.label)}, " if len(tracks) > 1 else "" for name in named]
    rows = [(f"{run}{_row_name(track, worker)}{SPACE}{SPACE}", kept) for track, run in zip(tracks, runs, strict=True)
            for worker, kept in enumerate(track.workers)]  # fmt: skip
    bars = [(row, *stretch) for row, kept in rows[:LANES] for stretch in stretches(list(kept))]
    with shown.batch_update():
        shown.layout.template = ground.template
        for trace, (doing, colour) in zip(shown.data, ground.doing.items(), strict=True):
            own = [bar for bar in bars if bar[1] == doing]
            trace.update(marker_color=colour, textfont_color=ink(colour))
            trace.update(y=[row for row, *_ in own], base=[first for *_, first, _, _ in own], visible=bool(rows),
                         x=[length for *_, length, _ in own], text=[text for *_, text in own])  # fmt: skip
        shown.layout.yaxis.categoryarray = [row for row, _ in rows[:LANES]]
        shown.layout.yaxis.showticklabels = bool(rows)
        shown.layout.height = 80 + LANE * min(LANES, len(rows))
        more = f"; {len(rows) - LANES} more workers" if len(rows) > LANES else ""
        shown.layout.xaxis.title.text = f"seconds from now{more}"


def stretches(kept: Sequence[Doing]) -> list[tuple[str, float, float, str]]:
    """What a worker did without a break: what, from when (in s, now is 0) and how long, and the workers it waited for,
    where they have room."""
    found, at = [], -EACH_S * len(kept)
    for (doing, whom), same in itertools.groupby(kept, key=lambda each: (each.doing, each.whom)):
        count, text = len(list(same)), ",".join(map(str, whom))
        found.append((doing, at, EACH_S * count, text if doing == "waiting" and count >= len(text) else ""))
        at += EACH_S * count
    return found


def _row_name(track: Track, worker: int) -> str:
    """``"worker 2, iteration 12 (+2), waiting 25 %, waits for 1"``: where it is, of these seconds, and now."""
    kept = track.workers[worker]
    now, clocks = kept[-1], [own[-1].iteration for own in track.workers if own[-1].iteration is not None]
    words = [f"worker {worker}"]
    if now.iteration is not None:
        ahead = now.iteration - min(clocks)
        words.append(f"iteration {now.iteration}" + (f" (+{ahead})" if ahead else ""))
    words.append(f"waiting {100 * sum(each.doing == 'waiting' for each in kept) / len(kept):.0f}{SPACE}%")
    waits = f"waits for {', '.join(map(str, now.whom))}" if now.whom else "waits for its push"
    return ", ".join([*words, waits if now.doing == "waiting" else now.doing])


def _widget(drawn: go.Figure) -> go.FigureWidget:
    shown = go.FigureWidget(drawn)
    shown._config = {**shown._config, "responsive": True, "displaylogo": False, "displayModeBar": False}
    return shown
