"""Figures of handmade runs, each named by what it must show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import handmade
import pandas as pd
import plotly.graph_objects as go

from pslab import plots
from pslab.config.run import Run
from pslab.lab.records.results import Results
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


class Gallery:
    """Draws the figures, in one of the widths, with records in a folder."""

    def __init__(self, folder: Path, width: str = "page") -> None:
        self.folder, self.width = folder, width

    def made(self, runs: Any = None, seconds: Callable[[Run], Sequence[float]] | None = None, **axes: Any) -> Results:
        """The results of a grid: its rules learn as WAYS says, a second between two evaluations; a higher seed less and
        longer."""
        runs = grid(BASE, **axes) if runs is None else runs
        return runs.finished([handmade.curve(
            self.folder, run, [value - 0.01 * run.seed * (value > 0.3) for value in WAYS[str(run.prune)]],
            seconds(run) if seconds else [0, 1, 2, 3, 4 + run.seed]) for run in runs])  # fmt: skip

    def one(self, accuracy: Sequence[float], seconds: Sequence[float] | None = None, **fields: Any) -> Any:
        facts = {name: fields.pop(name) for name in ("outcome", "emulation_ok") if name in fields}
        return handmade.curve(self.folder, BASE.but(**fields), accuracy, seconds, **facts)

    def figure(self, name: str) -> go.Figure:
        chart, arguments = FIGURES[name](self)
        return getattr(plots, chart)(**{"width": self.width, **arguments})

    def sparse(self) -> Results:
        found = self.made(prune=FEW)
        found[1].pushes.loc[:, "density"] = [0.5, 0.5, *[0.01] * 6]
        return found

    def gaps(self) -> Results:
        """Of the first a phase that has no colour, of the other a gap, and encoding and decoding."""
        found = self.made(workers=[1, 2])
        for result, phase in zip(found, ("search", "encode"), strict=True):
            result.phases.loc[result.phases.phase == "compute", "phase"] = phase
        found[1].phases.loc[found[1].phases.phase == "wait", ["begin_s", "phase", "waits_for"]] = [3.5, "decode", -1]
        return found

    def many(self) -> Any:
        rows = [(worker, 0, "compute", 0.0, 1.0 + worker / 64, -1) for worker in range(64)]
        pushes = [(worker + 1, worker, 0, 0, worker + 1, worker, 1.0 + worker / 64) for worker in range(64)]
        return handmade.record(self.folder, Run(sync="asp", workers=64), rows, pushes)


def _results(data: Any, **arguments: Any) -> dict[str, Any]:
    return {"results": data, **arguments}


def _data(data: Any, **arguments: Any) -> dict[str, Any]:
    return {"data": data, **arguments}


#: By what each of them must show: a chart, and its arguments.
FIGURES: dict[str, Callable[[Gallery], tuple[str, dict[str, Any]]]] = {
    "a curve is its record": lambda g: ("curves", _results(g.made(prune=FEW), by="prune", zoom=False)),
    "virtual twins are bands behind their curves": lambda g: ("curves", _results(
        g.made(prune=FEW), x="iteration", by="prune", banded=g.made(prune=FEW, seed=[0, 1, 2]), zoom=False)),
    "one virtual twin is a thin line": lambda g: ("curves", _results(
        g.made(prune=FEW), x="iteration", by="prune", banded=g.made(prune=FEW, seed=[1]), zoom=False)),
    "own names wear the colours of their policies": lambda g: ("curves", _results(g.made(way=OWN), by="way")),
    "the legend has the grid's order whatever the results have": lambda g: ("curves", _results(
        (lambda found: Results([*found][::-1], found.columns[::-1], found.orders))(
            g.made(sync=["bsp", "ssp:3", "asp"], prune=["none", "static:1%", "std:2"])),
        x="iteration", by=["sync", "prune"], facet="sync")),
    "iterations count the pushes of all workers": lambda g: ("curves", _results(g.made(), x=["iteration", "bytes"])),
    "worker counts that differ are compared by pushes": lambda g: ("curves", _results(
        g.made(workers=[2, 4]), x="iteration", by="workers")),
    "rounds are the pushes of each worker": lambda g: ("curves", _results(g.made(), x=["rounds", "bytes_up"])),
    "a density is drawn beside accuracies, which have no decades": lambda g: ("curves", _results(
        g.sparse(), x="iteration", y=["density", "accuracy"], by="prune", log="y")),
    "a band is the range of seeds as far as all of them go": lambda g: ("curves", _results([
        g.one([0.0, 0.4, 0.8], [0, 2, 4]), g.one([0.0, 0.5, 0.9], [0, 1, 2], seed=1),
        g.one([0.0, 0.4, 0.7], [0, 1, 3], seed=2)], zoom=False)),
    "a diverged seed leaves the band and ends in a cross at the edge": lambda g: ("curves", _results([
        g.one([0.1, 0.9, 0.95]), g.one([0.1, 0.9, 0.95], seed=1),
        g.one([0.1, 0.2], [0, 1.5], seed=2, outcome="diverged")], zoom=(50, 100))),
    "where all diverged they are drawn": lambda g: ("curves", _results(
        [g.one([0.1, 0.5, 0.1], outcome="diverged")], zoom=False)),
    "families by policies": lambda g: ("curves", _results(
        g.made(family=FAMILIES, sync=["bsp", "asp"], seed=[0, 1]), by="prune", facet="sync", row="family")),
    "a facet that is the curve needs no names": lambda g: ("curves", _results(
        g.made(prune=["none", "static:1%", "std:2"]), by="prune", facet="prune", behind="none")),
    "a single machine stands in every panel": lambda g: ("curves", _results(
        g.made(sync=["bsp", "asp"]) + g.made(grid(alone(BASE))), x="iteration", by="sync", facet="sync")),
    "a single machine sends nothing": lambda g: ("curves", _results(
        g.made(sync=["bsp", "asp"]) + g.made(grid(alone(BASE))), x="bytes", by="sync")),
    "labels say what differs": lambda g: ("curves", _results(
        g.made(grid(BASE.but(sync="asp"), prune=FEW, push_weight=[None, 1.0])))),
    "panels say what they show, and labels the rest": lambda g: ("curves", _results(
        g.made(prune=FEW, sync=["bsp", "asp"]), facet="sync", goal=0.93, title="A sentence", notes=["a note"])),
    "an emulation that was not kept is marked": lambda g: ("curves", _results(
        [g.one(WAYS["none"], emulation_ok=False), g.one(WAYS["none"], sync="asp")], by="sync")),
    "in panels it is marked at its end": lambda g: ("curves", _results(
        [g.one(WAYS["none"], emulation_ok=False), g.one(WAYS["none"], sync="asp")], by="prune", facet="sync")),
    "an end below the frame is said": lambda g: ("curves", _results(
        [g.one([0.1, 0.97]), g.one([0.1, 0.2], prune="std:3")])),
    "the caption says how runs were chosen": lambda g: ("curves", _results(
        best(g.made(learning_rate=[0.1, 0.2, 0.4], sync=["bsp", "asp"]), goal=0.9), by="sync")),

    "points are the summary": lambda g: ("points", _data(
        g.made(prune=FEW, workers=[2, 4]), x="workers", y="seconds_to_goal", by="prune", goal=0.9, log="x")),
    "ranges stand side by side, numbers in their order": lambda g: ("points", _data(
        g.made(prune=FEW, workers=[4, 2], seed=[0, 1, 2]), x="workers", y="seconds", by="prune")),
    "names on x have the grid's order": lambda g: ("points", _data(g.made(sync=["asp", "bsp"]), x="sync", y="seconds")),
    "what was not reached stands above a line": lambda g: ("points", _data(
        g.made(prune=["none", "std:3"], workers=[2, 4]), x="workers", y="seconds_to_goal", by="prune", goal=0.9)),
    "a range reaches above the line where one seed never arrives": lambda g: ("points", _data(
        grid(BASE, workers=[2, 4], seed=[0, 1, 2]).finished(
            [g.one(WAYS["std:3" if run.seed == 2 else "none"], workers=run.workers, seed=run.seed)
             for run in grid(BASE, workers=[2, 4], seed=[0, 1, 2])]),
        x="workers", y="seconds_to_goal", goal=0.9)),
    "panels show their own points": lambda g: ("points", _data(
        g.made(prune=FEW, workers=[2, 4], sync=["bsp", "asp"]), x="workers", y=["seconds", "accuracy"], by="prune",
        row="sync")),
    "a table has titles of its own, and some points are joined": lambda g: ("points", _data(
        TABLE, x={"n": "workers, n"}, y={"t": "time (s)"}, by="search", log="xy", join=["limit"], title="Searches")),
    "what is behind stands grey in every panel": lambda g: ("points", _data(
        TABLE, x="n", y="t", by="search", facet="search", behind="limit", join="steps")),

    "bars are the summary with its numbers": lambda g: ("bars", _data(
        g.made(prune=RULES), y=TO_GOAL, by="prune", goal=0.9)),
    "accuracies are marks, and groups stand together": lambda g: ("bars", _data(
        g.made(prune=FEW, sync=["bsp", "asp"]), y=["waiting", "accuracy"], by="prune", group="sync")),
    "rows have bars of their own": lambda g: ("bars", _data(
        g.made(family=FAMILIES), y="seconds", by="prune", row="family")),
    "a range is drawn, and the number stands behind it": lambda g: ("bars", _data(
        g.made(seed=[0, 1, 2]), y="seconds", by="prune")),
    "a heat map frames the best of each panel": lambda g: ("heat", _data(
        g.made(prune=RULES, learning_rate=[0.2, 0.1], sync=["bsp", "asp"]), x="learning_rate", y="prune",
        value="seconds_to_goal", facet="sync", goal=0.9)),
    "of accuracies the highest is the best": lambda g: ("heat", _data(
        g.made(prune=["none", "std:3"]), x="sync", y="prune", value="accuracy", palest=1.1)),
    "a mark is how many times the reference it is": lambda g: ("dots", _data(
        g.made(prune=RULES), y=TO_GOAL, by="prune", to="none", goal=0.9)),
    "nothing is a multiple of what never arrives": lambda g: ("dots", _data(
        g.made(prune=RULES), y=TO_GOAL, by="prune", to="std:3", goal=0.9)),
    "without a reference the least of each measure is one": lambda g: ("dots", _data(
        g.made(prune=FEW, seed=[0, 1]), y=["seconds_to_goal", "accuracy"], by="prune", goal=0.9)),
    "each panel has its reference, and far values decades": lambda g: ("dots", _data(
        g.made(prune=FEW, sync=["bsp", "asp"], seed=[0, 1], seconds=lambda run: [
            0, 1, 2, 3, (4 if run.prune == "none" else 40 + run.seed) * (1 + (run.sync == "asp"))]),
        y="seconds", by="prune", to="none", facet="sync")),

    "every instant of a worker counts once": lambda g: ("time_budget", _results(
        g.made(sync=["bsp", "asp"], workers=[2], seed=[0, 1]), by="sync")),
    "columns stand side by side per iteration": lambda g: ("time_budget", _results(
        g.made(sync=["bsp", "asp"], prune=FEW, workers=[2]), by="sync", across="prune", per_iteration=True)),
    "a single machine has a panel of bars as thick": lambda g: ("time_budget", _results(
        g.made(workers=[2]) + g.made(grid(alone(BASE))))),
    "many panels lie one under the other": lambda g: ("time_budget", _results(
        g.made(sync=[f"ssp:{bound}" for bound in range(1, 9)]), by="sync")),
    "phases without a colour, and gaps, are drawn": lambda g: ("time_budget", _results(g.gaps())),

    "who waits for whom": lambda g: ("timeline", _results(
        [handmade.bsp(g.folder), handmade.asp(g.folder)], begin_s=0.0, end_s=10.6)),
    "a window cuts bars and leaves out marks": lambda g: ("timeline", _results(
        handmade.bsp(g.folder), begin_s=0.5, end_s=4.15)),
    "overlapped transfers lie under the computation": lambda g: ("timeline", _results(
        handmade.eager(g.folder), begin_s=0.0, end_s=12.0)),
    "ranges that overlap share a lane": lambda g: ("timeline", _results(
        handmade.two_ranges(handmade.asp(g.folder)), begin_s=0.0, end_s=6.0)),
    "thin lanes explain shades instead of numbers": lambda g: ("timeline", _results(g.many(), begin_s=0.0, end_s=2.0)),
    "of several seeds the first, and no single machine": lambda g: ("timeline", _results(
        [handmade.record(g.folder, run, handmade.ASP, handmade.ASP_PUSHES) for run in (
            Run(sync="asp", workers=2, seed=1), Run(sync="asp", workers=2), Run(workers=1))], begin_s=0.0, end_s=6.0)),
    "a run without an iteration is drawn": lambda g: ("timeline", _results(
        handmade.record(g.folder, Run(workers=2), [], []))),
    "a server answers in state PULL": lambda g: ("server_states", _results(
        [handmade.bsp(g.folder), handmade.asp(g.folder)], begin_s=0.0, end_s=11.0)),
    "each range has a lane of its own": lambda g: ("server_states", _results(
        handmade.two_ranges(handmade.bsp(g.folder)), begin_s=4.0, end_s=5.0)),
}  # fmt: skip
