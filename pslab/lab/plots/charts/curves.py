"""Curves of evaluations: accuracy, or another quantity, against iterations, time or bytes, with bands over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from pslab.config.metric import ACCURACY, Metric, loss_of, metric_of, one_metric
from pslab.errors import ConfigError, nearest
from pslab.lab.plots.arrange import WIDTHS, finish, level, wrapped
from pslab.lab.plots.axes import Axis, axis
from pslab.lab.plots.charts.panels import WRAP, Curve, compose, grey
from pslab.lab.plots.charts.prelude import Group, Names, Shown, grouped, listed
from pslab.lab.plots.labels import heading, under
from pslab.lab.plots.theme import BACK, SINGLE, told_apart
from pslab.lab.records.frames import Given, results_in
from pslab.lab.records.intervals import records
from pslab.lab.records.record import Result
from pslab.lab.records.results import evaluations
from pslab.lab.records.summary import sound
from pslab.lab.records.units import SPACE, size


class Quantity(NamedTuple):
    """A quantity of an evaluation, as an axis shows it."""

    title: str  #: of the axis
    factor: float = 1.0  #: from the recorded value to the axis
    sized: bool = False  #: whether it is a number of bytes
    words: str = ""  #: in the figure's title; "" if `title` serves
    turns_log: bool = False  #: whether its axis may become logarithmic by default


QUANTITIES: dict[str, Quantity] = {
    "pushes": Quantity("pushes of all workers", words="pushes"),
    "iteration": Quantity("iteration", words="iterations"),
    "rounds": Quantity("round (a push of each worker)", words="rounds", turns_log=True),
    "seconds": Quantity("training time (s)", words="time", turns_log=True),
    "bytes": Quantity("bytes sent, both ways", sized=True, words="bytes", turns_log=True),
    "bytes_up": Quantity("bytes pushed", sized=True, turns_log=True),
    "bytes_down": Quantity("bytes pulled", sized=True, turns_log=True),
    "accuracy": Quantity("test accuracy (%)", 100, words="test accuracy"),
    "loss": Quantity("test loss"),
    "density": Quantity("gradient entries pushed (%)", 100, words="share of entries pushed"),
}


def quantity(name: str, metric: Metric) -> Quantity:
    """Return the quantity of this name; "accuracy" stands for the run's metric."""
    if name != "accuracy" or metric.share:
        return QUANTITIES[name]
    return Quantity(f"test {metric.name}{metric.in_unit}", words=f"test {metric.name}")


FAR = 3.0  # if a curve is this many times longer than the median one, axes of time and bytes are logarithmic
CUT = "cut"  # the key of a band's `attrs` that says whether a seed has evaluations after its end
VISIBLE = 45.0  # the axis begins at most this many per cent below the best end of a curve


# -- curves ----------------------------------------------------------------------------------------


def curves(
    results: Given, x: Names = "seconds", y: Names = "accuracy", *, by: Names = "label",
    facet: str | None = None, row: str | None = None, behind: Any = None, banded: Given = (),
    goal: float | None = None, log: str | None = None, zoom: tuple[float, float] | bool | None = None,
    title: Any = None, notes: Iterable[str] = (), width: str = "page",
) -> go.Figure:  # fmt: skip
    """Draw a quantity of each evaluation against another: the median over seeds, with a band over their range.

    Args:
        x, y: names of QUANTITIES; one may be a list: a panel for each.
        by: the columns whose values get a curve each; "label": the fields in which runs differ.
        facet, row: columns whose values get a panel each, side by side and one under the other.
        behind: the value of `by` whose curve is grey, behind the others; if facet is by, in each panel.
        banded: the same runs in virtual time, as bands over several seeds in their curves' colours; one seed: a thin
            line.
        goal: an accuracy (0 to 1), or a value of the runs' metric, drawn as a dotted line; without zoom the y axis
            reaches up to it.
        log: the logarithmic axes, of "x" and "y"; None: time and bytes if one curve is far longer than most.
        zoom: the range of the y axis in per cent of accuracy, or in the metric's values; None: accuracies begin where
            the ends of the curves can be told apart; False: all values.
        title, notes, width: as in `points`.

    Raises:
        ConfigError: an unknown column or quantity; a curve whose runs differ in more than the seed; several metrics; no
            run has evaluations, because engine="timing" trains nothing; a goal in per cent.
    """
    xs, ys = listed(x), listed(y)
    for name in (*xs, *ys):
        if name not in QUANTITIES:
            problem = f"must be a quantity of an evaluation; {nearest(str(name), QUANTITIES)}"
            raise ConfigError("x" if name in xs else "y", name, problem)
    shown = grouped(results, by, facet, row)
    if all(run.engine == "timing" for run in shown.results.run):
        raise ConfigError("engine", "timing", "trains nothing, so that these runs have no evaluations to draw: use "
                          "plots.time_budget(results) or throughput(run), or run them on engine='virtual'")  # fmt: skip
    twins = results_in(banded)
    same = grouped(twins, by, shown.across.column, shown.down.column).groups if len(twins) else []
    metric = one_metric(shown.results.run) if "accuracy" in {*xs, *ys} else ACCURACY
    known = {name: quantity(name, metric) for name in (*xs, *ys)}
    if "loss" in known and len(losses := {loss_of(run) for run in shown.results.run}) == 1:
        known["loss"] = quantity("accuracy", *losses)
    drawn = _drawn(shown, same, [(x_, y_) for x_ in xs for y_ in ys], known, behind)
    y_axes = {y_: _y_axis(known[y_], y_, [frame for curve in drawn for (_, other), frame in curve.frames.items()
                                          if other == y_], log, zoom) for y_ in ys}  # fmt: skip
    at, aim, scale = math.nan, "", y_axes.get("accuracy", Axis())
    if goal is not None and "accuracy" in ys:
        metric.check_goal("goal", goal)
        at, aim = known["accuracy"].factor * goal, metric.goal(goal, SPACE)
        if not isinstance(zoom, (tuple, list)) and at > scale.high:
            scale = y_axes["accuracy"] = scale._replace(high=at + 0.03 * (at - scale.low))
    room = WIDTHS[width] / (min(WRAP, len(shown.across.values)) or len(xs))
    known |= {"iteration": QUANTITIES["iteration"]._replace(title=_iteration(shown.crowd, room))}
    x_axes = {x_: _x_axis(known[x_], [(frame, y_axes[y_].low) for curve in drawn for (other, y_), frame
                                      in curve.frames.items() if other == x_],
                          [x for curve in drawn for x, _ in curve.crosses.get((x_, ys[0]), ())], log)
              for x_ in xs}  # fmt: skip
    seeds = len({run.seed for run in twins.run})
    same_runs = "the same in virtual time"
    remarks = [f"bands: {same_runs}, range of {seeds} seeds" if seeds > 1 else f"thin: {same_runs}"] * bool(seeds)
    remarks += [*_below(drawn, y_axes.get("accuracy"), metric), *(grey(drawn) if shown.one else ())]
    if at < scale.low or at > scale.high:
        remarks.append(f"{'below' if at < scale.low else 'above'} the frame: the goal, {aim}")
    if any(frame.attrs.get(CUT) for curve in drawn if curve.label for frame in curve.frames.values()):
        remarks.append("a curve ends where the first of its seeds ends; final values may differ")
    what, against = ([known[name].words or known[name].title for name in other] for other in (ys, xs))
    words = heading(title, what, against, shown.columns)
    lines = under(shown.results, shown.columns, *remarks, notes=notes)
    fig, panels = compose(drawn, shown.across, shown.down, x_axes, y_axes, width, behind if shown.one else None)
    if shown.one:
        fig.update_traces(showlegend=False)
    if scale.low <= at <= scale.high:
        own_panels = [axes for axes, (_, y_) in panels.items() if y_ == "accuracy"]
        level(fig, own_panels, at, f"goal: {aim}")
    return finish(fig, words, lines, width)


def _drawn(
    shown: Shown, twins: Iterable[Group], pairs: Sequence[tuple[str, str]], known: Mapping[str, Quantity], behind: Any
) -> list[Curve]:
    """Return the curves of groups, of the same runs in virtual time, and of single machines, which send no bytes."""
    divisor, drawn = _alike("workers", shown.crowd) or 1, []
    in_panels = shown.across.column is not None or shown.down.column is not None

    def bands(results: Sequence[Result]) -> dict[tuple[str, str], pd.DataFrame]:
        return {pair: _band(results, *pair, known, divisor) for pair in pairs}

    for key, group, label, sign, look in shown.groups:
        back = behind is not None and behind in (key[name] for name in shown.names)
        everywhere = shown.across.column if back and shown.one else None
        places = {name: value for name, value in key.items() if name != everywhere}
        diverged = [result for result in group if result.diverged]
        series = {pair: [_series(result, *pair, known, divisor) for result in diverged] for pair in pairs}
        ends = {pair: [(float(table.x.iloc[-1]), float(table.y.iloc[-1])) for table in tables if len(table)]
                for pair, tables in series.items()}  # fmt: skip
        drawn.append(Curve(label if in_panels else label + sign, BACK if back else look, places, back,
                           sign if in_panels else "", bands(group), ends))  # fmt: skip
    looks = {repr(group.key): group.look for group in shown.groups}
    drawn += [Curve("", looks[repr(key)].thin, key, True, "", bands(group),
                    marked=False, joined=len(group) == 1)
              for key, group, *_ in twins if repr(key) in looks]  # fmt: skip
    greys = told_apart([BACK, *[SINGLE] * len(shown.singles)], [{0}] * (1 + len(shown.singles)))[1:]
    for (_, group, label, sign, _), look in zip(shown.singles, greys, strict=True):
        frames = {pair: frame for pair, frame in bands(group).items() if not pair[0].startswith("bytes")}
        drawn.append(Curve(label + sign, look, {}, True, frames=frames))
    return drawn


def _alike(field: str, results: pd.DataFrame) -> int:
    """Return the common value of a field of these runs; 0 if they differ."""
    values = {getattr(run, field) for run in results.run}
    return int(values.pop()) if len(values) == 1 else 0


# -- the numbers -----------------------------------------------------------------------------------


def _series(result: Result, x: str, y: str, known: Mapping[str, Quantity], divisor: int) -> pd.DataFrame:
    """Return x, y and hover texts of a run's evaluations; an iteration is `divisor` pushes."""
    table, metric = evaluations(result), metric_of(result.run)
    if "density" in (x, y):
        table = table.assign(density=_density(result, table.pushes.to_numpy()))
    table = table.assign(iteration=table.pushes / divisor)
    hover = [f"{metric.text(row.accuracy, SPACE)}, loss {row.loss:.3f}<br>"
             f"{row.pushes} pushes, {row.seconds:.2f}{SPACE}s<br>"
             f"{size(row.bytes_up)} up, {size(row.bytes_down)} down" for row in records(table)]  # fmt: skip
    return pd.DataFrame({"x": table[x] * known[x].factor, "y": table[y] * known[y].factor, "hover": hover})


def _density(result: Result, pushes: np.ndarray) -> np.ndarray:
    """Return, by evaluation, the mean density of the pushes since the evaluation before; NaN without pushes."""
    order = result.pushes.sort_values("seconds", kind="stable").density.to_numpy(float)
    until = np.concatenate([[0.0], np.cumsum(order)])[np.minimum(pushes, len(order))]
    with np.errstate(invalid="ignore", divide="ignore"):
        density: np.ndarray = np.diff(until, prepend=0.0) / np.diff(pushes, prepend=0)
    return density


def _band(group: Sequence[Result], x: str, y: str, known: Mapping[str, Quantity], divisor: int) -> pd.DataFrame:
    """Return median, low and high over the seeds that did not diverge, at each x that all of them reach. Runs without
    an evaluation are left out."""
    series = [_series(result, x, y, known, divisor).dropna() for result in sound(group)]
    parts = [part for part in series if len(part)] or series[:1]
    if len(parts) == 1:
        return parts[0].assign(low=parts[0].y, high=parts[0].y)
    first, last = max(part.x.iloc[0] for part in parts), min(part.x.iloc[-1] for part in parts)
    at = np.unique(np.concatenate([part.x.to_numpy() for part in parts]))
    at = at[(at >= first) & (at <= last)]
    values = np.stack([np.interp(at, part.x, part.y) for part in parts])
    middle, low, high = np.median(values, axis=0), values.min(axis=0), values.max(axis=0)
    hover = [f"{m:.4g} ({a:.4g} to {b:.4g})<br>{known[x].title}: {x_:.4g}"
             for x_, m, a, b in zip(at, middle, low, high, strict=True)]  # fmt: skip
    band = pd.DataFrame({"x": at, "y": middle, "low": low, "high": high, "hover": hover})
    band.attrs[CUT] = any(part.x.iloc[-1] > last for part in parts)
    return band


# -- axes and words --------------------------------------------------------------------------------


def _x_axis(
    what: Quantity, frames: Sequence[tuple[pd.DataFrame, float]], crosses: Iterable[float], log: str | None
) -> Axis:  # fmt: skip
    """Return the x axis of curves, each given with the low end of its y axis."""
    ends = [float(frame.x.max()) for frame, _ in frames if len(frame)]
    far = what.turns_log and bool(ends) and max(ends) > FAR * float(np.median(ends))
    turned = far if log is None else "x" in log
    # a logarithmic axis begins at the last point before the first curve comes into its panel
    parts = [frame.iloc[max(0, int(np.argmax(frame.y.to_numpy() >= low)) - 1) :] if turned and len(frame) else frame
             for frame, low in frames]  # fmt: skip
    values = [*crosses, *(value for part in parts for value in part.x)]
    return axis(values, what.title, log=turned, zero=True, sized=what.sized, pad=0.02)


def _iteration(crowd: pd.DataFrame, room: float) -> str:
    # the title of an axis; its parenthesis, which follows from the caption, only if a panel of `room` px is wide enough
    workers, batch = _alike("workers", crowd), _alike("batch_size", crowd)
    if workers <= 1:
        return "pushes"
    title = f"iteration ({workers} pushes" + (f", {workers * batch} samples)" if batch else ")")
    return title if len(wrapped(title, room - 12)) <= 2 else "iteration"


def _y_axis(
    what: Quantity, y: str, frames: Sequence[pd.DataFrame], log: str | None, zoom: tuple[float, float] | bool | None
) -> Axis:
    if isinstance(zoom, (tuple, list)) and y == "accuracy":
        return Axis(what.title, *zoom)
    if what == QUANTITIES["accuracy"] and zoom is not False:
        return Axis(what.title, *accuracy_range(frames))
    values = [value for frame in frames for column in ("low", "high") for value in frame[column]]
    return axis(values, what.title, log="y" in (log or ""), sized=what.sized,
                zero=y != "density" and min(values, default=0.0) >= 0)  # fmt: skip


def accuracy_range(frames: Iterable[pd.DataFrame]) -> tuple[float, float]:
    """Return the range in per cent in which the ends of curves can be told apart; the rise from chance is cut off."""
    shown = [frame for frame in frames if len(frame)]
    worst = min((float(frame.y.max()) for frame in shown), default=0.0)
    best = max((float(frame.high.max()) for frame in shown), default=100.0)
    low = max(0.0, worst - 0.6 * (best - worst) - 4, best - VISIBLE)
    step = 5 if best - low > 15 else 2
    low = step * math.floor(low / step)
    return low, min(100.0, best + 0.08 * (best - low))


def _below(drawn: Sequence[Curve], shown: Axis | None, metric: Metric) -> list[str]:
    """Return a line for the caption that names the curves that end below the y axis; [] if there are none."""
    if shown is None:
        return []
    ends = {curve.label: float(frame.y.iloc[-1]) for curve in drawn for (_, y), frame in curve.frames.items()
            if y == "accuracy" and len(frame) and frame.y.iloc[-1] < shown.low}  # fmt: skip
    words = ", ".join(f"{label} ends at " + (f"{end:.0f}{SPACE}%" if metric.share else f"{end:.3g}")
                      for label, end in ends.items())  # fmt: skip
    return [f"below the frame: {words}"] if ends else []
