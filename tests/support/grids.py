"""Grids over every field of Run and every row of the table, finished without a run, and everything that shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from random import Random
from typing import Any

import handmade
import numpy as np
import pandas as pd
from histories import history
from ownpolicies import NeverWaits

from pslab import plots
from pslab.config.cluster import PRESETS
from pslab.config.run import FIELDS, Run
from pslab.config.table import KINDS, ROWS
from pslab.errors import PslabError
from pslab.lab.plots import export
from pslab.lab.plots.charts.curves import QUANTITIES
from pslab.lab.records.frames import levels
from pslab.lab.records.record import Result
from pslab.lab.records.results import tidy
from pslab.lab.records.summary import MEASURES, summary
from pslab.lab.runs.grid import grid

#: Values of fields that no row of the table and no list of choices gives.
OTHERS: dict[str, list[Any]] = {
    "workers": [1, 2, 3, 4, 8, 12], "servers": [1, 2, 4], "optimizer": ["sgd", "sgd:momentum=0.9", "adam"],
    "learning_rate": [0.05, 0.1, 0.2, 0.4], "push_weight": [None, 0.25, 1.0],
    "downlink": ["none", "int8", "static:1%+fp16"], "inner": ["", "adamw"],
    "outer_learning_rate": [None, 0.7], "batch_size": [16, 64, 256],
    "pushes": [None, 16, 48, 2000], "seconds": [None, 0.5, 10.0], "target_accuracy": [None, 0.5, 0.97],
    "target_held": [False, True],
    "cluster": [*PRESETS, {"preset": "lab", "bandwidth_bit_s": 1e8}, {"bandwidth_bit_s": 1e9, "latency_s": 1e-3},
                {"compute_s": 0.1, "slow": {0: 8.0, 1: 2.0}}],
    "ray": [None, {"gpus": 0.5}], "seed": [0, 1, 2, 7],
    "eval_every": [None, 4, 16], "keep_weights": [False, True], "lease_s": [5.0, 60.0],
    "checkpoint_every": [None, 8, 200], "dilation": ["auto", 1.0, 4.0],
}  # fmt: skip
OBJECTS: dict[str, list[Any]] = {"sync": [NeverWaits()], "model": ["torchvision:resnet18"], "loss": [np.hypot]}
ENDS = ("budget", "budget", "budget", "slow", "late", "diverged", "at once")


def values_of(field: str) -> list[Any]:
    """What stands on the axis of a field: every row of its table, every choice, or some numbers."""
    rows = [row.example or row.name for row in ROWS[field].values()] if field in KINDS else []
    bounds = ["ssp:0", "ssp:12"] if field == "sync" else ["static:10%", "std:1", "dgc:1%"] if field == "prune" else []
    found = [*rows, *bounds, *FIELDS[field].choices, *OTHERS.get(field, ()), *OBJECTS.get(field, ())]
    return [value for at, value in enumerate(found) if value not in found[:at]]


def drawn(random: Random) -> Any:
    """A grid of one to three axes of two to four values each; sometimes an axis is of a reader's own names."""
    base = Run(
        pushes=random.choice([8, 16, 48]),
        workers=random.choice([1, 2, 4, 4, 8]),
        engine=random.choice(["virtual", "virtual", "local", "timing"]),
        cluster=random.choice([*PRESETS]),
    )
    axes: dict[str, Any] = {}
    most = random.choice([64, *[18] * 9])  # runs: large grids are rare, because they are slow to draw
    for field in random.sample([*FIELDS], random.randint(1, 3)):
        own = values_of(field)
        chosen = random.sample(own, min(len(own), random.randint(2, 4), max(2, most // 4)))
        most //= len(chosen)
        names = [f"{random.choice(['a network', 'a very long name of one of my own networks'])} {at}"
                 for at in range(len(chosen))]  # fmt: skip
        named = dict(zip(names, chosen, strict=True))
        kind = random.choice(["list", "list", "list", "named", "own"])
        axes[f"my_{field}" if kind == "own" else field] = (
            chosen if kind == "list" else named if kind == "named" else {n: {field: v} for n, v in named.items()}
        )
    if "seed" not in axes and most > 3 and random.random() < 0.5:
        axes["seed"] = [0, 1, 2]
    return grid(base, **axes)


def finished(runs: pd.DataFrame, random: Random, ends: Sequence[str] = ENDS) -> pd.DataFrame:
    """Its results, without a run: short histories of several endings."""
    return handmade.with_results(runs, lambda run: _result(run, random, random.choice(ends)))


def _result(run: Run, random: Random, end: str) -> Result:
    tables = {name: table.copy() for name, table in _history(run.workers, run.servers, end).items()}
    scale = random.choice([0.01, 1.0, 40.0]) * random.uniform(0.5, 2.0)
    for table in tables.values():
        for column in {"seconds", "begin_s", "end_s"} & {*table}:
            table[column] *= scale
    accuracy = tables["accuracy"].accuracy
    tables["accuracy"]["accuracy"] = (accuracy * random.uniform(0.5, 1.0)).clip(upper=1.0)
    pushes = len(tables["pushes"]) // run.servers
    return handmade.result(
        None, run, tables, outcome="diverged" if end in ENDS[-2:] else "budget", emulation_ok=end != "slow",
        verdict=random.choice(["valid", "unknown", "invalid"]), disturbed=run.evaluate == "beside",
        seconds=4.0 * scale * (pushes > 0), pushes=pushes)  # fmt: skip


@lru_cache
def _history(workers: int, servers: int, end: str) -> dict[str, pd.DataFrame]:
    """Return three iterations of each worker, a second each; of a run that diverged one, or nothing."""
    iterations = {"at once": 0, "diverged": 1}.get(end, 3)
    number = iterations * workers
    cluster = {"compute_s": 1.0, "latency_s": 0.01, "apply_s": 0.001, "select_s": 0.1}
    tables = history("ssp:3", cluster, workers=workers, servers=servers, pushes=max(1, number), prune="randomk:10%")[1]
    at = np.unique(np.linspace(0, number, 4).astype(int))
    accuracy = np.where(at < number, 0.1 + 0.8 * at / max(1, number), 0.4 if end == "late" else 0.95)
    evaluated = pd.DataFrame({"pushes": at, "iteration": at / workers, "seconds": at / workers, "accuracy": accuracy,
                              "loss": 1.0 - accuracy})  # fmt: skip
    if iterations < 3:
        evaluated.loc[len(evaluated) - 1, ["accuracy", "loss"]] = np.nan
    tables = {name: table[: len(table) if number else 0] for name, table in tables.items()}
    return {**tables, "pushes": tables["pushes"].assign(loss=1.0), "accuracy": evaluated}


# -- everything that shows them ----------------------------------------------------------------------


def shown(results: pd.DataFrame, random: Random) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every chart, table and repr of these results, with options that are drawn, each by its name."""
    names = dict.fromkeys([*results.columns.drop(["run", "result"]), *FIELDS])
    axes = [name for name in names if len(levels(results, name)) > 1]
    goal = random.choice([0.3, 0.6, 0.9])
    measures = random.sample([*MEASURES], 3)
    panels = random.choice([{}, {}, {"facet": random.choice(axes)}, {"row": random.choice(axes)}]) if axes else {}
    by = {"by": random.choice(["label", "label", *axes, axes or "label"])}
    common = {"width": random.choice(["page", "column"])}
    facet = {name: value for name, value in panels.items() if name == "facet"}
    xs, ys = random.sample([*QUANTITIES], 2)
    along, across = random.choice(axes or ["workers"]), random.choice(["worker", *axes])
    asked = random.choice([{}, {**by, **panels}])
    reference = {name: value for name, value in asked.items() if name != "row"}
    blocks = {**by, "group": random.choice([None, *axes]), "row": panels.get("row")} if asked else {}
    yield "curves", partial(plots.curves, results, *([xs, ys] if asked else []), **asked, **common, goal=goal)
    ys = measures[: random.randint(1, 2)]
    yield "points", partial(plots.points, results, along, ys, goal=goal, **asked, **common)
    yield "bars", partial(plots.bars, results, ys, goal=goal, **blocks, **common)
    yield "dots", partial(plots.dots, results, measures, goal=goal, **reference, **common)
    yield "heat", partial(plots.heat, results, along, random.choice(axes or ["sync"]), measures[0], goal=goal, **facet,
                          **common)  # fmt: skip
    few = results[:6]  # what shows each worker of each run
    yield "time_budget", partial(plots.time_budget, few, across=across, per_iteration=across != "worker", **common)
    yield "timeline", partial(plots.timeline, few, **by, **common)
    yield "server_states", partial(plots.server_states, few, **common)
    yield "summary", lambda: _tables(summary(results, **({"goal": goal, "measures": measures, **by} if asked else {})))
    yield "frame", partial(tidy, results, "evaluation")
    yield "repr", lambda: repr(results) + results._repr_html_()
    yield "repr of one", lambda: repr(results.result[0]) + results.result[0]._repr_html_()
    yield "names", lambda: [plots.name(axis, value) for axis in axes for value in levels(results, axis)]
    yield "page", lambda: export.page(plots.heat(results, along, along, ys, goal=goal), "a figure")


def _tables(table: pd.DataFrame) -> list[str]:
    return [str(table), table.to_html(), plots.show(table).to_html()]


def refused(draw: Callable[[], Any]) -> tuple[Any, PslabError | None]:
    """What is shown, or the sentence that says why it is not."""
    try:
        return draw(), None
    except PslabError as error:
        return None, error
