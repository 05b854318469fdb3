"""Why one policy is sooner at a goal than another, or needs fewer bytes: a waterfall from the default to the winner."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import pandas as pd
import plotly.graph_objects as go

from pslab.config.metric import ACCURACY
from pslab.errors import ConfigError
from pslab.lab.plots.charts.bars import AROUND, BAR
from pslab.lab.plots.labels import heading
from pslab.lab.plots.page.axes import NAMED, Axis, categories, fitting, text_px
from pslab.lab.plots.page.page import Key, Page
from pslab.lab.plots.page.theme import PAID, PALE, SAVED, TYPE, WIDTHS, Look
from pslab.lab.records.intervals import records
from pslab.lab.records.merit import SECONDS, Merit, merit_of
from pslab.lab.records.summary import unit_of
from pslab.lab.records.units import SPACE, plain

LEAST = 0.01  # of the longer run: pieces below it stand together
END = BAR / (BAR + AROUND)  # of a lane: a bar


class _Step(NamedTuple):
    """A bar of the waterfall."""

    words: str
    begin: float
    end: float
    merit: Merit
    whole: bool = False  #: of a run; else a piece of the difference
    bound: str = ""  #: before the number of one that ended before its time is known

    def text(self, most: float) -> str:
        """Its size; of a piece with its sign."""
        sign = "" if self.whole else "−" if self.end < self.begin else "+"
        return f"{self.bound}{sign}{self.merit.text(abs(self.end - self.begin), most)}"

    @property
    def colour(self) -> str:
        return PALE if self.whole else SAVED if self.end < self.begin else PAID


def why(table: Any, title: Any = None, *, notes: Iterable[str] = (), width: str = "page") -> go.Figure:
    """What the default and the winner need to the goal, and between them what is saved and what is paid: the savings
    first, the largest of each first, and what is too small for a bar of its own at the end; of a table of choices,
    these one after another.

    Args:
        table: of `why` or of `by_choice` in pslab.lab.advise.why, or the answer of `advise`, which has one.
        title: a sentence or a Claim; None: the largest savings and prices.
        notes: more lines for the caption.
        width: page (7.16 in) or column (3.5 in).

    Raises:
        ConfigError: it is no such table.
    """
    found = getattr(table, "why", table)
    if not isinstance(found, pd.DataFrame) or "winner" not in found.attrs:
        problem = "must be the answer of advise(...), or a table that why or by_choice of pslab.lab.advise.why made"
        raise ConfigError("table", type(table).__name__, problem)
    chosen = "at_least" in found
    steps, what, own = (_choices if chosen else _pieces)(found)
    most = max(max(step.begin, step.end) for step in steps)
    lanes = categories([step.words for step in steps], downwards=True, widest=NAMED * WIDTHS[width])
    page = Page([[_axis(steps, most, WIDTHS[width] - lanes.ticks_px - 30)]], [[lanes]], width=width,
                heights=[len(steps) * (BAR + AROUND) + 4])  # fmt: skip
    page.add(0, 0, *(_bar(step, at, most) for at, step in enumerate(steps)))
    for at, (step, after) in enumerate(pairwise(steps)):  # from the end of a bar to the begin of the next
        x = after.end if after.whole else step.end
        page.add(0, 0, go.Scatter(x=[x, x], y=[at + END / 2, at + 1 - END / 2], mode="lines", hoverinfo="skip",
                                  showlegend=False, line={"color": PALE, "width": 0.8}))  # fmt: skip
    for at, step in enumerate(steps):
        text = f"<b>{step.text(most)}</b>" if step.whole else step.text(most)
        page.write_in(0, 0, text, max(step.begin, step.end), at, xanchor="left", xshift=4, font={"size": TYPE})
    keys = [Key(words, Look(colour), "box") for words, colour in (("saved", SAVED), ("paid", PAID))
            if any(step.colour == colour for step in steps)]  # fmt: skip
    return page.finish(heading(title, [what]), [*found.attrs["caption"], *own, *notes], keys)


def _pieces(table: pd.DataFrame) -> tuple[list[_Step], str, list[str]]:
    """The bars from above: the default, the savings, the prices, all that is small, the winner; what they show; and the
    caption's words on them."""
    facts = table.attrs
    least, merit = LEAST * max(facts["default_need"], facts["winner_need"]), merit_of(facts["merit"])
    rows = [(str(row.words), float(row.difference)) for row in records(table[["words", "difference"]])]
    shown = sorted((pair for pair in rows if abs(pair[1]) >= least), key=lambda pair: (pair[1] > 0, -abs(pair[1])))
    small = sum(size for _, size in rows if abs(size) < least)
    if abs(small) >= least:
        shown.append(("smaller pieces", small))
    found, at = [_Step(facts["default"], 0.0, facts["default_need"], merit, whole=True)], facts["default_need"]
    for words, size in shown:
        found.append(_Step(words, at, at + size, merit))
        at += size
    ends = (f"{facts[who]}: {facts[f'{who}_iterations']:.3g} iterations" for who in ("default", "winner"))
    stale = (f"at a mean staleness of {facts['winner_staleness']:.2g}; 95{SPACE}% of its pushes are at most "
             f"{facts['winner_stalest']:g} stale")  # fmt: skip
    who = "the mean worker does" if merit is SECONDS else "all workers do"
    how = (f"a piece: by how much more or less of it {who} in an iteration, times the iterations of the first policy; "
           "iterations: what the second one's further ones take, or its fewer ones save")  # fmt: skip
    whole = _Step(facts["winner"], 0.0, facts["winner_need"], merit, whole=True)
    floor = [facts["floor"]] if facts["floor"] else []
    return [*found, whole], facts["sentence"], [f"{'; '.join(ends)}, {stale}", how, *floor]


def _choices(table: pd.DataFrame) -> tuple[list[_Step], str, list[str]]:
    """The same of choices one after another."""
    first, *rest = rows = records(table[["policy", "learning_rate", "need", "at_least"]])
    merit = merit_of(table.attrs["merit"])
    found = [_Step(first.policy, 0.0, first.need, merit, True, "≥ " * first.at_least)]
    for before, row in pairwise(rows):  # a piece is the difference of two of which one may be longer than is known
        bound = "≥ " if row.at_least else "≤ " if before.at_least else ""
        found.append(_Step(row.policy, before.need, row.need, merit, bound=bound))
    last = rest[-1] if rest else first
    rates = f"learning rates, from above: {', '.join(f'{row.learning_rate:g}' for row in rows)}"
    own = [rates, *(["≥, ≤: a run of it was ended before it came to the goal"] if table.at_least.any() else [])]
    whole = _Step(table.attrs["winner"], 0.0, last.need, merit, True, "≥ " * last.at_least)
    what = "time" if merit is SECONDS else merit.name
    return [*found, whole], f"{what} to the goal, one choice after another", own


def _axis(steps: list[_Step], most: float, room: float) -> Axis:
    """From 0, with room for the numbers behind the bars, in a panel of so many px."""
    low = min(0.0, *(1.02 * min(step.begin, step.end) for step in steps))
    text = max(text_px(step.text(most)) for step in steps) * 1.1 + 10
    end = low + (most - low) / (1 - min(0.6, text / room))
    merit = steps[0].merit
    tick = unit_of(merit.measure, ACCURACY).tick
    ticks = fitting(low, most, room * (most - low) / (end - low), partial(tick, most=most) if tick else plain)
    return Axis(merit.title, low, end, ticks=ticks)


def _bar(step: _Step, at: int, most: float) -> go.Bar:
    return go.Bar(
        x=[step.end - step.begin], base=[step.begin], y=[at], width=END, orientation="h", showlegend=False,
        name=step.words, marker={"color": step.colour, "line": {"width": 0}},
        hovertemplate=f"<b>{step.words}</b><br>{step.text(most)}<extra></extra>")  # fmt: skip
