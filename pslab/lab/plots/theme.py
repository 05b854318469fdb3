"""The look of all figures: plotly's template "pslab", and the colour, dash and marker of each curve.

A policy has the same colour and marker in every figure, as its row in `pslab.config.table` says. Curves of one figure
differ in dash or marker too, for readers with a colour deficiency and for grey printers. The first three policies have
Paul Tol's high-contrast colours (SRON/EPS/TN/09-002, 2021).
"""

from __future__ import annotations

import colorsys
import dataclasses
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import plotly.graph_objects as go
import plotly.io as pio

from pslab.config.table import KINDS, ROWS, Row, find
from pslab.lab.plots.labels import number, parts

TYPE, SMALL, TITLE = 12, 10, 13  # px
LINE, MARK = 1.6, 6.0  # px
INK, PALE, GRID = "#222222", "#666666", "#E6E6E6"
DARK, SEEN = "#111111", 3.0  # a dark page, and the contrast at which a line is seen on it (WCAG 2.2, 1.4.11)
BEHIND = "#9A9A9A"  # the colour of curves behind the others
FONT = "Inter, Helvetica Neue, Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif"

#: The colours of names without a reserved colour; no policy has one of them.
OTHERS = ("#1878D8", "#D89060", "#306018", "#A81860", "#18C0A8", "#6018D8", "#C090D8", "#781890")
#: A colour that is hard to see on dark ground -> its replacement there, unlike the other colours for any colour vision.
ON_DARK: Mapping[str, str] = MappingProxyType({
    "#004488": "#C2E4FF", "#661133": "#FF669A", "#6600AA": "#C266FF", "#000000": "#D9D9D9", "#332288": "#6647FF",
    "#306018": "#B8F08F", "#A81860": "#FF578B", "#6018D8": "#8C47FF", "#781890": "#FBC2FF",
})  # fmt: skip
NUMBERS = ("#F2C14E", "#D9603B", "#8C2D62", "#2B1055")  # from the smallest to the largest
DASHES = ("solid", "6px,2.5px", "2px,2.5px", "8px,2.5px,2px,2.5px", "12px,3px", "10px,2.5px,2px,2.5px,2px,2.5px")
MARKERS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "star", "hexagon", "cross")
FILLS = ("", "-open", "-dot", "-open-dot")  # for curves that share a colour; some shapes do not have all fills

#: The colours of a worker's phases, in the order of the phases. Neighbours differ in lightness, and the phases that a
#: legend names for every kind of colour vision. There are no hatches: a browser prints them as large bitmaps.
PHASES: dict[str, str] = {
    "compute": "#004488", "select": "#DDAA33", "encode": "#F3DC9B", "push": "#138686", "apply": "#882244",
    "wait": "#DDDDDD", "serve": "#E26C5A", "pull": "#77CDF8", "decode": "#FBEFCB", "gap": "#FFFFFF",
}  # fmt: skip
SAVED, PAID = PHASES["push"], PHASES["serve"]  # seconds that a policy saves, and seconds that it costs


@dataclass(frozen=True)
class Look:
    """The colour, dash and marker of a curve, and the width of its line in px."""

    colour: str
    dash: str = "solid"
    marker: str = "circle"
    width: float = LINE

    @property
    def line(self) -> dict[str, Any]:
        """The properties of the curve's line in plotly."""
        return {"color": self.colour, "dash": self.dash, "width": self.width}

    @property
    def shape(self) -> str:
        """The marker's shape, without its fill."""
        return self.marker.removesuffix("-dot").removesuffix("-open")

    @property
    def thin(self) -> Look:
        """The same look with a thin solid line, for data behind a curve."""
        return dataclasses.replace(self, dash="solid", width=0.6 * LINE)

    @property
    def dark(self) -> Look:
        """The same look on dark ground."""
        return dataclasses.replace(self, colour=on_dark(self.colour))

    def mark(self, size: Any = MARK, ground: str = "white") -> dict[str, Any]:
        """Return the properties of the curve's marker in plotly. An edge in the ground's colour separates it from the
        line."""
        edge = {"color": self.colour, "width": 1.0} if "open" in self.marker else {"color": ground, "width": 0.5}
        return {"symbol": self.marker, "color": self.colour, "size": size, "opacity": 1, "line": edge}


SINGLE = Look(BEHIND, "2px,2.5px", "circle-open")  # the single machine beside several workers
BACK = Look(BEHIND, marker="circle-open")  # the curve behind the others in each panel
OWN_MARKERS = ("octagon", "triangle-left", "diamond-wide", "triangle-right", "diamond-tall")  # for users' policies
NO_ORDERS: Mapping[str, Sequence[Any]] = MappingProxyType({})
LEADING = ("sync", "prune", "rate", "order")  # columns with reserved colours: the first that varies gives the colour


# -- looks -----------------------------------------------------------------------------------------


def looks(
    keys: Sequence[Mapping[str, Any]], panels: Sequence[Iterable[Any]] | None = None,
    orders: Mapping[str, Sequence[Any]] = NO_ORDERS,
) -> list[Look]:  # fmt: skip
    """Return a look for each curve of a figure, given the values of the columns in which the curves differ.

    One column determines colour and marker: the first of LEADING whose values differ, else the first that differs. The
    other columns vary dash and fill, alike for every colour. Two curves of one panel always differ in dash or marker.

    Args:
        panels: for each curve, the panels that show it; None: all curves share one panel.
        orders: by column, all of its values, so that a value looks the same in figures that leave others out.
    """
    varying = [name for name in dict.fromkeys(name for key in keys for name in key)
               if len({repr(key.get(name)) for key in keys}) > 1]  # fmt: skip
    columns = varying or list(keys[0] if keys else ())
    lead = next((name for name in (*LEADING, *columns) if name in columns), "")
    values = {repr(key.get(lead)): key.get(lead) for key in keys}
    base = dict(zip(values, _leading(lead, list(values.values()), orders.get(lead, ())), strict=True))
    others = [repr([key.get(name) for name in varying if name != lead]) for key in keys]
    ranks = {other: rank for rank, other in enumerate(dict.fromkeys(others))}
    chosen = [base[repr(key.get(lead))] for key in keys]
    if len(ranks) > 1:
        chosen = [variant(look, ranks[other]) for look, other in zip(chosen, others, strict=True)]
    return told_apart(chosen, [{*panel} for panel in panels] if panels is not None else [{0}] * len(chosen))


def variant(look: Look, rank: int, first: int = 0) -> Look:
    """Return a look with the same colour and shape, and the dash and fill of this rank."""
    dash, fill = DASHES[(first + rank) % len(DASHES)], (known := fills(look.shape))[rank % len(known)]
    return dataclasses.replace(look, dash=dash, marker=look.shape + fill)


def fills(shape: str) -> tuple[str, ...]:
    """Return the fills that plotly has for a shape."""
    return FILLS[:2] if shape in ("hourglass", "bowtie") else FILLS


def told_apart(chosen: Sequence[Look], panels: Sequence[set[Any]]) -> list[Look]:
    """Return looks in which no two curves of one panel have the same dash and marker. The later curve gets another fill
    of its shape if both have one colour (as with two staleness bounds), else a shape that no curve has."""
    separate: list[Look] = []
    for look, panel in zip(chosen, panels, strict=True):
        beside = [other for other, theirs in zip(separate, panels, strict=False) if panel & theirs]
        foreign = {other.shape for other in chosen if other.colour != look.colour} - {look.shape}
        foreign |= {other.shape for other in beside if other.colour != look.colour}
        first = DASHES.index(look.dash) if look.dash in DASHES else 0
        options = [look, *(dataclasses.replace(look, dash=dash, marker=shape + fill)
                           for shape in dict.fromkeys((look.shape, *MARKERS)) for fill in fills(shape)
                           for dash in (*DASHES[first + 1 :], *DASHES[: first + 1]))]  # fmt: skip
        taken, markers = {(other.dash, other.marker) for other in beside}, {other.marker for other in beside}
        separate.append(min(options, key=lambda option: (
            (option.dash, option.marker) in taken, option.shape in foreign, option.shape != look.shape,
            option.marker in markers)))  # fmt: skip
    return separate


def _leading(column: str, values: Sequence[Any], order: Sequence[Any]) -> list[Look]:
    """Return a look for each value of a column: as its row says, by rank among numbers, or by rank in the order."""
    if values and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        ranks = [sorted(set(values)).index(value) for value in values]
        return [plain_look(rank, ramp(NUMBERS, rank / max(1, max(ranks)))) for rank in ranks]
    rows = [find(column, value) if column in KINDS else None for value in values]
    known: dict[str, Look] = {}
    for family in dict.fromkeys(row.name for row in rows if row is not None and row.ramp):
        members = [value for value, row in zip(values, rows, strict=True) if row is not None and row.name == family]
        known |= dict(zip(map(repr, members), _on_ramp(ROWS[column][family], members), strict=True))
    for value, row in zip(values, rows, strict=True):
        if row is not None and row.colour:
            rank = list(ROWS[row.kind]).index(row.name)
            known[repr(value)] = dataclasses.replace(plain_look(rank, row.colour), marker=row.marker or MARKERS[
                rank % len(MARKERS)])  # fmt: skip
        elif row is None and column in LEADING and isinstance(value, str):
            # a user's policy, such as "Turns(every=10)", or "Turns#4f65" in a record: its class gives the look
            rank = zlib.crc32(re.split(r"\W", value)[0].encode())
            known[repr(value)] = dataclasses.replace(plain_look(rank), marker=OWN_MARKERS[rank % len(OWN_MARKERS)])
    ranked = list(dict.fromkeys(map(repr, [*order, *values])))
    return [known.get(repr(value)) or plain_look(ranked.index(repr(value))) for value in values]


def plain_look(rank: int, colour: str = "") -> Look:
    """Return the look of the `rank`-th name without a reserved look."""
    return Look(colour or OTHERS[rank % len(OTHERS)], DASHES[rank % len(DASHES)], MARKERS[rank % len(MARKERS)])


def _on_ramp(row: Row, values: Sequence[Any]) -> list[Look]:
    """Return a look for each threshold of a pruning rule, by its colour ramp; the look is the same in every figure."""
    shares = [_share(list(row.ramp), _threshold(value)) for value in values]
    ranks, shapes = [round((len(row.ramp) - 1) * share) for share in shares], MARKERS[1:]  # the first: dense pushes
    return [Look(ramp(list(row.ramp.values()), share), DASHES[(1 + rank) % len(DASHES)], shapes[rank % len(shapes)])
            for rank, share in zip(ranks, shares, strict=True)]  # fmt: skip


def _threshold(value: Any) -> float | None:
    """Return the first parameter of a pruning rule if it is a number, else None."""
    _, positional, named = parts(value)
    first = [*positional, *(text for key, text in named.items() if key in ("fraction", "sigmas", "passes"))]
    return number(first[0]) if first else None


def _share(steps: Sequence[float], value: float | None) -> float:
    """Return the position of a value among the steps of a ramp, from 0 to 1; logarithmic between two steps."""
    if value is None or value <= 0:
        return 0.0
    logs = [math.log(step / steps[0]) / math.log(steps[-1] / steps[0]) for step in (*steps, value)]
    return float(np.interp(logs.pop(), logs, np.linspace(0, 1, len(steps))))


def ramp(colours: Sequence[str], share: float) -> str:
    """Return the colour at a position from 0 to 1 on a ramp of colours."""
    step = min(len(colours) - 2, int((len(colours) - 1) * share))
    low, high, rest = rgb(colours[step]), rgb(colours[step + 1]), (len(colours) - 1) * share - step
    return "#" + "".join(f"{round(a + rest * (b - a)):02X}" for a, b in zip(low, high, strict=True))


def rgb(colour: str) -> tuple[int, int, int]:
    """Return red, green and blue: ``"#004488"`` -> (0, 68, 136)."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def translucent(colour: str, alpha: float) -> str:
    """Return a colour in CSS with this opacity, from 0 to 1."""
    return f"rgba{(*rgb(colour), alpha)}"


def on_dark(colour: str) -> str:
    """Return the colour if it can be seen on dark ground, else a lighter colour of the same hue."""
    if contrast(colour, DARK) >= SEEN or colour in ON_DARK:
        return ON_DARK.get(colour, colour)
    hue, lightness, saturation = colorsys.rgb_to_hls(*(part / 255 for part in rgb(colour)))
    return "#" + "".join(f"{round(255 * part):02X}" for part in colorsys.hls_to_rgb(hue, 1 - lightness, saturation))


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, from 1 to 21 (WCAG 2.2, 2023)."""
    linear = [[part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in rgb(colour)]
              for colour in (one, other)]  # fmt: skip
    low, high = sorted(0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in linear)
    return (high + 0.05) / (low + 0.05)


def ink(colour: str) -> str:
    """Return black or white, whichever is easier to read on this colour."""
    red, green, blue = rgb(colour)
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 150 else "#FFFFFF"


# -- template --------------------------------------------------------------------------------------


def template(text: str = INK, grid: str = GRID, paper: str = "white") -> go.layout.Template:
    """Return a template with thin grids and ticks outside; the title is above the panels, and the legend below."""
    axis = {
        "showline": True, "linecolor": text, "linewidth": 0.8, "ticks": "outside", "ticklen": 3, "tickwidth": 0.8,
        "tickcolor": text, "gridcolor": grid, "gridwidth": 0.7, "zeroline": False, "automargin": True, "nticks": 6,
        "tickangle": 0, "title": {"standoff": 4, "font": {"size": TYPE}},
    }  # fmt: skip
    return go.layout.Template(layout={
        "font": {"family": FONT, "size": TYPE, "color": text},
        "paper_bgcolor": paper, "plot_bgcolor": paper, "colorway": list(OTHERS),
        "xaxis": axis, "yaxis": axis, "hovermode": "closest", "separators": ".\u202f",
        "hoverlabel": {"font": {"family": FONT, "size": TYPE}, "align": "left"},
        "title": {"x": 0, "xref": "container", "xanchor": "left", "yref": "container", "yanchor": "top",
                  "font": {"size": TITLE}, "pad": {"l": 6}},
        "legend": {"orientation": "h", "xref": "container", "x": 0, "yref": "container", "y": 0, "yanchor": "bottom",
                   "title": {"text": ""}, "traceorder": "normal"},
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8}, "minreducedheight": 10, "minreducedwidth": 10,
        "annotationdefaults": {"showarrow": False, "font": {"size": TYPE}},
    })  # fmt: skip


pio.templates["pslab"] = template()
