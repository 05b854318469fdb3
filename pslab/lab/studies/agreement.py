"""Virtual against wall-clock time: the same runs on real processes and on a calibrated cluster, side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pslab.config.run import Run
from pslab.lab.plots.accuracy import PAIR_WIDTH, PHASE_WORDS, accuracy_range, budget, series
from pslab.lab.plots.theme import INK, PALE, PHASES, SPACE, sync_colour, sync_name, template
from pslab.lab.runs.calibrate import calibrated
from pslab.lab.studies.studies import caption, curves

if TYPE_CHECKING:
    from pslab.lab.records.record import Result

ENGINES = {"measured": "solid", "virtual": "6px,3px"}
COSTS_LINE = "virtual: the same cluster, with the costs of selecting, coding, applying and messages that {} measured"


def predicted(real: Sequence[Result]) -> list[Run]:
    """The virtual twin of each measured run, on one cluster for all.

    Its costs come from the run whose workers waited least: there all processes were busy at once.

    Raises:
        ConfigError: a run that was not measured on real processes.
    """
    cluster = calibrated(_busiest(real))
    return [result.run.but(engine="virtual", cluster=cluster, evaluate="after") for result in real]


def _busiest(real: Sequence[Result]) -> Result:
    return min(real, key=lambda result: per_iteration(result).get("wait", 0.0) / _iteration_s(result))


def per_iteration(result: Result) -> dict[str, float]:
    """Mean seconds of a worker per iteration by what it did: the phases, and "gap" for what none of them covers.

    An iteration is one push of every worker; so a worker that makes fewer has longer ones of its own.
    """
    table = budget(result).groupby("phase").seconds.sum()
    iterations = len(result.pushes) / result.run.workers
    return {str(name): float(seconds) / result.run.workers / iterations for name, seconds in table.items()}


def _iteration_s(result: Result) -> float:
    return float(result.manifest["seconds"]) * result.run.workers / len(result.pushes)


def compare(real: Sequence[Result], virtual: Sequence[Result]) -> pd.DataFrame:
    """Per policy: ms per iteration, waiting share, mean staleness and final accuracy, measured and virtual.

    `difference` (virtual to measured time per iteration, less 1) is what the cluster does not explain; `equal` says
    whether the final weights are the same to the bit.
    """
    rows = {}
    for one, other in zip(real, virtual, strict=True):
        row: dict[str, Any] = {}
        for name, result in zip(ENGINES, (one, other), strict=True):
            spent = per_iteration(result)
            row[f"ms {name}"] = 1e3 * _iteration_s(result)
            row[f"waiting {name}"] = spent.get("wait", 0.0) / sum(spent.values())
            row[f"staleness {name}"] = float(result.pushes.staleness.mean())
            row[f"accuracy {name}"] = float(result.accuracy.accuracy.iloc[-1])
        row["difference"] = row["ms virtual"] / row["ms measured"] - 1
        row["equal"] = bool(np.array_equal(one.weights, other.weights))
        rows[_name(one)] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("policy")


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """`compare` for people."""
    shown = {}
    for policy, row in table.to_dict("index").items():
        shown[policy] = {
            "time per iteration": _both(row, "ms", "{:.1f} ms"),
            "difference": f"{100 * row['difference']:+.1f} %",
            "waiting": _both(row, "waiting", "{:.1%}"),
            "staleness": _both(row, "staleness", "{:.2f}"),
            "final accuracy": _both(row, "accuracy", "{:.2%}"),
            "weights": "equal to the bit" if row["equal"] else "not equal",
        }
    return pd.DataFrame.from_dict(shown, orient="index").rename_axis(columns="measured, virtual")


def _both(row: dict[Any, Any], name: str, form: str) -> str:
    return ", ".join(form.format(row[f"{name} {engine}"]) for engine in ENGINES)


def findings(real: Sequence[Result], virtual: Sequence[Result]) -> str:
    """For each policy a sentence: how far the two agree, and which parts of an iteration differ most."""
    said = []
    for one, other in zip(real, virtual, strict=True):
        measured_s, virtual_s = _iteration_s(one), _iteration_s(other)
        here, there = per_iteration(one), per_iteration(other)
        left = {name: there.get(name, 0.0) - here.get(name, 0.0) for name in {*here, *there}}
        most = sorted(left, key=lambda name: -abs(left[name]))[:3]
        parts = ", ".join(f"{PHASE_WORDS.get(name, name)} {1e3 * left[name]:+.2f} ms" for name in most)
        said.append(f"{_name(one)}: {1e3 * measured_s:.1f} ms an iteration measured, {1e3 * virtual_s:.1f} ms "
                    f"virtual ({100 * (virtual_s / measured_s - 1):+.1f} %); of a worker's time differ most: {parts}.")
    return "\n".join(said)


# -- pictures --------------------------------------------------------------------------------------


def accuracy(real: Sequence[Result], virtual: Sequence[Result]) -> go.Figure:
    """Test accuracy against seconds, a panel for each policy: measured solid, virtual dashed."""
    low, high = accuracy_range(curves([*real, *virtual]))
    figure = make_subplots(1, len(real), shared_yaxes=True, subplot_titles=[_name(r) for r in real],
                           horizontal_spacing=0.03)  # fmt: skip
    for column, pair in enumerate(zip(real, virtual, strict=True), start=1):
        for (name, dash), result in zip(ENGINES.items(), pair, strict=True):
            points = series(result, "seconds")
            line = {"color": sync_colour(result.run.sync), "dash": dash, "width": 2.2}
            figure.add_trace(go.Scatter(
                x=points.x, y=points.y, mode="lines", line=line, showlegend=False,
                hovertemplate=f"<b>{_name(result)}, {name}</b><br>%{{x:.2f}} s: %{{y:.2f}} %<extra></extra>",
            ), row=1, col=column)  # fmt: skip
        figure.update_xaxes(title_text="training time (s)", rangemode="tozero", row=1, col=column)
    for name, dash in ENGINES.items():
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="lines", name=name, line={"color": INK, "dash": dash}))
    figure.update_yaxes(range=[low, high])
    figure.update_yaxes(title_text="test accuracy (%)", row=1, col=1)
    return _finish(figure, "Virtual and wall-clock time: test accuracy", real)


def time(real: Sequence[Result], virtual: Sequence[Result]) -> go.Figure:
    """Where a worker's time goes in an iteration, measured and virtual: stacked milliseconds."""
    pairs = [(_name(one), name, per_iteration(result)) for one, other in zip(real, virtual, strict=True)
             for name, result in zip(ENGINES, (one, other), strict=True)]  # fmt: skip
    figure = go.Figure()
    for phase, colour in PHASES.items():
        spent = [1e3 * parts.get(phase, 0.0) for _, _, parts in pairs]
        if max(spent) <= 1e-3 * max(sum(parts.values()) for _, _, parts in pairs) * 1e3:
            continue
        edge, word = {"color": PALE if phase == "gap" else "white", "width": 0.5}, PHASE_WORDS.get(phase, phase)
        figure.add_trace(go.Bar(
            x=[[pair[0] for pair in pairs], [pair[1] for pair in pairs]], y=spent,
            name=word, marker={"color": colour, "line": edge},
            hovertemplate=f"<b>%{{x}}</b><br>{word}: %{{y:.2f}} ms<extra></extra>"))  # fmt: skip
    figure.update_layout(barmode="stack", bargap=0.25, legend={"traceorder": "normal", "itemwidth": 30})
    figure.update_xaxes(showgrid=False, dividercolor=PALE, dividerwidth=0.8)
    figure.update_yaxes(title_text="mean of the workers (ms per iteration)", rangemode="tozero")
    return _finish(figure, "Virtual and wall-clock time: where an iteration goes", real)


def _finish(figure: go.Figure, title: str, real: Sequence[Result]) -> go.Figure:
    lines = [*caption(curves(real)), COSTS_LINE.format(_name(_busiest(real)))]
    small = [row for line in lines for row in textwrap.wrap(line, int(PAIR_WIDTH / 6.1), break_long_words=False)]
    top = 78 + 16 * len(small)
    figure.update_layout(
        template=template(), width=PAIR_WIDTH, height=330 + top + 90, margin={"t": top, "b": 90, "l": 66, "r": 22},
        title={"text": title, "subtitle": {"text": "<br>".join(small)}},
    )  # fmt: skip
    return figure


def _name(result: Result) -> str:
    return sync_name(result.run.sync).replace(SPACE, " ")

