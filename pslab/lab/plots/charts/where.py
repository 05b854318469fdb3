"""The map of clusters: the soonest policy on each, and the times of all policies relative to the soonest."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from pslab.errors import ConfigError
from pslab.lab.plots.arrange import GAP, WIDTHS, boxes, finish, names, panels, text_px
from pslab.lab.plots.axes import axis, categories, lane_px, lanes
from pslab.lab.plots.charts.bars import CELL
from pslab.lab.plots.labels import bits, duration, heading
from pslab.lab.plots.theme import GRID, MARK, OTHERS, PALE, SMALL, TYPE, Look, looks
from pslab.lab.records.intervals import records
from pslab.lab.records.units import SPACE, plain

TITLES = {"bandwidth_bit_s": "bandwidth of a worker", "spread": "slowest / fastest worker"}
LANE, LINE = 30.0, 12.0  # px: the height of a policy's lane; of a line of small type
AROUND = 90.0  # px: ticks and titles beside the panels
STEPS = (0.0, 0.2, -0.2, 0.1, -0.1)  # vertical offsets of dots, as shares of a lane, so that near dots do not overlap


def where(chart: Any, title: Any = None, *, notes: Iterable[str] = (), width: str = "page") -> go.Figure:
    """Draw a map of clusters in two panels.

    A cell of the first panel is a cluster, in the colour of its soonest policy. The cell says how many times sooner
    than the default this policy is, and how many policies tie with it. The second panel has a lane for each policy and
    a dot for each cluster: the policy's time / the soonest policy's time. Lanes are sorted by the largest ratio.

    Args:
        chart: the map that `advise_map` returns.
        title: a sentence or a Claim; None: the map's result in words.
        notes: more lines for the caption.
        width: page (7.16 in: two panels beside each other) or column (3.5 in: one under the other).

    Raises:
        ConfigError: `chart` is no such map.
    """
    if not hasattr(chart, "best_everywhere"):
        raise ConfigError("chart", type(chart).__name__, "must be a map, as advise_map(...) returns it")
    facts, winner, regret = chart.table.attrs, chart.winner, chart.regret
    x_name, y_name = facts["axes"]
    xs, ys = (list(dict.fromkeys(winner[column])) for column in (x_name, y_name))
    titles = {column: TITLES.get(column, column.removesuffix("_s").replace("_", " ")) for column in facts["axes"]}
    x_axis, y_axis = (categories([_entry(column, value) for value in values], titles[column])
                      for column, values in ((x_name, xs), (y_name, ys)))  # fmt: skip
    policies = [f"<b>{label}</b>" if label == chart.best_everywhere else label for label in regret.index]
    columns = 2 if width == "page" else 1
    y_lanes, times = lanes(names(policies, width, 0.2 if columns > 1 else 0.27)), _times(chart.table)
    room = (WIDTHS[width] - AROUND - max(text_px(text) for _, text in y_lanes.ticks) * (columns > 1)) / columns - GAP
    colours = _looks(facts["policies"], winner)
    cells = {(getattr(row, x_name), getattr(row, y_name)): row for row in records(winner)}
    grid = [[cells[x, y] for x in xs] for y in ys]
    slot = room / len(xs) - 1
    texts = [[_text(row, facts) for row in line] for line in grid]
    size = TYPE if all(text_px(text) <= slot for line in texts for text in line) else SMALL
    high = max(CELL, max(text.count("<br>") + 1 for line in texts for text in line) * LINE + 8) * len(ys)
    last = lane_px(y_lanes, LANE) * len(policies)
    far = axis([1.0, max(1.5, float(times.times.max()))], "", log=True, pad=0.05)
    behind = 1 / (1 - min(0.5, (text_px("≥10.0×") + 8) / room))  # makes room for the number behind the last dot
    far = far._replace(high=far.low * (far.high / far.low) ** behind)
    heads = [f"the soonest, and how many times sooner than {facts['default']}", "time / the soonest policy's time"]
    gap = max(text_px(text) for _, text in (*y_lanes.ticks, *y_axis.ticks)) + 40
    x_rows, y_rows = ([list(pair)] if columns > 1 else [[axis] for axis in pair]
                      for pair in ((x_axis, far), (y_axis, y_lanes)))  # fmt: skip
    fig = panels(x_rows, y_rows, width, heads, gap=gap)
    won = [label for label in facts["policies"] if label in {*winner.policy}]
    shades = ["#FFFFFF", *(colours[label].colour for label in won)]  # the first one is for cells without a policy
    fig.add_trace(go.Heatmap(
        z=[[won.index(row.policy) + 1 if row.policy else 0 for row in line] for line in grid], zmin=0, zmax=len(won),
        x=[*range(len(xs))], y=[*range(len(ys))], xgap=2, ygap=2, showscale=False, name="soonest",
        colorscale=[[rank / max(1, len(won)), shade] for rank, shade in enumerate(shades)],
        text=texts, texttemplate="%{text}", textfont_size=size,
        customdata=[["<br>".join([row.policy or "no policy arrives", *(f"= {label}" for label in row.ties), row.how])
                     for row in line] for line in grid],
        hovertemplate="%{customdata}<extra></extra>"), 1, 1)  # fmt: skip
    row, column = (1, 2) if columns > 1 else (2, 1)
    for trace in _lines(times, list(regret.index), colours):
        fig.add_trace(trace, row, column)
    boxes(fig, {label: colours[label].colour for label in won})
    signs = [f"=: policies that are within {100 * facts['tie']:g}{SPACE}% of the soonest"]
    if (times.how == "capped").any():
        signs.append("triangles: stopped before the goal; the time to the goal is longer")
    return finish(fig, heading(title, [chart.words]), [*facts["caption"], *signs, *notes], width,
                  [max(high, last)] if columns > 1 else [high, last], left=columns == 1)  # fmt: skip


# -- cells -----------------------------------------------------------------------------------------


def _looks(policies: Mapping[str, Mapping[str, Any]], winner: pd.DataFrame) -> dict[str, Look]:
    """Return a look for each policy. Of two policies with one colour, the one that wins less often gets another."""
    chosen, free = dict(zip(policies, looks(list(policies.values())), strict=True)), iter(OTHERS)
    taken: set[str] = set()
    for label in sorted(policies, key=lambda label: -int((winner.policy == label).sum())):
        if chosen[label].colour in taken:
            chosen[label] = dataclasses.replace(chosen[label], colour=next(free, PALE))
        taken.add(chosen[label].colour)
    return chosen


def _text(row: Any, facts: Mapping[str, Any]) -> str:
    if not row.policy:
        return "–"
    times = "default" if row.policy == facts["default"] else f"{'≥' * row.at_least}{_factor(row.sooner)}"
    return times + (f"<br>={SPACE}{len(row.ties)} other{'s' * (len(row.ties) > 1)}" if row.ties else "")


def _factor(times: float) -> str:
    return f"{times:.{0 if times >= 10 else 1}f}×" if math.isfinite(times) else "–"


def _entry(column: str, value: Any) -> str:
    unit = next((unit for end, unit in (("bit_s", bits), ("_s", duration)) if column.endswith(end)), plain)
    return plain(value) if isinstance(value, str) else unit(value)


# -- lines -----------------------------------------------------------------------------------------


def _times(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with columns `cell` and `times`, the smallest times first: a policy's time over the soonest
    policy's, or for a capped run a lower bound. Rows of unknown times are left out."""
    axes = table.attrs["axes"]
    soonest = table.groupby(axes, sort=False).seconds.transform("min")
    known = table.seconds.where(table.seconds < math.inf, table.low)
    cells = [", ".join(map(plain, cell)) for cell in table[axes].itertuples(index=False)]
    times = table.assign(times=(known / soonest).clip(lower=1.0), cell=cells)
    return times[times.times < math.inf].sort_values("times", kind="stable")


def _lines(times: pd.DataFrame, policies: list[str], colours: Mapping[str, Look]) -> list[go.Scatter]:
    """Return the traces of the policies' lanes: the range of the dots, a dot for each cell (a triangle for a lower
    bound), and the number behind the last dot."""
    ranges, dots, ends = [], [], []
    for rank, label in enumerate(policies):
        cells = times[times.policy == label]
        capped, colour = [how == "capped" for how in cells.how], colours[label].colour
        last = float(cells.times.max()) if len(cells) else 1.0
        ends.append((last, rank, f"{'≥' * any(capped)}{_factor(last)}" if len(cells) else "not reached"))
        ranges += [(float(cells.times.min()), rank), (last, rank), (None, None)] if len(cells) else []
        edges = [colour if missed else "white" for missed in capped]
        dots.append(go.Scatter(
            x=cells.times, y=[rank + STEPS[count % len(STEPS)] for count in range(len(cells))], mode="markers",
            orientation="h", name=label, showlegend=False, cliponaxis=False, customdata=cells[["cell", "how"]],
            marker={"symbol": ["triangle-right-open" if missed else "circle" for missed in capped], "color": colour,
                    "size": MARK, "line": {"color": edges, "width": 0.8}},
            hovertemplate=f"<b>{label}</b><br>%{{customdata[0]}}<br>%{{x:.3g}} times, "
                          "%{customdata[1]}<extra></extra>"))  # fmt: skip
    common = {"showlegend": False, "hoverinfo": "skip", "cliponaxis": False}
    x, y, texts = zip(*ends, strict=True)
    line = go.Scatter(x=[at for at, _ in ranges], y=[rank for _, rank in ranges], mode="lines",
                      line={"color": GRID, "width": 3}, **common)  # fmt: skip
    numbers = go.Scatter(x=x, y=y, mode="text", text=[2 * SPACE + text for text in texts], textposition="middle right",
                         name="", textfont={"size": SMALL, "color": PALE}, **common)  # fmt: skip
    return [line, *dots, numbers]
