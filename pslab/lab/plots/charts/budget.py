"""Where the time goes: stacked seconds of each worker by what it did, and for whom it waited."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from pslab.errors import ConfigError
from pslab.lab.plots.charts import timeline
from pslab.lab.plots.charts.prelude import Names, grouped
from pslab.lab.plots.labels import heading, label_of, name, under
from pslab.lab.plots.page.axes import NAMED, Axis, axis, categories
from pslab.lab.plots.page.page import Key, Page
from pslab.lab.plots.page.theme import GRID, INK, PALE, PHASES, SMALL, WIDTHS, Look
from pslab.lab.records.intervals import ACTIVITIES, NOBODY, budget, records
from pslab.lab.records.record import Result
from pslab.lab.records.results import Results
from pslab.lab.records.units import SPACE

WORDS = {**timeline.WORDS, "gap": "not measured"}
WORKER = "worker"
LANE, HEIGHT = (5.0, 13.0), 420.0  # px: the thinnest and the thickest bar with its surroundings; what all share
LEAST = 3e-3  # of the longest bar: what is shorter is not drawn
ROOM = 9.0  # px: where a number has room
SPENT = {"computing": ("compute",), "sending": ("push", "pull"), "waiting": ("wait",)}  # in a heading


def time_budget(
    results: Result | Iterable[Result], title: Any = None, *, by: Names = "label", across: str = WORKER,
    per_iteration: bool = False, notes: Iterable[str] = (), width: str = "page",
) -> go.Figure:  # fmt: skip
    """A panel for each value of `by`, with a stacked bar for each worker: computing, pruning, transferring, waiting.

    Every instant counts once: a transfer that overlaps with computing costs what it takes beyond that. Bars are means
    over seeds. Panels lie one under the other on one axis, so that all bars can be compared.

    Args:
        by: the columns whose values get a panel each.
        across: "worker", or a column: then a bar for each of its values, the mean of the workers.
        per_iteration: milliseconds of an iteration, as many pushes as workers, instead of the seconds of the run.
        title: a sentence or a Claim; None: what is shown.
        notes: more lines for the caption.
        width: page (7.16 in) or column (3.5 in).

    Raises:
        ConfigError: an unknown column; a bar whose runs differ in more than the seed.
    """
    shown = grouped(results, by, None if across == WORKER else across)
    panels: dict[str, pd.DataFrame] = {}
    for key, group, _, sign, _ in shown.groups:
        names = [column for column in shown.names if column != across]
        label = label_of(key, names, group[0].run) + sign
        places = _spent(group, per_iteration, name(across, key[across]) if across in key else None)
        panels[label] = pd.concat([panels[label], places]) if label in panels else places
    for _, group, label, sign, _ in shown.singles if across == WORKER else ():
        panels[label + sign] = _spent(group, per_iteration, None)
    panels = {label: table for label, table in panels.items() if table.seconds.sum() > 0}
    if not panels:
        raise ConfigError("results", len(shown.results), "no worker of these runs did anything: there is no time to "
                                                         "show")  # fmt: skip
    page, keys, numbered = _drawn(panels, per_iteration, width, summed=across == WORKER)
    numbers = ["a number in a piece of waiting is the worker that was waited for"] * numbered
    what = "where an iteration goes" if per_iteration else "where the time goes"
    lines = under(shown.results, shown.columns, *numbers, notes=notes, spread="mean of")
    return page.finish(heading(title, [what], columns=shown.columns), lines, keys)


def _spent(group: Results, per_iteration: bool, place: str | None) -> pd.DataFrame:
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
    panels: dict[str, pd.DataFrame], per_iteration: bool, width: str, summed: bool
) -> tuple[Page, list[Key], bool]:
    """The page, the legend, and whether numbers say for whom a worker waits."""
    longest = max(float(table.groupby("place").seconds.sum().max()) for table in panels.values())
    x = axis([0, longest], "ms per iteration" if per_iteration else "training time (s)", zero=True)
    places = [list(dict.fromkeys(table.place)) for table in panels.values()]
    lane = min(LANE[1], max(LANE[0], HEIGHT / sum(map(len, places))))
    headings = [f"<b>{label}</b>" + (f"   {_shares(table)}" if summed else "") for label, table in panels.items()]
    page = Page([[x]] * len(panels), [[_lanes(own, lane, NAMED * WIDTHS[width])] for own in places], width=width,
                heights=[lane * len(own) + 4 for own in places], lines_above=headings)  # fmt: skip
    drawn: dict[str, None] = {}
    room = (ROOM * x.high / WIDTHS[width], 0.86 * lane >= ROOM)
    for row, (label, table) in enumerate(panels.items()):
        for phase in dict.fromkeys([*PHASES, *table.phase]):
            for whom in sorted({*table[table.phase == phase].waits_for}):
                own = table[(table.phase == phase) & (table.waits_for == whom)]
                if own.seconds.max() > LEAST * longest:
                    page.add(row, 0, _bar(label, phase, int(whom), own, places[row], *room))
                    drawn[phase] = None
    page.figure.update_layout(barmode="stack")
    keys = [Key(WORDS.get(phase, phase), Look(PHASES.get(phase, "#999999")), "box")
            for phase in dict.fromkeys([*PHASES, *drawn]) if phase in drawn]  # fmt: skip
    return page, keys, room[1] and any((table.waits_for != NOBODY).any() for table in panels.values())


def _lanes(places: Sequence[str], lane: float, widest: float) -> Axis:
    """A lane for each place, the first one above; as many have their names as there is room for."""
    every = math.ceil(11 / lane)
    shown = categories(places, downwards=True, widest=widest)
    return replace(shown, ticks=tuple(tick for tick in shown.ticks if tick[0] % every == 0))


def _shares(table: pd.DataFrame) -> str:
    """``"computing 24 %, sending 58 %, waiting 12 %, other 6 %"`` of the time of all workers together: 100 % in all."""
    whole, by_phase = table.seconds.sum(), table.groupby("phase").seconds.sum()
    shares = {word: round(100 * by_phase.reindex([*phases]).sum() / whole) for word, phases in SPENT.items()}
    other = {"other": rest} if (rest := 100 - sum(shares.values())) > 0 else {}
    return ", ".join(f"{word} {share}{SPACE}%" for word, share in {**shares, **other}.items())


def _bar(
    label: str, phase: str, whom: int, part: pd.DataFrame, places: Sequence[str], room: float, numbered: bool
) -> go.Bar:
    doing = f"waits for worker {whom}" if whom != NOBODY else WORDS.get(phase, phase)
    edge = {"color": PALE if phase == "gap" else GRID, "width": 0.4}
    return go.Bar(
        y=[places.index(place) for place in part.place], x=part.seconds, name=doing, showlegend=False, width=0.86,
        orientation="h", marker={"color": PHASES.get(phase, "#999999"), "line": edge},
        text=[str(whom) if numbered and whom != NOBODY and row.seconds > room else "" for row in records(part)],
        textposition="inside", insidetextanchor="middle", textangle=0, constraintext="none",
        textfont={"size": SMALL, "color": INK}, customdata=[f"{label}, {place}" for place in part.place],
        hovertemplate=f"<b>%{{customdata}}</b><br>{doing}: %{{x:.3g}}<extra></extra>")  # fmt: skip
