"""A page of panels: curves, the names beside or under them, and where everything lies, in pixels.

Nothing is left to plotly's own placing, which moves titles into panels and cuts off labels: margins are zero, and the
domain of each axis is computed from the room that ticks, titles and names need.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pslab.lab.plots.page.axes import NAME_LINES, ROW, Axis, text_px, wrapped
from pslab.lab.plots.page.paper import Figure
from pslab.lab.plots.page.theme import (
    INK,
    MARK,
    PALE,
    SMALL,
    TITLE,
    TITLE_ROW,
    TYPE,
    WIDTHS,
    Look,
    template,
    translucent,
)

GAP, EDGE, NEAR = 14.0, 5.0, 7.0  # px: between panels (0.15 in); at the rim; between a panel and what belongs to it
HEIGHT, FACET = 187.0, 115.0  # px: of a panel in one row (1.95 in), and in several (1.2 in)
TICK = 34.0  # px: from one of plotly's own ticks on x to the next
VEIL = "rgba(255,255,255,0.8)"  # behind letters that curves may cross
HEAD_LINES, TURNED = 4, 120.0  # of a heading; px: the length of a turned name on x
NARROW = 96.0  # px (1 in): panels beside others are not made narrower by names at their side
FEW = 4  # curves of a panel: from here on bands are paler
MARKED = 11  # markers of a line with many points
MOST = 5  # names of a row of panels that stand at the ends of its curves
GLYPH, LABEL = 24.0, 108.0  # px: the sample beside such a name, and the name's widest line
ENTRY, AROUND = 19.0, 45.0  # px: a line of a legend; the sample of a name in it, and what is free around
BEYOND = 5.0  # px by which names may stand above or below their panel
BARE = {"showgrid": False, "showline": False, "showticklabels": False, "ticks": "", "fixedrange": True}


@dataclass
class Page:
    """A grid of panels. `xs[row][column]` and `ys[row][column]` are their axes; the last row may be shorter.

    Args:
        heads, sides: headings of columns, or of all panels, row by row; and of rows; none if empty.
        heights: px of the panels of each row; the usual ones if empty.
        lines_above: a line over the panels of each row, from the left; three spaces are where it may break first.
        order: names in the order that a legend has; of none that in which their curves were added.
    """

    xs: Sequence[Sequence[Axis]]
    ys: Sequence[Sequence[Axis]]
    heads: Sequence[str] = ()
    sides: Sequence[str] = ()
    width: str = "page"
    heights: Sequence[float] = ()
    lines_above: Sequence[str] = ()
    order: Sequence[str] = ()
    blank: Collection[tuple[int, int]] = field(init=False)  #: places without a panel, in the last row
    figure: go.Figure = field(init=False)
    lines: dict[tuple[int, int], list[Line]] = field(default_factory=dict)
    levels: list[tuple[float, str, list[tuple[int, int]]]] = field(default_factory=list)  #: value, label, panels
    notes: list[dict[str, Any]] = field(default_factory=list)  #: texts, which plotly takes all at once

    def __post_init__(self) -> None:
        missing = range(len(self.xs[-1]), len(self.xs[0]))
        self.blank = [(len(self.xs) - 1, column) for column in missing]
        self.xs, self.ys = ([*grid[:-1], [*grid[-1], *[grid[-1][-1]] * len(missing)]] for grid in (self.xs, self.ys))
        self.figure = make_subplots(len(self.xs), len(self.xs[0]), figure=Figure())
        if not self.heights:
            self.heights = [HEIGHT if len(self.xs) == 1 else FACET] * len(self.xs)
        named = [max(0.0, *(each.names_px for each in line)) for line in self.ys]
        self.heights = [max(pair) for pair in zip(self.heights, named, strict=True)]
        self.lines_above = self.lines_above or [f"<b>{text}</b>" for text in self.sides]

    def add(self, row: int, column: int, *drawn: Any) -> None:
        """Lines, or plotly's traces, of the panel in this row and column, from 0."""
        for each in drawn:
            if isinstance(each, Line):
                self.lines.setdefault((row, column), []).append(each)
            else:
                self.figure.add_trace(each, row=row + 1, col=column + 1)

    def level(self, y: float, label: str, of: Axis) -> None:
        """A dotted line across every panel with this y axis; its label stands in one of them."""
        places = [(row, column) for row, axes in enumerate(self.ys) for column, each in enumerate(axes)
                  if each == of and (row, column) not in self.blank]  # fmt: skip
        if label and of.low < y < of.high:
            self.levels.append((y, label, places))
        for row, column in places if of.low < y < of.high else ():
            line = {"color": PALE, "width": 1, "dash": "2px,2px"}
            self.figure.add_hline(y=y, line=line, row=row + 1, col=column + 1,
                                  exclude_empty_subplots=False)  # fmt: skip

    def _name_levels(self, panel: float) -> None:
        """Each level's label where curves cross it least: over its line or under it, in the first panel if it can."""
        for y, label, places in self.levels:
            wide = (text_px(label, SMALL) + 6) / panel
            choices = [(row, column, left, side) for row, column in places for side in (1, -1)
                       for left in (0.0, 0.25, 0.5, 0.75, 1 - wide)]  # fmt: skip
            row, column, left, side = min(choices, key=lambda place: self._crossed(y, wide, *place))
            self.write_in(row, column, label, left, y, xref="x domain", xanchor="left", xshift=2,
                          yanchor="bottom" if side > 0 else "top", bgcolor=VEIL, borderpad=0,
                          font={"size": SMALL, "color": PALE})  # fmt: skip

    def _crossed(self, y: float, wide: float, row: int, column: int, left: float, side: int) -> int:
        """How often curves run through a label there."""
        x_axis, y_axis = self.xs[row][column], self.ys[row][column]
        begin, high = y_axis.share(y), 1.4 * SMALL / self.heights[row]
        found = 0
        for line in self.lines.get((row, column), ()):
            known = np.array(sorted((x_axis.share(a), y_axis.share(b)) for a, b in zip(line.x, line.y, strict=True)
                           if math.isfinite(a) and math.isfinite(b)))  # fmt: skip
            if len(known):
                at = np.linspace(left, left + wide, 16)
                heights = side * (np.interp(at, known[:, 0], known[:, 1], left=np.nan, right=np.nan) - begin)
                found += int(((heights > -0.2 * high) & (heights < high)).sum())
        return found

    def write_in(self, row: int, column: int, text: str, x: Any, y: Any, **how: Any) -> None:
        """A text in a panel, at its coordinates; `xref` may be "x domain"."""
        rank = row * len(self.xs[0]) + column + 1
        x_name, y_name = (f"{letter}{rank if rank > 1 else ''}" for letter in "xy")
        domain = " domain" * how.pop("xref", "").endswith("domain")
        self.notes.append({"text": text, "x": x, "y": y, "showarrow": False, "xref": x_name + domain, "yref": y_name,
                           **how})  # fmt: skip

    def finish(self, title: str, caption: Iterable[str] = (), keys: Sequence[Key] | None = None) -> go.Figure:
        """Everything in its place. `keys` are the legend's; None: the lines' own, at their ends if they are few."""
        most = max(map(len, self.lines.values()), default=0)
        for (row, column), found in self.lines.items():
            x, pale = self.xs[row][column], 0.09 if most >= FEW else 0.15
            self.add(row, column, *(trace for line in found for trace in traces(line, pale, x)))
        drawn = {trace.xaxis or "x" for trace in self.figure.data}
        for rank in range(len(self.xs) * len(self.xs[0])):  # plotly draws no axes of a panel that has nothing in it
            place = divmod(rank, len(self.xs[0]))
            if place not in self.blank and f"x{rank + 1 if rank else ''}" not in drawn:
                self.add(*place, go.Scatter(x=[None], y=[None], showlegend=False, hoverinfo="skip"))
        ends = [self._ends(row) for row in range(len(self.xs))] if keys is None else []
        named = {key.label: key for key in ([key for row in ends for key, _ in row] if keys is None else keys)}
        below = {name: named[name] for name in dict.fromkeys([*self.order, *named]) if name in named}
        if not all(map(fit_beside, ends, self.heights)):
            ends = []
        layout = _Layout(self, title, ends, [] if ends else list(below.values()))
        if ends and len(self.xs[0]) > 1 and layout.panel < NARROW:  # the names would leave the panels no room
            layout = _Layout(self, title, [], list(below.values()))
        self._name_levels(layout.panel)
        layout.draw()
        return self.figure.update_layout(meta={"caption": [line for line in caption if line]})

    def _ends(self, row: int) -> list[tuple[Key, float]]:
        """The names of a row of panels, with the height (0 to 1) of the last end of each."""
        found: dict[str, tuple[Key, float]] = {}
        for column, shown in enumerate(self.ys[row]):
            for line in self.lines.get((row, column), []):
                ends = [y for y in (*(y for _, y in line.crosses), *line.y) if math.isfinite(y)]
                if line.label and ends:
                    kind = "+".join(word for word, there in (("lines", line.joined), ("markers", line.marked)) if there)
                    share = min(1.0, max(0.0, shown.share(ends[-1])))
                    found[line.label] = (Key(line.label, line.look, kind), share)
        return list(found.values())


# -- curves ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A curve; those of one label look alike in all panels."""

    label: str
    look: Look
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None  #: the range over seeds
    high: Sequence[float] | None = None
    hover: Sequence[str] = ()
    crosses: Sequence[tuple[float, float]] = ()  #: where seeds diverged
    sign: str = ""  #: behind its end
    joined: bool = True  #: by a line; neither joined nor marked, it is its band alone
    marked: bool = True  #: with markers
    bars: bool = False  #: the range as bars, not as a band
    steps: bool = False  #: it keeps its value until the next point


def traces(line: Line, opacity: float, x_axis: Axis) -> list[go.Scatter]:
    """The band, the line with its markers, crosses and sign."""
    look, found = line.look, []
    x, y = np.asarray(line.x, dtype=float), np.asarray(line.y, dtype=float)
    common: dict[str, Any] = {"legendgroup": line.label, "name": line.label, "showlegend": False}
    shape = {"shape": "hv"} if line.steps else {}
    bars: dict[str, Any] = {}
    if line.low is not None and line.high is not None:
        low, high = np.asarray(line.low, dtype=float), np.asarray(line.high, dtype=float)
        if line.bars and np.any(high > low):
            spread = (np.where(high > low, each, np.nan) for each in (high - y, y - low))  # a range of 0 has no caps
            bars = {"error_y": {**dict(zip(("array", "arrayminus"), spread, strict=True)), "symmetric": False,
                                "thickness": 1.0, "width": 2.0, "color": look.colour}}  # fmt: skip
        elif np.any(high > low):
            found.append(go.Scatter(
                x=np.concatenate([x, x[::-1]]), y=np.concatenate([high, low[::-1]]), fill="toself", mode="lines",
                fillcolor=translucent(look.colour, opacity), line={"width": 0, **shape}, hoverinfo="skip", **common,
            ))  # fmt: skip
    if not line.joined and not line.marked and found:
        return found  # the band alone
    mode = "+".join(kind for kind, there in (("lines", line.joined), ("markers", line.marked)) if there) or "lines"
    hover, sizes = "%{hovertext}" if line.hover else "%{x}: %{y}", _sizes(len(x)) if line.joined else MARK
    found.append(go.Scatter(
        x=x, y=y, mode=mode, line={**look.line, **shape}, marker=look.mark(sizes),
        hovertext=line.hover or None, hovertemplate=f"<b>{line.label}</b><br>{hover}<extra></extra>", **bars, **common,
    ))  # fmt: skip
    if line.crosses:
        mark = {"symbol": "x-thin", "size": 7, "color": look.colour, "line": {"color": look.colour, "width": 2}}
        found.append(go.Scatter(
            x=[x for x, _ in line.crosses], y=[y for _, y in line.crosses], mode="markers", marker=mark,
            cliponaxis=False, hovertemplate=f"<b>{line.label}</b><br>diverged here<extra></extra>", **common,
        ))  # fmt: skip
    if line.sign and len(x):
        side = "top left" if x_axis.share(float(x[-1])) > 0.3 else "top right"  # within the panel
        found.append(go.Scatter(x=x[-1:], y=y[-1:], mode="text", text=[line.sign], textposition=side,
                                hoverinfo="skip", cliponaxis=False, **common))  # fmt: skip
    return found


def _sizes(count: int) -> list[float] | float:
    """Between the markers of a line with many points its dash stays visible."""
    if count <= MARKED + 1:
        return MARK
    step = math.ceil(count / MARKED)
    return [MARK if (count - 1 - place) % step == 0 or place == 0 else 0.0 for place in range(count)]


# -- names -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """A name, and how what it names is drawn."""

    label: str
    look: Look
    kind: str = "lines+markers"  #: lines, markers, both, or box

    @property
    def sample(self) -> dict[str, Any]:
        """Plotly's line and marker."""
        if self.kind == "box":
            box = {"symbol": "square", "size": 9, "color": self.look.colour, "line": {"color": PALE, "width": 0.5}}
            return {"mode": "markers", "marker": box}
        return {"mode": self.kind, "line": self.look.line, "marker": self.look.mark()}


def lines_of(label: str) -> list[str]:
    """A name as it stands beside a panel."""
    return wrapped(label, LABEL)


def labels_px(labels: Sequence[str]) -> float:
    """The width that such names take."""
    return GLYPH + max(text_px(line) for label in labels for line in lines_of(label)) if labels else 0.0


def fit_beside(keys: Sequence[tuple[Key, float]], height: float) -> bool:
    """Whether such names stand beside a panel of this height without touching."""
    return len(keys) <= MOST and sum(ROW * len(lines_of(key.label)) for key, _ in keys) <= height + 2 * BEYOND


def beside(keys: Sequence[tuple[Key, float]], height: float) -> list[tuple[Key, float]]:
    """Names with the share of the panel's height at which their curves end -> with px from its upper edge."""
    ordered = sorted(keys, key=lambda pair: -pair[1])
    sizes = [ROW * len(lines_of(key.label)) for key, _ in ordered]
    centres = pushed_apart([(1 - share) * height for _, share in ordered], sizes, height)
    return [(key, centre) for (key, _), centre in zip(ordered, centres, strict=True)]


def samples(keys: Sequence[tuple[Key, float]], axes: tuple[str, str]) -> list[go.Scatter]:
    """The samples beside a panel, on axes in px."""
    return [go.Scatter(
        x=[0, (GLYPH - 4) / 2, GLYPH - 4], y=[centre] * 3, name=key.label, showlegend=False, hoverinfo="skip",
        cliponaxis=False, xaxis=axes[0], yaxis=axes[1],
        **{**key.sample, "marker": {**key.sample["marker"], "size": [0, MARK, 0]}},
    ) for key, centre in keys]  # fmt: skip


def legend_room(keys: Sequence[Key], width: float) -> tuple[float, float]:
    """The height of a legend, and the width of one name in it, which is wrapped where it is wider than the page."""
    names = [in_legend(key.label, width) for key in keys]
    text = max((text_px(line) for name in names for line in name.split("<br>")), default=0.0) + 6
    columns = max(1, int(width / (text + AROUND)))
    rows = [names[first : first + columns] for first in range(0, len(names), columns)]
    height = sum(ENTRY + ROW * max(name.count("<br>") for name in row) for row in rows)
    return (8 + height if keys else 0.0), text


def in_legend(label: str, width: float) -> str:
    """A name as it stands in a legend of this width."""
    return "<br>".join(wrapped(label, width - AROUND - 6, most=3))


def legend(
    keys: Sequence[Key], left: float, top: float, name_px: float, width: float
) -> tuple[list[go.Scatter], dict[str, Any]]:
    """Its samples, and its place in shares of the figure."""
    shown = [go.Scatter(x=[None], y=[None], name=in_legend(key.label, width), legendgroup=key.label, **key.sample)
             for key in keys]  # fmt: skip
    place = {"orientation": "h", "xref": "container", "x": left, "xanchor": "left", "yref": "container", "y": top,
             "yanchor": "top", "itemwidth": 30, "tracegroupgap": 0, "entrywidth": name_px, "entrywidthmode": "pixels",
             "font": {"size": TYPE}, "bgcolor": "rgba(0,0,0,0)"}  # fmt: skip
    return shown, place


def pushed_apart(wanted: Sequence[float], sizes: Sequence[float], height: float) -> list[float]:
    """Centres in a column of this height that do not overlap, each as near to the one wanted (ascending) as can be.

    Least squares: what is wanted, less the sizes above it, must not fall; where it does, neighbours take their mean.
    """
    above = np.concatenate([[0.0], np.cumsum(sizes)])
    blocks: list[list[float]] = []  # mean, number
    for centre, size, taken in zip(wanted, sizes, above, strict=False):
        blocks.append([centre - size / 2 - taken, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (first, many), (second, more) = blocks[-2:]
            blocks[-2:] = [[(first * many + second * more) / (many + more), many + more]]
    levels = [mean for mean, count in blocks for _ in range(int(count))]
    lowest = max(-BEYOND, height + BEYOND - above[-1])
    return [min(max(level, -BEYOND), lowest) + taken + size / 2
            for level, taken, size in zip(levels, above, sizes, strict=False)]  # fmt: skip


# -- places ----------------------------------------------------------------------------------------


class _Layout:
    """The places of a page's panels, in px from the upper left corner."""

    def __init__(
        self, page: Page, title: str, ends: Sequence[Sequence[tuple[Key, float]]], below: Sequence[Key]
    ) -> None:
        self.page, self.figure, self.ends, self.below = page, page.figure, ends, below
        self.layout: dict[str, Any] = {}  # handed to plotly at once: it takes as long for a part as for all of it
        self.rows, self.columns = len(page.xs), len(page.xs[0])
        self.wide = float(WIDTHS[page.width])
        self.title = wrapped(title, self.wide - 2 * EDGE, 1.06 * TITLE) if title else []
        self.own_x = [row == self.rows - 1 or list(page.xs[row]) != list(page.xs[row + 1]) for row in range(self.rows)]
        self.own_y = [column == 0 or any(line[column] != line[column - 1] for line in page.ys)
                      for column in range(self.columns)]  # fmt: skip
        self.y_room = [self._beside(column) if own else 0.0 for column, own in enumerate(self.own_y)]
        self.names_px = labels_px([key.label for row in ends for key, _ in row])
        beside = NEAR + self.names_px if self.names_px else 0.0
        right = EDGE + max(NEAR + beside, *(line[-1].last_px for line in page.xs))
        gaps = GAP * (self.columns - 1) + sum(self.y_room)
        self.panel = (self.wide - EDGE - right - gaps) / self.columns
        self.lefts = [EDGE + sum(self.y_room[: column + 1]) + column * (self.panel + GAP)
                      for column in range(self.columns)]  # fmt: skip
        self.x_room = [self._under(row) if own else 0.0 for row, own in enumerate(self.own_x)]
        heads = [wrapped(text, self.panel + GAP / 2, most=HEAD_LINES) if text else [] for text in page.heads]
        self.heads = [heads[row * self.columns : (row + 1) * self.columns] for row in range(self.rows)]
        free = self.lefts[-1] + self.panel if ends else self.wide - EDGE  # the first name may stand over its panel
        self.above = [_lines_above(text, free - self.lefts[0]) for text in page.lines_above]
        self.above += [[]] * (self.rows - len(self.above))
        over = [ROW * (len(lines) + max(map(len, own), default=0)) + (3 if any(own) else 0)
                for lines, own in zip(self.above, self.heads, strict=True)]  # fmt: skip
        self.tops = [EDGE + (TITLE_ROW * len(self.title) + 6 if self.title else 4) + over[0]]
        for row in range(1, self.rows):
            self.tops.append(self.tops[-1] + page.heights[row - 1] + self.x_room[row - 1] + GAP + over[row])
        self.legend_px, self.name_px = legend_room(below, self.wide - 2 * EDGE)
        self.high = self.tops[-1] + page.heights[-1] + self.x_room[-1] + self.legend_px + EDGE

    def _under(self, row: int) -> float:
        """The room for ticks and title of the x axes."""
        ticks = [(turned, text) for turned, texts in map(self._written, self.page.xs[row]) for text in texts]
        room = [max(map(text_px, text.split("<br>"))) if turned else ROW * (text.count("<br>") + 1)
                for turned, text in ticks]  # fmt: skip
        lines = max(map(len, self._titles_under(row)))
        return 6 + max(room, default=ROW) + (ROW * lines + 2 if lines else 0)

    def _written(self, shown: Axis) -> tuple[bool, list[str]]:
        """The tick labels of an x axis; names are wrapped at the width of their places, or turned if they are wider."""
        texts = [text for _, text in self._apart(shown)]
        place = self.panel / max(1, len(texts)) - 4
        if not shown.bare:
            return False, texts
        turned = any(text_px(word) > place + 4 for text in texts for word in text.split(" "))
        width, most = (TURNED, max(1, int((place + 4) / ROW))) if turned else (place, NAME_LINES)
        return turned, ["<br>".join(wrapped(text, width, most=most)) for text in texts]

    def _apart(self, shown: Axis) -> Sequence[tuple[float, str]]:
        """The ticks of an x axis; of numbers whose labels would touch every second one, and so on."""
        found = shown.ticks
        while not shown.bare and len(found) > 2 and any(
                self.panel * abs(shown.share(after) - shown.share(at)) < 4 + (text_px(text) + text_px(other)) / 2
                for (at, text), (after, other) in pairwise(found)):  # fmt: skip
            found = found[::2]
        return found

    def _titles_under(self, row: int) -> list[list[str]]:
        """The title under all panels that share it, or one under each, in lines."""
        titles = [each.title for each in self.page.xs[row]]
        shared = len({*titles}) == 1
        width = self.wide - 2 * EDGE if shared else self.panel + GAP / 2
        return [wrapped(text, width) if text else [] for text in (titles[:1] if shared else titles)]

    def _beside(self, column: int) -> float:
        axes = [line[column] for line in self.page.ys]
        lines = max(len(self._turned(row, column)) if axes[row].title else 0 for row in range(self.rows))
        return max(each.ticks_px for each in axes) + NEAR + (ROW * lines + 4 if lines else 0)

    def _turned(self, row: int, column: int) -> list[str]:
        """A title of the y axis in lines: as high as its panel, or as all of them if they share it."""
        titles = [line[column].title for line in self.page.ys]
        heights = self.page.heights if len({*titles}) == 1 else [self.page.heights[row]]
        return wrapped(titles[row], max(1.15 * sum(heights), 80.0))

    def draw(self) -> None:
        for rank, text in enumerate(self.title):
            self._write(f"<b>{text}</b>", EDGE, EDGE + 8 + TITLE_ROW * rank, size=TITLE, name="title")
        for top, own, written in zip(self.tops, self.heads, self.above, strict=True):
            above = top - 9 - ROW * len(written)
            for left, lines in zip(self.lefts, own, strict=False):
                for rank, text in enumerate(reversed(lines)):
                    self._write(f"<b>{text}</b>", left + self.panel / 2, above - ROW * rank, "center")
        for top, written in zip(self.tops, self.above, strict=True):
            for rank, text in enumerate(reversed(written)):
                self._write(text, self.lefts[0], top - 7 - ROW * rank)
        for row in range(self.rows):
            for column in range(self.columns):
                self._place(row, column)
        self._name_x()
        self._name_y()
        for row, found in enumerate(self.ends):
            self._write_names(row, beside(found, self.page.heights[row]))
        if self.below:
            top = (self.legend_px + 2) / self.high
            shown, place = legend(self.below, EDGE / self.wide, top, self.name_px, self.wide - 2 * EDGE)
            self.figure.add_traces(shown)
            self.layout["legend"] = place
        self.figure.update_layout(self.layout, template=template(), width=round(self.wide), height=round(self.high),
                                  showlegend=bool(self.below),
                                  annotations=self.page.notes)  # fmt: skip

    def _place(self, row: int, column: int) -> None:
        """The axes of one panel; equal ones are zoomed together."""
        left, top, rank = self.lefts[column], self.tops[row], row * self.columns + column
        domains = {"x": (left / self.wide, (left + self.panel) / self.wide),
                   "y": (1 - (top + self.page.heights[row]) / self.high, 1 - top / self.high)}  # fmt: skip
        above_blank = (row + 1, column) in self.page.blank
        for letter, grid, own in (("x", self.page.xs, self.own_x[row] or above_blank),
                                  ("y", self.page.ys, self.own_y[column])):  # fmt: skip
            shown = grid[row][column]
            first = [each for line in grid for each in line].index(shown)
            turned, texts = self._written(shown) if letter == "x" else (False, [text for _, text in shown.ticks])
            at = [value for value, _ in (self._apart(shown) if letter == "x" else shown.ticks)]
            ticks = {"tickvals": at, "ticktext": texts, "tickangle": -90 if turned else 0}
            linked: dict[str, Any] = {"matches": f"{letter}{first + 1 if first else ''}"} if first != rank else {}
            if letter == "x":
                linked["nticks"] = max(3, min(6, int(self.panel / TICK)))
            self.layout[f"{letter}axis{rank + 1 if rank else ''}"] = {
                "visible": (row, column) not in self.page.blank, "domain": domains[letter], "range": shown.range,
                "type": "log" if shown.log else "linear", "fixedrange": shown.bare,
                "showgrid": not shown.bare, "ticks": "" if shown.bare else "outside", "showticklabels": own, **linked,
                "ticklabelstandoff": 3 if shown.bare else 0, **(ticks if shown.ticks else {})}  # fmt: skip

    def _name_x(self) -> None:
        """Titles once for all panels that share them."""
        for row in filter(self.own_x.__getitem__, range(self.rows)):
            titles, bottom = self._titles_under(row), self.tops[row] + self.page.heights[row] + self.x_room[row]
            first = bottom - 8 - ROW * (max(map(len, titles)) - 1)
            middles = [left + self.panel / 2 for left in self.lefts]
            middles = middles if len(titles) > 1 else [sum(middles) / len(middles)]
            for middle, lines in zip(middles, titles, strict=True):
                for rank, text in enumerate(lines):
                    self._write(text, middle, first + ROW * rank, "center")

    def _name_y(self) -> None:
        bottom = self.tops[-1] + self.page.heights[-1]
        for column, left in enumerate(self.lefts):
            if not self.own_y[column]:
                continue
            spans = list(zip(range(self.rows), self.tops, self.page.heights, strict=True))
            if len({line[column].title for line in self.page.ys}) == 1:
                spans = [(0, self.tops[0], bottom - self.tops[0])]
            for row, top, height in spans:
                lines = self._turned(row, column)
                at = left - self.y_room[column] + ROW * len(lines) / 2
                self._write("<br>".join(lines), at, top + height / 2, "center", angle=-90)

    def _write_names(self, row: int, found: Sequence[tuple[Key, float]]) -> None:
        """On axes of their own, right of the panels: one over them would take the pointer from them."""
        left, top, height = self.lefts[-1] + self.panel + NEAR, self.tops[row], self.page.heights[row]
        rank = self.rows * self.columns + 1 + row
        self.layout |= {
            f"xaxis{rank}": {"domain": [left / self.wide, (left + self.names_px) / self.wide], "anchor": f"y{rank}",
                             "range": [0, self.names_px], **BARE},
            f"yaxis{rank}": {"domain": [1 - (top + height + NEAR) / self.high, 1 - (top - NEAR) / self.high],
                             "range": [height + NEAR, -NEAR], "anchor": f"x{rank}", **BARE}}  # fmt: skip
        self.figure.add_traces(samples(found, (f"x{rank}", f"y{rank}")))
        for key, centre in found:
            self._write("<br>".join(lines_of(key.label)), left + GLYPH, top + centre)

    def _write(
        self, text: str, x: float, y: float, anchor: str = "left", *, size: float = TYPE, angle: float = 0,
        name: str | None = None,
    ) -> None:  # fmt: skip
        """A text with its middle at this place."""
        if text:
            self.page.notes.append({
                "text": text, "x": x / self.wide, "y": 1 - y / self.high, "xref": "paper", "yref": "paper",
                "xanchor": anchor, "yanchor": "middle", "showarrow": False, "align": "left", "textangle": angle,
                "name": name, "borderpad": 0, "font": {"size": size, "color": INK}})  # fmt: skip


def _lines_above(text: str, width: float) -> list[str]:
    """A line over a row of panels: whole, or its name, in a tag, and its words in lines of their own."""
    if text_px(text) <= width:
        return [text]
    head, _, words = text.partition("   ")
    tag, name, end = re.fullmatch(r"(<[^>]*>|)(.*?)(</b>|)", head).groups()  # type: ignore[union-attr]
    return [*(f"{tag}{line}{end}" for line in wrapped(name, width)), *(wrapped(words, width) if words else ())]
