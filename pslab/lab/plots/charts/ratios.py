"""Several measures on one axis: how many times as much as a reference each takes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from pslab.errors import ConfigError, nearest
from pslab.lab.plots.charts.prelude import Data, Names, listed
from pslab.lab.plots.charts.tables import Table, Titled, bare, tabled
from pslab.lab.plots.labels import heading
from pslab.lab.plots.page.axes import NAMED, Axis, axis, categories, decades, fitting
from pslab.lab.plots.page.page import GLYPH, Key, Page
from pslab.lab.plots.page.theme import PALE, SMALL, WIDTHS, Look, plain_look
from pslab.lab.records.summary import cell
from pslab.lab.records.units import plain

ROW, MARK = 8.0, 6.5  # px: the height of a mark's own line; a mark
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
    data: Data, y: Titled, *, by: Names = "label", to: Any = None, facet: str | None = None, goal: float | None = None,
    title: Any = None, notes: Iterable[str] = (), width: str = "page",
) -> go.Figure:  # fmt: skip
    """A row for each value of `by`, and in it a mark for each measure: how many times the reference's median it is,
    with the range over seeds. The caption has what the reference takes.

    Args:
        data, by, goal, title, notes, width: as in `points`.
        y: the measures.
        to: the value of `by` that is the reference, which has no row; None: the least of each measure.
        facet: the column whose values get a panel each, with a reference of its own.

    Raises:
        ConfigError: as in `points`; no such reference.
    """
    table = tabled(data, by, [facet], listed(y), goal)
    ys, names = {each: bare(words) for each, words in table.titled(y).items()}, [n for n in table.names if n != facet]
    values = {table.label(row, names): row[names[0]] if names else None for row in table.rows}
    if to is not None and to not in values.values():
        raise ConfigError("to", to, nearest(str(to), map(str, values.values())))
    standard = next((label for label, value in values.items() if to is not None and value == to), LEAST)
    parts = table.parts(facet)
    references = [_reference(part, names, standard, ys) for part in parts]
    rows = [label for label in values if label != standard]
    marks = [[mark for row in part.rows if (label := part.label(row, names)) in rows
              for mark in _marks(row, label, reference, ys)]
             for part, reference in zip(parts, references, strict=True)]  # fmt: skip
    looks = {words: plain_look(rank) for rank, words in enumerate(ys.values())}
    lanes = categories(rows, downwards=True, widest=NAMED * WIDTHS[width])
    room = (WIDTHS[width] - lanes.ticks_px - 2 * GLYPH) / len(parts)
    shown = _axis([end for own in marks for mark in own for end in mark.ends if mark.known], f"times {standard}", room)
    written = any(not mark.known for own in marks for mark in own)
    heights = [len(rows) * ((SMALL + 3 if written else ROW) * len(ys) + 6)]
    page = Page([[shown] * len(parts)], [[lanes] * len(parts)], table.heads(facet), (), width, heights)
    for column, own in enumerate(marks):
        page.figure.add_vline(x=1, line={"color": PALE, "width": 1, "dash": "2px,2px"}, row=1, col=column + 1,
                              exclude_empty_subplots=False)  # fmt: skip
        for mark in own:
            offset = (list(looks).index(mark.measure) - (len(ys) - 1) / 2) / (len(ys) + 1)
            look, at = looks[mark.measure], rows.index(mark.label) + offset
            if mark.known:
                page.add(0, column, _drawn(mark, look, at))
            else:  # in the colour of its measure
                page.write_in(0, column, mark.words, 0, at, xref="x domain", xanchor="left", xshift=4,
                              font={"size": SMALL, "color": look.colour})  # fmt: skip
    there = {mark.measure for own in marks for mark in own}
    keys = [Key(words, look, "markers") for words, look in looks.items() if words in there]
    ones = [_stated(head, standard, reference, ys)
            for head, reference in zip(table.heads(facet) or [""], references, strict=True)]  # fmt: skip
    words = heading(title, ys.values(), columns=[*names, *filter(None, [facet])])
    return page.finish(words, [*table.caption, *ones, *notes], keys)


def _reference(part: Table, names: Sequence[str], standard: str, ys: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """Of each measure the row that is the reference, if it has one."""
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
    """What the reference takes, for the caption."""
    words = [f"{title} {cell(reference[name], name)}" if name in reference else f"{title} {MISSED}"
             for name, title in ys.items()]  # fmt: skip
    return f"{', '.join(filter(None, (head, standard)))}: {', '.join(words)}"


def _axis(values: Iterable[float], title: str, room: float) -> Axis:
    known = [value for value in values if math.isfinite(value) and value > 0] + [1.0]
    if max(known) <= FAR * min(known):
        linear = axis(known, title, pad=0.06)
        return Axis(title, linear.low, linear.high, ticks=fitting(linear.low, linear.high, room, plain))
    shown = axis(known, title, log=True, pad=0.06)
    ticks = tuple((tick, plain(tick)) for tick in decades(shown.low, shown.high))
    return Axis(title, shown.low, shown.high, True, ticks)


def _drawn(mark: _Mark, look: Look, at: float) -> go.Scatter:
    value, low, high = mark.ends
    spread = {"array": [high - value], "arrayminus": [value - low], "symmetric": False, "thickness": 1.0, "width": 2.0,
              "color": look.colour, "visible": high > low}  # fmt: skip
    return go.Scatter(
        x=[value], y=[at], mode="markers", marker=look.mark(MARK), error_x=spread, showlegend=False, name=mark.measure,
        cliponaxis=False, hovertemplate=f"<b>{mark.label}</b><br>{mark.measure}: {mark.words}<br>{value:.3g} times"
                                        "<extra></extra>")  # fmt: skip
