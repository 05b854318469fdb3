"""Curves of a panel, and their names with samples: at the ends of the curves, pushed apart, or in a legend below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from pslab.lab.plots.page.axes import ROW, Axis, text_px, wrapped
from pslab.lab.plots.page.theme import MARK, PALE, TYPE, Look, translucent

MARKED = 11  # markers of a line with many points
MOST = 5  # names of a row of panels that stand at the ends of its curves
GLYPH, LABEL = 24.0, 108.0  # px: the sample beside such a name, and the name's widest line
ENTRY, GAP = 19.0, 42.0  # px: a line of a legend; the sample of a name in it, and what is free around
BEYOND = 5.0  # px by which names may stand above or below their panel
BARE = {"showgrid": False, "showline": False, "showticklabels": False, "ticks": "", "fixedrange": True}


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
    hover = "%{hovertext}" if line.hover else "%{x}: %{y}"
    found.append(go.Scatter(
        x=x, y=y, mode=mode, line={**look.line, **shape}, marker=look.mark(_sizes(len(x)) if line.joined else MARK),
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
    columns = max(1, int(width / (text + GAP)))
    rows = [names[first : first + columns] for first in range(0, len(names), columns)]
    height = sum(ENTRY + ROW * max(name.count("<br>") for name in row) for row in rows)
    return (8 + height if keys else 0.0), text


def in_legend(label: str, width: float) -> str:
    """A name as it stands in a legend of this width."""
    return "<br>".join(wrapped(label, width - GAP - 6, most=3))


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
