"""The two states of the server over time: a lane for each range, with the messages that arrive for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from pslab.lab.plots.arrange import boxes, finish, panels, sample
from pslab.lab.plots.axes import Axis
from pslab.lab.plots.charts.prelude import Names, grouped
from pslab.lab.plots.charts.timeline import window
from pslab.lab.plots.labels import heading, marks, under
from pslab.lab.plots.theme import INK, PHASES, Look
from pslab.lab.records.frames import Given
from pslab.lab.records.intervals import inside, records
from pslab.lab.records.record import Result
from pslab.lab.records.server_states import ALL, pulling, ranges_of
from pslab.lab.records.units import SPACE

LANE, HEIGHT, BAR = (10.0, 26.0), 460.0, 0.5  # px: thinnest and thickest lane, all lanes; a bar's share of a lane
ITERATIONS = 3  # iterations of the slowest worker in the default window
STATES = {"PUSH": "#DCEBE8", "applying": PHASES["apply"], "PULL": "#D9822B"}
TITLE = "When the server takes pushes, and when it answers pulls"
MESSAGES = {"push": ("triangle-down", -1), "pull": ("triangle-up", 1)}  # marker; above (-1) or below the bar
NAMES = {"PUSH": "state PUSH", "applying": "of it, applying", "PULL": "state PULL (answering)"}
READ = ("in state PUSH a range counts and applies pushes, and parks pulls until the policy starts their workers; in "
        "state PULL it answers, and its weights do not change")  # fmt: skip


def server_states(
    results: Given, begin_s: float | None = None, end_s: float | None = None, *,
    by: Names = "label", title: Any = None, notes: Iterable[str] = (), width: str = "page",
) -> go.Figure:  # fmt: skip
    """Draw the state of each range of the server, PUSH or PULL (Tsai, slides 2017), with the arriving pushes and pulls.

    Several runs are drawn one under another, each with its first seed.

    Args:
        begin_s, end_s: the window in seconds of the run; None: as in `timeline`, with three iterations.

    Raises:
        ConfigError: an unknown column; runs of one name that differ in more than the seed.
        RecordError: the record has no arrivals, because an earlier version of pslab made it.
    """
    shown = grouped(results, by)
    chosen = [group.results[0] for group in shown.groups]
    low, high = window(chosen, begin_s, end_s, ITERATIONS)
    lanes = [len(ranges_of(result)) for result in chosen]
    lane_px = min(LANE[1], max(LANE[0], HEIGHT / sum(lanes)))
    heads = [f"<b>{group.label}{marks([result])}</b>\u2003 {_pulling(result)}"
             for group, result in zip(shown.groups, chosen, strict=True)]  # fmt: skip
    time = Axis("training time (s)", low, high)
    names = [["server"] if count == 1 else [f"range {index}" for index in range(count)] for count in lanes]
    y_axes = [Axis("", len(texts) - 0.2, -0.8, ticks=tuple(enumerate(texts)), bare=True) for texts in names]
    fig = panels([[time]] * len(chosen), [[axis] for axis in y_axes], width, heads)
    for row, result in enumerate(chosen, start=1):
        for trace in (*_bars(result, low, high), *_messages(result, low, high)):
            fig.add_trace(trace, row, 1)
    drawn = {trace.name for trace in fig.data}
    boxes(fig, {NAMES[state]: colour for state, colour in STATES.items() if NAMES[state] in drawn})
    for kind, (marker, _) in MESSAGES.items():
        if f"{kind} arrives" in drawn:
            sample(fig, f"{kind} arrives", marker=Look(INK, marker=marker).mark())
    lines = under(shown.crowd, shown.columns, READ, notes=notes, spread="the first of")
    fig.update_layout(barmode="overlay")
    return finish(fig, heading(title, [TITLE]), lines, width, [(count + 0.6) * lane_px for count in lanes], left=True)


def _pulling(result: Result) -> str:
    table, lasts_s = pulling(result), result.seconds * len(ranges_of(result))
    if not len(table) or lasts_s <= 0:
        return "never in state PULL"
    share = float((table.end_s - table.begin_s).sum()) / lasts_s
    answered = f"{table.answers.mean():.1f} pulls each" if table.answers.mean() > 1 else "one pull each"
    return f"in state PULL {len(table)} times, {answered}, {100 * share:.2g}{SPACE}% of the time"


def _bars(result: Result, low: float, high: float) -> list[go.Bar]:
    ranges, bars = ranges_of(result), []
    applied = result.phases[result.phases.phase == "apply"]
    whole = pd.DataFrame({"range": ranges, "begin_s": low, "end_s": high})
    tables = {"PUSH": whole, "applying": inside(applied, low, high), "PULL": inside(pulling(result), low, high)}
    for state, table in tables.items():
        rows = [(index, row.begin_s, row.end_s - row.begin_s, getattr(row, "answers", 0)) for row in records(table)
                for index in (ranges if row.range == ALL else [row.range])]  # fmt: skip
        if rows:
            y, begins, lasts, answers = zip(*rows, strict=True)
            texts = [f"{NAMES[state]}, {1000 * last:.3g}{SPACE}ms" + (f", {count} answered" if count else "")
                     for last, count in zip(lasts, answers, strict=True)]  # fmt: skip
            # an outline, so that a state shorter than a pixel is seen
            edge = {"width": 0 if state == "PUSH" else 1, "color": STATES[state]}
            bars.append(go.Bar(
                x=lasts, base=begins, y=y, width=BAR, orientation="h", name=NAMES[state], showlegend=False,
                marker={"color": STATES[state], "line": edge}, customdata=texts,
                hovertemplate="<b>%{customdata}</b><br>from %{base:.4f} s<extra></extra>"))  # fmt: skip
    return bars


def _messages(result: Result, low: float, high: float) -> list[go.Scatter]:
    table, traces = result.arrivals, []
    for kind, (marker, side) in MESSAGES.items():
        messages = table[(table.kind == kind) & (table.seconds >= low) & (table.seconds <= high)]
        if len(messages):
            texts = [f"{kind} of worker {row.worker}, iteration {row.iteration}" for row in messages.itertuples()]
            traces.append(go.Scatter(
                x=messages.seconds, y=messages.range + side * (BAR / 2 + 0.12), mode="markers", name=f"{kind} arrives",
                marker={"symbol": marker, "size": 5, "color": INK}, showlegend=False, hovertext=texts,
                hovertemplate="<b>%{hovertext}</b><br>at %{x:.4f} s<extra></extra>"))  # fmt: skip
    return traces
