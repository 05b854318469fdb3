"""Why one policy is sooner at a goal than another, or needs fewer bytes: a waterfall from the default to the winner."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import pandas as pd
import plotly.graph_objects as go

from pslab.config.metric import ACCURACY
from pslab.errors import ConfigError
from pslab.lab.plots.arrange import WIDTHS, boxes, finish, names, panels, text_px
from pslab.lab.plots.axes import Axis, lanes
from pslab.lab.plots.charts.bars import AROUND, BAR
from pslab.lab.plots.labels import heading
from pslab.lab.plots.theme import PAID, PALE, SAVED, TYPE
from pslab.lab.records.intervals import records
from pslab.lab.records.merit import SECONDS, merit_of
from pslab.lab.records.summary import unit_of
from pslab.lab.records.units import SPACE

LEAST = 0.01  # of the longer run: pieces below it stand together
END = BAR / (BAR + AROUND)  # of a lane: a bar


class _Step(NamedTuple):
    """A bar of the waterfall: what a whole run needs, or a piece of the difference."""

    words: str
    size: float
    whole: bool = False
    bound: str = ""  #: before the number of one that ended before its time is known


def why(table: Any, title: Any = None, *, notes: Iterable[str] = (), width: str = "page") -> go.Figure:
    """Draw the time of the default and of the winner to the goal, and between them the seconds saved and paid: the
    savings first, the largest of each first, and all that is too small for a bar of its own at the end; of a table of
    choices, these one after another.

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
    steps, what, own = (_choices if "at_least" in found else _pieces)(found)
    merit, ends = merit_of(found.attrs["merit"]), [0.0]
    for step in steps:
        ends.append(step.size if step.whole else ends[-1] + step.size)
    most, low = max(ends), min(0.0, 1.02 * min(ends))
    signs = ["" if step.whole else "−" if step.size < 0 else "+" for step in steps]
    texts = [f"{step.bound}{sign}{merit.text(abs(step.size), most)}" for step, sign in zip(steps, signs, strict=True)]
    y_axis = lanes(names([step.words for step in steps], width))
    room = WIDTHS[width] - max(text_px(text) for _, text in y_axis.ticks) - 30
    high = low + (most - low) / (1 - min(0.6, (max(map(text_px, texts)) * 1.1 + 10) / room))
    x_axis = Axis(merit.title, low, high, sized=unit_of(merit.measure, ACCURACY).tick is not None)
    fig = panels([[x_axis]], [[y_axis]], width)
    bold = [f"<b>{text}</b>" if step.whole else text for step, text in zip(steps, texts, strict=True)]
    fig.add_trace(go.Waterfall(
        orientation="h", y=[*range(len(steps))], x=[step.size for step in steps], width=END, text=bold, name="",
        measure=["absolute" if step.whole else "relative" for step in steps], textposition="outside", cliponaxis=False,
        textfont_size=TYPE, connector={"line": {"color": PALE, "width": 0.8}}, decreasing={"marker": {"color": SAVED}},
        increasing={"marker": {"color": PAID}}, totals={"marker": {"color": PALE}}, showlegend=False,
        customdata=[f"<b>{step.words}</b><br>{text}" for step, text in zip(steps, texts, strict=True)],
        hovertemplate="%{customdata}<extra></extra>"))  # fmt: skip
    boxes(fig, {words: colour for words, colour, sign in (("saved", SAVED, "−"), ("paid", PAID, "+")) if sign in signs})
    return finish(fig, heading(title, [what]), [*found.attrs["caption"], *own, *notes], width,
                  [len(steps) * (BAR + AROUND) + 4])  # fmt: skip


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
    ends = (f"{facts[who]}: {facts[f'{who}_iterations']:.3g} iterations" for who in ("default", "winner"))
    stale = (f"at a mean staleness of {facts['winner_staleness']:.2g}; 95{SPACE}% of its pushes are at most "
             f"{facts['winner_stalest']:g} stale")  # fmt: skip
    who = "the mean worker does" if merit is SECONDS else "all workers do"
    how = (f"a piece: by how much more or less of it {who} in an iteration, times the iterations of the first policy; "
           "iterations: what the second one's further ones take, or its fewer ones save")  # fmt: skip
    whole = [_Step(facts[who], facts[f"{who}_need"], whole=True) for who in ("default", "winner")]
    return ([whole[0], *(_Step(*pair) for pair in shown), whole[1]], facts["sentence"],
            [f"{'; '.join(ends)}, {stale}", how, *filter(None, [facts["floor"]])])  # fmt: skip


def _choices(table: pd.DataFrame) -> tuple[list[_Step], str, list[str]]:
    """The same of choices one after another."""
    rows = records(table[["policy", "learning_rate", "need", "at_least"]])
    merit, last = merit_of(table.attrs["merit"]), rows[-1]
    found = [_Step(rows[0].policy, rows[0].need, True, "≥ " * rows[0].at_least)]
    for before, row in pairwise(rows):  # a piece is the difference of two of which one may be longer than is known
        found.append(_Step(row.policy, row.need - before.need, False, "≥ " if row.at_least else "≤ " * before.at_least))
    rates = f"learning rates, from above: {', '.join(f'{row.learning_rate:g}' for row in rows)}"
    own = [rates, *(["≥, ≤: a run of it was ended before it came to the goal"] if table.at_least.any() else [])]
    what = "time" if merit is SECONDS else merit.name
    whole = _Step(table.attrs["winner"], last.need, True, "≥ " * last.at_least)
    return [*found, whole], f"{what} to the goal, one choice after another", own
