"""The time budget: stacked seconds of each worker by activity, and by the worker that it waited for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from pslab.errors import ConfigError
from pslab.lab.plots.arrange import WIDTHS, boxes, finish, names, panels
from pslab.lab.plots.axes import Axis, axis, lanes
from pslab.lab.plots.charts import timeline
from pslab.lab.plots.charts.prelude import Names, grouped
from pslab.lab.plots.labels import heading, label_of, name, under
from pslab.lab.plots.theme import GRID, INK, PALE, PHASES, SMALL
from pslab.lab.records.frames import Given
from pslab.lab.records.intervals import ACTIVITIES, NOBODY, budget, records
from pslab.lab.records.record import Result
from pslab.lab.records.units import SPACE

WORDS = {**timeline.WORDS, "gap": "not measured"}
WORKER = "worker"
LANE, HEIGHT = (5.0, 14.0), 420.0  # px: the thinnest and the thickest lane; all lanes
LEAST_NUMBERED = 12.0  # px: lanes with numbers
LEAST = 3e-3  # of the longest bar: shorter parts are not drawn
ROOM = 9.0  # px: where a number has room
SPENT = {"computing": ("compute",), "sending": ("push", "pull"), "waiting": ("wait",)}  # in a heading


def time_budget(
    results: Given, title: Any = None, *, by: Names = "label", across: str = WORKER,
    per_iteration: bool = False, notes: Iterable[str] = (), width: str = "page",
) -> go.Figure:  # fmt: skip
    """Draw a panel for each value of `by`, with a stacked bar for each worker: computing, pruning, sending, waiting.

    Every instant counts once: a transfer that overlaps with computing costs what it takes beyond that. Bars are means
    over seeds. Panels lie one under the other on one axis, so that all bars can be compared.

    Args:
        by: the columns whose values get a panel each.
        across: "worker", or a column: then a bar for each of its values, the mean of the workers.
        per_iteration: milliseconds of an iteration, as many pushes as workers, instead of the seconds of the run.
        title: a sentence or a Claim; None: the names of the shown quantities.
        notes: more lines for the caption.
        width: page (7.16 in) or column (3.5 in).

    Raises:
        ConfigError: an unknown column; a bar whose runs differ in more than the seed.
    """
    shown = grouped(results, by, None if across == WORKER else across)
    spent: dict[str, pd.DataFrame] = {}
    for key, group, _, sign, _ in shown.groups:
        own = [column for column in shown.names if column != across]
        label = label_of(key, own, group[0].run) + sign
        places = _spent(group, per_iteration, name(across, key[across]) if across in key else None)
        spent[label] = pd.concat([spent[label], places]) if label in spent else places
    for _, group, label, sign, _ in shown.singles if across == WORKER else ():
        spent[label + sign] = _spent(group, per_iteration, None)
    spent = {label: table for label, table in spent.items() if table.seconds.sum() > 0}
    if not spent:
        raise ConfigError("results", len(shown.results), "no worker of these runs did anything: there is no time to "
                                                         "show")  # fmt: skip
    fig, heights, numbered = _drawn(spent, per_iteration, width, summed=across == WORKER)
    numbers = ["a number in a piece of waiting is the worker that was waited for"] * numbered
    what = "where an iteration goes" if per_iteration else "where the time goes"
    lines = under(shown.results, shown.columns, *numbers, notes=notes, spread="mean of")
    return finish(fig, heading(title, [what], columns=shown.columns), lines, width, heights, left=True)


def _spent(group: Sequence[Result], per_iteration: bool, place: str | None) -> pd.DataFrame:
    """place, phase, waits_for and seconds (or ms of an iteration): the mean over seeds; of one place, over workers."""
    tables = []
    for result in group:
        table = budget(result)
        table = table.assign(phase=table.phase.replace(ACTIVITIES))
        scale = 1.0 / len(group)
        if per_iteration:
            scale *= 1e3 * result.run.workers / max(1, len(result.pushes))
        if place is None:
            table = table.assign(place=[f"{WORKER} {worker}" for worker in table.worker])
        else:
            scale /= result.run.workers
            table = table.assign(place=place, waits_for=NOBODY)
        tables.append(table.assign(seconds=table.seconds * scale))
    return pd.concat(tables).groupby(["place", "phase", "waits_for"], sort=False)["seconds"].sum().reset_index()


def _drawn(
    spent: dict[str, pd.DataFrame], per_iteration: bool, width: str, summed: bool
) -> tuple[go.Figure, list[float], bool]:
    """The figure, the height of each panel, and whether numbers say for whom a worker waits."""
    longest = max(float(table.groupby("place").seconds.sum().max()) for table in spent.values())
    x = axis([0, longest], "ms per iteration" if per_iteration else "training time (s)", zero=True)
    places = [list(dict.fromkeys(table.place)) for table in spent.values()]
    lane = min(LANE[1], max(LANE[0], HEIGHT / sum(map(len, places))))
    heads = [f"<b>{label}</b>" + (f"\u2003 {_shares(table)}" if summed else "") for label, table in spent.items()]
    fig = panels([[x]] * len(spent), [[_lanes(own, lane, width)] for own in places], width, heads)
    numbered, drawn = lane >= LEAST_NUMBERED, dict[str, str]()
    for row, (label, table) in enumerate(spent.items()):
        for phase in dict.fromkeys([*PHASES, *table.phase]):
            for whom in sorted({*table[table.phase == phase].waits_for}):
                own = table[(table.phase == phase) & (table.waits_for == whom)]
                if own.seconds.max() > LEAST * longest:
                    room = ROOM * x.high / WIDTHS[width] if numbered else math.inf
                    fig.add_trace(_bar(label, phase, int(whom), own, places[row], room), row + 1, 1)
                    drawn[phase] = PHASES.get(phase, "#999999")
    fig.update_layout(barmode="stack")
    boxes(fig, {WORDS.get(phase, phase): drawn[phase] for phase in dict.fromkeys([*PHASES, *drawn]) if phase in drawn})
    return fig, [lane * len(own) + 4 for own in places], numbered and any(
        (table.waits_for != NOBODY).any() for table in spent.values())  # fmt: skip


def _lanes(places: Sequence[str], lane: float, width: str) -> Axis:
    """A lane for each place, the first one above; as many have their names as there is room for."""
    shown = lanes(names(places, width))
    return shown._replace(ticks=shown.ticks[:: math.ceil(13 / lane)])


def _shares(table: pd.DataFrame) -> str:
    """``"computing 24 %, sending 58 %, waiting 12 %, other 6 %"`` of the time of all workers together: 100 % in all."""
    whole, by_phase = table.seconds.sum(), table.groupby("phase").seconds.sum()
    shares = {word: round(100 * by_phase.reindex([*phases]).sum() / whole) for word, phases in SPENT.items()}
    other = {"other": rest} if (rest := 100 - sum(shares.values())) > 0 else {}
    return ", ".join(f"{word} {share}{SPACE}%" for word, share in {**shares, **other}.items())


def _bar(label: str, phase: str, whom: int, part: pd.DataFrame, places: Sequence[str], room: float) -> go.Bar:
    doing = f"waits for worker {whom}" if whom != NOBODY else WORDS.get(phase, phase)
    edge = {"color": PALE if phase == "gap" else GRID, "width": 0.4}
    return go.Bar(
        y=[places.index(place) for place in part.place], x=part.seconds, name=doing, showlegend=False, width=0.86,
        orientation="h", marker={"color": PHASES.get(phase, "#999999"), "line": edge},
        text=[str(whom) if whom != NOBODY and row.seconds > room else "" for row in records(part)],
        textposition="inside", insidetextanchor="middle", textangle=0, constraintext="none",
        textfont={"size": SMALL, "color": INK}, customdata=[f"{label}, {place}" for place in part.place],
        hovertemplate=f"<b>%{{customdata}}</b><br>{doing}: %{{x:.3g}}<extra></extra>")  # fmt: skip
