"""Several measures on one axis: each as a multiple of a reference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from pslab.errors import ConfigError, nearest
from pslab.lab.plots.arrange import finish, names, panels, sample
from pslab.lab.plots.axes import axis, lanes
from pslab.lab.plots.charts.prelude import Names, listed
from pslab.lab.plots.charts.tables import Table, Titled, bare, tabled
from pslab.lab.plots.labels import heading
from pslab.lab.plots.theme import PALE, SMALL, Look, plain_look
from pslab.lab.records.frames import Given
from pslab.lab.records.summary import cell

FAR = 4.0  # if the largest multiple exceeds the least by this factor, the axis is logarithmic
MISSED, LEAST = "not reached", "the least"


class _Mark(NamedTuple):
    """A measure of a row as a multiple of the reference's median: median, low and high."""

    label: str
    words: str
    times: float  #: NaN or infinite without a median
    low: float
    high: float


def dots(
    data: Given, y: Titled, *, by: Names = "label", to: Any = None, facet: str | None = None, goal: float | None = None,
    title: Any = None, notes: Iterable[str] = (), width: str = "page",
) -> go.Figure:  # fmt: skip
    """Draw a row for each value of `by`, with a marker for each measure: its median as a multiple of the reference's
    median, with the range over seeds. The caption has the reference's values.

    Args:
        data, by, goal, title, notes, width: as in `points`.
        y: the measures.
        to: the value of `by` that is the reference, and is not drawn; None: the least value of each measure.
        facet: the column whose values get a panel each, with a reference of its own.

    Raises:
        ConfigError: as in `points`; no such reference.
    """
    table = tabled(data, by, [facet], listed(y), goal)
    ys = {measure: bare(words) for measure, words in table.titled(y).items()}
    columns = [name for name in table.names if name != facet]
    values = {table.label(row, columns): row[columns[0]] if columns else None for row in table.rows}
    if to is not None and to not in values.values():
        raise ConfigError("to", to, f"must be one of the drawn values; {nearest(str(to), map(str, values.values()))}")
    standard = next((label for label, value in values.items() if to is not None and value == to), LEAST)
    parts, rows = table.parts(facet), [label for label in values if label != standard]
    references = [_reference(part, columns, standard, ys) for part in parts]
    marks = [{measure: [_mark(row, label, measure, reference) for row in part.rows
                        if (label := part.label(row, columns)) in rows] for measure in ys}
             for part, reference in zip(parts, references, strict=True)]  # fmt: skip
    looks = {measure: plain_look(rank) for rank, measure in enumerate(ys)}
    ends = [end for panel in marks for lane in panel.values() for mark in lane if math.isfinite(mark.times)
            for end in mark[2:] if end > 0]  # fmt: skip
    log = max([1.0, *ends]) > FAR * min([1.0, *ends])
    x_axis, y_axis = axis([1.0, *ends], f"times {standard}", log=log, pad=0.06), lanes(names(rows, width))
    fig = panels([[x_axis] * len(parts)], [[y_axis] * len(parts)], width, table.heads(facet))
    for column, panel in enumerate(marks, start=1):
        fig.add_vline(x=1, line={"color": PALE, "width": 1, "dash": "2px,2px"}, row=1, col=column,
                      exclude_empty_subplots=False)  # fmt: skip
        for rank, (measure, lane) in enumerate(panel.items()):
            offset, look = (rank - (len(ys) - 1) / 2) / (len(ys) + 1), looks[measure]
            known = [mark for mark in lane if math.isfinite(mark.times)]
            heights = [rows.index(mark.label) + offset for mark in known]
            fig.add_trace(_drawn(known, heights, look, ys[measure]), 1, column)
            for mark in lane:
                if mark not in known:  # in the colour of its measure
                    fig.add_annotation(text=mark.words, x=0, y=rows.index(mark.label) + offset, xref="x domain",
                                       xanchor="left", xshift=4, showarrow=False, row=1, col=column,
                                       font={"size": SMALL, "color": look.colour})  # fmt: skip
    for measure, words in ys.items() if any(lane for panel in marks for lane in panel.values()) else ():
        sample(fig, words, marker=looks[measure].mark())
    heads = table.heads(facet) or [""]
    lines = [f"{', '.join(filter(None, (head, standard)))}: " + ", ".join(
        f"{words} {cell(reference[measure], measure) if measure in reference else MISSED}"
        for measure, words in ys.items()) for head, reference in zip(heads, references, strict=True)]  # fmt: skip
    words = heading(title, ys.values(), columns=[*columns, *filter(None, [facet])])
    return finish(fig, words, [*table.caption, *lines, *notes], width, [len(rows) * (11.0 * len(ys) + 8)])


def _reference(part: Table, names: Sequence[str], standard: str, ys: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """Return the reference's row, by measure; a measure is left out if the reference has no positive value."""
    rows = [row for row in part.rows if standard in (LEAST, part.label(row, names))]
    known = {name: [row for row in rows if math.isfinite(row[name]) and row[name] > 0] for name in ys}
    return {name: min(some, key=lambda row: row[name]) for name, some in known.items() if some}


def _mark(row: Mapping[str, Any], label: str, measure: str, reference: Mapping[str, Mapping[str, Any]]) -> _Mark:
    one = reference[measure][measure] if measure in reference else math.nan
    times = [row.get(f"{measure}{end}", row[measure]) / one for end in ("", "_low", "_high")]
    low, high = (end if math.isfinite(end) else times[0] for end in times[1:])
    return _Mark(label, cell(row, measure), times[0], low, high)


def _drawn(marks: Sequence[_Mark], heights: Sequence[float], look: Look, measure: str) -> go.Scatter:
    return go.Scatter(
        x=[mark.times for mark in marks], y=heights, mode="markers", marker=look.mark(8), orientation="h", name=measure,
        showlegend=False, cliponaxis=False,
        error_x={"array": [mark.high - mark.times or math.nan for mark in marks],
                 "arrayminus": [mark.times - mark.low or math.nan for mark in marks], "symmetric": False,
                 "thickness": 1.0, "width": 2.0, "color": look.colour},
        hovertext=[f"<b>{mark.label}</b><br>{measure}: {mark.words}<br>{mark.times:.3g} times" for mark in marks],
        hovertemplate="%{hovertext}<extra></extra>")  # fmt: skip
