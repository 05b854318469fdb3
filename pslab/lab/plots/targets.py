"""Time, pushes and bytes until a target accuracy, for each curve: as data, as a table for people, and as a picture.

When a run is there, `reached` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pslab.lab.plots.accuracy import PAIR_WIDTH, finish, headline, series, several, size, waits
from pslab.lab.plots.theme import GRID, SPACE, translucent
from pslab.lab.records.time_to_accuracy import final, first, round_below
from pslab.lab.studies.studies import Curve, caption, curves

if TYPE_CHECKING:
    from pslab.lab.records.record import Result

TRAFFIC = ("bytes", "bytes_up", "bytes_down")
MEASURES = ("seconds", "iterations", "pushes", *TRAFFIC, "final_accuracy", "waiting")
UNREACHED = ("seconds", "iterations", "pushes", *TRAFFIC)  # what a run that does not get there has none of
DASH = "–"


# -- data ------------------------------------------------------------------------------------------


def arrivals(results: Iterable[Result], accuracy: float) -> pd.DataFrame:
    """A row for each run: its curve and seed, seconds, iterations (pushes / workers), pushes and bytes until `accuracy`
    (0 to 1; NaN if it never gets there), its final accuracy, and the share of the workers' time spent waiting.

    Bytes are of pushes and pulls together, and of each."""
    return arrivals_of(curves(results), accuracy)


def arrivals_of(drawn: Sequence[Curve], accuracy: float) -> pd.DataFrame:
    """The same of curves that are there already."""
    return pd.DataFrame([  # a single machine sends nothing
        {"curve": curve.label, "seed": result.run.seed, **first(result, accuracy),
         **{axis: math.nan if curve.single else _bytes(result, accuracy, axis) for axis in TRAFFIC},
         "final_accuracy": final(result),
         "waiting": math.nan if curve.single else float(np.mean(waits(result))) / 100}
        for curve in drawn for result in curve.results
    ])  # fmt: skip


def targets(results: Iterable[Result], accuracy: float | None = None) -> pd.DataFrame:
    """A row for each curve: median, low and high over seeds of what `arrivals` says, `seeds`, and how many `reached`.

    `accuracy` is `chosen(results)` if None, and stands in the frame's attrs. A median is NaN unless more than half
    of the seeds get there, a high if one does not.
    """
    found = list(results)
    goal = chosen(found) if accuracy is None else accuracy
    return over_seeds(arrivals(found, goal), goal)


def over_seeds(found: pd.DataFrame, goal: float) -> pd.DataFrame:
    """`targets` of what `arrivals` says."""
    rows = []
    for label, runs in found.groupby("curve", sort=False):
        row: dict[str, Any] = {"curve": label, "seeds": len(runs), "reached": int(runs.seconds.notna().sum())}
        for name in MEASURES:
            values = runs[name].fillna(math.inf) if name in UNREACHED else runs[name]
            for suffix, value in (("", values.median()), ("_low", values.min()), ("_high", values.max())):
                row[name + suffix] = float(value) if math.isfinite(value) else math.nan
        rows.append(row)
    table = pd.DataFrame(rows).set_index("curve")
    table.attrs["accuracy"] = goal
    return table


def _bytes(result: Result, accuracy: float, axis: str) -> float:
    points = series(result, axis)
    there = np.flatnonzero(points.y.to_numpy() >= 100 * accuracy - 1e-9)
    return float(points.x.iloc[there[0]]) if len(there) else math.nan


def chosen(results: Iterable[Result]) -> float:
    """The highest round accuracy that at least half of the curves, the single machine aside, reach with every seed."""
    return round_below([min(map(_best, c.results)) for c in curves(results) if not c.single])


def _best(result: Result) -> float:
    return float(result.accuracy.accuracy.max())


# -- for people ------------------------------------------------------------------------------------


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """`targets` with units, and ranges over seeds where there are several; what was not reached is said so."""
    rows = {str(name): row for name, row in table.to_dict("index").items()}
    columns = {"seconds": "time", "pushes": "pushes", "bytes": "bytes", "final_accuracy": "final accuracy",
               "waiting": "waiting"}  # fmt: skip
    shown = [{title: cell(row, name) for name, title in columns.items()} for row in rows.values()]
    return pd.DataFrame(shown, index=list(rows)).rename_axis(columns=f"until {100 * table.attrs['accuracy']:g} %")


FORMS: dict[str, Callable[[float], str]] = {
    "seconds": lambda s: f"{s:.1f} s", "pushes": lambda n: f"{n:.0f}", **dict.fromkeys(TRAFFIC, size),
    "final_accuracy": lambda share: f"{100 * share:.2f} %", "waiting": lambda share: f"{100 * share:.0f} %",
}  # fmt: skip


def cell(row: dict[Any, Any], name: str) -> str:
    """One entry of a readable table: the median, and the range over seeds where there are several."""
    form, value, low, high = FORMS[name], row[name], row[f"{name}_low"], row[f"{name}_high"]
    if name in UNREACHED and not math.isfinite(value) and row["reached"] < row["seeds"]:
        return unreached(row) if name == "seconds" else DASH
    if not math.isfinite(value):
        return DASH
    if row["seeds"] == 1 or (low == high and name == "waiting"):
        return form(value)
    end = form(high) if math.isfinite(high) else "never"
    return f"{form(value)} ({form(low)} to {end})"


def unreached(row: dict[Any, Any]) -> str:
    """``"not reached (1 of 3 seeds)"``: the median did not get there, one seed did."""
    return "not reached" + (f" ({row['reached']} of {row['seeds']} seeds)" if row["seeds"] > 1 else "")


def findings(results: Iterable[Result], accuracy: float | None = None) -> str:
    """One sentence or two that the table says: the soonest curve against the dense (or first) one, and the ends."""
    found = list(results)
    table = targets(found, accuracy)
    names, rows = [c.label for c in curves(found) if not c.single], table.to_dict("index")
    there = {name: rows[name] for name in names if math.isfinite(rows[name]["seconds"])}
    goal = f"{100 * table.attrs['accuracy']:g} % test accuracy"
    if not there:
        return f"No curve reaches {goal}."
    first, reference = min(there, key=lambda name: there[name]["seconds"]), names[0]
    best = there[first]
    text = f"{first} is the first to {goal}, after {best['seconds']:.1f} s and {size(best['bytes'])}"
    if first != reference and reference in there:
        other = there[reference]
        sooner = other["seconds"] / best["seconds"]
        text += f": {sooner:.1f} times sooner than {reference} ({other['seconds']:.1f} s), "
        text += f"with {_times(other['bytes'], best['bytes'])} bytes"
    missed = [name for name in names if name not in there]
    text += f"; {', '.join(missed)} did not get there" if missed else ""
    ends = sorted(names, key=lambda name: -rows[name]["final_accuracy"])
    high, low = (f"{name} at {100 * rows[name]['final_accuracy']:.2f} %" for name in (ends[0], ends[-1]))
    others = f", the lowest {low}" if len(ends) > 1 else ""
    return f"{text}. At the end of the budget the highest is {high}{others}."


def _times(reference: float, other: float) -> str:
    return f"{reference / other:.1f} times fewer" if other <= reference else f"{other / reference:.1f} times more"


# -- the picture -----------------------------------------------------------------------------------

ROW, HEAD = 30, 12  # px: a curve; the columns' names
CELLS = 780  # px: the least that the columns need
DOTS = 0.5  # of a column's width; what is right of them is for the number
COLUMNS: Mapping[str, str] = {"seconds": "seconds to {}", "pushes": "pushes to {}", "bytes": "bytes to {}",
           "final_accuracy": "final accuracy", "waiting": "time waiting"}  # fmt: skip


def picture(results: Iterable[Result], accuracy: float | None = None, title: str | None = None) -> go.Figure:
    """The table as a figure: a dot for each seed, a line over their range, a mark at the median, and its number."""
    found = list(results)
    return picture_of(curves(found), chosen(found) if accuracy is None else accuracy, title)


def picture_of(
    drawn: Sequence[Curve], level: float, title: str | None = None, columns: Mapping[str, str] = COLUMNS
) -> go.Figure:
    """The same of curves that are there already, in these columns."""
    runs, goal = arrivals_of(drawn, level), f"{100 * level:g}{SPACE}%"
    rows = over_seeds(runs, level).to_dict("index")
    widths = [1.4, *[1.0] * (len(columns) - 1)]
    figure = make_subplots(1, len(columns), shared_yaxes=True, horizontal_spacing=0.02, column_widths=widths)
    for column, (name, heading) in enumerate(columns.items(), start=1):
        place: dict[str, Any] = {"xref": f"x{column if column > 1 else ''} domain", "showarrow": False}
        figure.add_annotation(x=0, y=1, yref="paper", xanchor="left", yanchor="bottom", yshift=2, font_size=12,
                              text=f"<b>{heading.format(goal)}</b>", **place)  # fmt: skip
        for curve in drawn:
            row = rows[curve.label]
            values = runs[runs.curve == curve.label][name].dropna().to_numpy(float)
            figure.add_traces(_marks(curve, row, name, values), rows=1, cols=column)
            words = name == "seconds" and not math.isfinite(row[name])  # where no dots are
            figure.add_annotation(x=0 if words else 1, y=curve.legend, yref="y", xanchor="left" if words else "right",
                                  text=_number(row, name), font_size=12, **place)  # fmt: skip
        figure.update_xaxes(_scale(name, runs[name].dropna()), row=1, col=column)
    figure.update_yaxes(range=[len(drawn) - 0.5, -0.5], ticks="", showline=False, showgrid=False)
    for line in np.arange(len(drawn) + 1) - 0.5:
        figure.add_shape(type="line", xref="paper", x0=0, x1=1, yref="y", y0=line, y1=line,
                         line={"color": GRID, "width": 1})  # fmt: skip
    dots = "; a dot for each seed, a line over their range, the mark at the median" if several(drawn) else ""
    lines = [*caption(drawn), f"until the first evaluation at or above {goal}{dots}"]
    told = title or f"{headline(drawn)}: until {goal} test accuracy"
    left = 24 + 7 * max(len(curve.legend) for curve in drawn)
    finish(figure, told, lines, [], max(PAIR_WIDTH, left + CELLS), below=0)
    top = figure.layout.margin.t + HEAD
    figure.update_layout(height=top + ROW * len(drawn) + 20, margin={"t": top, "b": 20, "l": left, "r": 16},
                         title={"xref": "container", "x": 0.016})  # fmt: skip
    return figure


def _marks(curve: Curve, row: dict[Any, Any], name: str, values: np.ndarray) -> list[go.Scatter]:
    """One cell's dots."""
    style, place, middle = curve.style, curve.legend, row[name]
    hover = f"<b>{curve.label}</b><br>{cell(row, name)}<extra></extra>"
    common = {"showlegend": False, "cliponaxis": False, "hovertemplate": hover}
    found = []
    if len(values) > 1:
        colour = translucent(style.colour, 0.35)
        found.append(go.Scatter(x=[values.min(), values.max()], y=[place] * 2, mode="lines",
                                line={"color": colour, "width": 6}, **common))  # fmt: skip
        found.append(go.Scatter(x=values, y=[place] * len(values), mode="markers",
                                marker={"size": 4, "color": style.colour}, **common))  # fmt: skip
    edge = {"color": "white" if "open" not in style.marker else style.colour, "width": 1}
    marker = {"symbol": style.marker, "size": 11, "color": style.colour, "line": edge}
    shown = [middle] if math.isfinite(middle) else [None]
    return [*found, go.Scatter(x=shown, y=[place], mode="markers", marker=marker, **common)]


def _number(row: dict[Any, Any], name: str) -> str:
    """The median, or why there is none."""
    if math.isfinite(row[name]):
        few = name == "seconds" and row["reached"] < row["seeds"]
        return FORMS[name](row[name]) + (f" ({row['reached']} of {row['seeds']})" if few else "")
    return unreached(row) if name == "seconds" else DASH


def _scale(name: str, values: pd.Series[float]) -> dict[str, Any]:
    """From zero, but for accuracies; by powers of ten where the values differ by more than one."""
    bare: dict[str, Any] = dict.fromkeys(("showgrid", "showline", "showticklabels", "zeroline"), False) | {"ticks": ""}
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    if name in TRAFFIC and low > 0 and high > 10 * low:
        low, high, bare["type"] = math.log10(low), math.log10(high), "log"
    elif name != "final_accuracy":
        low = 0.0
    room = (high - low) or 1.0
    return {**bare, "range": [low - 0.08 * room, low - 0.08 * room + 1.16 * room / DOTS]}
