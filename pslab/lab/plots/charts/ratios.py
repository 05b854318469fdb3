"""Several measures on one axis: how many times as much as a reference each takes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from pslab.errors import ConfigError, nearest
from pslab.lab.plots.arrange import finish, names, panels, sample
from pslab.lab.plots.axes import Axis, axis, lanes
from pslab.lab.plots.charts.prelude import Names, listed
from pslab.lab.plots.charts.tables import Table, Titled, bare, tabled
from pslab.lab.plots.labels import heading
from pslab.lab.plots.theme import PALE, SMALL, Look, plain_look
from pslab.lab.records.frames import Given
from pslab.lab.records.summary import cell

FAR = 4.0  # from the least to the largest: then the axis is logarithmic
MISSED, LEAST = "not reached", "the least"


class _Mark(NamedTuple):
    """A measure of a row: its words, and how many times the reference's it is: median, low and high."""

    label: str
    measure: str
    words: str
    ends: tuple[float, ...]

    @property
    def known(self) -> bool:
        """Whether there is a median."""
        return math.isfinite(self.ends[0])


def dots(
    data: Given, y: Titled, *, by: Names = "label", to: Any = None, facet: str | None = None, goal: float | None = None,
    title: Any = None, notes: Iterable[str] = (), width: str = "page",
) -> go.Figure:  # fmt: skip
    """Draw a row for each value of `by`, and in it a mark for each measure: how many times the reference's median it
    is, with the range over seeds. The caption has what the reference takes.

    Args:
        data, by, goal, title, notes, width: as in `points`.
        y: the measures.
        to: the value of `by` that is the reference, which has no row; None: the least of each measure.
        facet: the column whose values get a panel each, with a reference of its own.

    Raises:
        ConfigError: as in `points`; no such reference.
    """
    table = tabled(data, by, [facet], listed(y), goal)
    ys, columns = {each: bare(words) for each, words in table.titled(y).items()}, [n for n in table.names if n != facet]
    values = {table.label(row, columns): row[columns[0]] if columns else None for row in table.rows}
    if to is not None and to not in values.values():
        raise ConfigError("to", to, nearest(str(to), map(str, values.values())))
    standard = next((label for label, value in values.items() if to is not None and value == to), LEAST)
    parts = table.parts(facet)
    references = [_reference(part, columns, standard, ys) for part in parts]
    rows = [label for label in values if label != standard]
    marks = [[mark for row in part.rows if (label := part.label(row, columns)) in rows
              for mark in _marks(row, label, reference, ys)]
             for part, reference in zip(parts, references, strict=True)]  # fmt: skip
    looks = {words: plain_look(rank) for rank, words in enumerate(ys.values())}
    shown = _axis([end for own in marks for mark in own for end in mark.ends if mark.known], f"times {standard}")
    fig = panels([[shown] * len(parts)], [[lanes(names(rows, width))] * len(parts)], width, table.heads(facet))
    for column, own in enumerate(marks, start=1):
        fig.add_vline(x=1, line={"color": PALE, "width": 1, "dash": "2px,2px"}, row=1, col=column,
                      exclude_empty_subplots=False)  # fmt: skip
        for measure, look in looks.items():
            offset = (list(looks).index(measure) - (len(ys) - 1) / 2) / (len(ys) + 1)
            alike = [(mark, rows.index(mark.label) + offset) for mark in own if mark.measure == measure]
            fig.add_trace(_drawn([pair for pair in alike if pair[0].known], look, measure), 1, column)
            for mark, at in alike:
                if not mark.known:  # in the colour of its measure
                    fig.add_annotation(text=mark.words, x=0, y=at, xref="x domain", xanchor="left", xshift=4,
                                       showarrow=False, row=1, col=column,
                                       font={"size": SMALL, "color": look.colour})  # fmt: skip
    there = {mark.measure for own in marks for mark in own}
    for words, look in looks.items():
        if words in there:
            sample(fig, words, look)
    ones = [_stated(head, standard, reference, ys)
            for head, reference in zip(table.heads(facet) or [""], references, strict=True)]  # fmt: skip
    high = len(rows) * (11.0 * len(ys) + 8)
    words = heading(title, ys.values(), columns=[*columns, *filter(None, [facet])])
    return finish(fig, words, [*table.caption, *ones, *notes], width, [high])


def _reference(part: Table, names: Sequence[str], standard: str, ys: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """Return the reference row of each measure, if it has one."""
    rows = [row for row in part.rows if standard in (LEAST, part.label(row, names))]
    known = {name: [row for row in rows if math.isfinite(row[name]) and row[name] > 0] for name in ys}
    return {name: min(own, key=lambda row: row[name]) for name, own in known.items() if own}


def _marks(
    row: Mapping[str, Any], label: str, reference: Mapping[str, Mapping[str, Any]], ys: Mapping[str, str]
) -> list[_Mark]:
    found = []
    for name, words in ys.items():
        one = reference[name][name] if name in reference else math.nan
        times = [row.get(f"{name}{end}", row[name]) / one for end in ("", "_low", "_high")]
        ends = tuple(end if math.isfinite(end) else times[0] for end in times)
        found.append(_Mark(label, words, cell(row, name), ends))
    return found


def _stated(head: str, standard: str, reference: Mapping[str, Mapping[str, Any]], ys: Mapping[str, str]) -> str:
    """Return the reference's value, for the caption."""
    words = [f"{title} {cell(reference[name], name)}" if name in reference else f"{title} {MISSED}"
             for name, title in ys.items()]  # fmt: skip
    return f"{', '.join(filter(None, (head, standard)))}: {', '.join(words)}"


def _axis(values: Iterable[float], title: str) -> Axis:
    known = [value for value in values if math.isfinite(value) and value > 0] + [1.0]
    return axis(known, title, log=max(known) > FAR * min(known), pad=0.06)


def _drawn(marks: Sequence[tuple[_Mark, float]], look: Look, measure: str) -> go.Scatter:
    """The marks of one measure, each with where it stands."""
    ends = [mark.ends for mark, _ in marks]
    spread = [(high - value or math.nan, value - low or math.nan) for value, low, high in ends]
    more, less = zip(*spread, strict=True) if spread else ((), ())
    return go.Scatter(
        x=[mark.ends[0] for mark, _ in marks], y=[at for _, at in marks], mode="markers", marker=look.mark(8),
        orientation="h", name=measure, showlegend=False, cliponaxis=False,
        error_x={"array": more, "arrayminus": less, "symmetric": False, "thickness": 1.0, "width": 2.0,
                 "color": look.colour},
        hovertext=[f"<b>{mark.label}</b><br>{measure}: {mark.words}<br>{mark.ends[0]:.3g} times" for mark, _ in marks],
        hovertemplate="%{hovertext}<extra></extra>")  # fmt: skip
