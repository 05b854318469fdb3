"""What the runs of pruning families say: dense and pruned on each network, in one table."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from pslab.config.run import Run
from pslab.lab.plots.targets import DASH, arrivals_of, cell, over_seeds
from pslab.lab.runs.replayed import retimed
from pslab.lab.studies.families import NETWORKS, SMALL
from pslab.lab.studies.observation_tables import costs
from pslab.lab.studies.studies import Curve, curves

if TYPE_CHECKING:
    from pslab.lab.records.record import Result
    from pslab.lab.studies.observation import Observed

REAL = ", real processes"
Groups = Mapping[str, Sequence["Result"]]  # a network's name -> its results


def on_networks(
    results: Iterable[Result], clusters: Mapping[str, Any] = NETWORKS, small: Mapping[str, Any] = SMALL
) -> dict[str, list[Result]]:
    """By the network's name: dense, pruned, and the single machine; then what ran on real processes.

    BSP's gradients do not depend on the network: on all but the first one the same runs are retold.
    """
    found = [result for result in results if not _is_on(result, small)]
    virtual = [result for result in found if result.run.engine == "virtual" and result.run.workers > 1]
    single = [result for result in found if result.run.workers == 1]
    first, *others = clusters
    groups = {first: virtual + single}
    groups |= {name: [retimed(result, clusters[name]) for result in virtual] for name in others}
    return groups | {[*clusters][-1] + REAL: [result for result in found if result.run.engine == "local"]}


def in_time(results: Iterable[Result], prunes: Sequence[Any], small: Mapping[str, Any] = SMALL) -> list[Result]:
    """The results on the small problem of these pruners, in their order."""
    found = {str(result.run.prune): result for result in results if _is_on(result, small)}
    return [found[str(prune)] for prune in prunes if str(prune) in found]


def _is_on(result: Result, problem: Mapping[str, Any]) -> bool:
    return all(getattr(result.run, name) == value for name, value in problem.items())


def curves_on(networks: Groups) -> list[Curve]:
    """The curves of each network, with its name in their labels."""
    return [replace(curve, label=curve.label if curve.single else f"{curve.label}, {name}")
            for name, group in networks.items() for curve in curves(group)]  # fmt: skip


def table(networks: Groups, accuracy: float, seen: Observed | None = None) -> pd.DataFrame:
    """A row for each curve: what `targets` says; how many times `sooner` than dense it is there, on its network; and
    the share of a gradient's time that its selection takes, `selecting`, on the machine of the observation.

    The last two are NaN where there is nothing to compare with, or nobody has looked.
    """
    took = {} if seen is None else costs(seen)[lambda t: t.device == "cpu"].set_index("operation").share.to_dict()
    drawn = curves_on(networks)
    found = over_seeds(arrivals_of(drawn, accuracy), accuracy)
    runs = [curve.run for curve in drawn]
    dense = {_network(run): seconds for run, seconds in zip(runs, found.seconds, strict=True)
             if run.prune == "none" and run.workers > 1}  # fmt: skip
    found["sooner"] = [dense.get(_network(run), math.nan) / seconds
                       for run, seconds in zip(runs, found.seconds, strict=True)]  # fmt: skip
    found["selecting"] = [took.get(str(run.prune), math.nan) for run in runs]
    return found


def readable(found: pd.DataFrame) -> pd.DataFrame:
    """The table with units, and ranges over seeds."""
    rows = {str(name): row for name, row in found.to_dict("index").items()}
    goal = f"{100 * found.attrs['accuracy']:g} %"
    titles = {"seconds": f"time to {goal}", "sooner": "sooner than dense", "bytes_up": "pushed until then",
              "bytes_down": "pulled until then", "final_accuracy": "final accuracy",
              "selecting": "selection / gradient"}  # fmt: skip
    own: dict[str, Callable[[float], str]] = {"sooner": lambda n: f"{n:.1f} times",
                                              "selecting": lambda share: f"{100 * share:.0f} %"}  # fmt: skip
    shown = [{title: (own[name](row[name]) if math.isfinite(row[name]) else DASH) if name in own else cell(row, name)
              for name, title in titles.items()} for row in rows.values()]  # fmt: skip
    return pd.DataFrame(shown, index=list(rows))


def _network(run: Run) -> tuple[str, str]:
    return run.engine, json.dumps(run.plain()["cluster"], sort_keys=True)


def findings(found: pd.DataFrame, clusters: Iterable[str] = NETWORKS) -> str:
    """In sentences: on each network the soonest curve against the dense one, and their final accuracies."""
    lines = []
    for name in clusters:
        rows = {str(label): row for label, row in found.to_dict("index").items() if str(label).endswith(f", {name}")}
        there = {label: row for label, row in rows.items() if math.isfinite(row["seconds"])}
        dense = next((row for label, row in rows.items() if label.startswith("dense")), None)
        if not there or dense is None:
            lines.append(f"{name}: nobody gets there.")
            continue
        label, best = min(there.items(), key=lambda item: item[1]["seconds"])
        sooner = f", {best['sooner']:.1f} times sooner than dense" if math.isfinite(best["sooner"]) else ""
        behind = 100 * (dense["final_accuracy"] - best["final_accuracy"])
        ends = f"{abs(behind):.2f} points {'below' if behind > 0 else 'above'} dense"
        lines.append(f"{label}: {100 * found.attrs['accuracy']:g} % after {best['seconds']:.1f} s{sooner}; it ends at "
                     f"{100 * best['final_accuracy']:.2f} %, {ends}.")  # fmt: skip
    return "\n".join(lines)
