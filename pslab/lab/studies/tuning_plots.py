"""Pictures of tuned runs: push weights side by side, each curve at its best rate; SSP's settings as heat maps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pslab.lab.plots import accuracy as plots
from pslab.lab.plots.accuracy import PAIR_WIDTH
from pslab.lab.plots.theme import INK, SPACE, sync_name
from pslab.lab.studies import tuning
from pslab.lab.studies.studies import Curve, caption, curves, describe_cluster

if TYPE_CHECKING:
    from pslab.lab.records.record import Result

ENTRY = 21  # px: a line of a legend
BAND = 0.09  # opacity: many bands lie over each other


# -- push weights ----------------------------------------------------------------------------------


def accuracy(results: Iterable[Result]) -> go.Figure:
    """Test accuracy against iterations and time. Several push weights stand side by side, a column for each."""
    found = list(results)
    weights = tuning.weights(found)
    if len(weights) == 1:
        return plots.accuracy_pair(found)
    columns = [_curves(tuning.weighted(found, weight)) for weight in weights]
    drawn = [curve for column in columns for curve in column]
    low, high = plots.accuracy_range(drawn)
    figure = make_subplots(2, len(columns), shared_yaxes=True, horizontal_spacing=0.035, vertical_spacing=0.13,
                           column_titles=[f"<b>{_weight(weight)}</b>" for weight in weights])  # fmt: skip
    for column, found_curves in enumerate(columns, start=1):
        workers = max(curve.run.workers for curve in found_curves)
        for row, axis in enumerate(("iteration", "seconds"), start=1):
            unit, legend = workers if axis == "iteration" else 1, f"legend{column if column > 1 else ''}"
            for curve in found_curves:
                drawn_ = plots.traces(curve, axis, unit, low, row == 1, legend, BAND)
                figure.add_traces(drawn_, rows=row, cols=column)
            figure.update_xaxes(plots.x_axis(axis, found_curves, workers), row=row, col=column)
    figure.update_yaxes(range=[low, high])
    figure.update_yaxes(title_text="test accuracy (%)", col=1)
    told = [*caption(curves(found)), "each curve at its best learning rate"]
    plots.finish(figure, f"{plots.headline(drawn)}: test accuracy", told, [], PAIR_WIDTH)
    bottom = 56 + ENTRY * max(map(len, columns))
    top = figure.layout.margin.t + 24
    figure.update_layout(height=top + bottom + 640, margin={"t": top, "b": bottom})
    for column in range(len(columns)):
        left = figure.layout[f"xaxis{column + 1 if column else ''}"].domain[0]
        place = {"x": left, "xref": "paper", "orientation": "v", "font": {"size": 13}}
        figure.update_layout({f"legend{column + 1 if column else ''}": {**LEGEND, **place}})
    return figure


LEGEND = {"xanchor": "left", "yref": "container", "y": 0.008, "yanchor": "bottom", "itemwidth": 46, "tracegroupgap": 0}


def _curves(results: list[Result]) -> list[Curve]:
    """The curves of a column, which have a policy and a rate each."""
    return [dataclasses.replace(curve, label=_rated(curve)) for curve in curves(results)]


def _rated(curve: Curve) -> str:
    name = "single machine" if curve.single else sync_name(curve.run.sync)
    return f"{name}, η{SPACE}={SPACE}{curve.run.learning_rate:g}"


def _weight(weight: float | None) -> str:
    return "push weight 1/W" if weight is None else f"push weight {weight:g}"


# -- SSP's settings --------------------------------------------------------------------------------

SOONEST, LATEST, SLOWER = "#004488", "#EDF1F6", 2.5  # a cell's colour: the cluster's best, and so many times its time
CELL = 46  # px: the height of a cell


def heat(results: Iterable[Result], clusters: Mapping[str, Any], accuracy: float) -> go.Figure:
    """Seconds to an accuracy by SSP's bound and learning rate: a panel for each cluster, its best cell framed."""
    drawn = list(results)
    table, names = tuning.settings(drawn, clusters, accuracy), list(clusters)
    figure = make_subplots(1, len(names), shared_yaxes=True, horizontal_spacing=0.03,
                           subplot_titles=[f"<b>{name}</b>" for name in names])  # fmt: skip
    bounds, rates = sorted(set(table.staleness)), sorted(set(table.learning_rate))
    for column, name in enumerate(names, start=1):
        own = table[table.cluster == name].reset_index(drop=True)
        least = own.seconds.min()
        figure.add_trace(_cells(own, bounds, rates, least), row=1, col=column)
        for row in own.itertuples():
            _cell(figure, row, bounds.index(row.staleness), rates.index(row.learning_rate), least, column)
        figure.update_xaxes(_steps(bounds), title_text="staleness bound s", col=column)
    figure.update_yaxes(_steps(rates))
    figure.update_yaxes(title_text="learning rate", col=1)
    goal, run = f"{100 * accuracy:g}{SPACE}%", drawn[0].run
    cells = (f"in a cell: seconds to the first evaluation (every {run.evaluation_period} pushes) at or above {goal}; "
             f"framed: a panel's best; shade: times that, up to {SLOWER:g}; –: not reached")  # fmt: skip
    told = [*caption(curves(drawn), "median of ", labelled=False), *_described(clusters, run.engine), cells]
    plots.finish(figure, f"SSP by bound, learning rate and cluster: seconds to {goal} test accuracy", told, [],
                 PAIR_WIDTH, below=58)  # fmt: skip
    top = figure.layout.margin.t + 26
    figure.update_layout(height=top + 72 + CELL * len(rates), margin={"t": top, "b": 72}, showlegend=False)
    return figure


def _steps(values: Sequence[float]) -> dict[str, Any]:
    """An axis on which each value has a place of its own."""
    return {"tickvals": list(range(len(values))), "ticktext": [f"{value:g}" for value in values], "ticks": "",
            "showgrid": False, "range": [-0.5, len(values) - 0.5]}  # fmt: skip


def _cells(own: pd.DataFrame, bounds: list[int], rates: list[float], least: float) -> go.Heatmap:
    table = own.pivot(index="learning_rate", columns="staleness", values="seconds").reindex(rates, columns=bounds)
    return go.Heatmap(
        z=(table / least).to_numpy(), x=list(range(len(bounds))), y=list(range(len(rates))), zmin=1, zmax=SLOWER,
        xgap=2, ygap=2, colorscale=[[0, SOONEST], [1, LATEST]], showscale=False,
        hovertemplate="%{z:.2f} times the best<extra></extra>",
    )  # fmt: skip


def _cell(figure: go.Figure, row: Any, x: int, y: int, least: float, column: int) -> None:
    """A cell's number, and the frame of the best one."""
    there = math.isfinite(row.seconds)
    dark = there and (row.seconds / least - 1) / (SLOWER - 1) < 0.45
    text = f"{row.seconds:.1f}" if there else "–"
    some = f"<br><span style='font-size:10px'>{row.reached} of {row.seeds}</span>" if row.reached < row.seeds else ""
    said = f"<b>{text}</b>" if row.best else text + (some if row.reached else "")
    font = {"size": 13, "color": "white" if dark else INK}
    figure.add_annotation(x=x, y=y, text=said, showarrow=False, font=font, row=1, col=column)
    if row.best:
        figure.add_shape(type="rect", x0=x - 0.47, x1=x + 0.47, y0=y - 0.47, y1=y + 0.47, row=1, col=column,
                         line={"color": "#DDAA33", "width": 3.5})  # fmt: skip


def _described(clusters: Mapping[str, Any], engine: str) -> list[str]:
    """What all clusters have in common, then what is each panel's own."""
    words = {name: describe_cluster(cluster, engine).split(", ") for name, cluster in clusters.items()}
    common = [word for word in next(iter(words.values())) if all(word in own for own in words.values())]
    own = {name: [word for word in said if word not in common] for name, said in words.items()}
    return [f"all clusters: {', '.join(common)}" if common else "",
            "; ".join(f"{name}: {', '.join(said) or 'nothing else'}" for name, said in own.items())]  # fmt: skip
