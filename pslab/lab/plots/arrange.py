"""The last step of every chart: words around the panels, the height that they need, and what stands under a figure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pslab.lab.plots.axes import Axis
from pslab.lab.plots.theme import PALE, SMALL, TITLE, TYPE, Look

INCHES = {"column": 3.5, "page": 7.16}  # the columns of IEEE and ACM
WIDTHS = {"column": 336, "page": 687}  # px, for which words are wrapped; a screen may be wider
LETTER = 0.52  # of the size of type: the mean width of a letter
ROW, GAP = 15.0, 14.0  # px: a line of type; between panels
HEIGHT, FACET = 190.0, 125.0  # px: of a panel in one row, and in several
ENTRY = 46.0  # px: the sample of a name in a legend, with the free space around it


def wrapped(text: str, width: float, size: float = TYPE) -> list[str]:
    """Return a text in lines of so many px. Tags take no room, and words are not broken."""
    found, most = [""], max(8, int(width / (LETTER * size)))
    for word in re.findall(r"(?:<[^>]*>|[^ <])+", text):
        line = f"{found[-1]} {word}".lstrip()
        if len(re.sub(r"<[^>]*>", "", line)) <= most or not found[-1]:
            found[-1] = line
        else:
            found.append(word)
    return found


def names(labels: Sequence[str], width: str, share: float = 0.4) -> list[str]:
    """Return names beside a y axis, in lines of at most this share of the figure's width."""
    return ["<br>".join(wrapped(label, share * WIDTHS[width])) for label in labels]


def text_px(text: str, size: float = TYPE) -> float:
    """Return about how wide a text is."""
    return LETTER * size * max(len(re.sub(r"<[^>]*>", "", line)) for line in text.split("<br>"))


def level(fig: go.Figure, panels: Iterable[tuple[str, str]], y: float, label: str = "") -> None:
    """Draw a dotted line at a height across panels, each by the names of its axes, and its label in the first."""
    for rank, (x_name, y_name) in enumerate(panels):
        fig.add_shape(type="line", x0=0, x1=1, y0=y, y1=y, xref=f"{x_name} domain", yref=y_name,
                      line={"color": PALE, "width": 1, "dash": "2px,2px"})  # fmt: skip
        if label and not rank:
            at = math.log10(y) if fig.layout[y_name.replace("y", "yaxis")].type == "log" else y
            fig.add_annotation(text=label, x=0, y=at, xref=f"{x_name} domain", yref=y_name, xanchor="left",
                               yanchor="bottom", showarrow=False, borderpad=0,
                               font={"size": SMALL, "color": PALE})  # fmt: skip


def boxes(fig: go.Figure, colours: dict[str, str]) -> None:
    """Add names to the legend, each with a box in its colour."""
    for name, colour in colours.items():
        mark = {"symbol": "square", "size": 9, "color": colour, "line": {"color": PALE, "width": 0.5}}
        fig.add_trace(go.Scatter(x=[None], y=[None], mode="markers", name=name, marker=mark))


def sample(fig: go.Figure, name: str, look: Look) -> None:
    """Add a name to the legend, with a marker."""
    fig.add_trace(go.Scatter(x=[None], y=[None], mode="markers", name=name, marker=look.mark()))


def panels(
    xs: Sequence[Sequence[Axis]], ys: Sequence[Sequence[Axis]], width: str, heads: Sequence[str] = (),
    sides: Sequence[str] = (), gap: float = GAP,
) -> go.Figure:  # fmt: skip
    """Return a figure with a panel for each pair of axes, row by row; the last row may be shorter.

    Args:
        heads, sides: headings of panels, row by row, and of rows.
        gap: px between panels side by side.
    """
    rows, columns = len(xs), len(xs[0])
    specs: list[Any] = [[{} if column < len(line) else None for column in range(columns)] for line in xs]
    fig = make_subplots(
        rows, columns, specs=specs, horizontal_spacing=min(gap / WIDTHS[width], 0.9 / columns),
        vertical_spacing=0.5 / rows, subplot_titles=[*heads] or None, row_titles=[*sides] or None)  # fmt: skip
    axes = [pair for x_line, y_line in zip(xs, ys, strict=True) for pair in zip(x_line, y_line, strict=True)]
    numbers = ["", *map(str, range(2, len(axes) + 1))]
    scale(fig, {(f"x{at}", f"y{at}"): pair for at, pair in zip(numbers, axes, strict=True)}, width)
    return fig


def scale(fig: go.Figure, panels: Mapping[tuple[str, str], tuple[Axis, Axis]], width: str) -> None:
    """Set range, ticks and titles of panels, each by the names of its axes. Equal axes are zoomed together, and one
    above or beside an equal one has neither names nor title."""
    spans = {each: tuple(round(part, 6) for name in each for part in fig.layout[long(name)].domain) for each in panels}
    for way, letter in enumerate("xy"):
        first: dict[Axis, str] = {}
        for panel, span in spans.items():
            shown, mine = panels[panel][way], span[2 * (1 - way)]
            # the nearest one below in this column, or at the left in this row
            own = slice(2 * way, 2 * way + 2)
            nearer = [other for other, each in spans.items() if each[own] == span[own] and each[2 * (1 - way)] < mine]
            beside = max(nearer, key=lambda other: spans[other][2 * (1 - way)], default=None)
            alone = beside is None or panels[beside][way] != shown
            slot = WIDTHS[width] * (span[1] - span[0]) - 12
            words = shown.layout | ({"title_text": "<br>".join(wrapped(shown.title, slot))} if letter == "x" and alone
                                    else {"title_text": shown.title if alone else ""})  # fmt: skip
            if letter == "x" and shown.bare:
                words |= _under(shown, slot / max(1, len(shown.ticks)) - 4)
            name = first.setdefault(shown, panel[way])
            fig.layout[long(panel[way])].update(
                matches=name if name != panel[way] else None, showticklabels=alone, **words)  # fmt: skip


def _under(shown: Axis, slot: float) -> dict[str, Any]:
    """Return names in lines as wide as their slots; they are turned where a word is wider."""
    texts = [wrapped(text, slot) for _, text in shown.ticks]
    widest = max((text_px(line) for lines in texts for line in lines), default=0.0)
    turned = widest > slot + 4
    words = [text for _, text in shown.ticks] if turned else ["<br>".join(lines) for lines in texts]
    return {"tickangle": -90 if turned else 0, "ticktext": words}


def long(name: str) -> str:
    """Return the key in a layout of an axis: ``"x2"`` -> ``"xaxis2"``."""
    return f"{name[0]}axis{name[1:]}"


# -- rows of panels --------------------------------------------------------------------------------


def finish(
    fig: go.Figure, title: str, caption: Iterable[str], width: str = "page", heights: Sequence[float] = (), *,
    legend: bool = True, left: bool = False,
) -> go.Figure:  # fmt: skip
    """Set the title, wrap headings, and make the figure as high as its panels of so many px and their words need.

    Args:
        left: whether the headings of panels begin at their left.
    """
    if fig.layout.xaxis.domain is None:  # a figure without subplots
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
    """Set the rows of panels one under the other, their headings above them; the px above, of all rows, and below."""
    rows = sorted({axis.domain for axis in fig.select_yaxes()}, reverse=True)
    heights = list(heights) or [HEIGHT if len(rows) == 1 else FACET] * len(rows)
    heads: list[list[Any]] = [[] for _ in rows]
    for note in fig.layout.annotations:
        if (note.xref, note.yref) == ("paper", "paper"):
            ends = [sum(row) / 2 if note.textangle else row[1] for row in rows]
            heads[min(range(len(rows)), key=lambda at: abs(ends[at] - note.y))].append(note)
    spans = [axis.domain for axis in fig.select_xaxes()]
    beside = max((text_px(text) for axis in fig.select_yaxes() for text in axis.ticktext or ("100",)), default=0.0)
    over = [_write_heads(own, spans, WIDTHS[width] - beside - 24, left) for own in heads]
    under = [_below([axis for axis in fig.select_xaxes() if fig.layout[long(axis.anchor)].domain == row])
             for row in rows]  # fmt: skip
    gaps = [0.0, *(GAP + before + after for before, after in zip(under, over[1:], strict=False))]
    high = sum(heights) + sum(gaps)
    ends = [(sum(heights[:row]) + sum(gaps[: row + 1])) for row in range(len(rows))]
    places = {row: (max(0.0, 1 - (end + own) / high), 1 - end / high)
              for row, end, own in zip(rows, ends, heights, strict=True)}  # fmt: skip
    for own, row in zip(heads, rows, strict=True):
        for note in own:
            note.y = places[row][1]
    for shown, own_px in [(axis, heights[rows.index(axis.domain)]) for axis in fig.select_yaxes()]:
        text = shown.title.text or ""
        shown.update(domain=places[shown.domain], title_text="<br>".join(wrapped(text, max(1.15 * own_px, 80.0))))
    return over[0], high, under[-1]


def _write_heads(notes: Sequence[Any], spans: Sequence[tuple[float, float]], room: float, left: bool) -> float:
    """Wrap the headings over a row of panels, the row's own above its panels'; return the px they take."""
    high = 0.0
    for of_row in (False, True):
        own, begin = [note for note in notes if bool(note.textangle) == of_row], high
        for note in own:
            span = next((each for each in spans if abs(sum(each) / 2 - note.x) < 1e-3), (0.0, 1.0))
            lines = wrapped(re.sub(r"^(facet|row)=", "", note.text), room * (1 if of_row else span[1] - span[0]))
            text = "<br>".join(lines)
            note.update(text=text if text.startswith("<b>") else f"<b>{text}</b>", textangle=0, yshift=begin,
                        yanchor="bottom", font_size=TYPE, **({} if not of_row and not left else {
                            "x": 0 if of_row else span[0], "xanchor": "left", "align": "left"}))  # fmt: skip
            high = max(high, begin + ROW * len(lines))
    return high + (4 if high else 0)


def _below(shown: Iterable[Any]) -> float:
    """Return the px of the names and titles under a row of panels."""
    high = 0.0
    for each in shown:
        names_ = [str(text) for text in each.ticktext or ("",)] if each.showticklabels is not False else []
        ticks = max((text_px(text) if each.tickangle else ROW * (text.count("<br>") + 1) for text in names_),
                    default=0.0)  # fmt: skip
        words = each.title.text or ""
        high = max(high, 6 + ticks + (ROW * (words.count("<br>") + 1) + 4 if words else 0))
    return high


# -- under a figure --------------------------------------------------------------------------------


def caption_of(fig: go.Figure) -> list[str]:
    """Return the lines of a figure's caption."""
    return list((fig.layout.meta or {}).get("caption", []))


def heading_of(fig: go.Figure) -> str:
    """Return the sentence over a figure; "" if there is none."""
    return str((fig.layout.meta or {}).get("title", "") or re.sub(r"<[^>]*>", " ", fig.layout.title.text or "").strip())


def paper(fig: go.Figure) -> go.Figure:
    """Return a copy for a paper, which has its words under the figure: without the title. `heading_of` and
    `caption_of` are its caption."""
    above = (TITLE + 4) * (1 + fig.layout.title.text.count("<br>")) if fig.layout.title.text else 0
    made = go.Figure(fig).update_layout(title_text=None)
    if above and fig.layout.height is not None and fig.layout.margin.t is not None:
        made.update_layout(height=fig.layout.height - above, margin_t=fig.layout.margin.t - above)
    return made
