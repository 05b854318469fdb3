"""How every figure looks: one template of plotly, named "pslab", and how each curve is drawn.

A policy keeps its colour and marker in every figure: they stand in the rows of `pslab.config.table`. Curves of one
figure differ in dash or marker too, for readers who see no red, green or blue, and for grey printers. The first three
policies carry Paul Tol's high-contrast colours (SRON/EPS/TN/09-002, 2021).
"""

from __future__ import annotations

import colorsys
import dataclasses
import math
import re
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
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
BEHIND = "#9A9A9A"  # what stands behind the others
FONT = "Inter, Helvetica Neue, Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif"

#: Of names without a reserved colour; no policy has them.
OTHERS = ("#1878D8", "#D89060", "#306018", "#A81860", "#18C0A8", "#6018D8", "#C090D8", "#781890")
#: The colours on dark ground in place of colours that cannot be seen there, unlike the visible ones for every eye.
ON_DARK: Mapping[str, str] = MappingProxyType({
    "#004488": "#C2E4FF", "#661133": "#FF669A", "#6600AA": "#C266FF", "#000000": "#D9D9D9", "#332288": "#6647FF",
    "#306018": "#B8F08F", "#A81860": "#FF578B", "#6018D8": "#8C47FF", "#781890": "#FBC2FF",
})  # fmt: skip
NUMBERS = ("#F2C14E", "#D9603B", "#8C2D62", "#2B1055")  # from the smallest to the largest
DASHES = ("solid", "6px,2.5px", "2px,2.5px", "8px,2.5px,2px,2.5px", "12px,3px", "10px,2.5px,2px,2.5px,2px,2.5px")
MARKERS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "star", "hexagon", "cross")
FILLS = ("", "-open", "-dot", "-open-dot")  # of curves that share a colour; not every shape has all of them

#: The parts of a worker's time, in the order in which they happen. Neighbours differ in lightness, and what a legend
#: names differs for every eye; there are no hatches, because a browser prints them as large bitmaps.
PHASES: dict[str, str] = {
    "compute": "#004488", "select": "#DDAA33", "encode": "#F3DC9B", "push": "#138686", "apply": "#882244",
    "wait": "#DDDDDD", "serve": "#E26C5A", "pull": "#77CDF8", "decode": "#FBEFCB", "gap": "#FFFFFF",
}  # fmt: skip
SAVED, PAID = PHASES["push"], PHASES["serve"]  # seconds that a policy saves, and seconds that it costs


@dataclass(frozen=True)
class Look:
    """How one curve is drawn; lengths in px."""

    colour: str
    dash: str = "solid"
    marker: str = "circle"
    width: float = LINE

    @property
    def line(self) -> dict[str, Any]:
        """Plotly's line."""
        return {"color": self.colour, "dash": self.dash, "width": self.width}

    @property
    def shape(self) -> str:
        """The marker without its fill."""
        return self.marker.removesuffix("-dot").removesuffix("-open")

    @property
    def thin(self) -> Look:
        """Return the look of bands and twins behind a curve of this look."""
        return dataclasses.replace(self, dash="solid", width=0.6 * LINE)

    @property
    def dark(self) -> Look:
        """On dark ground."""
        return dataclasses.replace(self, colour=on_dark(self.colour))

    def mark(self, size: Any = MARK, ground: str = "white") -> dict[str, Any]:
        """Plotly's marker. An edge of the ground's colour sets it off its own line."""
        edge = {"color": self.colour, "width": 1.0} if "open" in self.marker else {"color": ground, "width": 0.5}
        return {"symbol": self.marker, "color": self.colour, "size": size, "opacity": 1, "line": edge}


SINGLE = Look(BEHIND, "2px,2.5px", "circle-open")  # the single machine beside several workers
BACK = Look(BEHIND, marker="circle-open")  # the curve that stands behind the others of each panel
OWN_MARKERS = ("octagon", "triangle-left", "diamond-wide", "triangle-right", "diamond-tall")  # no row has them
NO_ORDERS: Mapping[str, Sequence[Any]] = MappingProxyType({})
LEADING = ("sync", "prune", "rate", "order")  # which of several columns gives the colour, if it has reserved ones


# -- looks -----------------------------------------------------------------------------------------


def looks(
    keys: Sequence[Mapping[str, Any]], panels: Sequence[Iterable[Any]] | None = None,
    orders: Mapping[str, Sequence[Any]] = NO_ORDERS,
) -> list[Look]:  # fmt: skip
    """A look for each of the figure's curves, given the values of the columns in which they differ.

    One column gives colour and marker: the first of LEADING whose values differ, else the first that differs. The other
    columns vary dash and fill, alike under every colour. Two curves of one panel always differ in dash or marker.

    Args:
        panels: the panels in which each of them is drawn; None: all in one.
        orders: all values of a column, so that a name looks the same in figures that leave others out.
    """
    varying = [name for name in dict.fromkeys(name for key in keys for name in key)
               if len({repr(key.get(name)) for key in keys}) > 1]  # fmt: skip
    own = varying or list(keys[0] if keys else ())
    lead = next((name for name in (*LEADING, *own) if name in own), "")
    values = {repr(key.get(lead)): key.get(lead) for key in keys}
    base = dict(zip(values, _leading(lead, list(values.values()), orders.get(lead, ())), strict=True))
    others = [repr([key.get(name) for name in varying if name != lead]) for key in keys]
    ranks = {other: rank for rank, other in enumerate(dict.fromkeys(others))}
    found = [base[repr(key.get(lead))] for key in keys]
    if len(ranks) > 1:
        found = [variant(look, ranks[other]) for look, other in zip(found, others, strict=True)]
    return told_apart(found, [{*panel} for panel in panels] if panels is not None else [{0}] * len(found))


def variant(look: Look, rank: int, first: int = 0) -> Look:
    """The same colour and shape with another dash and fill."""
    dash, fill = DASHES[(first + rank) % len(DASHES)], (own := fills(look.shape))[rank % len(own)]
    return dataclasses.replace(look, dash=dash, marker=look.shape + fill)


@cache
def fills(shape: str) -> tuple[str, ...]:
    """The fills that plotly draws of a shape: an hourglass has no dot."""
    return tuple(fill for fill in FILLS if _drawn(shape + fill))


def _drawn(marker: str) -> bool:
    try:
        go.scatter.Marker(symbol=marker)
    except ValueError:
        return False
    return True


def told_apart(found: Sequence[Look], panels: Sequence[set[Any]]) -> list[Look]:
    """Give the second of two curves in one panel with the same marker another: another shape if they differ in colour
    and one is free, else another dash and fill (two staleness bounds, say), and where all of them are taken another
    shape with them."""
    separate: list[Look] = []
    for own, panel in zip(found, panels, strict=True):
        look, beside = own, [other for other, theirs in zip(separate, panels, strict=False) if panel & theirs]
        shapes = {other.shape: other.colour for other in beside}
        if shapes.get(look.shape, look.colour) != look.colour:
            reserved = {*shapes, *(each.shape for each in found)}
            free_shape = next((each for each in MARKERS if each not in reserved), "")
            look = dataclasses.replace(look, marker=free_shape or look.marker)
        taken = {(other.dash, other.marker) for other in beside}
        markers = {marker for _, marker in taken}  # all that is seen of points that are not joined
        shapes_left = (shape for shape in MARKERS if shape != look.shape)
        free = next(filter(None, (_free(look, taken, shape) for shape in (look.shape, *shapes_left))), [look])
        separate.append(next((each for each in free if each.marker not in markers), free[0]))
    return separate


def _free(look: Look, taken: Collection[tuple[str, str]], shape: str) -> list[Look]:
    """The looks of this colour and shape that are not taken: the nearest first, then every dash with every fill."""
    own = dataclasses.replace(look, marker=look.marker if shape == look.shape else shape)
    first = DASHES.index(look.dash) if look.dash in DASHES else 0
    near = [own, *(variant(own, rank, first) for rank in range(len(DASHES) * len(FILLS)))]
    every = (dataclasses.replace(own, marker=shape + fill, dash=dash) for fill in fills(shape) for dash in DASHES)
    return [look for look in dict.fromkeys([*near, *every]) if (look.dash, look.marker) not in taken]


def _leading(column: str, values: Sequence[Any], order: Sequence[Any]) -> list[Look]:
    """Looks by the values of one column; names without a reserved look have it by their place in the order."""
    rows = [find(column, value) if column in KINDS else None for value in values]
    if values and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        ascending = sorted(set(values))
        places = [ascending.index(value) for value in values]
        return [plain_look(place, ramp(NUMBERS, place / max(1, len(ascending) - 1))) for place in places]
    ranks = {repr(value): rank for rank, value in enumerate(dict.fromkeys([*order, *values]))}
    found: dict[str, Look] = {}
    for family in dict.fromkeys(row.name for row in rows if row is not None and row.ramp):
        own = [value for value, row in zip(values, rows, strict=True) if row is not None and row.name == family]
        found |= dict(zip(map(repr, own), _on_ramp(ROWS[column][family], own), strict=True))
    found |= {repr(value): _reserved(row) for value, row in zip(values, rows, strict=True) if row and row.colour}
    found |= {repr(value): _own_look(value) for value, row in zip(values, rows, strict=True)
              if column in LEADING and row is None and isinstance(value, str)}  # fmt: skip
    return [found.get(repr(value)) or plain_look(ranks[repr(value)]) for value in values]


def _own_look(value: str) -> Look:
    """The look of an own policy, by the name of its class: ``"Turns(every=10)"``, or ``"Turns#4f65"`` of a record.

    It is the same in each figure of a study, with any other curves in it."""
    rank = zlib.crc32(re.split(r"\W", value)[0].encode())
    return dataclasses.replace(plain_look(rank), marker=OWN_MARKERS[rank % len(OWN_MARKERS)])


def plain_look(rank: int, colour: str = "") -> Look:
    """The look of a name without a reserved one."""
    return Look(colour or OTHERS[rank % len(OTHERS)], DASHES[rank % len(DASHES)], MARKERS[rank % len(MARKERS)])


def _reserved(row: Row) -> Look:
    rank = list(ROWS[row.kind]).index(row.name)
    return Look(row.colour, DASHES[rank % len(DASHES)], row.marker or MARKERS[rank % len(MARKERS)])


def _on_ramp(row: Row, values: Sequence[Any]) -> list[Look]:
    """A rule's thresholds from the mildest to the strongest.

    A threshold has its place on the ramp in every figure, unless two of them would look alike: then all are spread.
    """
    fixed = [_place(list(row.ramp), _threshold(value)) for value in values]
    keys = [repr(value) if place is None else f"{place:.9f}" for value, place in zip(values, fixed, strict=True)]
    places = {key: place for key, place in sorted(zip(keys, fixed, strict=True)) if place is not None}
    ranks = {key: round((len(row.ramp) - 1) * place) for key, place in places.items()}
    if None in fixed or len({*ranks.values()}) < len(ranks):
        ranks = {key: rank for rank, key in enumerate(dict.fromkeys([*places, *keys]))}
        places = {key: rank / max(1, len(ranks) - 1) for key, rank in ranks.items()}
    colours, shapes = list(row.ramp.values()), MARKERS[1:]  # the first one is for dense gradients
    return [Look(ramp(colours, places[key]), DASHES[(1 + ranks[key]) % len(DASHES)], shapes[ranks[key] % len(shapes)])
            for key in keys]  # fmt: skip


def _threshold(value: Any) -> float | None:
    """The first parameter of a pruning rule, if it is a number."""
    _, positional, named = parts(value)
    first = [*positional, *(text for key, text in named.items() if key in ("fraction", "sigmas", "passes"))]
    return number(first[0]) if first else None


def _place(steps: Sequence[float], value: float | None) -> float | None:
    """Return the position of a value among the steps of a ramp, from 0 to 1; logarithmic between two steps."""
    if value is None or value <= 0:
        return None
    at = [math.log(step / steps[0]) / math.log(steps[-1] / steps[0]) for step in (*steps, value)]
    return float(np.interp(at.pop(), at, np.linspace(0, 1, len(steps))))


def ramp(colours: Sequence[str], place: float) -> str:
    """The colour at a place from 0 to 1."""
    step = min(len(colours) - 2, int((len(colours) - 1) * place))
    low, high, share = rgb(colours[step]), rgb(colours[step + 1]), (len(colours) - 1) * place - step
    return "#" + "".join(f"{round(a + share * (b - a)):02X}" for a, b in zip(low, high, strict=True))


def rgb(colour: str) -> tuple[int, int, int]:
    """``"#004488"`` -> (0, 68, 136)."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def translucent(colour: str, alpha: float) -> str:
    """The colour of a band under its line."""
    return f"rgba{(*rgb(colour), alpha)}"


def on_dark(colour: str) -> str:
    """The colour itself if it can be seen on dark ground; else a lighter one of that hue."""
    if contrast(colour, DARK) >= SEEN or colour in ON_DARK:
        return ON_DARK.get(colour, colour)
    hue, lightness, saturation = colorsys.rgb_to_hls(*(part / 255 for part in rgb(colour)))
    return "#" + "".join(f"{round(255 * part):02X}" for part in colorsys.hls_to_rgb(hue, 1 - lightness, saturation))


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, from 1 to 21 (WCAG 2.2, 2023)."""
    linear = [[part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in rgb(each)]
              for each in (one, other)]  # fmt: skip
    low, high = sorted(0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in linear)
    return (high + 0.05) / (low + 0.05)


def ink(colour: str) -> str:
    """Black or white, whichever can be read on this colour."""
    red, green, blue = rgb(colour)
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 150 else "#FFFFFF"


# -- template --------------------------------------------------------------------------------------


def template(text: str = INK, grid: str = GRID, paper: str = "white") -> go.layout.Template:
    """White paper, thin grid, ticks outside; the title above and the legend below, where plotly measures their room."""
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
