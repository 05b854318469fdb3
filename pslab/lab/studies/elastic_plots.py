"""Pictures of 30_elastic: searches, barriers, throughput, two workers, stragglers, accuracy, the horizon."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pslab.lab.plots import lanes
from pslab.lab.plots.accuracy import band, series
from pslab.lab.plots.theme import INK, PALE, SPACE, parts, sync_colour, sync_name, template, translucent
from pslab.lab.records.intervals import common_starts
from pslab.lab.records.time_to_accuracy import best_rate, ends
from pslab.lab.studies import elastic_tables as tables
from pslab.lab.studies.studies import caption, curves, describe_cluster

if TYPE_CHECKING:
    from pslab.config.run import Run
    from pslab.lab.records.record import Result
    from pslab.lab.studies.searching import Searched

WIDTH = 980
LOOKS = {"zipline": ("#004488", "circle"), "opt": ("#4D87C4", "square"), "optbs": ("#00A08A", "diamond"),
         "lru": ("#DDAA33", "triangle-up"), "sweep": ("#222222", "triangle-down"), "grid": ("#BB5566", "cross"),
         "fullgrid": ("#661133", "x")}  # fmt: skip
TIME_ALONE = "virtual time without tensors, so push weight and rate play no part; network without delay"
MARKS = {"bsp": "circle", "ssp": "diamond", "asp": "square", "dssp": "triangle-up", "elastic": "triangle-down",
         "backup": "hexagon"}  # fmt: skip
DASHES = ("solid", "6px,3px", "2px,3px", "9px,3px,2px,3px")


# -- search ----------------------------------------------------------------------------------------


def search(found: Searched) -> go.Figure:
    """Seconds of each search against workers, at fewest and most ends, and against ends; the papers' hollow."""
    table, grows = tables.search_times(found), tables.growth(found)
    least, most, widest = table.ends.min(), table.ends.max(), table.workers.max()
    panels = [("workers", table[table.ends == least], f"R = {least}"),
              ("workers", table[table.ends == most], f"R = {most}"),
              ("ends", table[table.workers == widest], f"n = {widest}")]  # fmt: skip
    figure = make_subplots(1, 3, shared_yaxes=True, horizontal_spacing=0.03, subplot_titles=[p[2] for p in panels])
    for column, (axis, part, _) in enumerate(panels, start=1):
        for name in found.searches.searches:
            own, (colour, symbol) = part[part.search == name].sort_values(axis), LOOKS[name]
            legend = f"{tables.NAMES[name]}{_powers(grows.loc[name].to_dict())}"
            figure.add_trace(go.Scatter(
                x=own[axis], y=own.seconds, mode="lines+markers", name=legend, legendgroup=name, showlegend=column == 1,
                line={"color": colour, "width": 1.8}, marker={"symbol": symbol, "size": 7, "color": colour},
                hovertemplate=f"<b>{tables.NAMES[name]}</b><br>%{{x}}: %{{y:.3s}}s<extra></extra>"), row=1, col=column)
            fixed, value = ("ends", part.ends.iloc[0]) if axis == "workers" else ("workers", widest)
            paper = [(n if axis == "workers" else r, s) for (n, r), s in tables.PUBLISHED.get(name, {}).items()
                     if (r if fixed == "ends" else n) == value]  # fmt: skip
            figure.add_trace(go.Scatter(
                x=[x for x, _ in paper], y=[s for _, s in paper], mode="markers", showlegend=False, legendgroup=name,
                marker={"symbol": f"{symbol}-open", "size": 9, "color": colour, "line": {"width": 1.6}},
                hovertemplate=f"<b>{tables.NAMES[name]}, published</b><br>%{{x}}: %{{y:.3s}}s<extra></extra>"),
                row=1, col=column)  # fmt: skip
        ticks = sorted(set(part[axis]))
        figure.update_xaxes(type="log", title_text="workers n" if axis == "workers" else "predicted ends R each",
                            tickvals=ticks, ticktext=[f"{t}" for t in ticks], row=1, col=column)  # fmt: skip
    values = [10.0**power for power in range(-5, 3)]
    figure.update_yaxes(type="log", tickvals=values, ticktext=["10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s",
                                                               "10 s", "100 s"])  # fmt: skip
    figure.update_yaxes(title_text="time of one search", row=1, col=1)
    here = (f"filled: plain Python, one thread ({found.manifest['processor']}), medians of {found.searches.repeats} "
            "instances; intervals of 1 to 1.5 s and any phase")  # fmt: skip
    fit = (f"in the legend: fitted growth with n, from {tables.LARGE} on at the largest R, and with R at the largest n "
           "that it was run with; FullGridScan is left out where it takes longest")  # fmt: skip
    lines = [here, tables.SOURCES, fit]
    return finish(figure, "How long the search for a barrier takes", lines, 330, legend_rows=3)


def _powers(grown: dict[Any, float]) -> str:
    named = {"n": grown["workers"], "R": grown["ends"]}
    shown = [f"{letter}<sup>{value:.2f}</sup>" for letter, value in named.items() if math.isfinite(value)]
    return f" ({', '.join(shown)})" if shown else ""


# -- barriers --------------------------------------------------------------------------------------


def barriers(results: Iterable[Result], policies: Sequence[str] = ("bsp", "ssp:3", "elastic:15")) -> go.Figure:
    """Time lines of some policies around two barriers of the last one, drawn where all start on the same weights."""
    found = {str(r.run.sync): r for r in results}
    chosen = [found[policy] for policy in policies]
    at = list(common_starts(chosen[-1]).at_s)
    begin, end = (at[0], at[1]) if len(at) > 1 else (0.0, float(chosen[-1].manifest["seconds"]))
    room = 0.03 * (end - begin)
    begin, end = max(0.0, begin - room), end + room
    title = "Where barriers fall: a superstep of ElasticBSP between its dashed lines, beside others"
    figure = lanes.timeline(chosen, begin, end, title=title)
    inside = [x for x in at if begin <= x <= end]
    row, workers = len(chosen), chosen[-1].run.workers
    barrier = {**lanes.BARRIER, "color": "#BB5566", "width": 2.2}
    figure.add_trace(go.Scatter(
        x=[x for each in inside for x in (each, each, None)], y=[-0.6, workers + 1.0, None] * len(inside), mode="lines",
        line=barrier, name="barrier", legendgroup="planned", showlegend=False,
        hovertemplate="<b>barrier: all start on the same weights</b><br>at %{x:.2f} s<extra></extra>"), row=row, col=1)
    lasting = {t.name for t in figure.data if t.type == "bar" and max(t.x) > 1e-6 * (end - begin)}
    figure.for_each_trace(lambda t: t.update(showlegend=False), lambda t: t.type == "bar" and t.name not in lasting)
    said = _small([*_timing_lines([r.run for r in chosen]),
                   "white circles are fresh pushes, darker ones staler; dashed: a barrier"])  # fmt: skip
    figure.update_layout(title_subtitle_text="<br>".join(said))
    return figure


# -- throughput ------------------------------------------------------------------------------------


def throughput(results: Iterable[Result]) -> go.Figure:
    """Pushes, and the waiting of each worker, by policy."""
    found = list(results)
    table = tables.throughput(found)
    names = [text.replace(", ", "<br>", 1) for text in table.index]
    figure = make_subplots(1, 2, horizontal_spacing=0.09, subplot_titles=["pushes that count", "share of time waiting"])
    colours = [sync_colour(r.run.sync) for r in found]
    counts = table.pushes - table.dropped
    figure.add_trace(go.Bar(y=names, x=counts, orientation="h", marker_color=colours, cliponaxis=False,
                            text=counts, textposition="outside",
                            hovertemplate="%{y}: %{x} pushes<extra></extra>"), row=1, col=1)  # fmt: skip
    shares = 100 * table.waiting
    figure.add_trace(go.Bar(y=names, x=shares, orientation="h", marker_color=colours, cliponaxis=False,
                            text=[f"{s:.1f}{SPACE}%" for s in shares], textposition="outside",
                            hovertemplate="%{y}: %{x:.1f} %<extra></extra>"), row=1, col=2)  # fmt: skip
    figure.update_yaxes(autorange="reversed", showgrid=False, ticks="")
    figure.update_yaxes(showticklabels=False, col=2)
    figure.update_xaxes(title_text="pushes", range=[0, 1.12 * counts.max()], col=1)
    figure.update_xaxes(title_text="% of the workers' time", range=[0, 1.2 * max(shares.max(), 1)], col=2)
    figure.update_layout(showlegend=False, bargap=0.3)
    leads = table.lead[sync_name("dssp:3,12,literal")] if sync_name("dssp:3,12,literal") in table.index else None
    more = [f"DSSP to the letter gets {leads} iterations ahead: its bound of 15 does not hold"] if leads else []
    return finish(figure, "Throughput and waiting with permanently unequal workers", [
        *_timing_lines([r.run for r in found]), *more], 330, legend_rows=0, left=130)  # fmt: skip


def pair(results: Iterable[Result]) -> go.Figure:
    """Two workers: how many times as long SSP(15) takes, against the ratio of speeds; the paper's time hollow."""
    found = list(results)
    over = tables.speed_ups(found)
    figure = go.Figure()
    looks = {sync_name(r.run.sync): r.run.sync for r in found}
    for policy in over.columns:
        family, colour = parts(looks[policy])[0], sync_colour(looks[policy])
        dash = "solid" if "literal" not in str(looks[policy]) else "6px,3px"
        figure.add_trace(go.Scatter(
            x=over.index, y=over[policy], mode="lines+markers", name=policy, line={"color": colour, "dash": dash},
            marker={"symbol": MARKS[family], "size": 8, "color": colour},
            hovertemplate=f"<b>{policy}</b><br>1:%{{x}}: SSP(15) takes %{{y:.2f}} times as long<extra></extra>"))
    limit = np.linspace(float(over.index.min()), float(over.index.max()), 50)
    figure.add_trace(go.Scatter(x=limit, y=(1 + limit) / 2, mode="lines", name="(1 + r) / 2", hoverinfo="skip",
                                line={"color": PALE, "dash": "2px,3px", "width": 1.2}))  # fmt: skip
    figure.add_trace(go.Scatter(
        x=[2.0], y=[tables.DSSP_PAPER], mode="markers", name=f"published: {tables.DSSP_PAPER:.2f}",
        marker={"symbol": "triangle-up-open", "size": 12, "color": sync_colour("dssp:3,12"), "line": {"width": 2}},
        hovertemplate=f"{tables.DSSP_SOURCE}: seconds to 67 %<extra></extra>"))  # fmt: skip
    figure.update_xaxes(title_text="slow worker's iteration over the fast one's, r")
    figure.update_yaxes(title_text="SSP(15)'s time over the policy's,<br>for equal pushes")
    lines = [*_timing_lines([r.run for r in found], "computation 1000 ms, worker 1 ×r slower"),
             f"hollow: {tables.DSSP_SOURCE}, seconds to 67 % with a GTX 1060 and a 1080 Ti, placed at 1:2"]
    return finish(figure, "Two workers: what DSSP to the letter gains over SSP(15)", lines, 330, legend_rows=2)


def stragglers(results: Iterable[Result]) -> go.Figure:
    """Pushes against ASP's and waiting, under a permanent straggler and under short stalls."""
    found = list(results)
    table = tables.stragglers(found)
    figure = make_subplots(1, 2, shared_yaxes=False, horizontal_spacing=0.09,
                           subplot_titles=["pushes in equal time, % of ASP's", "share of time waiting, %"])  # fmt: skip
    shades = {"permanent": "#882244", "transient": "#8FD3C5"}
    words = {"permanent": "permanent straggler", "transient": "short stalls"}
    for column, measure in enumerate(("rate", "waiting"), start=1):
        for each, own in table.groupby("kind", sort=False):
            groups = 100 * own.groupby("policy", sort=False)[measure].agg(["median", "min", "max"])
            figure.add_trace(go.Bar(
                x=list(groups.index), y=groups["median"], name=words[str(each)],
                marker_color=shades[str(each)], legendgroup=str(each), showlegend=column == 1,
                error_y={"type": "data", "symmetric": False, "array": groups["max"] - groups["median"],
                         "arrayminus": groups["median"] - groups["min"], "thickness": 1.2, "width": 3, "color": INK},
                hovertemplate="%{x}: %{y:.1f} %<extra></extra>"), row=1, col=column)  # fmt: skip
    figure.update_layout(barmode="group", bargap=0.25)
    figure.update_xaxes(showgrid=False, tickangle=0, tickfont_size=12)
    figure.update_yaxes(rangemode="tozero")
    kinds = {tables.kind(r.run): r.run for r in reversed(found)}
    seeds = len({r.run.seed for r in found if tables.kind(r.run) == "transient"})
    lines = [f"{found[0].run.workers} workers, {_stop(found[0].run)}, {TIME_ALONE}",
             *(f"{each}: {describe_cluster(run.cluster)}" for each, run in sorted(kinds.items())),
             f"short stalls: median and range of {seeds} seeds; the permanent one is without chance"]  # fmt: skip
    return finish(figure, "SSP helps against short stalls, not against a slow worker", lines, 300, legend_rows=1)


# -- accuracy --------------------------------------------------------------------------------------


def accuracy(results: Iterable[Result]) -> go.Figure:
    """Accuracy against seconds: left at push weight 1/W, right at 1; above at BSP's rate, below each at its best."""
    found = list(results)
    groups = tables.by_rate(found)
    goal, common = tables.goal_of(groups), tables.common_rate(groups)
    weights = list(dict.fromkeys(weight for _, weight in groups))
    words = [f"push weight {'1/W' if weight is None else f'{weight:g}'}" for weight in weights]
    rows = (f"rate {common:g} for all", "each at its own best rate")
    heads = [f"{word}, {which}" for which in rows for word in words]
    figure = make_subplots(2, len(weights), shared_xaxes=True, shared_yaxes=True, subplot_titles=heads,
                           horizontal_spacing=0.03, vertical_spacing=0.09)  # fmt: skip
    for column, weight in enumerate(weights, start=1):
        for (policy, each), rates in groups.items():
            if each != weight:
                continue
            for row, chosen in enumerate((common, best_rate(rates, goal)), start=1):
                first = row == column == 1
                figure.add_traces(_curve(policy, rates[chosen], chosen, first), rows=row, cols=column)
        best = {p: best_rate(r, goal) for (p, each), r in groups.items() if each == weight}
        text = "<br>".join(f"{sync_name(p)}: {rate:g}" for p, rate in best.items())
        figure.add_annotation(text=text, x=0.99, y=0.04, xref="x domain", yref="y domain", xanchor="right",
                              align="left", yanchor="bottom", font={"size": 11, "color": PALE},
                              bgcolor="rgba(255,255,255,0.8)", row=2, col=column)  # fmt: skip
    figure.add_hline(y=100 * goal, line={"color": PALE, "width": 0.8, "dash": "2px,3px"})
    tops = [100 * ends(r) for rates in groups.values() for r in rates.values()]
    figure.update_yaxes(range=[0, 1.06 * max(tops)], row=1)
    figure.update_yaxes(range=[max(0.0, max(tops) - 32), max(tops) + 3], row=2)
    figure.update_yaxes(title_text="test accuracy (%)", col=1)
    figure.update_xaxes(title_text="training time (s)", rangemode="tozero", row=2)
    shown = caption([c for c in curves(found) if str(c.run.sync) == str(found[-1].run.sync)])
    tried = ", ".join(f"{rate:g}" for rate in sorted(next(iter(groups.values()))))
    best_of = (f"rates tried: {tried}; best: soonest at {100 * goal:g} % (dotted), chosen on these seeds and the test "
               "set; BSP takes the mean, without a weight")  # fmt: skip
    lines = [shown[0].replace(f"{sync_name(found[-1].run.sync)}, ", ""), *shown[1:], best_of]
    return finish(figure, "Accuracy against time: a push weight is a rate", lines, 560, legend_rows=1)


def _curve(policy: str, results: Sequence[Result], rate: float, shown: bool) -> list[go.Scatter]:
    runs = [series(result, "seconds") for result in results]
    whole = [points for points, r in zip(runs, results, strict=True) if r.manifest["outcome"] != "diverged"] or runs
    middle, family = band(whole, "seconds"), parts(policy)[0]
    colour, name = sync_colour(policy), sync_name(policy)
    lost = len(runs) - len(whole) if len(whole) < len(runs) else 0
    told = f", {lost} diverged" if lost else ""
    common = {"legendgroup": name, "name": name}
    edge = go.Scatter(x=np.concatenate([middle.x, middle.x[::-1]]), y=np.concatenate([middle.high, middle.low[::-1]]),
                      fill="toself", fillcolor=translucent(colour, 0.14), line={"width": 0}, mode="lines",
                      hoverinfo="skip", showlegend=False, **common)  # fmt: skip
    sizes = [7.0 if place % max(1, len(middle) // 8) == 0 else 0.0 for place in range(len(middle))]
    line = go.Scatter(x=middle.x, y=middle.y, mode="lines+markers", showlegend=False,
                      line={"color": colour, "width": 2}, marker={"symbol": MARKS.get(family, "star"), "size": sizes,
                                                                  "color": colour, "opacity": 1},
                      hovertemplate=f"<b>{name}, rate {rate:g}{told}</b><br>%{{x:.2f}} s: %{{y:.1f}} %<extra></extra>",
                      **common)  # fmt: skip
    key = go.Scatter(x=[None], y=[None], mode="lines+markers", line={"color": colour}, showlegend=shown,
                     marker={"symbol": MARKS.get(family, "star"), "size": 7, "color": colour}, **common)  # fmt: skip
    return [edge, line, key]


# -- the horizon -----------------------------------------------------------------------------------


def horizon(results: Iterable[Result]) -> go.Figure:
    """Pushes against ASP's, and waiting, by R, for each number of workers and price of a predicted point."""
    found = list(results)
    table = tables.horizons(found)
    crowds = sorted(set(table.workers))
    figure = make_subplots(2, len(crowds), shared_xaxes=True, shared_yaxes=True, horizontal_spacing=0.04,
                           vertical_spacing=0.07, subplot_titles=[f"{n} workers" for n in crowds])  # fmt: skip
    for column, workers in enumerate(crowds, start=1):
        own = table[table.workers == workers]
        planned = own[own.ends > 0]
        span = [planned.ends.min() / 1.2, planned.ends.max() * 1.2]
        for row, measure in enumerate(("rate", "waiting"), start=1):
            for dash, (cost, part) in zip(DASHES, planned.groupby("search_s"), strict=False):
                text = f"ElasticBSP, a search of {1e6 * float(str(cost)):g}{SPACE}µs a point"
                figure.add_trace(go.Scatter(
                    x=part.ends, y=100 * part[measure], mode="lines+markers", name=text, legendgroup=text,
                    showlegend=row == column == 1, line={"color": sync_colour("elastic"), "dash": dash, "width": 2.2},
                    marker={"size": 8, "symbol": "triangle-down" if dash == "solid" else "triangle-down-open",
                            "color": sync_colour("elastic"), "line": {"width": 1.6, "color": sync_colour("elastic")}},
                    hovertemplate=f"R = %{{x}}: %{{y:.1f}} %<br>{text}<extra></extra>",
                ), row=row, col=column)  # fmt: skip
            for policy in ("bsp", "asp"):
                value = 100 * float(own[own.policy == sync_name(policy)][measure].iloc[0])
                figure.add_trace(go.Scatter(
                    x=span, y=[value, value], mode="lines", name=sync_name(policy), legendgroup=policy,
                    showlegend=row == column == 1,
                    line={"color": sync_colour(policy), "width": 1.4, "dash": "2px,3px"},
                    hovertemplate=f"{sync_name(policy)}: %{{y:.1f}} %<extra></extra>",
                ), row=row, col=column)  # fmt: skip
        ticks = sorted(set(planned.ends))
        figure.update_xaxes(type="log", tickvals=ticks, ticktext=[f"{t}" for t in ticks], col=column,
                            range=[math.log10(x) for x in span])  # fmt: skip
    figure.update_xaxes(title_text="predicted ends of each worker, R", row=2)
    figure.update_yaxes(range=[0, 106], row=1)
    figure.update_yaxes(range=[0, 115 * float(table.waiting.max())], row=2)
    figure.update_yaxes(title_text="pushes, % of ASP's", row=1, col=1)
    figure.update_yaxes(title_text="waiting, % of time", row=2, col=1)
    runs = [r.run for r in found]
    stops = " and ".join(f"{r.pushes} pushes of {r.workers}" for r in {r.workers: r for r in runs}.values())
    cluster = f"computation 20{SPACE}ms (log-normal, σ{SPACE}0.1), workers from ×1 to ×3 slower in equal steps"
    lines = [f"{cluster}; stops at {stops} workers; one seed; {TIME_ALONE}",
             "the search is charged at the server, which answers nobody meanwhile"]  # fmt: skip
    return finish(figure, "How far to look ahead, and what looking costs", lines, 430, legend_rows=2)


# -- finish ----------------------------------------------------------------------------------------


def _timing_lines(runs: Sequence[Run], cluster: str | None = None) -> list[str]:
    run = runs[0]
    return [f"{run.workers} workers, {_stop(run)}, no chance, so one seed says all; {TIME_ALONE}",
            f"cluster: {cluster or describe_cluster(run.cluster)}"]  # fmt: skip


def _stop(run: Run) -> str:
    return f"stops at {run.pushes} pushes" if run.pushes else f"stops at {run.seconds:g}{SPACE}s"


def _small(lines: Sequence[str]) -> list[str]:
    return [row for line in lines for row in textwrap.wrap(line, int(WIDTH / 6.1), break_long_words=False)]


def finish(
    figure: go.Figure, title: str, lines: Sequence[str], inside: int, legend_rows: int, left: int = 66
) -> go.Figure:
    """The template, a headline with its caption, and room for a legend under the picture."""
    small = _small(lines)
    titled = any(note.yref == "paper" for note in figure.layout.annotations)
    top, bottom = (78 if titled else 58) + 16 * len(small), 58 + 22 * legend_rows
    height = inside + top + bottom
    named: dict[str, Any] = {"text": title, "subtitle": {"text": "<br>".join(small)}, "y": 1 - 14 / height}
    figure.update_annotations(selector={"yref": "paper"}, font={"size": 13})
    figure.update_layout(template=template(), width=WIDTH, height=height, title=named,
                         margin={"t": top, "b": bottom, "l": left, "r": 22})  # fmt: skip
    return figure


