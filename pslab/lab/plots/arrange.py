"""The last step of every chart: titles and headings, the figure's height, and its caption."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pslab.errors import ConfigError
from pslab.lab.plots.axes import Axis
from pslab.lab.plots.theme import PALE, TITLE, TYPE

INCHES = {"column": 3.5, "page": 7.16}  # the columns of IEEE and ACM
LETTER = 0.52  # the mean width of a letter, as a share of the font size
ROW, GAP = 15.0, 14.0  # px: the height of a line of type; the gap between panels
HEIGHT, FACET = 190.0, 125.0  # px: the height of a panel if there is one row of panels, and if there are several
ENTRY = 46.0  # px: the sample beside a name in a legend, with the space around it


class _Widths(dict[str, int]):
    def __missing__(self, width: object) -> int:
        raise ConfigError("width", width, "must be 'page' (7.16 in) or 'column' (3.5 in)")


WIDTHS = _Widths(column=336, page=687)  # px, for which words are wrapped; a screen may be wider


def wrapped(text: str, width: float, size: float = TYPE) -> list[str]:
    """Return a text in lines that are at most `width` px wide. Tags have no width, and words are not broken."""
    lines, most = [""], max(8, int(width / (LETTER * size)))
    for word in re.findall(r"(?:<[^>]*>|[^ <])+", text):
        line = f"{lines[-1]} {word}".lstrip()
        if len(re.sub(r"<[^>]*>", "", line)) <= most or not lines[-1]:
            lines[-1] = line
        else:
            lines.append(word)
    return lines


def names(labels: Sequence[str], width: str, share: float = 0.4) -> list[str]:
    """Wrap the names beside a y axis into lines of at most this share of the figure's width, joined by <br>."""
    return ["<br>".join(wrapped(label, share * WIDTHS[width])) for label in labels]


def text_px(text: str, size: float = TYPE) -> float:
    """Return the approximate width of a text in px."""
    return LETTER * size * max(len(re.sub(r"<[^>]*>", "", line)) for line in text.split("<br>"))


def level(fig: go.Figure, panels: Sequence[tuple[str, str]], y: float, label: str = "") -> None:
    """Draw a dotted line at height `y` across panels, given by the names of their axes; the label is in the legend."""
    line = {"color": PALE, "width": 1, "dash": "2px,2px"}
    for x_name, y_name in panels:
        fig.add_shape(type="line", x0=0, x1=1, y0=y, y1=y, xref=f"{x_name} domain", yref=y_name, line=line)
    if label and panels:
        sample(fig, label, mode="lines", line=line)


def boxes(fig: go.Figure, colours: dict[str, str]) -> None:
    """Add names to the legend, each with a box in its colour."""
    edge = {"color": PALE, "width": 0.5}
    for name, colour in colours.items():
        sample(fig, name, marker={"symbol": "square", "size": 9, "color": colour, "line": edge})


def sample(fig: go.Figure, name: str, mode: str = "markers", **style: Any) -> None:
    """Add a name to the legend, with a line or a marker of this style. A click on it hides the traces of this name or
    legend group."""
    fig.update_traces(legendgroup=name, selector={"name": name})
    fig.add_trace(go.Scatter(x=[None], y=[None], mode=mode, name=name, legendgroup=name, **style))


def panels(
    xs: Sequence[Sequence[Axis]], ys: Sequence[Sequence[Axis]], width: str, heads: Sequence[str] = (),
    sides: Sequence[str] = (), gap: float = GAP,
) -> go.Figure:  # fmt: skip
    """Return a figure with a panel for each pair of axes, row by row; the last row may be shorter.

    Args:
        heads, sides: the headings of panels, row by row; and the headings of rows.
        gap: px between panels side by side.
    """
    rows, columns = len(xs), len(xs[0])
    specs: list[Any] = [[{} if column < len(line) else None for column in range(columns)] for line in xs]
    fig = make_subplots(
        rows, columns, specs=specs, horizontal_spacing=min(gap / WIDTHS[width], 0.9 / columns),
        vertical_spacing=0.5 / rows, subplot_titles=[*heads] or None, row_titles=[*sides] or None)  # fmt: skip
    axes = [pair for x_line, y_line in zip(xs, ys, strict=True) for pair in zip(x_line, y_line, strict=True)]
    numbers = ["", *map(str, range(2, len(axes) + 1))]
    scale(fig, {(f"x{number}", f"y{number}"): pair for number, pair in zip(numbers, axes, strict=True)}, width)
    return fig


def scale(fig: go.Figure, panels: Mapping[tuple[str, str], tuple[Axis, Axis]], width: str) -> None:
    """Set range, ticks and title of the axes of panels; `panels` is keyed by the axes' names. Equal axes zoom together,
    and only the lowest one in a column, or the leftmost one in a row, shows tick texts and a title."""
    spans = {panel: [tuple(round(end, 6) for end in fig.layout[long(name)].domain) for name in panel]
             for panel in panels}  # fmt: skip
    for side, across in ((0, 1), (1, 0)):
        first: dict[Axis, str] = {}
        for panel, span in spans.items():
            axis = panels[panel][side]
            # x axis: the nearest panel below in this column; y axis: the nearest panel to the left in this row
            nearer = [other for other, theirs in spans.items()
                      if theirs[side] == span[side] and theirs[across] < span[across]]  # fmt: skip
            beside = max(nearer, key=lambda other: spans[other][across], default=None)
            alone = beside is None or panels[beside][side] != axis
            room = WIDTHS[width] * (span[0][1] - span[0][0]) - 12
            title = "<br>".join(wrapped(axis.title, room)) if side == 0 else axis.title
            words = axis.layout | {"title_text": title if alone else ""}
            if side == 0 and axis.bare:
                texts, slot = [text for _, text in axis.ticks], room / max(1, len(axis.ticks)) - 4
                lines = ["<br>".join(wrapped(text, slot)) for text in texts]
                turned = max(map(text_px, lines), default=0.0) > slot + 4  # a word is wider than its slot
                words |= {"tickangle": -90 if turned else 0, "ticktext": texts if turned else lines}
            name = first.setdefault(axis, panel[side])
            fig.layout[long(panel[side])].update(
                matches=name if name != panel[side] else None, showticklabels=alone, **words)  # fmt: skip


def long(name: str) -> str:
    """Return the key of an axis in a layout: ``"x2"`` -> ``"xaxis2"``."""
    return f"{name[0]}axis{name[1:]}"


# -- rows of panels --------------------------------------------------------------------------------


def finish(
    fig: go.Figure, title: str, caption: Iterable[str], width: str = "page", heights: Sequence[float] = (), *,
    legend: bool = True, left: bool = False,
) -> go.Figure:  # fmt: skip
    """Set the title and the caption, wrap the headings, and fit the figure's height to its panels and texts.

    Args:
        heights: px of each row of panels; empty: HEIGHT for one row, FACET for several.
        left: whether headings of panels begin at the panel's left edge instead of being centred.
    """
    if fig.layout.xaxis.domain is None:  # the figure was made without subplots
        fig.update_layout(xaxis={"domain": [0, 1], "anchor": "y"}, yaxis={"domain": [0, 1], "anchor": "x"})
    above = wrapped(title, 0.95 * WIDTHS[width], 1.1 * TITLE) if title else []
    over, high, under = _stack(fig, heights, width, left)
    named = {trace.name: None for trace in fig.data if trace.showlegend is not False and trace.name} if legend else {}
    lines = math.ceil(sum(text_px(name) + ENTRY for name in named) / WIDTHS[width])
    top = 12 + (TITLE + 4) * len(above) + over
    height = round(top + high + under + 19 * lines + 8)
    return fig.update_layout(
        template="pslab", margin_t=top, title={
            "text": f"<b>{'<br>'.join(above)}</b>", "y": 1 - 8 * len(above) / height} if above else None,
        height=height, showlegend=bool(named), legend_title_text="",
        meta={"title": title, "caption": [line for line in caption if line], "inches": INCHES[width]})  # fmt: skip


def _stack(fig: go.Figure, heights: Sequence[float], width: str, left: bool) -> tuple[float, float, float]:
    """Set the positions of rows of panels and headings; return the heights in px above, of and below the rows."""
    rows = sorted({axis.domain for axis in fig.select_yaxes()}, reverse=True)
    heights = list(heights) or [HEIGHT if len(rows) == 1 else FACET] * len(rows)
    heads: list[list[Any]] = [[] for _ in rows]
    for note in fig.layout.annotations:
        if (note.xref, note.yref) == ("paper", "paper"):
            ends = [sum(row) / 2 if note.textangle else row[1] for row in rows]
            heads[min(range(len(rows)), key=lambda row: abs(ends[row] - note.y))].append(note)
    spans = [axis.domain for axis in fig.select_xaxes()]
    beside = max((text_px(text) for axis in fig.select_yaxes() for text in axis.ticktext or ("100",)), default=0.0)
    over = [_write_heads(notes, spans, WIDTHS[width] - beside - 24, left) for notes in heads]
    under = [max(_below(axis) for axis in fig.select_xaxes() if fig.layout[long(axis.anchor)].domain == row)
             for row in rows]  # fmt: skip
    gaps = [0.0, *(GAP + before + after for before, after in zip(under, over[1:], strict=False))]
    high = sum(heights) + sum(gaps)
    tops = [1 - (sum(heights[:row]) + sum(gaps[: row + 1])) / high for row in range(len(rows))]
    domains = {row: (max(0.0, top - px / high), top) for row, top, px in zip(rows, tops, heights, strict=True)}
    for notes, top in zip(heads, tops, strict=True):
        for note in notes:
            note.y = top
    for axis, px in [(axis, heights[rows.index(axis.domain)]) for axis in fig.select_yaxes()]:
        title = "<br>".join(wrapped(axis.title.text or "", max(1.15 * px, 80.0)))
        axis.update(domain=domains[axis.domain], title_text=title)
    return over[0], high, under[-1]


def _write_heads(notes: Sequence[Any], spans: Sequence[tuple[float, float]], room: float, left: bool) -> float:
    """Wrap the headings over a row of panels, with the heading of the row above them; return their height in px."""
    high = 0.0
    for of_row in (False, True):
        begin = high
        for note in [note for note in notes if bool(note.textangle) == of_row]:
            span = next((span for span in spans if abs(sum(span) / 2 - note.x) < 1e-3), (0.0, 1.0))
            lines = wrapped(re.sub(r"^(facet|row)=", "", note.text), room * (1 if of_row else span[1] - span[0]))
            text = "<br>".join(lines)
            note.update(text=text if text.startswith("<b>") else f"<b>{text}</b>", textangle=0, yshift=begin,
                        yanchor="bottom", font_size=TYPE, **({} if not of_row and not left else {
                            "x": 0 if of_row else span[0], "xanchor": "left", "align": "left"}))  # fmt: skip
            high = max(high, begin + ROW * len(lines))
    return high + (4 if high else 0)


def _below(axis: Any) -> float:
    """Return the height in px of the tick texts and the title below a panel."""
    texts = [str(text) for text in axis.ticktext or ("",)] if axis.showticklabels is not False else []
    ticks = max((text_px(text) if axis.tickangle else ROW * (text.count("<br>") + 1) for text in texts), default=0.0)
    title = axis.title.text or ""
    return 6 + ticks + (ROW * (title.count("<br>") + 1) + 4 if title else 0)


# -- under a figure --------------------------------------------------------------------------------


def caption_of(fig: go.Figure) -> list[str]:
    """Return the lines of a figure's caption."""
    return list((fig.layout.meta or {}).get("caption", []))


def heading_of(fig: go.Figure) -> str:
    """Return the title of a figure without tags; "" if there is none."""
    return str((fig.layout.meta or {}).get("title", "") or re.sub(r"<[^>]*>", " ", fig.layout.title.text or "").strip())
