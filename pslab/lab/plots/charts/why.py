"""Why one policy reaches a goal sooner, or with fewer bytes, than another: a waterfall chart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from pslab.config.metric import ACCURACY
from pslab.errors import ConfigError
from pslab.lab.plots.arrange import WIDTHS, boxes, finish, names, panels, text_px
from pslab.lab.plots.axes import Axis, lane_px, lanes
from pslab.lab.plots.charts.bars import AROUND, BAR
from pslab.lab.plots.labels import heading
from pslab.lab.plots.theme import PAID, PALE, SAVED, TYPE
from pslab.lab.records.merit import SECONDS, merit_of
from pslab.lab.records.summary import unit_of
from pslab.lab.records.units import SPACE

LEAST = 0.01  # pieces below this share of the longer run are summed up
END = BAR / (BAR + AROUND)  # the height of a bar, as a share of its lane


def why(table: Any, title: Any = None, *, notes: Iterable[str] = (), width: str = "page") -> go.Figure:
    """Draw what the default and the winner take to reach the goal, and between them the pieces of the difference.

    Savings come first, then additional costs, the largest of each first. Small pieces are summed up at the end.

    Args:
        table: the table that `why` of pslab.lab.advise.why makes, or the answer of `advise`, which has one.
        title: a sentence or a Claim; None: the largest savings and additional costs.
        notes, width: as in `points`.

    Raises:
        ConfigError: `table` is no such table or answer.
    """
    pieces = getattr(table, "why", table)
    if not isinstance(pieces, pd.DataFrame) or "winner" not in pieces.attrs:
        problem = "must be the answer of advise(...), or a table that why of pslab.lab.advise.why made"
        raise ConfigError("table", type(table).__name__, problem)
    facts, merit = pieces.attrs, merit_of(pieces.attrs["merit"])
    steps = _differences(pieces)
    bars = [(facts["default"], facts["default_need"]), *steps, (facts["winner"], facts["winner_need"])]
    words, sizes = (list(column) for column in zip(*bars, strict=True))
    whole = [True, *[False] * len(steps), True]
    ends = [sum(sizes[: count + 1]) for count in range(len(steps) + 1)]
    most, low = max(0.0, *ends, sizes[-1]), min(0.0, 1.02 * min(ends))
    signs = ["" if total else "−" if size < 0 else "+" for size, total in zip(sizes, whole, strict=True)]
    texts = [f"{sign}{merit.text(abs(size), most)}" for size, sign in zip(sizes, signs, strict=True)]
    y_axis = lanes(names(words, width))
    room = WIDTHS[width] - max(text_px(text) for _, text in y_axis.ticks) - 30
    high = low + (most - low) / (1 - min(0.6, (max(map(text_px, texts)) * 1.1 + 10) / room))
    x_axis = Axis(merit.title, low, high, sized=unit_of(merit.measure, ACCURACY).tick is not None)
    fig = panels([[x_axis]], [[y_axis]], width)
    ends.append(sizes[-1])
    begins = [0.0 if total else before for before, total in zip([0.0, *ends], whole, strict=False)]
    fig.add_trace(go.Scatter(
        x=[x for end in ends[:-1] for x in (end, end, None)], showlegend=False, hoverinfo="skip", mode="lines", name="",
        y=[y for rank in range(len(steps) + 1) for y in (rank + END / 2, rank + 1 - END / 2, None)],
        line={"color": PALE, "width": 0.8}))  # fmt: skip
    fig.add_trace(go.Bar(
        orientation="h", y=[*range(len(bars))], x=[abs(end - begin) for begin, end in zip(begins, ends, strict=True)],
        base=[*map(min, begins, ends)], width=END, name="", textposition="outside", cliponaxis=False,
        text=[f"<b>{text}</b>" if total else text for text, total in zip(texts, whole, strict=True)],
        marker={"color": [{"": PALE, "−": SAVED, "+": PAID}[sign] for sign in signs]},
        textfont_size=TYPE, showlegend=False,
        customdata=[f"<b>{name}</b><br>{text}" for name, text in zip(words, texts, strict=True)],
        hovertemplate="%{customdata}<extra></extra>"))  # fmt: skip
    boxes(fig, {name: colour for name, colour, sign in (("saved", SAVED, "−"), ("paid", PAID, "+")) if sign in signs})
    counts = (f"{facts[side]}: {facts[f'{side}_iterations']:.3g} iterations" for side in ("default", "winner"))
    stale = (f"at a mean staleness of {facts['winner_staleness']:.2g}; 95{SPACE}% of its pushes have at most "
             f"{facts['winner_stalest']:g}")  # fmt: skip
    workers = "the mean worker" if merit is SECONDS else "all workers"
    rule = (f"a piece: the difference in an iteration of {workers}, times the first policy's iterations; "
            "iterations: the cost of the second policy's additional iterations, or what fewer ones save")  # fmt: skip
    lines = [*facts["caption"], f"{'; '.join(counts)}, {stale}", rule, *notes]
    height = len(bars) * lane_px(y_axis, BAR + AROUND) + 4
    return finish(fig, heading(title, [facts["sentence"]]), lines, width, [height])


def _differences(table: pd.DataFrame) -> list[tuple[str, float]]:
    """Return (words, size) of each piece: savings, additional costs, and the sum of all small pieces."""
    least = LEAST * max(table.attrs["default_need"], table.attrs["winner_need"])
    rows = list(zip(table.words, map(float, table.difference), strict=True))
    shown = sorted((row for row in rows if abs(row[1]) >= least), key=lambda row: (row[1] > 0, -abs(row[1])))
    small = sum(size for _, size in rows if abs(size) < least)
    return shown + ([("smaller pieces", small)] if abs(small) >= least else [])
