"""Pictures of pruning families: until a target accuracy on each network, and densities as training goes on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pslab.lab.plots.accuracy import PAIR_WIDTH, accuracy_range, finish, legend_of, traces, x_axis
from pslab.lab.plots.targets import picture_of
from pslab.lab.plots.theme import SPACE
from pslab.lab.studies.family_tables import Groups, curves_on
from pslab.lab.studies.studies import Curve, caption, curves

if TYPE_CHECKING:
    from pslab.lab.records.record import Result

COLUMNS = {"seconds": "seconds to {}", "bytes_up": "pushed until then", "bytes_down": "pulled until then",
           "final_accuracy": "final accuracy", "waiting": "time waiting"}  # fmt: skip
LEAST = 1e-3  # per cent: what is less, and nothing, is drawn there


def until(networks: Groups, accuracy: float) -> go.Figure:
    """Seconds and bytes each way until an accuracy, and the final one, for every curve on every network."""
    title = f"Pruning families: until {100 * accuracy:g}{SPACE}% test accuracy"
    return picture_of(curves_on(networks), accuracy, title, COLUMNS)


def in_time(results: Iterable[Result], title: str) -> go.Figure:
    """What share of the entries the pushes carry, by iteration, and the accuracy that comes of it."""
    found = curves(results)
    figure = make_subplots(1, 2, horizontal_spacing=0.09)
    low, high = accuracy_range(found)
    for curve in found:
        figure.add_trace(_density(curve), row=1, col=1)
        figure.add_traces(traces(curve, "iteration", curve.run.workers, low, shown=True), rows=1, cols=2)
    per_iteration = found[0].run.workers
    figure.update_xaxes(x_axis("iteration", found, per_iteration))
    figure.update_yaxes(range=[low, high], title_text="test accuracy (%)", row=1, col=2)
    ticks = [10.0**power for power in range(-3, 3)]
    words = [f"≤{SPACE}{LEAST:g}", *(f"{tick:g}" for tick in ticks[1:])]
    figure.update_yaxes(type="log", range=[np.log10(LEAST) - 0.15, 2.1], tickvals=ticks, ticktext=words,
                        title_text="entries pushed (%)", row=1, col=1)  # fmt: skip
    return finish(figure, title, caption(found), [legend_of(curve, low) for curve in found], PAIR_WIDTH)


def _density(curve: Curve) -> go.Scatter:
    """The mean over the workers and seeds of an iteration's pushes."""
    pushes = pd.concat([result.pushes for result in curve.results])
    mean = 100 * pushes.groupby("iteration").density.mean()
    style = curve.style
    return go.Scatter(
        x=mean.index + 1, y=np.maximum(mean, LEAST), mode="lines", legendgroup=curve.label, showlegend=False,
        line={"color": style.colour, "dash": style.dash, "width": 1.3},
        customdata=mean, hovertemplate=f"<b>{curve.label}</b><br>%{{customdata:.3g}} % pushed<extra></extra>",
    )  # fmt: skip
