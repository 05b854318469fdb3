"""A curve in one panel, and what plotly draws of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from pslab.lab.plots.page.axes import Axis
from pslab.lab.plots.page.theme import MARK, Look, translucent

MARKED = 11  # markers of a line with many points


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
