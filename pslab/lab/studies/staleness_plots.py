"""Pictures of learning rates that heed staleness: pushes to an accuracy, accuracy, and what the rates make of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pslab.config.run import Run
from pslab.lab.plots.accuracy import PAIR_WIDTH, accuracy_range, finish, traces
from pslab.lab.plots.theme import DASHES, INK, PALE, SPACE, Style, sync_name
from pslab.lab.studies.staleness import CONSGD, PLAIN, cells, factor, heterogeneity, name
from pslab.lab.studies.staleness_tables import arrivals
from pslab.lab.studies.studies import Curve, caption, curves, describe_cluster

if TYPE_CHECKING:
    from pslab.lab.records.record import Result

#: A rate keeps its colour in every figure; none is a policy's.
STYLES: dict[str, Style] = {
    PLAIN: Style("#000000", "solid", "circle", 2.4),
    CONSGD: Style("#9A9A9A", "6px,3px", "circle-open", 2.4),
    "DynSGD, versions": Style("#332288", "solid", "triangle-up"),
    "DynSGD, inverse": Style("#882255", "9px,3px,2px,3px", "triangle-down"),
    "modulated": Style("#117733", "12px,4px", "square"),
    "split": Style("#88AA33", "2px,3px", "diamond"),
    "AdaGrad": Style("#D55E00", "12px,3px,2px,3px,2px,3px", "star"),
}
STYLES |= {"modulated, inverse": Style("#44AA99", "2px,3px", "square-open"),
           "modulated, reciprocal": Style("#AA8800", "9px,3px,2px,3px", "hexagon")}  # fmt: skip
SPARE = ("#44AA99", "#CC6677", "#6699CC", "#AA8800")
TUNED = "each rate at its own best learning rate of a grid, chosen by one seed for each policy and cluster"


def style(rate: str) -> Style:
    """How a rate is drawn; one without a style of its own gets one by its name."""
    rank = sum(map(ord, rate))
    return STYLES.get(rate, Style(SPARE[rank % len(SPARE)], DASHES[rank % len(DASHES)], "hexagon"))


# -- pushes ----------------------------------------------------------------------------------------


def pushes(results: Iterable[Result], accuracy: float) -> go.Figure:
    """Pushes to an accuracy (0 to 1) against heterogeneity, for each rate: median and range; a panel for each policy.

    What is not reached stands above the picture.
    """
    found = list(results)
    table = arrivals(found, accuracy)
    policies, rates = list(dict.fromkeys(table.policy)), list(dict.fromkeys(table.rate))
    levels = sorted(set(table.heterogeneity))
    budget = max(float(r.accuracy.pushes.max()) for r in found)
    top = 1.08 * budget
    names = [f"<b>{sync_name(policy)}</b>" for policy in policies]
    figure = make_subplots(1, len(policies), shared_yaxes=True, horizontal_spacing=0.035, column_titles=names)
    for column, policy in enumerate(policies, start=1):
        for rank, rate in enumerate(rates):
            rows = table[(table.policy == policy) & (table.rate == rate)].sort_values("heterogeneity")
            aside = 0.07 * (rank - (len(rates) - 1) / 2)  # side by side, so that no range hides another
            figure.add_traces(_ranges(rows, rate, levels, aside, top, column == 1), rows=1, cols=column)
        figure.add_hline(y=1.02 * budget, line={"color": PALE, "width": 1, "dash": "dot"}, row=1, col=column)
        figure.update_xaxes(
            title_text="heterogeneity: how many times slower the slow workers are", tickvals=list(range(len(levels))),
            ticktext=[f"{level:g}" for level in levels], showgrid=False, row=1, col=column)  # fmt: skip
    least = float(table.low[np.isfinite(table.low)].min()) if np.isfinite(table.low).any() else 0.0
    ticks = _ticks(least, budget)
    figure.update_yaxes(range=[min(0.9 * least, ticks[0]), 1.15 * budget], tickvals=[*ticks, top],
                        ticktext=[*(f"{tick:g}" for tick in ticks), "not<br>reached"])  # fmt: skip
    goal = f"{100 * accuracy:g}{SPACE}%"
    figure.update_yaxes(title_text=f"pushes to {goal} test accuracy", col=1)
    told = f"until the first evaluation (every {found[0].run.evaluation_period} pushes) at or above {goal}"
    lines = [*_caption(found), f"{TUNED}; {told}"]
    return _finished(figure, f"Learning-rate policies: pushes to {goal} as workers get more uneven", lines, rates)


def _ticks(low: float, high: float) -> list[float]:
    step = 50 if high > 150 else 10
    return list(np.arange(step * math.floor(0.9 * low / step), high + 1, step, dtype=float))


def _ranges(
    rows: pd.DataFrame, rate: str, levels: Sequence[float], aside: float, top: float, shown: bool
) -> list[go.Scatter]:
    """One rate in one panel: medians joined by a line, a bar over the range, a cross where it is not reached."""
    look = style(rate)
    x = np.array([levels.index(level) for level in rows.heterogeneity]) + aside
    there = np.isfinite(rows.pushes.to_numpy(float))
    middle, low, high = (np.minimum(rows[key].to_numpy(float), top) for key in ("pushes", "low", "high"))
    edge = {"color": "white" if "open" not in look.marker else look.colour, "width": 1}
    hover = [f"<b>{rate}</b>, heterogeneity {r.heterogeneity:g}<br>{r.pushes:.0f} pushes ({r.low:.0f} to {r.high:.0f})"
             f"<br>{r.reached} of {r.seeds} seeds there, learning rate {r.learning_rate:g}"
             for r in rows.itertuples()]  # fmt: skip
    common = {"name": rate, "legendgroup": rate, "hovertext": hover, "hoverinfo": "text", "cliponaxis": False}
    found = [go.Scatter(
        x=x, y=np.where(there, middle, np.nan), mode="lines+markers", showlegend=shown,
        line={"color": look.colour, "dash": look.dash, "width": look.width},
        marker={"symbol": look.marker, "size": 9, "color": look.colour, "line": edge, "opacity": 1},
        error_y={"array": np.where(there, high - middle, 0), "arrayminus": np.where(there, middle - low, 0),
                 "symmetric": False, "thickness": 1.4, "width": 3, "color": look.colour}, **common)]  # fmt: skip
    if not there.all():
        found.append(go.Scatter(
            x=x[~there], y=np.full((~there).sum(), top), mode="markers", showlegend=False,
            marker={"symbol": "x", "size": 9, "color": look.colour, "line": {"color": INK, "width": 0.8}},
            **{**common, "hovertext": [text for text, is_ in zip(hover, there, strict=True) if not is_]}))  # fmt: skip
    return found


# -- accuracy --------------------------------------------------------------------------------------


def accuracy(results: Iterable[Result]) -> go.Figure:
    """Test accuracy at the largest heterogeneity, a column for each rate, with SSP-SGD behind it.

    Against pushes, a row for each policy; against seconds, the policies in one row, the first of them dashed.
    """
    found = list(results)
    worst = max(heterogeneity(r.run) for r in found)
    kept = [r for r in found if heterogeneity(r.run) == worst]
    by_policy = _by_policy(kept)
    rates = list(dict.fromkeys(rate for each in by_policy.values() for rate in each))
    shown = [rate for rate in rates if rate not in (PLAIN, CONSGD)] or rates
    low, high = accuracy_range([curve for each in by_policy.values() for curve in each.values()])
    figure = make_subplots(
        1 + len(by_policy), len(shown), shared_yaxes=True, horizontal_spacing=0.015, vertical_spacing=0.1,
        column_titles=[f"<b>{rate}</b>" for rate in shown], row_titles=[*map(sync_name, by_policy), "all policies"],
    ).update_annotations(font_size=13)  # fmt: skip
    for column, rate in enumerate(shown, start=1):
        for row, each in enumerate(by_policy.values(), start=1):
            behind = [each[PLAIN]] if PLAIN in each and rate != PLAIN else []
            for curve in [*behind, *([each[rate]] if rate in each else [])]:
                figure.add_traces(_lines(curve, "pushes", low, row == 1), rows=row, cols=column)
                dash = "4px,3px" if row < len(by_policy) else "solid"
                figure.add_traces(_lines(curve, "seconds", low, False, dash), rows=1 + len(by_policy), cols=column)
    figure.for_each_trace(lambda trace: trace.update(showlegend=False) if trace.name in _seen(figure, trace) else None)
    figure.update_xaxes(title_text="pushes", range=[0, 1.02 * max(r.accuracy.pushes.max() for r in kept)])
    figure.update_xaxes(title_text="time (s)", range=[0, 1.02 * max(r.accuracy.seconds.max() for r in kept)],
                        row=1 + len(by_policy))  # fmt: skip
    figure.update_yaxes(range=[low, high])
    figure.update_yaxes(title_text="test accuracy (%)", col=1)
    dashed = f"; against time {sync_name(next(iter(by_policy)))} is dashed" if len(by_policy) == 2 else ""
    title = f"Learning-rate policies, slow workers {worst:g} times slower: test accuracy"
    return _finished(figure, title, [*_caption(kept, worst), TUNED + dashed], [PLAIN, *shown], 190 * len(by_policy))


def _by_policy(results: Sequence[Result]) -> dict[str, dict[str, Curve]]:
    """Policy -> rate -> its curve over all seeds."""
    found: dict[str, dict[str, Curve]] = {}
    for (policy, _, rate), grid in cells(results).items():
        own = tuple(sorted((r for group in grid.values() for r in group), key=lambda r: r.run.seed))
        found.setdefault(policy, {})[rate] = Curve(rate, style(rate), own, False)
    return found


def _seen(figure: go.Figure, trace: Any) -> set[str]:
    """The name of a trace, if an earlier one is in the legend under it."""
    earlier = figure.data[: next(place for place, each in enumerate(figure.data) if each is trace)]
    return {each.name for each in earlier if each.showlegend is not False}


def _lines(curve: Curve, axis: str, low: float, shown: bool, dash: str = "solid") -> list[go.Scatter]:
    """A curve without marks; SSP-SGD is pale, because it is behind every other one."""
    drawn = [trace for trace in traces(curve, axis, 1, low, shown) if trace.x[0] is not None or shown]
    for trace in drawn:
        if not trace.fill and trace.mode == "lines+markers":
            colour = "#8A8A8A" if curve.label == PLAIN else curve.style.colour
            trace.update(mode="lines", line={"dash": dash, "width": 1.8, "color": colour})
    return drawn


# -- factors ---------------------------------------------------------------------------------------

#: The rates that are a factor: name, rate, push weight.
FACTORS: tuple[tuple[str, str, float | None], ...] = (
    (PLAIN, "constant", 1.0), (CONSGD, "constant", None), ("DynSGD, inverse", "dynsgd:inverse", None),
    ("modulated", "modulated", None), ("modulated, inverse", "modulated:inverse", None),
    ("modulated, reciprocal", "modulated:reciprocal", None),
)  # fmt: skip
GROUPS = {"slow workers": "#BB5566", "other workers": "#7FA6D6"}


def factors(results: Iterable[Result]) -> go.Figure:
    """The factor that each rate gives a push by its staleness, above how stale the pushes were: slow workers, others,
    and the same cluster with its workers equal."""
    found = [group for grid in cells(results).values() for group in grid.values()]
    policies = list(dict.fromkeys(str(group[0].run.sync) for group in found))
    worst, least = (pick(heterogeneity(group[0].run) for group in found) for pick in (max, min))
    one = [group for group in found if name(group[0].run) == name(found[0][0].run)]
    workers = one[0][0].run.workers
    titles = ["factor of the learning rate", *(f"staleness under {sync_name(policy)}" for policy in policies)]
    figure = make_subplots(1 + len(policies), 1, shared_xaxes=True, vertical_spacing=0.085,
                           row_heights=[1.5, *([1.0] * len(policies))],
                           subplot_titles=[f"<b>{title}</b>" for title in titles])  # fmt: skip
    largest = max(int(r.pushes.staleness.max()) for group in one for r in group)
    figure.add_traces(_curves(largest, workers), rows=1, cols=1)
    figure.update_yaxes(type="log", title_text="factor", tickvals=[1, 0.3, 0.1, 0.03, 0.01], row=1)
    for row, policy in enumerate(policies, start=2):
        for group in (g for g in one if str(g[0].run.sync) == policy):
            level = heterogeneity(group[0].run)
            if level in (worst, least):
                figure.add_traces(_shares(group, level == worst, worst > least, row == 2), rows=row, cols=1)
    figure.update_yaxes(title_text="pushes (%)", rangemode="tozero", row=2)
    for row in range(2, 2 + len(policies)):
        figure.update_yaxes(title_text="pushes (%)", rangemode="tozero", row=row)
    figure.update_xaxes(range=[-0.7, largest + 0.7], dtick=5)
    figure.update_xaxes(title_text="staleness (steps)", row=1 + len(policies))
    figure.update_layout(barmode="overlay", bargap=0.1)
    figure.update_annotations(font_size=13, x=0, xanchor="left")
    names = list(dict.fromkeys(str(trace.name) for trace in figure.data if trace.showlegend is not False))
    kept = [r for group in one for r in group if heterogeneity(r.run) == worst]
    told = ("a push that is applied alone; shares are of each group's own pushes; DynSGD by versions, split and "
            "AdaGrad change the gradient itself and are no function of staleness")  # fmt: skip
    lines = [*_caption(kept, worst), told]
    return _finished(figure, "How stale pushes are, and what the rates make of it", lines, names, 330)


def _curves(largest: int, workers: int) -> list[go.Scatter]:
    stale = np.arange(largest + 1)
    found = []
    for label, rate, weight in FACTORS:
        scale, look = factor(rate, weight, workers), style(label)
        found.append(go.Scatter(
            x=stale, y=[scale(int(s)) for s in stale], name=label, mode="lines", showlegend=True,
            line={"color": look.colour, "dash": look.dash, "width": look.width},
            hovertemplate=f"<b>{label}</b><br>staleness %{{x}}: %{{y:.3f}}<extra></extra>"))  # fmt: skip
    return found


def _shares(group: Sequence[Result], uneven: bool, both: bool, shown: bool) -> list[Any]:
    """Bars for the groups of uneven workers, an outline for equal ones."""
    table = pd.concat([r.pushes for r in group], ignore_index=True)
    if not uneven:
        x, y = _share(table.staleness)
        return [go.Scatter(x=x, y=y, mode="lines", name="equal workers", showlegend=shown, hoverinfo="skip",
                           line={"color": INK, "width": 1.4, "shape": "hvh"})]  # fmt: skip
    slow = table.worker.isin(_slow(group[0].run))
    found = []
    for label, rows in (("other workers", table[~slow]), ("slow workers", table[slow])) if both else ():
        x, y = _share(rows.staleness)
        found.append(go.Bar(
            x=x, y=y, name=label, showlegend=shown, opacity=0.75, marker={"color": GROUPS[label], "line": {"width": 0}},
            hovertemplate=f"<b>{label}</b><br>staleness %{{x}}: %{{y:.1f}} %<extra></extra>"))  # fmt: skip
    return found


def _share(stale: pd.Series[int]) -> tuple[np.ndarray, np.ndarray]:
    counts = np.bincount(stale.to_numpy(int)) if len(stale) else np.zeros(1)
    return np.arange(len(counts)), 100 * counts / max(1, counts.sum())


def _slow(run: Run) -> list[int]:
    slow = run.cluster.get("slow", {}) if not isinstance(run.cluster, str) else {}
    return [int(worker) for worker, times in slow.items() if float(times) > 1]


# -- words -----------------------------------------------------------------------------------------


def _finished(figure: go.Figure, title: str, lines: Sequence[str], names: Sequence[str], taller: int = 0) -> go.Figure:
    """With room for the panels' titles between the caption and the picture."""
    finish(figure, title, lines, names, PAIR_WIDTH)
    top = figure.layout.margin.t + 26
    return figure.update_layout(height=figure.layout.height + 26 + taller, margin_t=top)


def _caption(results: Sequence[Result], worst: float | None = None) -> list[str]:
    """What all runs share, their push weights, and the cluster, whose slow workers are named apart."""
    runs = [r.run for r in results]
    slowest = max(runs, key=heterogeneity)
    base = {key: value for key, value in dict(slowest.cluster).items() if key != "slow"}  # type: ignore[arg-type]
    slow = ", ".join(map(str, _slow(slowest))) or "none"
    times = f"×{worst:g} slower" if worst else "slower by the heterogeneity"
    apart = ("push weight", "learning rate", "η")
    words = [word for word in caption(curves(results))[0].split(", ") if not word.startswith(apart)]
    weights = f"push weight 1 for {PLAIN}, 1/W for {CONSGD} and modulated; the other rates have none"
    return [", ".join(words), weights, f"cluster: {describe_cluster(base, slowest.engine)}, worker {slow} {times}"]
