"""The time budget: stacked seconds of each worker by activity, and by the worker that it waited for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from pslab.errors import ConfigError
from pslab.lab.plots.arrange import WIDTHS, boxes, finish, names, panels
from pslab.lab.plots.axes import axis, lane_px, lanes
from pslab.lab.plots.charts import timeline
from pslab.lab.plots.charts.prelude import Names, grouped
from pslab.lab.plots.labels import heading, label_of, name, under
from pslab.lab.plots.theme import GRID, INK, PALE, PHASES, SMALL
from pslab.lab.records.frames import Given
from pslab.lab.records.intervals import ACTIVITIES, NOBODY, budget
from pslab.lab.records.record import Result
from pslab.lab.records.units import SPACE

WORDS = {**timeline.WORDS, "gap": "not measured"}
WORKER = "worker"
LANE, HEIGHT = (5.0, 14.0), 480.0  # px: the thinnest and the thickest lane; all lanes
LEAST_NUMBERED = 12.0  # px: the thinnest lane with numbers
LEAST = 3e-3  # parts shorter than this share of the longest bar are not drawn
ROOM = 9.0  # px: the shortest part with a number
NUMBERS = "a number in a piece of waiting is the worker that was waited for"
SPENT = {"computing": ("compute",), "transferring": ("push", "pull"), "waiting": ("wait",)}  # word -> phases


def time_budget(
    results: Given, title: Any = None, *, by: Names = "label", across: str = WORKER,
    per_iteration: bool = False, notes: Iterable[str] = (), width: str = "page",
) -> go.Figure:  # fmt: skip
    """Draw a panel for each value of `by`, with a stacked bar of each worker's time by activity.

    Every instant counts once: a transfer that overlaps with computing counts only for the time after the computing.
    Bars are means over seeds. All panels share one axis, so that their bars can be compared.

    Args:
        by: the columns whose values get a panel each.
        across: "worker" for a bar per worker; or a column for a bar per value, the mean over workers.
        per_iteration: whether bars show milliseconds of an iteration (as many pushes as workers), not seconds of the
            run.
        title, notes, width: as in `points`.

    Raises:
        ConfigError: an unknown column; a bar whose runs differ in more than the seed.
    """
    shown = grouped(results, by, None if across == WORKER else across)
    spent: dict[str, list[pd.DataFrame]] = {}  # by panel
    for key, group, _, sign, _ in shown.groups:
        columns = [column for column in shown.names if column != across]
        lane = name(across, key[across]) if across in key else ""
        spent.setdefault(label_of(key, columns, group[0].run) + sign, []).append(_spent(group, per_iteration, lane))
    for _, group, label, sign, _ in shown.singles if across == WORKER else ():
        spent[label + sign] = [_spent(group, per_iteration)]
    tables = {label: table for label, parts in spent.items() if (table := pd.concat(parts)).seconds.sum() > 0}
    if not tables:
        raise ConfigError("results", len(shown.results), "no worker of these runs did anything, so there is no time to "
                                                         "show: give runs with a push")  # fmt: skip
    longest = max(float(table.groupby("lane").seconds.sum().max()) for table in tables.values())
    x = axis([0, longest], "ms per iteration" if per_iteration else "training time (s)", zero=True)
    lanes_ = [list(dict.fromkeys(table.lane)) for table in tables.values()]
    high = min(LANE[1], max(LANE[0], HEIGHT / sum(map(len, lanes_))))
    heads = [f"<b>{label}</b>" + (f"\u2003 {_shares(table)}" if across == WORKER else "")
             for label, table in tables.items()]  # fmt: skip
    y_axes = [lanes(names(texts, width)) for texts in lanes_]  # names without room are left out below
    y_axes = [axis._replace(ticks=axis.ticks[:: math.ceil((lane_px(axis, 0) - 4) / high)]) for axis in y_axes]
    fig = panels([[x]] * len(tables), [[axis] for axis in y_axes], width, heads)
    room, phases = ROOM * x.high / WIDTHS[width] if high >= LEAST_NUMBERED else math.inf, [*PHASES]
    for row, (label, table) in enumerate(tables.items()):
        phases = list(dict.fromkeys([*phases, *table.phase]))
        pieces = {(str(phase), int(str(whom))): part  # by phase and worker waited for
                  for (phase, whom), part in table.groupby(["phase", "waits_for"])}  # fmt: skip
        for phase, whom in sorted(pieces, key=lambda piece: (phases.index(piece[0]), piece[1])):
            if (part := pieces[phase, whom]).seconds.max() > LEAST * longest:
                fig.add_trace(_bar(label, phase, whom, part, lanes_[row], room), row + 1, 1)
    drawn = {trace.legendgroup: trace.marker.color for trace in fig.data}
    fig.update_layout(barmode="stack")
    boxes(fig, {word: drawn[word] for phase in phases if (word := WORDS.get(phase, phase)) in drawn})
    numbered = room < math.inf and any((table.waits_for != NOBODY).any() for table in tables.values())
    lines = under(shown.results, shown.columns, *[NUMBERS] * numbered, notes=notes, spread="mean of")
    words = heading(title, ["where an iteration goes" if per_iteration else "where the time goes"],
                    columns=shown.columns)  # fmt: skip
    return finish(fig, words, lines, width, [high * len(texts) + 4 for texts in lanes_], left=True)


def _spent(group: Sequence[Result], per_iteration: bool, lane: str = "") -> pd.DataFrame:
    """Return a table of lane, phase, waits_for and seconds (or ms of an iteration), means over seeds. Each worker has a
    lane; if `lane` is given, only the mean worker has one."""
    tables = []
    for result in group:
        table = budget(result)
        scale = (1e3 * result.run.workers / max(1, len(result.pushes)) if per_iteration else 1.0) / len(group)
        if lane:
            table, scale = table.assign(waits_for=NOBODY), scale / result.run.workers
        tables.append(table.assign(
            phase=table.phase.replace(ACTIVITIES), seconds=table.seconds * scale,
            lane=lane or [f"{WORKER} {worker}" for worker in table.worker]))  # fmt: skip
    return pd.concat(tables).groupby(["lane", "phase", "waits_for"], sort=False)["seconds"].sum().reset_index()


def _shares(table: pd.DataFrame) -> str:
    """Return shares of all workers' time in words: ``"computing 24 %, transferring 58 %, waiting 12 %"``."""
    whole, by_phase = table.seconds.sum(), table.groupby("phase").seconds.sum()
    shares = {word: round(100 * by_phase.reindex([*phases]).sum() / whole) for word, phases in SPENT.items()}
    other = {"other": rest} if (rest := 100 - sum(shares.values())) > 0 else {}
    return ", ".join(f"{word} {share}{SPACE}%" for word, share in {**shares, **other}.items())


def _bar(label: str, phase: str, whom: int, part: pd.DataFrame, lanes: Sequence[str], room: float) -> go.Bar:
    word = WORDS.get(phase, phase)
    doing = f"waits for worker {whom}" if whom != NOBODY else word
    edge = {"color": PALE if phase == "gap" else GRID, "width": 0.4}
    return go.Bar(
        y=[lanes.index(lane) for lane in part.lane], x=part.seconds, name=doing, showlegend=False, width=0.86,
        legendgroup=word, orientation="h", marker={"color": PHASES.get(phase, "#999999"), "line": edge},
        text=[str(whom) if whom != NOBODY and seconds > room else "" for seconds in part.seconds],
        textposition="inside", insidetextanchor="middle", textangle=0, constraintext="none",
        textfont={"size": SMALL, "color": INK}, customdata=[f"{label}, {lane}" for lane in part.lane],
        hovertemplate=f"<b>%{{customdata}}</b><br>{doing}: %{{x:.3g}}<extra></extra>")  # fmt: skip
