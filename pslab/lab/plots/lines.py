"""Curves of evaluations with bands over seeds; and points, joined or not, of summaries and of other tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from pslab.config.run import Run
from pslab.errors import ConfigError, nearest
from pslab.lab.plots.figure import Axis, Line, Page, axis
from pslab.lab.plots.labels import SPACE, caption, column_name, marks, notes_of, single, size
from pslab.lab.plots.style import BEHIND, SINGLE, Look, looks
from pslab.lab.records.record import Result
from pslab.lab.records.results import Results, evaluations
from pslab.lab.records.summary import columns_of, diverged, groups, sound

Names = str | Sequence[str]


class Quantity(NamedTuple):
    """What an evaluation has: an axis' title, a factor, how a tick is written (plotly's way if None), short words."""

    title: str
    factor: float = 1.0
    form: Callable[[float], str] | None = None
    words: str = ""
    turns_log: bool = False


def _round_size(count: float) -> str:
    return size(count).replace(".0", "")


QUANTITIES: dict[str, Quantity] = {
    "pushes": Quantity("pushes"),
    "iteration": Quantity("iteration", words="iterations"),
    "seconds": Quantity("training time (s)", words="time", turns_log=True),
    "bytes": Quantity("bytes sent, both ways", form=_round_size, words="bytes", turns_log=True),
    "bytes_up": Quantity("bytes pushed", form=_round_size, turns_log=True),
    "bytes_down": Quantity("bytes pulled", form=_round_size, turns_log=True),
    "accuracy": Quantity("test accuracy (%)", 100, words="test accuracy"),
    "loss": Quantity("test loss"),
    "density": Quantity("entries pushed (%)", 100, words="share of entries pushed"),
}
FAR = 3.0  # times the median curve's length: then time and bytes are logarithmic
VISIBLE = 45.0  # per cent below the best end that the frame shows at most
COLUMNS = {"sync": "synchronization policy", "prune": "pruning rule", "rate": "learning-rate policy",
           "order": "request order", "learning_rate": "learning rate", "push_weight": "push weight"}  # fmt: skip


# -- what is drawn ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """One curve and its places; a facet or row of ... is every panel's."""

    label: str
    look: Look
    facet: Any = None
    row: Any = None
    behind: bool = False
    sign: str = ""
    frames: Mapping[tuple[str, str], pd.DataFrame] = field(default_factory=dict)  #: (x, y) -> x, y, low, high, hover
    crosses: Mapping[tuple[str, str], Sequence[tuple[float, float]]] = field(default_factory=dict)


class Cell(NamedTuple):
    """What a panel shows."""

    facet: Any
    row: Any
    x: str
    y: str


def cells(facets: Sequence[Any], rows: Sequence[Any], xs: Sequence[str], ys: Sequence[str]) -> list[list[Cell]]:
    """The panels: facets, or several x or y, side by side; rows, or what is left of those, one under the other.

    Raises:
        ConfigError: there is no place left for several x or y.
    """
    several = [name for name, values in (("x", xs), ("y", ys)) if len(values) > 1]
    across = "facet" if facets else several.pop(0) if several else ""
    down = "row" if rows else several.pop(0) if several else ""
    if several:
        raise ConfigError(several[0], [*xs, *ys], "facet and row leave no place for a panel each; draw two figures")
    axes = {"facet": facets, "row": rows, "x": xs, "y": ys, "": [None]}
    first = {"facet": None, "row": None, "x": xs[0], "y": ys[0]}
    return [[Cell(**{name: value for name, value in {**first, down: below, across: beside}.items() if name})
             for beside in axes[across]] for below in axes[down]]  # fmt: skip


def compose(
    drawn: Sequence[Curve], grid: Sequence[Sequence[Cell]], x_axes: Mapping[str, Axis], y_axes: Mapping[str, Axis], *,
    heads: Sequence[str] = (), sides: Sequence[str] = (), width: str = "page", **how: Any,
) -> Page:  # fmt: skip
    """A page with each curve in its panels; `how` goes to every Line."""
    page = Page([[x_axes[cell.x] for cell in line] for line in grid], [[y_axes[cell.y] for cell in line] for line in grid],
                heads, sides, width)  # fmt: skip
    for row, line in enumerate(grid):
        for column, cell in enumerate(line):
            own = [each for each in drawn if each.facet in (cell.facet, ...) and each.row in (cell.row, ...)]
            for each in sorted(own, key=lambda curve: not curve.behind):
                frame, lowest = each.frames.get((cell.x, cell.y)), y_axes[cell.y].low
                if frame is None or not len(frame):
                    continue
                crosses = [(x, max(lowest, y)) for x, y in each.crosses.get((cell.x, cell.y), ())]
                page.add(row, column, Line(
                    each.label, each.look, frame.x, frame.y, frame.low, frame.high, list(frame.hover), crosses, each.sign,
                    **how))  # fmt: skip
    return page


# -- curves ----------------------------------------------------------------------------------------


def curves(
    results: Iterable[Result], x: Names = "seconds", y: Names = "accuracy", *, by: Names = "label",
    facet: str | None = None, row: str | None = None, behind: Any = None, goal: float | None = None,
    log: str | None = None, zoom: tuple[float, float] | bool | None = None, title: Any = None, notes: Iterable[str] = (),
    width: str = "page",
) -> go.Figure:  # fmt: skip
    """A quantity of each evaluation against another: the median over seeds, a band over their range.

    Args:
        x, y: names of QUANTITIES; one may be a list: a panel for each.
        by: the columns whose values get a curve each; "label": what differs.
        facet, row: columns whose values get a panel each, side by side and one under the other.
        behind: the value of `by` whose curve stands grey behind the others, in each panel where facet is by.
        goal: an accuracy (0 to 1), drawn as a dotted line.
        log: the logarithmic axes, of "x" and "y"; None: time and bytes if one curve is far longer than most.
        zoom: per cent of accuracy in the frame; None: where the curves' ends can be told apart; False: all.
        title: a sentence or a Claim; None: what is shown.
        notes: more lines for the caption.
        width: page (7.0 in) or column (3.4 in).

    Raises:
        ConfigError: an unknown column or quantity; a curve whose runs differ in more than the seed.
    """
    found, xs, ys = as_results(results), listed(x), listed(y)
    for name in (*xs, *ys):
        if name not in QUANTITIES:
            raise ConfigError("x" if name in xs else "y", name, nearest(str(name), QUANTITIES))
    runs = [result.run for result in found]
    crowd = Results(*_kept(found, lambda run: not single(run, runs)))
    pairs = [(x_, y_) for x_ in xs for y_ in ys]
    one = facet is not None and listed(by) == [facet]
    grouped = groups(crowd, by, **{name: each for name, each in (("facet", facet), ("row", row)) if each is not None})
    names, shown = columns_of(crowd, by), columns_of(crowd, by, *filter(None, (facet, row)))
    keys = {key: dict(zip(shown, key, strict=True)) for key in grouped}
    styled = dict(zip(keys, _looks(list(keys.values()), names, [*filter(None, (facet, row))]), strict=True))
    drawn = []
    for key, group in grouped.items():
        values, back = keys[key], behind is not None and behind in (keys[key][name] for name in names)
        label = ", ".join(filter(None, (column_name(name, values[name], group[0].run) for name in names)))
        sign = marks(group)
        drawn.append(Curve(
            label + ("" if facet or row else sign), Look(BEHIND) if back else styled[key],
            ... if back and one else values.get(facet), values.get(row), back, sign if facet or row else "",
            {pair: _band(group, *pair, crowd) for pair in pairs},
            {pair: _ends([r for r in group if diverged(r)], *pair, crowd) for pair in pairs}))  # fmt: skip
    for group in groups(Results(*_kept(found, lambda run: single(run, runs))), "label").values():
        drawn.append(Curve("single machine" + marks(group), SINGLE, ..., ..., True, "",
                           {pair: _band(group, *pair, crowd) for pair in pairs if not pair[0].startswith("bytes")}))
    facets = [value for value in crowd.levels(facet) if not (one and value == behind)] if facet else []
    rows = crowd.levels(row) if row else []
    x_axes = {x_: _x_axis(x_, [c.frames[x_, ys[0]] for c in drawn if (x_, ys[0]) in c.frames], log, crowd) for x_ in xs}
    y_axes = {y_: _y_axis(y_, [f for c in drawn for (_, each), f in c.frames.items() if each == y_], log, zoom) for y_ in ys}
    page = compose(drawn, cells(facets, rows, xs, ys), x_axes, y_axes, width=width,
                   heads=_heads(facet, facets, crowd), sides=_heads(row, rows, crowd))  # fmt: skip
    if goal is not None and "accuracy" in ys:
        page.level(100 * goal, f"{100 * goal:g}{SPACE}%", y_axes["accuracy"])
    told = [*caption(list(found), shown), *_below(drawn, y_axes.get("accuracy")), *found.notes(), *notes_of(found), *notes]
    return page.finish(words_of(title) or _headline(xs, ys, shown), told, () if one else None)


def as_results(results: Iterable[Result]) -> Results:
    """Results as they are; of other sequences those without axes."""
    return results if isinstance(results, Results) else Results(results)


def listed(names: Names) -> list[str]:
    """One name, or several."""
    return [names] if isinstance(names, str) else list(names)


def words_of(title: Any) -> str:
    """The sentence of a title, which may be a Claim."""
    return title if isinstance(title, str) else str(getattr(title, "title", "") or "")


def _kept(results: Results, test: Callable[[Run], bool]) -> tuple[list[Result], list[Any], dict[str, Any]]:
    places = [(result, own) for result, own in zip(results, results.columns, strict=True) if test(result.run)]
    return [result for result, _ in places], [own for _, own in places], dict(results._levels)


def _looks(keys: Sequence[Mapping[str, Any]], names: Sequence[str], panels: Sequence[str]) -> list[Look]:
    """The same look in all panels."""
    places: dict[str, list[str]] = {}
    for key in keys:
        places.setdefault(repr([key[name] for name in names]), []).append(repr([key[name] for name in panels]))
    distinct = {repr([key[name] for name in names]): {name: key[name] for name in names} for key in keys}
    found = dict(zip(distinct, looks(list(distinct.values()), list(places.values())), strict=True))
    return [found[repr([key[name] for name in names])] for key in keys]


def _heads(column: str | None, values: Sequence[Any], results: Results) -> list[str]:
    if column is None:
        return []
    runs = {value: results.where(**{column: value})[0].run for value in values}
    return [column_name(column, value, run) or str(value) for value, run in runs.items()]


# -- the numbers -----------------------------------------------------------------------------------


def _series(result: Result, x: str, y: str, crowd: Results) -> pd.DataFrame:
    """One run's x and y, with what a reader may point at."""
    table = evaluations(result)
    if "density" in (x, y):
        table = table.assign(density=_density(result, table.pushes.to_numpy()))
    workers = {run.workers for run in (each.run for each in crowd)}
    table = table.assign(iteration=table.pushes / (workers.pop() if len(workers) == 1 else 1))
    hover = [f"{100 * row.accuracy:.2f}{SPACE}%, loss {row.loss:.3f}<br>{row.pushes} pushes, {row.seconds:.2f}{SPACE}s<br>"
             f"{size(row.bytes_up)} up, {size(row.bytes_down)} down" for row in table.itertuples()]  # fmt: skip
    return pd.DataFrame({"x": table[x] * QUANTITIES[x].factor, "y": table[y] * QUANTITIES[y].factor, "hover": hover})


def _density(result: Result, pushes: np.ndarray) -> np.ndarray:
    """Between two evaluations the mean share of entries in a push; NaN before the first."""
    order = result.pushes.sort_values("seconds", kind="stable").density.to_numpy(float)
    until = np.concatenate([[0.0], np.cumsum(order)])[np.minimum(pushes, len(order))]
    with np.errstate(invalid="ignore", divide="ignore"):
        found: np.ndarray = np.diff(until, prepend=0.0) / np.diff(pushes, prepend=0)
    return found


def _band(group: Sequence[Result], x: str, y: str, crowd: Results) -> pd.DataFrame:
    """Median, low and high over the seeds that did not diverge, at every x that all of them reach."""
    parts = [_series(result, x, y, crowd).dropna() for result in sound(group)]
    if len(parts) == 1:
        return parts[0].assign(low=parts[0].y, high=parts[0].y)
    begin, end = max(part.x.iloc[0] for part in parts), min(part.x.iloc[-1] for part in parts)
    at = np.unique(np.concatenate([part.x.to_numpy() for part in parts]))
    at = at[(at >= begin) & (at <= end)]
    values = np.stack([np.interp(at, part.x, part.y) for part in parts])
    middle, low, high = np.median(values, axis=0), values.min(axis=0), values.max(axis=0)
    hover = [f"{m:.4g} ({a:.4g} to {b:.4g})<br>{QUANTITIES[x].title}: {x_:.4g}"
             for x_, m, a, b in zip(at, middle, low, high, strict=True)]  # fmt: skip
    return pd.DataFrame({"x": at, "y": middle, "low": low, "high": high, "hover": hover})


def _ends(results: Iterable[Result], x: str, y: str, crowd: Results) -> list[tuple[float, float]]:
    tables = [_series(result, x, y, crowd) for result in results]
    return [(float(table.x.iloc[-1]), float(table.y.iloc[-1])) for table in tables if len(table)]


# -- axes and words --------------------------------------------------------------------------------


def _x_axis(x: str, frames: Sequence[pd.DataFrame], log: str | None, crowd: Results) -> Axis:
    what = QUANTITIES[x]
    ends = [float(frame.x.max()) for frame in frames if len(frame)]
    turned = "x" in log if log is not None else what.turns_log and bool(ends) and max(ends) > FAR * float(np.median(ends))
    values = [value for frame in frames for value in frame.x]
    return axis(values, _x_title(x, crowd), log=turned, zero=True, form=what.form, pad=0.02)


def _x_title(x: str, crowd: Results) -> str:
    if x != "iteration":
        return QUANTITIES[x].title
    workers, batches = ({getattr(result.run, name) for result in crowd} for name in ("workers", "batch_size"))
    if workers == {1} or len(workers) > 1:
        return "pushes"
    each = f", {max(workers) * batches.pop()} samples" if len(batches) == 1 else ""
    return f"iteration ({max(workers)} pushes{each})"


def _y_axis(y: str, frames: Sequence[pd.DataFrame], log: str | None, zoom: tuple[float, float] | bool | None) -> Axis:
    what = QUANTITIES[y]
    if y == "accuracy" and zoom is not False:
        low, high = zoom if isinstance(zoom, (tuple, list)) else accuracy_range(frames)
        return Axis(what.title, low, high)
    values = [value for frame in frames for column in ("low", "high") for value in frame[column]]
    return axis(values, what.title, log="y" in (log or ""), zero=y != "density", form=what.form)


def accuracy_range(frames: Iterable[pd.DataFrame]) -> tuple[float, float]:
    """Per cent between which the ends of the curves can be told apart; the way up from chance is not the matter."""
    shown = [frame for frame in frames if len(frame)]
    worst = min((float(frame.y.max()) for frame in shown), default=0.0)
    best = max((float(frame.high.max()) for frame in shown), default=100.0)
    low = max(0.0, worst - 0.6 * (best - worst) - 4, best - VISIBLE)
    step = 5 if best - low > 15 else 2
    low = step * math.floor(low / step)
    return low, min(100.0, best + 0.08 * (best - low))


def _below(drawn: Sequence[Curve], shown: Axis | None) -> list[str]:
    """The curves that end under the frame."""
    if shown is None:
        return []
    ends = {curve.label: float(frame.y.iloc[-1]) for curve in drawn for (_, y), frame in curve.frames.items()
            if y == "accuracy" and len(frame) and frame.y.iloc[-1] < shown.low}  # fmt: skip
    return [f"below the frame: {', '.join(f'{label} ends at {end:.0f}{SPACE}%' for label, end in ends.items())}"] if ends else []


def _headline(xs: Sequence[str], ys: Sequence[str], shown: Sequence[str]) -> str:
    what, against = (" and ".join(QUANTITIES[name].words or QUANTITIES[name].title for name in names) for names in (ys, xs))
    *others, last = [COLUMNS.get(name, name.replace("_", " ")) for name in shown] or [""]
    by = f", by {' and '.join(filter(None, [', '.join(others), last]))}" if last else ""
    return f"{what[0].upper()}{what[1:]} against {against}{by}"
