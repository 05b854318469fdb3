"""Figures of handmade runs, each named by what it must show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import handmade
import pandas as pd
import plotly.graph_objects as go
from atlas import atlas

from pslab import plots
from pslab.config.run import Run
from pslab.lab.advise import why
from pslab.lab.plots.arrange import WIDTHS
from pslab.lab.records.merit import MERITS
from pslab.lab.records.record import Result
from pslab.lab.records.tuning import best
from pslab.lab.runs.grid import alone, grid

BASE = Run(pushes=8, engine="virtual", cluster="lab")
WAYS = {"none": [0.1, 0.5, 0.8, 0.9, 0.95], "static:1%": [0.1, 0.7, 0.9, 0.93, 0.94],
        "std:2": [0.1, 0.6, 0.8, 0.9, 0.92], "std:3": [0.1, 0.2, 0.3, 0.35, 0.4]}  # fmt: skip
RULES, FEW = ["none", "static:1%", "std:3"], ["none", "static:1%"]
FAMILIES = {"static": {"prune": FEW}, "std": {"prune": ["none", "std:2"]}}
OWN = {"no wait": {"sync": "asp"}, "no wait, modulated": {"sync": "asp", "rate": "modulated"}, "all": {"sync": "bsp"}}
TO_GOAL = ["seconds_to_goal", "bytes_to_goal"]
TABLE = pd.DataFrame({"n": [1, 10, 100] * 3, "t": [1.0, 2, 3, 2, 3, 4, 9, 9, 9],
                      "search": ["a"] * 3 + ["b"] * 3 + ["limit"] * 3})  # fmt: skip


def made(runs: Any = None, seconds: Callable[[Run], Sequence[float]] | None = None, **axes: Any) -> pd.DataFrame:
    """The results of a grid: its rules learn as WAYS says, a second between two evaluations; a higher seed less and
    longer."""
    return handmade.finished(
        grid(BASE, **axes) if runs is None else runs,
        lambda run: [value - 0.01 * run.seed * (value > 0.3) for value in WAYS[str(run.prune)]],
        seconds=seconds or (lambda run: [0, 1, 2, 3, 4 + run.seed]))  # fmt: skip


def one(accuracy: Sequence[float], seconds: Sequence[float] | None = None, **fields: Any) -> Result:
    facts = {name: fields.pop(name) for name in ("outcome", "emulation_ok") if name in fields}
    return handmade.curve(None, BASE.but(**fields), accuracy, seconds, **facts)


def sparse() -> pd.DataFrame:
    found = made(prune=FEW)
    found.result[1].pushes.loc[:, "density"] = [0.5, 0.5, *[0.01] * 6]
    return found


def gaps() -> pd.DataFrame:
    """Of the first a phase that has no colour, of the other a gap, and encoding and decoding."""
    found = made(workers=[1, 2])
    for result, phase in zip(found.result, ("search", "encode"), strict=True):
        result.phases.loc[result.phases.phase == "compute", "phase"] = phase
    phases = found.result[1].phases
    phases.loc[phases.phase == "wait", ["begin_s", "phase", "waits_for"]] = [3.5, "decode", -1]
    return found


def many() -> Result:
    rows = [(worker, 0, "compute", 0.0, 1.0 + worker / 64, -1) for worker in range(64)]
    pushes = [(worker + 1, worker, 0, 0, worker + 1, worker, 1.0 + worker / 64) for worker in range(64)]
    return handmade.record(None, Run(sync="asp", workers=64), rows, pushes)


def explained(step_s: float, **winner: Any) -> pd.DataFrame:
    """Why a run with so many seconds between its evaluations is sooner, or later, than dense BSP at 85 %."""
    other = made(grid(BASE.but(**winner), seed=[0, 1]), lambda run: [step_s * place for place in range(5)])
    return why.why(made(seed=[0, 1]), other, 0.85)


def drawn(chart: Callable[..., go.Figure], *data: Any, **arguments: Any) -> dict[str, go.Figure]:
    """A figure in every width."""
    return {width: chart(*data, width=width, **arguments) for width in WIDTHS}


curves, points, bars, heat, dots = (partial(drawn, each) for each in (
    plots.curves, plots.points, plots.bars, plots.heat, plots.dots))  # fmt: skip
time_budget, timeline, server_states = (partial(drawn, each) for each in (
    plots.time_budget, plots.timeline, plots.server_states))  # fmt: skip
waterfall, where = partial(drawn, plots.why), partial(drawn, plots.where)

#: By what each of them must show.
FIGURES: dict[str, Callable[[], dict[str, go.Figure]]] = {
    "a curve is its record": lambda: curves(made(prune=FEW), by="prune", zoom=False),
    "virtual twins are bands behind their curves": lambda: curves(
        made(prune=FEW), x="iteration", by="prune", banded=made(prune=FEW, seed=[0, 1, 2]), zoom=False),
    "one virtual twin is a thin line": lambda: curves(
        made(prune=FEW), x="iteration", by="prune", banded=made(prune=FEW, seed=[1]), zoom=False),
    "own names wear the colours of their policies": lambda: curves(made(way=OWN), by="way"),
    "the legend has the grid's order whatever the results have": lambda: curves(
        made(sync=["bsp", "ssp:3", "asp"], prune=["none", "static:1%", "std:2"])[::-1],
        x="iteration", by=["sync", "prune"], facet="sync"),
    "iterations count the pushes of all workers": lambda: curves(made(), x=["iteration", "bytes"]),
    "worker counts that differ are compared by pushes": lambda: curves(
        made(workers=[2, 4]), x="iteration", by="workers"),
    "rounds are the pushes of each worker": lambda: curves(made(), x=["rounds", "bytes_up"]),
    "a density is drawn beside accuracies, which have no decades": lambda: curves(
        sparse(), x="iteration", y=["density", "accuracy"], by="prune", log="y"),
    "a band is the range of seeds as far as all of them go": lambda: curves([
        one([0.0, 0.4, 0.8], [0, 2, 4]), one([0.0, 0.5, 0.9], [0, 1, 2], seed=1),
        one([0.0, 0.4, 0.7], [0, 1, 3], seed=2)], zoom=False),
    "a diverged seed leaves the band and ends in a cross at the edge": lambda: curves([
        one([0.1, 0.9, 0.95]), one([0.1, 0.9, 0.95], seed=1),
        one([0.1, 0.2], [0, 1.5], seed=2, outcome="diverged")], zoom=(50, 100)),
    "where all diverged they are drawn": lambda: curves([one([0.1, 0.5, 0.1], outcome="diverged")], zoom=False),
    "families by policies": lambda: curves(
        made(family=FAMILIES, sync=["bsp", "asp"], seed=[0, 1]), by="prune", facet="sync", row="family"),
    "a facet that is the curve needs no names": lambda: curves(
        made(prune=["none", "static:1%", "std:2"]), by="prune", facet="prune", behind="none"),
    "a single machine stands in every panel": lambda: curves(
        pd.concat([made(sync=["bsp", "asp"]), made(grid(alone(BASE)))]), x="iteration", by="sync", facet="sync"),
    "a single machine sends nothing": lambda: curves(
        pd.concat([made(sync=["bsp", "asp"]), made(grid(alone(BASE)))]), x="bytes", by="sync"),
    "labels say what differs": lambda: curves(made(grid(BASE.but(sync="asp"), prune=FEW, push_weight=[None, 1.0]))),
    "panels say what they show, and labels the rest": lambda: curves(
        made(prune=FEW, sync=["bsp", "asp"]), facet="sync", goal=0.93, title="A sentence", notes=["a note"]),
    "an emulation that was not kept is marked": lambda: curves(
        [one(WAYS["none"], emulation_ok=False), one(WAYS["none"], sync="asp")], by="sync"),
    "in panels it is marked at its end": lambda: curves(
        [one(WAYS["none"], emulation_ok=False), one(WAYS["none"], sync="asp")], by="prune", facet="sync"),
    "an end below the frame is said": lambda: curves([one([0.1, 0.97]), one([0.1, 0.2], prune="std:3")]),
    "the caption says how runs were chosen": lambda: curves(
        best(made(learning_rate=[0.1, 0.2, 0.4], sync=["bsp", "asp"]), goal=0.9), by="sync"),

    "points are the summary": lambda: points(
        made(prune=FEW, workers=[2, 4]), x="workers", y="seconds_to_goal", by="prune", goal=0.9, log="x"),
    "ranges stand side by side, numbers in their order": lambda: points(
        made(prune=FEW, workers=[4, 2], seed=[0, 1, 2]), x="workers", y="seconds", by="prune"),
    "names on x have the grid's order": lambda: points(made(sync=["asp", "bsp"]), x="sync", y="seconds"),
    "what was not reached stands above a line": lambda: points(
        made(prune=["none", "std:3"], workers=[2, 4]), x="workers", y="seconds_to_goal", by="prune", goal=0.9),
    "a range reaches above the line where one seed never arrives": lambda: points(
        handmade.finished(grid(BASE, workers=[2, 4], seed=[0, 1, 2]),
                          lambda run: WAYS["std:3" if run.seed == 2 else "none"]),
        x="workers", y="seconds_to_goal", goal=0.9),
    "panels show their own points": lambda: points(
        made(prune=FEW, workers=[2, 4], sync=["bsp", "asp"]), x="workers", y=["seconds", "accuracy"], by="prune",
        row="sync"),
    "a table has titles of its own, and some points are joined": lambda: points(
        TABLE, x={"n": "workers, n"}, y={"t": "time (s)"}, by="search", log="xy", join=["limit"], title="Searches"),
    "what is behind stands grey in every panel": lambda: points(
        TABLE, x="n", y="t", by="search", facet="search", behind="limit", join="steps"),

    "bars are the summary with its numbers": lambda: bars(made(prune=RULES), y=TO_GOAL, by="prune", goal=0.9),
    "accuracies are marks, and groups stand together": lambda: bars(
        made(prune=FEW, sync=["bsp", "asp"]), y=["waiting", "accuracy"], by="prune", group="sync"),
    "rows have bars of their own": lambda: bars(made(family=FAMILIES), y="seconds", by="prune", row="family"),
    "a range is drawn, and the number stands behind it": lambda: bars(made(seed=[0, 1, 2]), y="seconds", by="prune"),
    "a heat map frames the best of each panel": lambda: heat(
        made(prune=RULES, learning_rate=[0.2, 0.1], sync=["bsp", "asp"]), x="learning_rate", y="prune",
        value="seconds_to_goal", facet="sync", goal=0.9),
    "of accuracies the highest is the best": lambda: heat(
        made(prune=["none", "std:3"]), x="sync", y="prune", value="accuracy", palest=1.1),
    "a mark is how many times the reference it is": lambda: dots(
        made(prune=RULES), y=TO_GOAL, by="prune", to="none", goal=0.9),
    "nothing is a multiple of what never arrives": lambda: dots(
        made(prune=RULES), y=TO_GOAL, by="prune", to="std:3", goal=0.9),
    "without a reference the least of each measure is one": lambda: dots(
        made(prune=FEW, seed=[0, 1]), y=["seconds_to_goal", "accuracy"], by="prune", goal=0.9),
    "each panel has its reference, and far values decades": lambda: dots(
        made(prune=FEW, sync=["bsp", "asp"], seed=[0, 1], seconds=lambda run: [
            0, 1, 2, 3, (4 if run.prune == "none" else 40 + run.seed) * (1 + (run.sync == "asp"))]),
        y="seconds", by="prune", to="none", facet="sync"),

    "every instant of a worker counts once": lambda: time_budget(
        made(sync=["bsp", "asp"], workers=[2], seed=[0, 1]), by="sync"),
    "columns stand side by side per iteration": lambda: time_budget(
        made(sync=["bsp", "asp"], prune=FEW, workers=[2]), by="sync", across="prune", per_iteration=True),
    "a single machine has a panel of bars as thick": lambda: time_budget(
        pd.concat([made(workers=[2]), made(grid(alone(BASE)))])),
    "many panels lie one under the other": lambda: time_budget(
        made(sync=[f"ssp:{bound}" for bound in range(1, 10)]), by="sync"),
    "phases without a colour, and gaps, are drawn": lambda: time_budget(gaps()),

    "who waits for whom": lambda: timeline([handmade.bsp(), handmade.asp()], begin_s=0.0, end_s=10.6),
    "a window cuts bars and leaves out marks": lambda: timeline(handmade.bsp(), begin_s=0.5, end_s=4.15),
    "overlapped transfers lie under the computation": lambda: timeline(handmade.eager(), begin_s=0.0, end_s=12.0),
    "ranges that overlap share a lane": lambda: timeline(handmade.two_ranges(handmade.asp()), begin_s=0.0, end_s=6.0),
    "thin lanes explain shades instead of numbers": lambda: timeline(many(), begin_s=0.0, end_s=2.0),
    "of several seeds the first, and no single machine": lambda: timeline(
        [handmade.record(None, run, handmade.ASP, handmade.ASP_PUSHES) for run in (
            Run(sync="asp", workers=2, seed=1), Run(sync="asp", workers=2), Run(workers=1))], begin_s=0.0, end_s=6.0),
    "a run without an iteration is drawn": lambda: timeline(handmade.record(None, Run(workers=2), [], [])),
    "a server answers in state PULL": lambda: server_states([handmade.bsp(), handmade.asp()], begin_s=0.0, end_s=11.0),
    "each range has a lane of its own": lambda: server_states(
        handmade.two_ranges(handmade.bsp()), begin_s=4.0, end_s=5.0),

    "what is saved stands before what is paid": lambda: waterfall(explained(0.4, sync="asp", prune="static:1%")),
    "a later winner is said to be later": lambda: waterfall(explained(1.8, prune="std:2", rate="dynsgd")),
    "bytes stand on an axis of their own": lambda: waterfall(
        why.why(made(seed=[0]), made(prune=["static:1%"], seed=[0]), 0.85, MERITS["bytes"])),
    "the soonest policy of each cluster, and how far each is": lambda: where(atlas()),
    "policies that tie are named, of many how many they are": lambda: where(
        atlas(bandwidths=[1e8, 1e9, 1e10], spreads=[1.0, 1.1])),
}  # fmt: skip
