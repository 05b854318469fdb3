"""Pictures of 50_order: time over bandwidth, who starves, waiting of workers that stall, pieces and credit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pslab.config.spec import build
from pslab.lab.plots.theme import GRID, INK, SPACE, order_colour, order_name, sync_colour, sync_name
from pslab.lab.studies.chain import Chain, Trace, trace
from pslab.lab.studies.elastic_plots import finish
from pslab.lab.studies.ordering import DUPLEXES, best_of, chain_of, cut_and_credit, iteration_s, measured
from pslab.lab.studies.ordering_tables import (
    BYTESCHEDULER,
    P3,
    bandwidth_of,
    duplex_of,
    even,
    gigabits,
    grid,
    model_name,
)
from pslab.lab.studies.ordering_tables import uneven as stalling

if TYPE_CHECKING:
    from pslab.config.run import Run
    from pslab.lab.records.record import Result

STEPS = 12  # bandwidths of a line, beside those of the runs
WAITS = {"push": "#F0C9A8", "pull": "#C9DDF0"}  # ready, and not yet sent
SENDS = {"push": "#C4602A", "pull": "#004488"}
STARVING = ("fifo", "filo", "front")
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)  # Gbit/s


# -- time over bandwidth ---------------------------------------------------------------------------


def time(results: Sequence[Result], models: Mapping[str, Mapping[str, Any]]) -> go.Figure:
    """By how much an iteration of equal workers exceeds the lower bound: lines of the chain, points of the runs."""
    runs = _by_model(results)
    names = [model_name(model) for model in runs]
    titles = [f"{name}, {duplex} duplex" for duplex in DUPLEXES for name in names]
    figure = make_subplots(2, len(runs), shared_xaxes="columns", shared_yaxes="rows", horizontal_spacing=0.03,
                           vertical_spacing=0.1, subplot_titles=titles)  # fmt: skip
    lines = {(model, duplex): _lines(runs[model][0], duplex, _places(models[model]["bandwidths"]),
                                     [r.run.order for r in runs_of(results, model)])
             for model in runs for duplex in DUPLEXES}  # fmt: skip
    together = _coinciding(lines)
    for (model, duplex), drawn in lines.items():
        row, column = 1 + DUPLEXES.index(duplex), 1 + list(runs).index(model)
        for place, same in enumerate(together):
            xs, ys = drawn[same[0]]
            figure.add_trace(go.Scatter(
                x=xs, y=ys, mode="lines", name=", ".join(map(order_name, same)), legendgroup=same[0],
                showlegend=(row, column) == (1, 1), line=_line(same[0], place),
                hovertemplate=f"{', '.join(map(order_name, same))}: %{{y:.1f}}{SPACE}%<extra></extra>"),
                row=row, col=column)  # fmt: skip
        _add_optimum(figure, drawn, row, column)
    for result in even(results):
        run, bound_s = result.run, best_of(chain_of(result.run)).bound_s
        row, column = 1 + DUPLEXES.index(duplex_of(run)), 1 + list(runs).index(str(run.model))
        figure.add_trace(go.Scatter(
            x=[bandwidth_of(run) / 1e9], y=[100 * (measured(result).iteration_s / bound_s - 1)], mode="markers",
            legendgroup=_group(together, str(run.order)), showlegend=False,
            marker={"color": order_colour(run.order), "size": 8, "symbol": "circle-open", "line": {"width": 2}},
            hovertemplate=f"<b>{order_name(run.order)}</b>, run: %{{y:.1f}}{SPACE}%<extra></extra>"),
            row=row, col=column)  # fmt: skip
    figure.update_xaxes(type="log", tickvals=TICKS, ticktext=[f"{tick:g}" for tick in TICKS])
    figure.update_xaxes(title_text="bandwidth (Gbit/s)", row=2)
    figure.update_yaxes(title_text="above the lower bound (%)", col=1, rangemode="tozero")
    said = ("an iteration of equal workers under BSP, each layer one push and one pull, no latency; the lower bound "
            "holds whatever the order, and it may be that none reaches it; rings: runs of the timing engine")
    return finish(figure, "How far each request order is from the lower bound", [said], 560, legend_rows=2)


Lines = dict[str, tuple[list[float], list[float]]]
OPTIMUM = "optimum"


def _lines(run: Run, duplex: str, bandwidths: Sequence[float], orders: Sequence[Any]) -> Lines:
    found: Lines = {str(order): ([], []) for order in [*orders, OPTIMUM]}
    for bandwidth in bandwidths:
        chain = _at(run, duplex, bandwidth)
        best = best_of(chain)
        for order, (xs, ys) in found.items():
            seconds = best.optimum_s if order == OPTIMUM else iteration_s(chain, order)
            if seconds is not None:
                xs.append(bandwidth / 1e9)
                ys.append(100 * max(0.0, seconds / best.bound_s - 1))
    return found


def _places(bandwidths: Sequence[float]) -> list[float]:
    return sorted({*grid(bandwidths, STEPS), *map(float, bandwidths)})


def _at(run: Run, duplex: str, bandwidth: float) -> Chain:
    return chain_of(run.but(cluster={**dict(run.cluster), "duplex": duplex, "bandwidth_bit_s": bandwidth}))  # type: ignore[arg-type]


def _coinciding(lines: Mapping[Any, Lines]) -> list[list[str]]:
    """The orders, those that are equal everywhere together."""
    groups: dict[tuple[float, ...], list[str]] = {}
    for order in next(iter(lines.values())):
        if order != OPTIMUM:
            key = tuple(round(y, 6) for drawn in lines.values() for y in drawn[order][1])
            groups.setdefault(key, []).append(order)
    return list(groups.values())


def _group(together: Sequence[Sequence[str]], order: str) -> str:
    return next(same[0] for same in together if order in same)


def _line(order: str, place: int) -> dict[str, Any]:
    """What lies below is wider: where lines coincide each of them can be seen."""
    return {"color": order_colour(order), "width": max(1.6, 7.0 - 1.6 * place)}


def _add_optimum(figure: go.Figure, drawn: Lines, row: int, column: int) -> None:
    xs, ys = drawn[OPTIMUM]
    figure.add_trace(go.Scatter(
        x=xs, y=ys, mode="markers", name="optimum, where it is known", legendgroup=OPTIMUM,
        showlegend=(row, column) == (1, 1), marker={"symbol": "line-ew-open", "size": 9, "color": INK},
        hovertemplate=f"optimum: %{{y:.1f}}{SPACE}%<extra></extra>"), row=row, col=column)  # fmt: skip


def runs_of(results: Sequence[Result], model: str) -> list[Result]:
    """One run of equal workers for each order."""
    found = {str(r.run.order): r for r in even(results) if r.run.model == model}
    return list(found.values())


def _by_model(results: Sequence[Result]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for result in even(results):
        found.setdefault(str(result.run.model), []).append(result.run)
    return found


# -- who starves -----------------------------------------------------------------------------------


def starvation(results: Sequence[Result]) -> go.Figure:
    """One exchange of the runs' model with most bytes, layer by layer, under three orders: ready, then sent."""
    runs = _by_model(results)
    model = max(runs, key=lambda name: sum(chain_of(runs[name][0]).sizes))
    run = min((r for r in runs[model] if duplex_of(r) == "half"), key=bandwidth_of)
    chain = chain_of(run)
    found = {order: trace(chain, build("order", order)) for order in STARVING}
    titles = [f"{order_name(order)}: {each.iteration_s:.2f}{SPACE}s" for order, each in found.items()]
    figure = make_subplots(1, len(found), shared_yaxes=True, horizontal_spacing=0.02, subplot_titles=titles)
    for column, each in enumerate(found.values(), start=1):
        for what in ("push", "pull"):
            _add_bars(figure, chain, each, what, column)
        _mark_longest(figure, chain, each, column)
    figure.update_yaxes(range=[len(chain.sizes) + 0.6, 0.4], dtick=max(1, len(chain.sizes) // 16), gridcolor=GRID)
    figure.update_yaxes(title_text="layer, the input's first", col=1)
    figure.update_xaxes(title_text="s since the backward pass began", range=[
        0, 1.02 * max(each.iteration_s for each in found.values())])  # fmt: skip
    figure.update_layout(barmode="overlay", bargap=0.15)
    said = (f"{model_name(model)}, half duplex, {gigabits(bandwidth_of(run))}{SPACE}Gbit/s: pale from the moment that "
            "a request is ready, full while it is on the link; marked: the longest wait. It does no harm where the "
            "layer is the last to be needed")  # fmt: skip
    return finish(figure, "Who starves: the oldest push when the last one in goes first", [said], 360, legend_rows=1)


def waits(chain: Chain, found: Trace, what: str) -> dict[int, tuple[float, float, float]]:
    """Per range: when its push or pull was ready, began and ended."""
    sent, pushes = found.of(what), found.of("push")
    return {index: (chain.ready_s[chain.pieces[index][0]] if what == "push" else pushes[index][1] + chain.latency_s,
                    *times) for index, times in sent.items()}  # fmt: skip


def _add_bars(figure: go.Figure, chain: Chain, found: Trace, what: str, column: int) -> None:
    times = waits(chain, found, what)
    layers = [1 + chain.pieces[index][0] for index in times]
    shift = -0.2 if what == "push" else 0.2
    for begin, end, colour, name in ((0, 1, WAITS[what], f"{what} waits"), (1, 2, SENDS[what], what)):
        figure.add_trace(go.Bar(
            orientation="h", y=[layer + shift for layer in layers], base=[t[begin] for t in times.values()],
            x=[t[end] - t[begin] for t in times.values()], width=0.36, marker={"color": colour, "line": {"width": 0}},
            name=name, legendgroup=name, showlegend=column == 1,
            hovertemplate=f"layer %{{y:.0f}}, {name}: %{{x:.3f}}{SPACE}s<extra></extra>"), row=1, col=column)


def _mark_longest(figure: go.Figure, chain: Chain, found: Trace, column: int) -> None:
    each = [(begin - ready, what, chain.pieces[index][0], begin) for what in ("push", "pull")
            for index, (ready, begin, _) in waits(chain, found, what).items()]  # fmt: skip
    seconds, what, layer, begin = max(each)
    figure.add_annotation(x=begin, y=1 + layer + (-0.2 if what == "push" else 0.2), text=f"waits {seconds:.2f}{SPACE}s",
                          xanchor="right", yanchor="bottom", font={"size": 12, "color": INK}, bgcolor="white",
                          showarrow=False, row=1, col=column)  # fmt: skip


# -- workers that stall ------------------------------------------------------------------------------


def waiting(results: Sequence[Result]) -> go.Figure:
    """How long computing waits in an iteration of workers that stall, and the pushes' staleness, by order."""
    chosen = stalling(results)
    orders = list(dict.fromkeys(str(r.run.order) for r in chosen))
    titles = [f"waiting, {duplex} duplex" for duplex in DUPLEXES] + ["staleness of a push"]
    figure = make_subplots(1, 3, shared_yaxes=True, horizontal_spacing=0.03, subplot_titles=titles)
    for sync in dict.fromkeys(str(r.run.sync) for r in chosen):
        for duplex in DUPLEXES:
            found = {str(r.run.order): measured(r) for r in chosen if (r.run.sync, duplex_of(r.run)) == (sync, duplex)}
            names = [order_name(order) for order in found]
            shared = {"orientation": "h", "y": names, "marker": {"color": sync_colour(sync)}, "name": sync_name(sync),
                      "legendgroup": sync}  # fmt: skip
            waited = [1e3 * each.waiting_s for each in found.values()]
            figure.add_trace(go.Bar(
                **shared, x=waited, showlegend=duplex == "full", text=[f"{x:.1f}" for x in waited],
                hovertemplate=f"%{{y}}: %{{x:.1f}}{SPACE}ms<extra></extra>"),
                row=1, col=1 + DUPLEXES.index(duplex))  # fmt: skip
            if duplex == DUPLEXES[0]:
                figure.add_trace(go.Bar(**shared, x=[each.staleness for each in found.values()], showlegend=False,
                                        text=[f"{each.staleness:.2f}" for each in found.values()],
                                        hovertemplate="%{y}: %{x:.2f}<extra></extra>"), row=1, col=3)  # fmt: skip
    figure.update_yaxes(categoryorder="array", categoryarray=[order_name(order) for order in reversed(orders)])
    figure.update_xaxes(title_text="ms of an iteration", col=1)
    figure.update_xaxes(title_text="ms of an iteration", col=2)
    figure.update_xaxes(title_text="steps between pull and push (full duplex)", col=3)
    figure.update_traces(textposition="inside", insidetextanchor="end", textangle=0)
    figure.update_layout(barmode="group", bargap=0.25)
    run = chosen[0].run
    cluster = dict(run.cluster)  # type: ignore[arg-type]
    said = (f"{model_name(run.model)}, {run.workers} workers, {gigabits(bandwidth_of(run))}{SPACE}Gbit/s; a gradient "
            f"takes {1e3 * cluster['compute_s']:g}{SPACE}ms, {100 * cluster['stall_probability']:g}{SPACE}% of them "
            f"{cluster['stall_factor']:g} times as long")  # fmt: skip
    return finish(figure, "How long computing waits when workers stall", [said], 360, legend_rows=1, left=110)


# -- pieces and credit -----------------------------------------------------------------------------


def pieces(
    results: Sequence[Result], model: str, pieces: Sequence[int], credits: Sequence[int | None], overhead_s: float,
    latency_s: float,
) -> go.Figure:  # fmt: skip
    """Time of an iteration by the size of a piece and the credit, the front first; P3 and ByteScheduler marked."""
    run = next(r.run for r in even(results) if r.run.model == model)
    sizes, rows = [_count(piece) for piece in pieces], ["one message" if c is None else _count(c) for c in credits]
    bandwidth = bandwidth_of(run)
    figure = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.12,
                           subplot_titles=[f"{duplex} duplex" for duplex in DUPLEXES])  # fmt: skip
    for column, duplex in enumerate(DUPLEXES, start=1):
        chain = chain_of(run, duplex=duplex, overhead_s=overhead_s, latency_s=latency_s)
        values = cut_and_credit(chain, pieces, credits)
        texts = [["" if x != x else f"{1e3 * x:.0f}" for x in row] for row in values]
        figure.add_trace(go.Heatmap(
            x=sizes, y=rows, z=[[1e3 * x for x in row] for row in values], text=texts, texttemplate="%{text}",
            colorscale=[[0, "#E8F3F1"], [0.5, "#7DBBAF"], [1, "#0B4F45"]], xgap=2, ygap=2, hoverongaps=False,
            colorbar={"title": "ms", "x": (0.44, 1.0)[column - 1], "thickness": 12},
            hovertemplate="pieces of %{x}, credit %{y}: %{z:.1f} ms<extra></extra>"), row=1, col=column)
        for piece, credit, symbol, name in ((P3, None, "circle-open", "P3"),
                                            (BYTESCHEDULER, 4_000_000, "diamond-open", "ByteScheduler")):
            if piece in pieces and credit in credits:
                figure.add_trace(go.Scatter(
                    x=[_count(piece)], y=[rows[list(credits).index(credit)]], mode="markers", name=name,
                    showlegend=column == 1, legendgroup=name, hoverinfo="skip",
                    marker={"symbol": symbol, "size": 34, "color": "#BB5566", "line": {"width": 2}}),
                    row=1, col=column)  # fmt: skip
    figure.update_xaxes(title_text="parameters in a piece, at most", type="category", showgrid=False)
    figure.update_yaxes(type="category", showgrid=False)
    figure.update_yaxes(title_text="credit (parameters)", col=1)
    said = (f"{model_name(model)}, {gigabits(bandwidth)}{SPACE}Gbit/s, the front first; each message keeps the link "
            f"{1e6 * overhead_s:g}{SPACE}µs longer, latency {1e6 * latency_s:g}{SPACE}µs, credit comes back with an "
            "acknowledgement; no number: the piece is larger than the credit, and would never go")  # fmt: skip
    return finish(figure, "Small pieces cost messages, large ones keep the front waiting", [said], 330, legend_rows=1,
                  left=100)  # fmt: skip


def _count(number: int) -> str:
    return f"{number / 1e6:g}{SPACE}M" if number >= 1_000_000 else f"{number / 1e3:g}{SPACE}k"
