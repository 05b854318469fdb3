"""Several measures on one axis: each as a multiple of a reference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from pslab.errors import ConfigError, nearest
from pslab.lab.plots.arrange import finish, names, panels, sample
from pslab.lab.plots.axes import axis, lane_px, lanes
from pslab.lab.plots.charts.prelude import Names, listed
from pslab.lab.plots.charts.tables import Table, Titled, bare, tabled
from pslab.lab.plots.labels import heading
from pslab.lab.plots.theme import PALE, SMALL, plain_look
from pslab.lab.records.frames import Given
from pslab.lab.records.intervals import records
from pslab.lab.records.summary import cell

FAR = 4.0  # if the largest multiple exceeds the least by this factor, the axis is logarithmic
MISSED, LEAST = "not reached", "the least"


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
    marks = [{measure: _marks(part, columns, rows, measure, reference.get(measure, {measure: math.nan})[measure])
              for measure in ys} for part, reference in zip(parts, references, strict=True)]  # fmt: skip
    looks = {measure: plain_look(rank) for rank, measure in enumerate(ys)}
    every = pd.concat([frame for panel in marks for frame in panel.values()])
    ends = [end for end in every[np.isfinite(every.times)][["times", "low", "high"]].to_numpy(float).ravel() if end > 0]
    log = max([1.0, *ends]) > FAR * min([1.0, *ends])
    x_axis, y_axis = axis([1.0, *ends], f"ratio to {standard}", log=log, pad=0.06), lanes(names(rows, width))
    fig = panels([[x_axis] * len(parts)], [[y_axis] * len(parts)], width, table.heads(facet))
    for column, panel in enumerate(marks, start=1):
        fig.add_vline(x=1, line={"color": PALE, "width": 1, "dash": "2px,2px"}, row=1, col=column,
                      exclude_empty_subplots=False)  # fmt: skip
        for rank, (measure, frame) in enumerate(panel.items()):
            offset, look = (rank - (len(ys) - 1) / 2) / (len(ys) + 1), looks[measure]
            known = records(frame[np.isfinite(frame.times)])
            fig.add_trace(go.Scatter(
                x=[mark.times for mark in known], y=[mark.rank + offset for mark in known], mode="markers",
                marker=look.mark(8), orientation="h", name=ys[measure], showlegend=False, cliponaxis=False,
                error_x={"array": [mark.high - mark.times or math.nan for mark in known],
                         "arrayminus": [mark.times - mark.low or math.nan for mark in known], "symmetric": False,
                         "thickness": 1.0, "width": 2.0, "color": look.colour},
                hovertext=[f"<b>{mark.label}</b><br>{ys[measure]}: {mark.words}<br>{mark.times:.3g} times"
                           for mark in known], hovertemplate="%{hovertext}<extra></extra>"), 1, column)  # fmt: skip
            for mark in records(frame[~np.isfinite(frame.times)]):  # in the colour of its measure
                fig.add_annotation(text=mark.words, x=0, y=mark.rank + offset, xref="x domain", xanchor="left",
                                   xshift=4, showarrow=False, row=1, col=column,
                                   font={"size": SMALL, "color": look.colour})  # fmt: skip
    for measure, words in ys.items() if len(every) else ():
        sample(fig, words, marker=looks[measure].mark())
    heads = table.heads(facet) or [""]
    lines = [f"{', '.join(filter(None, (head, standard)))}: " + ", ".join(
        f"{words} {cell(reference[measure], measure) if measure in reference else MISSED}"
        for measure, words in ys.items()) for head, reference in zip(heads, references, strict=True)]  # fmt: skip
    words = heading(title, ys.values(), columns=[*columns, *filter(None, [facet])])
    height = len(rows) * lane_px(y_axis, 11.0 * len(ys) + 8)
    return finish(fig, words, [*table.caption, *lines, *notes], width, [height])


def _reference(part: Table, names: Sequence[str], standard: str, ys: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """Return the reference's row, by measure; a measure is left out if the reference has no positive value."""
    rows = [row for row in part.rows if standard in (LEAST, part.label(row, names))]
    known = {name: [row for row in rows if math.isfinite(row[name]) and row[name] > 0] for name in ys}
    return {name: min(some, key=lambda row: row[name]) for name, some in known.items() if some}


def _marks(part: Table, names: Sequence[str], rows: Sequence[str], measure: str, one: float) -> pd.DataFrame:
    """Return a measure of each drawn row as a multiple of `one`: rank, label, words, times (not finite without a
    median), low and high."""
    made = []
    for row in part.rows:
        times, *ends = (row.get(f"{measure}{end}", row[measure]) / one for end in ("", "_low", "_high"))
        if (label := part.label(row, names)) in rows:
            ends = [end if math.isfinite(end) else times for end in ends]
            made.append((rows.index(label), label, cell(row, measure), times, *ends))
    return pd.DataFrame(made, columns=["rank", "label", "words", "times", "low", "high"])
