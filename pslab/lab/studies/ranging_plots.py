"""Pictures of 60_ranges: what an iteration takes, what is learned, what is fitted, bytes, and the way to the goal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pslab.config.cluster import resolve_cluster
from pslab.lab.plots.accuracy import accuracy_by_bytes, accuracy_pair
from pslab.lab.plots.theme import DASHES, INK, PALE, SPACE, template
from pslab.lab.studies import ranging
from pslab.lab.studies.ranging_tables import learned as learned_in
from pslab.lab.studies.studies import caption, curves
from pslab.policies.planning.range_size import best_size, exchange_s, idle_s, unused_s

if TYPE_CHECKING:
    from pslab.lab.records.record import Result

WIDTH = 860
TIME, IDLE, UNUSED, FIT, WHOLE = "#004488", "#BB5566", "#DDAA33", "#00A08A", "#000000"
SYMBOLS = {"range": "circle", "fitted": "star", "everything": "square"}
WORKERS = ("#004488", "#DDAA33", "#BB5566", "#00A08A", "#7FC4F0", "#661133", "#7A6A00", "#8877CC")


def sizes(results: Sequence[Result]) -> go.Figure:
    """Time per iteration, idle and unused time against the keys in a range: points on the model's lines."""
    chosen = ranging.timed(results)
    table, (line, compute_s, keys) = ranging.exchanges(chosen), ranging.model(chosen)
    figure = make_subplots(2, 1, shared_xaxes=True, vertical_spacing=0.07)
    x = np.unique(np.append(np.linspace(1, keys, 200), best_size(line, compute_s, keys)))
    lines: list[tuple[str, str, str, int, Callable[[float], float]]] = [
        ("time per iteration", "whole_s", TIME, 1, lambda r: max(compute_s, exchange_s(line, r))),
        ("a worker waits", "idle_s", IDLE, 2, lambda r: idle_s(line, r, compute_s)),
        ("its link is unused", "unused_s", UNUSED, 2, lambda r: unused_s(line, r, compute_s)),
    ]
    for name, column, colour, row, by_model in lines:
        figure.add_trace(go.Scatter(
            x=x, y=[1e3 * by_model(r) for r in x], mode="lines", name=name, line={"color": colour, "width": 1.8},
            hovertemplate=f"model: {name} %{{y:.1f}} ms<extra></extra>"), row=row, col=1)  # fmt: skip
        for kind, own in table.groupby("kind"):
            figure.add_trace(go.Scatter(
                x=own["keys"], y=1e3 * own[column], mode="markers", showlegend=False, cliponaxis=False,
                marker={"symbol": SYMBOLS[str(kind)], "size": 13 if kind == "fitted" else 8,
                        "color": FIT if kind == "fitted" else colour, "line": {"color": "white", "width": 1}},
                hovertemplate=f"<b>{kind}</b>, %{{x:.0f}} keys<br>{name}: %{{y:.1f}} ms<extra></extra>"),
                row=row, col=1)  # fmt: skip
    for label, symbol, colour in (("fitted", "star", FIT), ("everything, no ranges", "square", TIME)):
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", name=label,
                                    marker={"symbol": symbol, "size": 10, "color": colour}))  # fmt: skip
    best = best_size(line, compute_s, keys)
    _crossing(figure, best, 2)
    figure.update_xaxes(range=[0, 1.02 * keys])
    figure.update_xaxes(title_text="keys in a range", row=2)
    figure.update_yaxes(title_text="ms per iteration", rangemode="tozero")
    fitted = table[table.kind == "fitted"]["keys"]
    terms = f"{1e3 * line.alpha_s:.1f}{SPACE}ms + r × {1e6 * line.beta_s:.1f}{SPACE}µs"
    told = (f"lines: the longer of {1e3 * compute_s:g}{SPACE}ms and T(r) = {terms}, by the cluster and keys of the "
            f"mean size; they cross at r* = {best} of {keys} keys, the fitted size is "
            f"{', '.join(f'{size:.0f}' for size in fitted)}; points: measured in virtual time")  # fmt: skip
    return _finish(figure, "The best range is exchanged while a gradient is computed", _shared(chosen, [told]), 470)


def learned(results: Sequence[Result]) -> go.Figure:
    """Accuracy against the keys in a range: after as many pushes, and after as much time; median and range of seeds."""
    chosen = ranging.trained(results)
    table, best = learned_in(chosen), ranging.crossing(chosen)
    figure = go.Figure()
    budget, until_s = chosen[0].run.pushes, float(table.until_s.median())
    panels = [("accuracy", f"after {budget} pushes", TIME, "solid"),
              ("in_time", f"after {until_s:.1f}{SPACE}s", IDLE, "6px,3px")]  # fmt: skip
    for column, name, colour, dash in panels:
        kept = _spread(table[table.kept & (table.kind != "fitted")], column)
        figure.add_trace(go.Scatter(
            x=kept["keys"], y=kept.middle, name=name, mode="lines+markers", cliponaxis=False,
            line={"color": colour, "dash": dash, "width": 2},
            marker={"size": 8, "symbol": ["square" if kind == "everything" else "circle" for kind in kept.kind]},
            error_y=_bars(kept, colour),
            hovertemplate="<b>%{x:.0f} keys</b>: %{y:.2f} %<extra></extra>"))  # fmt: skip
        others = (("fitted", table[table.kind == "fitted"].assign(keys=lambda t: t["keys"].median()), "star", 14),
                  ("the rest is dropped", table[~table.kept], "x", 9))  # fmt: skip
        for label, rows, symbol, width in others:
            own = _spread(rows, column)
            figure.add_trace(go.Scatter(
                x=own["keys"], y=own.middle, name=f"{label}, {name}", mode="markers", cliponaxis=False,
                error_y=_bars(own, colour), marker={"symbol": symbol, "size": width, "color": colour},
                hovertemplate=f"<b>{label}</b>, %{{x:.0f}} keys: %{{y:.2f}} %<extra></extra>"))  # fmt: skip
    figure.add_vline(x=best, line={"color": PALE, "width": 1, "dash": "dot"})
    figure.add_annotation(x=best, y=1, yref="paper", text=f"r* = {best}", xanchor="left", yanchor="bottom",
                          font={"color": PALE})  # fmt: skip
    figure.update_xaxes(title_text="keys in a range", range=[0, 1.02 * ranging.keys_of(chosen)])
    figure.update_yaxes(title_text="test accuracy (%)")
    told = ["after as much time: when the first of a seed has ended; squares: everything, without ranges"]
    return _finish(figure, "What a range costs, and what it is worth", _shared(chosen, told), 380)


def _spread(table: pd.DataFrame, column: str) -> pd.DataFrame:
    found = table.groupby(["keys", "kind"])[column].agg(["median", "min", "max"]).reset_index()
    return found.set_axis(["keys", "kind", "middle", "low", "high"], axis=1).sort_values(["keys", "kind"])


def _bars(table: pd.DataFrame, colour: str) -> dict[str, Any]:
    return {"array": table.high - table.middle, "arrayminus": table.middle - table.low, "symmetric": False,
            "thickness": 1.4, "width": 4, "color": colour}  # fmt: skip


def fits(results: Sequence[Result]) -> go.Figure:
    """The fitted size of each worker's sweeps against time, over a bandwidth that halves; the crossing beside it."""
    (result,) = ranging.changing(results)
    table, keys = ranging.sweeps(result), ranging.keys_of([result])
    cluster = resolve_cluster(result.run.cluster)
    end_s = float(table.begin_s.max())
    figure = go.Figure()
    (before, _), (after, _) = ranging.levels(result)
    (halved_s,) = cluster.bandwidth_at
    figure.add_trace(go.Scatter(x=[0.0, halved_s, end_s], y=[before, after, after], name="r*, by the cluster",
                                mode="lines", line={"color": INK, "width": 1.4, "dash": DASHES[3], "shape": "hv"}))
    for worker, own in table.groupby("worker"):
        colour = WORKERS[int(str(worker)) % len(WORKERS)]
        figure.add_trace(go.Scatter(
            x=[*own.begin_s, end_s], y=[*own["keys"], own["keys"].iloc[-1]], name=f"worker {worker}", mode="lines",
            line={"color": colour, "shape": "hv", "width": 1.8},
            hovertemplate=f"<b>worker {worker}</b>, from %{{x:.2f}} s<br>%{{y:.0f}} keys<extra></extra>"))  # fmt: skip
    for instant in cluster.bandwidth_at:
        figure.add_vline(x=instant, line={"color": PALE, "width": 1, "dash": "dot"})
        figure.add_annotation(x=instant, y=1, yref="paper", text="the bandwidth halves", xanchor="left",
                              yanchor="top", font={"color": PALE}, xshift=4)  # fmt: skip
    figure.update_xaxes(title_text="time (s)", range=[-0.01 * end_s, 1.01 * end_s])
    figure.update_yaxes(title_text="keys in a range", range=[0, 1.05 * keys])
    said = (f"three sweeps try all keys and half of them; then least squares that forget; right after, "
            f"{ranging.right_after(result):.0f} keys, in the end {ranging.settled(result):.0f}")  # fmt: skip
    return _finish(figure, "Each worker fits the size of its ranges to its link", _shared([result], [said]), 360)


def by_bytes(results: Sequence[Result]) -> go.Figure:
    """Test accuracy on the longer way against bytes, both ways."""
    long = ranging.trained(results, long=True)
    return accuracy_by_bytes(long, title="Ranges and everything at the same bytes: test accuracy")


def goal(results: Sequence[Result]) -> go.Figure:
    """Test accuracy on the longer way, against iterations and against seconds."""
    return accuracy_pair(ranging.trained(results, long=True), title="MNIST by ranges, and by everything: test accuracy")


# -- words -----------------------------------------------------------------------------------------


def _crossing(figure: go.Figure, best: int, rows: int) -> None:
    for row in range(1, rows + 1):
        figure.add_vline(x=best, line={"color": PALE, "width": 1, "dash": "dot"}, row=row, col=1)
    figure.add_annotation(x=best, y=1, yref="paper", text=f"r* = {best}", xanchor="left", yanchor="bottom",
                          font={"color": PALE})  # fmt: skip


def _shared(results: Sequence[Result], told: Sequence[str]) -> list[str]:
    """What the runs share, in a caption's words."""
    words = caption(curves(results[:1]))
    first = [word for word in words[0].split(", ") if not word.startswith(("dense", "ranges", "fitted", "one seed"))]
    if results[0].run.engine == "timing":
        first = [word for word in first if not word.startswith(("learning", "push weight", "SGD"))]
    seeds = len({r.run.seed for r in results})
    first += [f"median and range of {seeds} seeds"] if seeds > 1 else []
    return [", ".join(dict.fromkeys(first)), *words[1:], *told]


def _finish(figure: go.Figure, title: str, lines: Sequence[str], height: int) -> go.Figure:
    small = [row for line in lines for row in textwrap.wrap(line, int(WIDTH / 6.1), break_long_words=False)]
    top = 66 + 16 * len(small)
    figure.update_layout(
        template=template(), width=WIDTH, height=height + top + 60, margin={"t": top, "b": 110, "l": 66, "r": 22},
        title={"text": title, "subtitle": {"text": "<br>".join(small)}},
    )  # fmt: skip
    return figure


