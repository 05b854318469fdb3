"""How much of an iteration's communication is hidden behind its computation: measured, beside the models."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from pslab.config.cluster import resolve_cluster
from pslab.lab.plots.lanes import timeline as compare
from pslab.lab.plots.theme import SPACE, sync_colour, sync_name, template
from pslab.lab.records import intervals as spans
from pslab.lab.studies.studies import caption, curves

if TYPE_CHECKING:
    from pslab.lab.records.record import Result

WIDTH, HEIGHT = 820, 400  # px
WARM = 0.25  # share of a worker's iterations at the beginning, and at the end, that is left out
DASHES = {"full": "solid", "half": "6px,3px"}


@dataclass(frozen=True)
class Iteration:
    """What a worker's iteration takes, in seconds: computation C, push P, pull Q, and the whole as it was measured."""

    compute_s: float
    push_s: float
    pull_s: float
    whole_s: float
    model_s: float  #: C + P + Q, or, where they overlap, max(C, P, Q), and max(C, P + Q) over half duplex
    hidden: float  #: share (0 to 1) of the pulls' time that lies in their workers' computations

    @property
    def ratio(self) -> float:
        """Communication to computation."""
        return (self.push_s + self.pull_s) / self.compute_s


def iteration(result: Result) -> Iteration:
    """An iteration in the middle of a run, on links of a modelled bandwidth."""
    cluster, pushes, phases = resolve_cluster(result.run.cluster), result.pushes, result.phases
    byte_s = np.inf if cluster.bandwidth_bit_s is None else cluster.bandwidth_bit_s / 8
    computing = phases[phases.phase == "compute"]
    c, p, q = (computing.end_s - computing.begin_s).median(), *(
        float(sizes[sizes > 0].median()) / byte_s + cluster.latency_s for sizes in (pushes.bytes_up, pushes.bytes_down))
    overlapped = spans.overlapped(result)
    model = c + p + q if not overlapped else max(c, p, q) if cluster.duplex == "full" else max(c, p + q)
    pulls = phases[phases.phase == "pull"]
    hidden = spans.computed_over(phases, "pull").sum() / max(1e-12, float((pulls.end_s - pulls.begin_s).sum()))
    return Iteration(float(c), p, q, _whole_s(computing), float(model), float(hidden))


def _whole_s(computing: pd.DataFrame) -> float:
    """Mean seconds between two begins of a worker's computations, in the middle of the run."""
    found = []
    for _, begins in computing.sort_values("begin_s").groupby("worker").begin_s:
        first, last = int(WARM * len(begins)), len(begins) - 1 - int(WARM * len(begins))
        if last > first:
            found.append((begins.iloc[last] - begins.iloc[first]) / (last - first))
    return float(np.mean(found)) if found else float("nan")


def table(results: Sequence[Result]) -> pd.DataFrame:
    """Each run on real processes beside its model: ms per iteration, their difference, the hidden share of pulls."""
    rows = {}
    for result in _of(results, real=True):
        found = iteration(result)
        rows[sync_name(result.run.sync)] = {
            "C, P, Q (ms)": ", ".join(f"{1e3 * t:.1f}" for t in (found.compute_s, found.push_s, found.pull_s)),
            "model (ms)": round(1e3 * found.model_s, 1), "measured (ms)": round(1e3 * found.whole_s, 1),
            "difference": f"{100 * (found.whole_s / found.model_s - 1):+.1f} %",
            "of a pull inside computation": f"{100 * found.hidden:.1f} %"}  # fmt: skip
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("policy")


def timeline(results: Sequence[Result]) -> go.Figure:
    """The runs on real processes, one under the other: links in use beside computing."""
    return compare(_of(results, real=True), title="Links are used while a worker computes, or before and after it")


def picture(results: Sequence[Result]) -> go.Figure:
    """Time per iteration against communication / computation, in virtual time: measured points on the models' lines."""
    groups: dict[tuple[str, str], list[Iteration]] = {}
    chosen = _of(results, real=False)
    for result in chosen:
        duplex = resolve_cluster(result.run.cluster).duplex
        groups.setdefault((str(result.run.sync), duplex), []).append(iteration(result))
    figure = go.Figure()
    for (sync, duplex), found in groups.items():
        found.sort(key=lambda each: each.ratio)
        colour, name = sync_colour(sync), f"{sync_name(sync)}, {duplex} duplex"
        figure.add_trace(go.Scatter(
            x=[each.ratio for each in found], y=[each.model_s / each.compute_s for each in found], mode="lines",
            name=f"{name}: {_words(sync, duplex, groups)}", line={"color": colour, "dash": DASHES[duplex]},
            hovertemplate="model: %{y:.2f} C<extra></extra>"))  # fmt: skip
        figure.add_trace(go.Scatter(
            x=[each.ratio for each in found], y=[each.whole_s / each.compute_s for each in found], mode="markers",
            marker={"color": colour, "size": 8, "symbol": "circle" if duplex == "full" else "circle-open"},
            showlegend=False, hovertemplate=f"<b>{name}</b><br>(P + Q) / C = %{{x:.2f}}: %{{y:.2f}} C<extra></extra>"))
    figure.update_xaxes(title_text="communication / computation, (P + Q) / C", rangemode="tozero")
    figure.update_yaxes(title_text=f"time per iteration (multiples of C{SPACE}={SPACE}the computation)",
                        rangemode="tozero")  # fmt: skip
    worst = max(abs(each.whole_s / each.model_s - 1) for found in groups.values() for each in found)
    said = (f"points: measured in virtual time, at most {100 * worst:.1f}{SPACE}% off the models' lines; a pull takes "
            "as long as a push: both ways have one bandwidth")  # fmt: skip
    one_each = {str(result.run.sync): result for result in chosen}
    shared = [line for line in caption(curves(one_each.values())) if not line.startswith("cluster")]
    return _finish(figure, "What an iteration takes when its communication is hidden", [*shared, said])


def _words(sync: str, duplex: str, groups: dict[tuple[str, str], list[Iteration]]) -> str:
    (first, *_), wide = groups[sync, duplex], groups[sync, duplex][-1]
    if abs(wide.model_s - wide.compute_s - wide.push_s - wide.pull_s) < 1e-9 and first.model_s > first.compute_s:
        return "C + P + Q"
    return "max(C, P, Q)" if duplex == "full" else "max(C, P + Q)"


def _of(results: Sequence[Result], *, real: bool) -> list[Result]:
    return [result for result in results if (result.run.engine == "local") == real]


def _finish(figure: go.Figure, title: str, lines: Sequence[str]) -> go.Figure:
    small = [row for line in lines for row in textwrap.wrap(line, int(WIDTH / 6.1), break_long_words=False)]
    top = 60 + 16 * len(small)
    figure.update_layout(
        template=template(), width=WIDTH, height=HEIGHT + top, margin={"t": top, "b": 110, "l": 66, "r": 22},
        title={"text": title, "subtitle": {"text": "<br>".join(small)}},
    )  # fmt: skip
    return figure
