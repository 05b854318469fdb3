"""The map of clusters: the soonest policy on each, and how much later each other policy is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from pslab.errors import ConfigError
from pslab.lab.plots.arrange import GAP, WIDTHS, boxes, finish, names, panels, text_px, wrapped
from pslab.lab.plots.axes import Axis, axis, categories, lanes
from pslab.lab.plots.charts.bars import CELL
from pslab.lab.plots.charts.panels import in_rows
from pslab.lab.plots.labels import bits, duration, heading, name
from pslab.lab.plots.theme import GRID, MARK, OTHERS, PALE, SMALL, TYPE, Look, ink, looks
from pslab.lab.records.intervals import records
from pslab.lab.records.units import SPACE, plain

TITLES = {"bandwidth_bit_s": "bandwidth of a worker", "spread": "slowest / fastest worker"}
LANE, LINE = 30.0, 12.0  # px: the height of a policy's line; of a line of small type
AROUND = 90.0  # px: ticks and titles beside the panels
NAMED_TIES = 2  # policies that a cell names; of more it says how many
STEPS = (0.0, 0.2, -0.2, 0.1, -0.1)  # of a lane: dots near each other lie one over the other
KNOWN = ["policy", "how", "times"]  # of a cell, beside its axes


def where(found: Any, title: Any = None, *, notes: Iterable[str] = (), width: str = "page") -> go.Figure:
    """Draw each cluster in the colour of its soonest policy, with how many times sooner than the default it is, and
    the policies that tie with it; of three axes in a panel for each value of the third. And draw
    a line for each policy, with a dot for each cluster at how many times the soonest there it takes; policies with the
    least worst come first.

    Args:
        found: the map that `advise_map` returns.
        title: a sentence or a Claim; None: which policy is never far from the soonest.
        notes: more lines for the caption.
        width: page (7.16 in: two panels beside each other) or column (3.5 in: one under the other).

    Raises:
        ConfigError: it is no such map.
    """
    if not hasattr(found, "best_everywhere"):
        raise ConfigError("found", type(found).__name__, "must be what advise_map(...) returns")
    table, winner, regret = found.table, found.winner, found.regret
    facts, (x_name, y_name, *further) = table.attrs, table.attrs["axes"]
    colours = _looks(facts["policies"], winner)
    xs, ys = (list(dict.fromkeys(winner[column])) for column in (x_name, y_name))
    x_axis = categories([_entry(x_name, value) for value in xs], _titled(x_name))
    y_axis = categories([_entry(y_name, value) for value in ys], _titled(y_name))
    policies = [f"<b>{label}</b>" if label == found.best_everywhere else label for label in regret.index]
    soonest = f"the soonest, and how many times sooner than {facts['default']}"
    shown = {f"{_titled(name)} {_entry(name, value)}": own for name in further
             for value, own in winner.groupby(name, sort=False)} or {soonest: winner}  # fmt: skip
    columns = 2 if width == "page" else 1
    y_lanes, times = lanes(names(policies, width, 0.2 if columns > 1 else 0.27)), _times(table)
    room = (WIDTHS[width] - AROUND - max(text_px(text) for _, text in y_lanes.ticks) * (columns > 1)) / columns - GAP
    cells = {head: [_text(row, facts, room / len(xs) - 1) for row in records(own)] for head, own in shown.items()}
    high = max(CELL, max(len(lines) for texts in cells.values() for lines in texts) * LINE + 8) * len(ys)
    x_rows = in_rows([*[x_axis] * len(shown), _far_axis(times, room)], columns)
    y_rows = in_rows([*[y_axis] * len(shown), y_lanes], columns)
    lane = max(LANE, *(13 * text.count("<br>") + 17 for _, text in y_lanes.ticks))
    last = max(lane * len(policies), high * bool(len(shown) % columns))
    heights = [max(each) for each in in_rows([*[high] * len(shown), last], columns)]
    gap = max(text_px(text) for _, text in (*y_lanes.ticks, *y_axis.ticks)) + 40
    heads = [*shown, "times the soonest of its cluster"]
    fig = panels(x_rows, y_rows, width, heads, gap=gap)
    notes_in: list[dict[str, Any]] = []
    for rank, (head, own) in enumerate(shown.items()):
        tight = any(text_px(first) > room / len(xs) - 1 for first, *_ in cells[head])
        for row, lines in zip(records(own), cells[head], strict=True):
            at, look = (xs.index(getattr(row, x_name)), ys.index(getattr(row, y_name))), colours.get(row.policy)
            notes_in += _cell(fig, rank, columns, row, lines, at, look, SMALL if tight else TYPE)
    row, column = (each + 1 for each in divmod(len(shown), columns))
    number = str(len(shown) + 1)
    for rank, label in enumerate(regret.index):
        for trace in _lane(times[times.policy == label], rank, label, colours[label]):
            fig.add_trace(trace, row, column)
        text, end = _worst(times[times.policy == label])
        notes_in.append({"text": text, "x": math.log10(end), "y": rank, "xref": f"x{number}", "yref": f"y{number}",
                         "xanchor": "left", "xshift": 7, "font": {"size": SMALL, "color": PALE}})  # fmt: skip
    fig.layout.annotations += tuple(go.layout.Annotation(each, showarrow=False, borderpad=0) for each in notes_in)
    won = [label for label in facts["policies"] if label in {*winner.policy}]
    boxes(fig, {label: colours[label].colour for label in won})
    said = [f"in a cell: {soonest}"] if further else []
    return finish(
        fig,
        heading(title, [found.words]),
        [*facts["caption"], *said, *_said(times, facts), *notes],
        width,
        heights,
        left=columns == 1,
    )


# -- cells -----------------------------------------------------------------------------------------


def _looks(policies: Mapping[str, Mapping[str, Any]], winner: pd.DataFrame) -> dict[str, Look]:
    """A look for each policy; of two of one colour the one that wins less often has another."""
    won = {label: int((winner.policy == label).sum()) for label in policies}
    found, free = dict(zip(policies, looks(list(policies.values())), strict=True)), iter(OTHERS)
    taken: set[str] = set()
    for label in sorted(policies, key=lambda label: -won[label]):
        if found[label].colour in taken:
            found[label] = dataclasses.replace(found[label], colour=next(free, PALE))
        taken.add(found[label].colour)
    return found


def _cell(
    fig: go.Figure, rank: int, columns: int, row: Any, lines: Sequence[str], at: tuple[int, int], look: Look | None,
    size: float,
) -> list[dict[str, Any]]:  # fmt: skip
    """Draw a cell; return its texts."""
    colour = look.colour if look is not None else "#FFFFFF"
    (x, y), number = at, str(rank + 1) if rank else ""
    fig.add_shape(type="rect", x0=x - 0.48, x1=x + 0.48, y0=y - 0.47, y1=y + 0.47, fillcolor=colour, layer="below",
                  line={"width": 0.5, "color": GRID}, xref=f"x{number}", yref=f"y{number}")  # fmt: skip
    words = [row.policy or "no policy arrives", *(f"= {label}" for label in row.ties), row.how]
    fig.add_trace(go.Scatter(x=[x], y=[y], mode="markers", marker={"size": CELL / 2, "opacity": 0}, name="soonest",
                             showlegend=False, hovertemplate="<br>".join(words) + "<extra></extra>"),
                  *(each + 1 for each in divmod(rank, columns)))  # fmt: skip
    first, *more = lines
    place = {"x": x, "y": y, "xref": f"x{number}", "yref": f"y{number}"}
    found = [{**place, "text": first, "yshift": len(more) * LINE / 2, "font": {"size": size, "color": ink(colour)}}]
    return found + ([{**place, "text": "<br>".join(more), "yshift": -LINE / 2,
                      "font": {"size": SMALL, "color": ink(colour)}}] if more else [])  # fmt: skip


def _text(row: Any, facts: Mapping[str, Any], room: float) -> list[str]:
    """Return the text of a cell, in lines of so many px."""
    if not row.policy:
        return ["–"]
    own = facts["policies"][row.policy]
    times = "default" if row.policy == facts["default"] else f"{'≥' * row.at_least}{_factor(row.sooner)}"
    ties = [f"={_short(facts['policies'][tie], own)}" for tie in row.ties]
    if len(ties) > NAMED_TIES or any(text_px(word, SMALL) > room for tie in ties for word in tie.split(" ")):
        return [times, *wrapped(f"={SPACE}{len(ties)} other{'s' * (len(ties) > 1)}", room, SMALL)]
    return [times, *(line for tie in ties for line in wrapped(tie, room, SMALL))]


def _short(policy: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """A policy in as few words as tell it from another: ``"BSP"``, ``"dense"``."""
    return " ".join(name(field, value).partition(",")[0] for field, value in policy.items() if value != other[field])


def _factor(times: float) -> str:
    return f"{times:.{0 if times >= 10 else 1}f}×" if math.isfinite(times) else "–"


def _titled(column: str) -> str:
    return TITLES.get(column, column.removesuffix("_s").replace("_", " "))


def _entry(column: str, value: Any) -> str:
    unit = next((unit for end, unit in (("bit_s", bits), ("_s", duration)) if column.endswith(end)), plain)
    return plain(value) if isinstance(value, str) else unit(value)


# -- lines -----------------------------------------------------------------------------------------


def _times(table: pd.DataFrame) -> pd.DataFrame:
    """The axes, policy, how and times (over the soonest of its cell; of a capped run the least possible) of each
    policy and cell, without cells of which nothing is known."""
    axes = table.attrs["axes"]
    soonest = table.groupby(axes, sort=False).seconds.transform("min")
    known = table.seconds.where(table.seconds < math.inf, table.low)
    found = table.assign(times=(known / soonest).clip(lower=1.0))[[*axes, *KNOWN]]
    return found[found.times.notna() & (found.times < math.inf)]


def _far_axis(times: pd.DataFrame, room: float) -> Axis:
    """From 1, with room for the number behind the last dot."""
    shown = axis([1.0, max(1.5, float(times.times.max()))], "", log=True, pad=0.05)
    more = (shown.high / shown.low) ** (1 / (1 - min(0.5, (text_px("≥10.0×") + 8) / room)))
    return shown._replace(high=shown.low * more)


def _lane(own: pd.DataFrame, rank: int, label: str, look: Look) -> list[go.Scatter]:
    """Draw a dot for each cell, a triangle where it takes longer than is known."""
    if not len(own):
        return []
    ordered = own.sort_values("times", kind="stable")
    at = [rank + STEPS[place % len(STEPS)] for place in range(len(ordered))]
    marks = ["triangle-right-open" if how == "capped" else "circle" for how in ordered.how]
    edges = [look.colour if how == "capped" else "white" for how in ordered.how]
    cells = [", ".join(map(plain, cell)) for cell in ordered.drop(columns=KNOWN).itertuples(index=False)]
    line = go.Scatter(x=[ordered.times.min(), ordered.times.max()], y=[rank, rank], mode="lines", showlegend=False,
                      line={"color": GRID, "width": 3}, hoverinfo="skip", cliponaxis=False)  # fmt: skip
    return [
        line,
        go.Scatter(
            x=ordered.times,
            y=at,
            mode="markers",
            orientation="h",
            name=label,
            showlegend=False,
            cliponaxis=False,
            marker={"symbol": marks, "color": look.colour, "size": MARK, "line": {"color": edges, "width": 0.8}},
            customdata=list(zip(cells, ordered.how, strict=True)),
            hovertemplate=f"<b>{label}</b><br>%{{customdata[0]}}<br>%{{x:.3g}} times, "
            "%{customdata[1]}<extra></extra>",
        ),
    ]


def _worst(own: pd.DataFrame) -> tuple[str, float]:
    """The number behind the last dot of a line, and where it stands."""
    if not len(own):
        return "not reached", 1.0
    last = float(own.times.max())
    return f"{'≥' * bool((own.how == 'capped').any())}{_factor(last)}", last


def _said(times: pd.DataFrame, facts: Mapping[str, Any]) -> list[str]:
    """The signs in words."""
    signs = {
        "capped": "triangles: ended before it came to the goal, and takes longer than that",
    }
    return [f"=: a policy that is within {100 * facts['tie']:g}{SPACE}% of the soonest",
            *(words for how, words in signs.items() if (times.how == how).any())]  # fmt: skip
