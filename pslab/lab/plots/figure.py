"""A page of panels: where everything lies, in pixels; titles, labels at the ends of curves or a legend, the caption.

Nothing is left to plotly's own placing, which moves titles into panels and cuts off labels: margins are zero, and the
domain of each axis is computed from the room that its ticks, titles and labels need.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pslab.lab.plots.labels import plain
from pslab.lab.plots.style import INK, MARK, PALE, SMALL, TITLE, TYPE, WIDTHS, Look, template, translucent

ROW, GAP, EDGE = 14.0, 14.0, 5.0  # px: a line of type; between panels (0.15 in); at the rim
GLYPH = 24.0  # px: the sample of a curve beside its label
HEIGHT, FACET = 187.0, 115.0  # px: of a panel alone in its column (1.95 in), and of one in several rows (1.2 in)
LABELS = 5  # so many names of a row stand at its curves' ends; more are in a legend below
LABEL = 108.0  # px: the widest line of such a label
WIDE = {**dict.fromkeys("iljI|.,:;'! \u00a0\u202ftf()[]/-", 0.3), **dict.fromkeys("mwMW%@—✖", 0.87), "…": 1.0}


def text_px(text: str, size: float = TYPE) -> float:
    """The width of a text without line breaks, as Helvetica or Arial set it."""
    plain_text = re.sub(r"<[^>]+>", "", text)
    return 1.02 * size * sum(WIDE.get(sign, 0.69 if sign.isupper() else 0.556) for sign in plain_text)


def wrapped(text: str, width: float, size: float = TYPE) -> list[str]:
    """The text in lines of at most so many px, where words allow it."""
    lines: list[str] = []
    for word in text.split(" "):
        if lines and text_px(f"{lines[-1]} {word}", size) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


# -- axes ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """What an axis shows. Neighbouring panels with equal axes share ticks and title."""

    title: str = ""
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()  #: plotly's own if there are none
    grid: bool = True

    @property
    def range(self) -> list[float]:
        """As plotly takes it."""
        return [math.log10(self.low), math.log10(self.high)] if self.log else [self.low, self.high]

    def share(self, value: float) -> float:
        """Where a value lies, from 0 (low) to 1 (high); beyond them where it is not in the frame."""
        low, high = self.range
        if self.log:
            value = math.log10(value) if value > 0 else low
        return (value - low) / ((high - low) or 1.0)

    @property
    def ticks_px(self) -> float:
        """The width of the widest tick label."""
        shown = [text for _, text in self.ticks] or [plain(tick) for tick in nice(self.low, self.high)]
        return max((text_px(line) for text in shown for line in text.split("<br>")), default=0.0)


def axis(
    values: Iterable[float], title: str = "", *, log: bool = False, zero: bool = False, pad: float = 0.03,
    form: Callable[[float], str] | None = None,
) -> Axis:  # fmt: skip
    """An axis for these values, which must be positive on a logarithmic one.

    Args:
        zero: whether it begins at 0.
        pad: room at its ends, as a share of its length.
        form: how a tick is written; plotly's own ticks if None.
    """
    found = np.array([value for value in values if math.isfinite(value) and (value > 0 or not log)], dtype=float)
    low, high = (float(found.min()), float(found.max())) if len(found) else (1.0, 10.0)
    if log:
        wide = (high / low) ** pad if high > low else 2.0
        low, high = low / wide, high * wide
        ticks = tuple((tick, (form or plain)(tick)) for tick in decades(low, high))
        return Axis(title, low, high, True, ticks)
    low = min(low, 0.0) if zero else low
    room = pad * ((high - low) or abs(high) or 1.0)
    low, high = low - (0.0 if zero and low == 0 else room), high + room
    return Axis(title, low, high, ticks=tuple((tick, form(tick)) for tick in nice(low, high)) if form else ())


def categories(names: Sequence[str], title: str = "", *, reverse: bool = False) -> Axis:
    """An axis on which each name has a place: 0, 1, ..."""
    ends = (len(names) - 0.5, -0.5) if reverse else (-0.5, len(names) - 0.5)
    return Axis(title, *ends, ticks=tuple(enumerate(names)), grid=False)


def nice(low: float, high: float, count: int = 5) -> list[float]:
    """About so many round numbers from low to high."""
    rough = max((high - low) / count, 1e-12)
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(each for each in (1, 2, 2.5, 5, 10) if each * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(step * place, 12) for place in range(first, last + 1)]


def decades(low: float, high: float) -> list[float]:
    """Powers of ten from low to high, or also their multiples where there are few of them."""
    spans = math.log10(high / low)
    steps = (1,) if spans > 2.5 else (1, 3) if spans > 1.5 else (1, 2, 5) if spans > 0.5 else ()
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [round(step * 10.0**power, 12) for power in powers for step in steps]
    if len(powers) > 8:
        found = found[:: math.ceil(len(powers) / 8)]
    return [tick for tick in found if low <= tick * (1 + 1e-9) and tick <= high * (1 + 1e-9)] or nice(low, high)


# -- curves ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A curve in one panel. `label` names it; those of one label look alike in all panels."""

    label: str
    look: Look
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None  #: the range over seeds
    high: Sequence[float] | None = None
    hover: Sequence[str] = ()
    crosses: Sequence[tuple[float, float]] = ()  #: where seeds diverged
    sign: str = ""  #: behind its end
    joined: bool = True  #: by a line
    bars: bool = False  #: whether the range is bars, not a band
    steps: bool = False  #: whether it keeps its value until the next point


def traces(line: Line, opacity: float) -> list[go.Scatter]:
    """What plotly draws of a curve: the band, the line with about ten markers, crosses and sign."""
    look, found = line.look, []
    x, y = np.asarray(line.x, dtype=float), np.asarray(line.y, dtype=float)
    common: dict[str, Any] = {"legendgroup": line.label, "name": line.label, "showlegend": False}
    spread = None if line.low is None or line.high is None else (np.asarray(line.low, float), np.asarray(line.high, float))
    if spread and not line.bars and len(x) and np.any(spread[1] > spread[0]):
        shape = {"shape": "hv"} if line.steps else {}
        found.append(go.Scatter(
            x=np.concatenate([x, x[::-1]]), y=np.concatenate([spread[1], spread[0][::-1]]), fill="toself", mode="lines",
            fillcolor=translucent(look.colour, opacity), line={"width": 0, **shape}, hoverinfo="skip", **common))  # fmt: skip
    bars: dict[str, Any] = {}
    if spread and line.bars:
        bars = {"error_y": {"array": spread[1] - y, "arrayminus": y - spread[0], "symmetric": False, "thickness": 1.0,
                            "width": 2.0, "color": look.colour}}  # fmt: skip
    mode = "lines+markers" if line.joined else "markers"
    shape = {**look.line, "shape": "hv"} if line.steps else look.line
    found.append(go.Scatter(
        x=x, y=y, mode=mode, line=shape, marker=look.mark(_sizes(len(x), line)), hovertext=list(line.hover) or None,
        hovertemplate=f"<b>{line.label}</b><br>" + ("%{hovertext}" if line.hover else "%{x}: %{y}") + "<extra></extra>",
        **bars, **common))  # fmt: skip
    if line.crosses:
        mark = {"symbol": "x-thin", "size": 7, "color": look.colour, "line": {"color": look.colour, "width": 2}}
        found.append(go.Scatter(
            x=[x for x, _ in line.crosses], y=[y for _, y in line.crosses], mode="markers", marker=mark, cliponaxis=False,
            hovertemplate=f"<b>{line.label}</b><br>diverged here<extra></extra>", **common))  # fmt: skip
    if line.sign and len(x):
        found.append(go.Scatter(x=x[-1:], y=y[-1:], mode="text", text=[line.sign], textposition="top center",
                                hoverinfo="skip", cliponaxis=False, **common))  # fmt: skip
    return found


def _sizes(count: int, line: Line) -> list[float] | float:
    """Of a line with many points about ten have a marker, so that its dash stays visible."""
    if not line.joined or count <= 12:
        return MARK
    step = math.ceil(count / 11)
    return [MARK if (count - 1 - place) % step == 0 or place == 0 else 0.0 for place in range(count)]


# -- pages -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """A name with its sample: a line with marker, a mark alone, or a filled box."""

    label: str
    look: Look
    kind: str = "line"  #: line, mark or box


@dataclass
class Page:
    """A grid of panels. `xs[row][column]` and `ys[row][column]` are their axes.

    Args:
        columns, rows: headings; "" for none.
        height: px of a panel; one for each row, or None for the usual ones.
    """

    xs: Sequence[Sequence[Axis]]
    ys: Sequence[Sequence[Axis]]
    columns: Sequence[str] = ()
    rows: Sequence[str] = ()
    width: str = "page"
    height: Sequence[float] | None = None
    figure: go.Figure = field(init=False)
    lines: dict[tuple[int, int], list[Line]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.figure = make_subplots(len(self.xs), len(self.xs[0]))

    def add(self, row: int, column: int, *drawn: Any) -> None:
        """Traces or lines of the panel in this row and column, from 0."""
        for each in drawn:
            if isinstance(each, Line):
                self.lines.setdefault((row, column), []).append(each)
            else:
                self.figure.add_trace(each, row=row + 1, col=column + 1)

    def level(self, y: float, label: str, of: Axis) -> None:
        """A dotted line across every panel with this y axis; its label stands in the first one."""
        places = [(row, column) for row, axes in enumerate(self.ys) for column, each in enumerate(axes) if each == of]
        for row, column in places if of.low < y < of.high else ():
            line = {"color": PALE, "width": 1, "dash": "2px,2px"}
            self.figure.add_hline(y=y, line=line, layer="below", row=row + 1, col=column + 1)
            if (row, column) == places[0]:
                self.figure.add_annotation(text=label, x=0, xref="x domain", xanchor="left", y=y, yanchor="bottom", xshift=2,
                                           font={"size": SMALL, "color": PALE}, showarrow=False, row=row + 1, col=column + 1)

    def finish(self, title: str, caption: Iterable[str] = (), keys: Sequence[Key] | None = None) -> go.Figure:
        """Everything in its place. `keys` None: the lines' own labels; none at all for an empty sequence."""
        self._draw_lines()
        chosen = self._own_keys() if keys is None else list(keys)
        rows = [self._ends(row) for row in range(len(self.xs))]
        direct = keys is None and all(len(ends) <= LABELS for ends in rows) and any(rows)
        self._lay_out(title, chosen, rows if direct else [])
        self.figure.update_layout(meta={"caption": [line for line in caption if line]})
        return self.figure

    # --- inside ---------------------------------------------------------------------------------------------------

    def _draw_lines(self) -> None:
        most = max((len(found) for found in self.lines.values()), default=0)
        for (row, column), found in self.lines.items():
            for line in found:
                for trace in traces(line, 0.09 if most >= 4 else 0.15):
                    self.figure.add_trace(trace, row=row + 1, col=column + 1)

    def _own_keys(self) -> list[Key]:
        found = {line.label: Key(line.label, line.look, "line" if line.joined else "mark")
                 for lines in self.lines.values() for line in lines if line.label}  # fmt: skip
        return list(found.values())

    def _ends(self, row: int) -> dict[str, tuple[Line, float]]:
        """Of each label of a row of panels its line, and the height (0 to 1) of its last end."""
        found: dict[str, tuple[Line, float]] = {}
        for column in range(len(self.xs[row])):
            for line in self.lines.get((row, column), []):
                ends = [y for y in line.y if math.isfinite(y)]
                if line.label and ends:
                    found[line.label] = (line, min(1.0, max(0.0, self.ys[row][column].share(ends[-1]))))
        return found

    def _lay_out(self, title: str, keys: Sequence[Key], labels: Sequence[dict[str, tuple[Line, float]]]) -> None:
        n_rows, n_columns, width = len(self.xs), len(self.xs[0]), float(WIDTHS[self.width])
        own_x = [row == n_rows - 1 or list(self.xs[row]) != list(self.xs[row + 1]) for row in range(n_rows)]
        own_y = [column == 0 or any(self.ys[row][column] != self.ys[row][column - 1] for row in range(n_rows))
                 for column in range(n_columns)]  # fmt: skip
        y_room = [self._y_room(column) if own_y[column] else 0.0 for column in range(n_columns)]
        texts = {label: wrapped(label, LABEL) for row in labels for label in row}
        label_px = max((text_px(line) for lines in texts.values() for line in lines), default=0.0)
        right = EDGE + 7 + (ROW if any(self.rows) else 0) + (7 + GLYPH + label_px if texts else 0)
        gaps = sum(GAP for _ in range(n_columns - 1)) + sum(y_room[1:])
        each = (width - EDGE - y_room[0] - right - gaps) / n_columns
        lefts = [EDGE + sum(y_room[: column + 1]) + column * (each + GAP) for column in range(n_columns)]
        heads = [wrapped(text, each + GAP / 2) if text else [] for text in self.columns]
        told = wrapped(title, width - 2 * EDGE, 1.06 * TITLE) if title else []
        title_px = 16.0 * len(told) + (6 if told else 0)
        heights = list(self.height or [HEIGHT if n_rows == 1 else FACET] * n_rows)
        x_room = [self._x_room(row) if own_x[row] else 0.0 for row in range(n_rows)]
        shown = [] if labels else list(keys)
        legend_px, columns_px = _legend_room(shown, width - 2 * EDGE)
        tops = [EDGE + title_px + ROW * max(map(len, heads), default=0) + (3 if any(heads) else 0)]
        for row in range(1, n_rows):
            tops.append(tops[-1] + heights[row - 1] + x_room[row - 1] + GAP)
        height = tops[-1] + heights[-1] + x_room[-1] + legend_px + EDGE
        self.figure.update_layout(template=template(), width=round(width), height=round(height), showlegend=bool(shown))
        place = _Paper(width, height)
        for line, text in enumerate(told):
            place.write(self.figure, f"<b>{text}</b>", EDGE, EDGE + 8 + 16 * line, size=TITLE, name="title")
        for row in range(n_rows):
            for column in range(n_columns):
                self._place_axes(row, column, place, lefts[column], tops[row], each, heights[row], own_x[row], own_y[column])
        for left, lines in zip(lefts, heads, strict=False):
            for rank, text in enumerate(reversed(lines)):
                place.write(self.figure, f"<b>{text}</b>", left + each / 2, tops[0] - 9 - ROW * rank, "center")
        for row, text in enumerate(self.rows):
            if text:
                place.write(self.figure, f"<b>{text}</b>", width - EDGE - 5, tops[row] + heights[row] / 2, "center", angle=90)
        self._name_axes(place, lefts, tops, each, heights, own_x, own_y, y_room, x_room)
        for row, found in enumerate(labels):
            at = lefts[-1] + each + 7
            self._write_labels(found, texts, place, at, GLYPH + label_px, tops[row], heights[row])
        if shown:
            self._write_legend(shown, columns_px, legend_px, height)

    def _y_room(self, column: int) -> float:
        """Left of a column of panels: ticks, and title."""
        axes = [self.ys[row][column] for row in range(len(self.ys))]
        return max(each.ticks_px for each in axes) + 7 + (ROW + 4 if any(each.title for each in axes) else 0)

    def _x_room(self, row: int) -> float:
        lines = max((text.count("<br>") + 1 for each in self.xs[row] for _, text in each.ticks), default=1)
        return 6 + ROW * lines + (ROW + 2 if any(each.title for each in self.xs[row]) else 0)

    def _place_axes(
        self, row: int, column: int, place: _Paper, left: float, top: float, width: float, height: float, own_x: bool,
        own_y: bool,
    ) -> None:  # fmt: skip
        rank = row * len(self.xs[0]) + column
        for letter, each, own, domain in (
            ("x", self.xs[row][column], own_x, [place.x(left), place.x(left + width)]),
            ("y", self.ys[row][column], own_y, [place.y(top + height), place.y(top)]),
        ):
            axes = [found for line in (self.xs if letter == "x" else self.ys) for found in line]
            first = axes.index(each)
            ticks = {"tickvals": [tick for tick, _ in each.ticks], "ticktext": [text for _, text in each.ticks]}
            self.figure.update_layout({f"{letter}axis{rank + 1 if rank else ''}": {
                "domain": domain, "range": each.range, "type": "log" if each.log else "linear", "showgrid": each.grid,
                "showticklabels": own, "matches": f"{letter}{first + 1 if first else ''}" if first != rank else None,
                "ticks": "outside" if each.grid or not each.ticks else "", **(ticks if each.ticks else {}),
            }})  # fmt: skip

    def _name_axes(
        self, place: _Paper, lefts: Sequence[float], tops: Sequence[float], width: float, heights: Sequence[float],
        own_x: Sequence[bool], own_y: Sequence[bool], y_room: Sequence[float], x_room: Sequence[float],
    ) -> None:  # fmt: skip
        """Titles once for all panels that share them."""
        for row, axes in enumerate(self.xs):
            under = tops[row] + heights[row] + x_room[row] - 8
            titles = {each.title for each in axes}
            if own_x[row] and len(titles) == 1:
                place.write(self.figure, titles.pop(), (lefts[0] + lefts[-1] + width) / 2, under, "center")
            elif own_x[row]:
                for left, each in zip(lefts, axes, strict=True):
                    place.write(self.figure, each.title, left + width / 2, under, "center")
        for column, left in enumerate(lefts):
            titles = {self.ys[row][column].title for row in range(len(tops))}
            beside = left - y_room[column] + 7
            if own_y[column] and len(titles) == 1:
                middle = (tops[0] + tops[-1] + heights[-1]) / 2
                self._write_turned(place, titles.pop(), beside, middle, tops[-1] + heights[-1] - tops[0])
            elif own_y[column]:
                for row, top in enumerate(tops):
                    self._write_turned(place, self.ys[row][column].title, beside, top + heights[row] / 2, heights[row])

    def _write_turned(self, place: _Paper, text: str, x: float, y: float, room: float) -> None:
        lines = wrapped(text, 1.15 * room)
        place.write(self.figure, "<br>".join(lines), x - 5 * (len(lines) - 1), y, "center", angle=-90)

    def _write_labels(
        self, found: dict[str, tuple[Line, float]], texts: dict[str, list[str]], place: _Paper, left: float,
        width: float, top: float, height: float,
    ) -> None:  # fmt: skip
        """Labels beside the ends of a row's curves, pushed apart; each with a sample of its curve."""
        ordered = sorted(found, key=lambda label: -found[label][1])
        sizes = [ROW * len(texts[label]) for label in ordered]
        centres = pushed_apart([(1 - found[label][1]) * height for label in ordered], sizes, height)
        rank = sum(1 for key in self.figure.layout if re.match(r"xaxis\d*$", key)) + 1
        bare = {"showgrid": False, "showline": False, "showticklabels": False, "ticks": "", "fixedrange": True}
        self.figure.update_layout({
            f"xaxis{rank}": {"domain": [place.x(left), place.x(left + width)], "range": [0, width], "anchor": f"y{rank}", **bare},
            f"yaxis{rank}": {"domain": [place.y(top + height + 7), place.y(top - 7)], "range": [height + 7, -7],
                             "anchor": f"x{rank}", **bare}})  # fmt: skip
        for label, centre in zip(ordered, centres, strict=True):
            line = found[label][0]
            kind = "lines+markers" if line.joined else "markers"
            self.figure.add_trace(go.Scatter(
                x=[0, (GLYPH - 4) / 2, GLYPH - 4], y=[centre] * 3, mode=kind, line={**line.look.line, "shape": "linear"},
                marker=line.look.mark([0, MARK, 0]), xaxis=f"x{rank}", yaxis=f"y{rank}", hoverinfo="skip",
                showlegend=False, name=label, cliponaxis=False))  # fmt: skip
            place.write(self.figure, "<br>".join(texts[label]), left + GLYPH, top + centre)

    def _write_legend(self, keys: Sequence[Key], entry_px: float, legend_px: float, height: float) -> None:
        for key in keys:
            kinds: dict[str, dict[str, Any]] = {
                "line": {"mode": "lines+markers", "line": key.look.line, "marker": key.look.mark()},
                "mark": {"mode": "markers", "marker": key.look.mark(1.3 * MARK)},
                "box": {"mode": "markers", "marker": {"symbol": "square", "size": 9, "color": key.look.colour, "opacity": 1,
                                                      "line": {"color": PALE, "width": 0.5}}}}  # fmt: skip
            self.figure.add_trace(go.Scatter(x=[None], y=[None], name=key.label, legendgroup=key.label, **kinds[key.kind]))
        self.figure.update_layout(legend={
            "orientation": "h", "xref": "container", "x": EDGE / float(self.figure.layout.width), "xanchor": "left",
            "yref": "container", "y": (legend_px + 2) / height, "yanchor": "top", "itemwidth": 30, "tracegroupgap": 0,
            "entrywidth": entry_px, "entrywidthmode": "pixels", "font": {"size": TYPE}, "bgcolor": "rgba(0,0,0,0)"})  # fmt: skip


def _legend_room(keys: Sequence[Key], width: float) -> tuple[float, float]:
    """The height of a legend, and the width of one entry's text."""
    if not keys:
        return 0.0, 0.0
    text = max(text_px(key.label) for key in keys) + 6
    columns = max(1, min(len(keys), int(width / (text + 42))))
    return 8 + 19.0 * math.ceil(len(keys) / columns), text


def pushed_apart(wanted: Sequence[float], sizes: Sequence[float], height: float) -> list[float]:
    """Centres as near to those wanted (ascending) as their sizes and a column from 0 to height allow, if it has room."""
    blocks: list[list[float]] = []  # sum of (wanted - offset), number, total size, first index
    for rank, (centre, size) in enumerate(zip(wanted, sizes, strict=True)):
        blocks.append([centre - size / 2, 1, size, rank])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] + blocks[-2][2] > blocks[-1][0] / blocks[-1][1]:
            total, count, taken, _ = blocks.pop()
            before = blocks[-1]
            before[0], before[1] = before[0] + total - count * before[2], before[1] + count
            before[2] += taken
    found: list[float] = []
    for total, count, taken, first in blocks:
        top = total / count
        for size in sizes[int(first) : int(first) + int(count)]:
            found.append(top + size / 2)
            top += size
    below = max(0.0, found[-1] + sizes[-1] / 2 - height - 5) if found else 0.0
    for rank in reversed(range(len(found))):  # up from the lower edge, as far as it takes
        limit = found[rank + 1] - sizes[rank + 1] / 2 - sizes[rank] / 2 if rank + 1 < len(found) else found[rank] - below
        found[rank] = min(found[rank], limit)
    for rank in range(len(found)):  # and down from the upper one
        limit = found[rank - 1] + sizes[rank - 1] / 2 + sizes[rank] / 2 if rank else sizes[0] / 2 - 5
        found[rank] = max(found[rank], limit)
    return found


@dataclass(frozen=True)
class _Paper:
    """Pixels from the upper left corner -> plotly's paper."""

    width: float
    height: float

    def x(self, px: float) -> float:
        return px / self.width

    def y(self, px: float) -> float:
        return 1 - px / self.height

    def write(
        self, figure: go.Figure, text: str, x: float, y: float, anchor: str = "left", *, size: float = TYPE,
        angle: float = 0, name: str | None = None, colour: str = INK,
    ) -> None:  # fmt: skip
        """A text with its middle at this height."""
        if text:
            figure.add_annotation(text=text, x=self.x(x), y=self.y(y), xref="paper", yref="paper", xanchor=anchor,
                                  yanchor="middle", showarrow=False, align="left", textangle=angle, name=name,
                                  font={"size": size, "color": colour}, borderpad=0)  # fmt: skip


def paper(figure: go.Figure) -> go.Figure:
    """A copy without its title: a paper has its own, and the caption in `figure.layout.meta`."""
    made = go.Figure(figure)
    titles = [note for note in made.layout.annotations if note.name == "title"]
    if not titles:
        return made
    cut = 16.0 * len(titles) + 6
    height = made.layout.height
    scale = height / (height - cut)
    made.layout.annotations = [note for note in made.layout.annotations if note.name != "title"]
    for each in made.select_yaxes():
        each.domain = [scale * end for end in each.domain]
    for note in (*made.layout.annotations, *made.layout.shapes):
        for at in ("y", "y0", "y1"):
            if note.yref == "paper" and at in note and note[at] is not None:
                note[at] *= scale
    if made.layout.legend.y is not None:
        made.layout.legend.y *= scale
    return made.update_layout(height=height - cut)


def caption_of(figure: go.Figure) -> list[str]:
    """The lines of a figure's caption."""
    return list((figure.layout.meta or {}).get("caption", []))
