"""Tuning. Learning rates from a grid: each curve with its own best one, so that nobody wins by a larger step; and SSP's
bound together with the learning rate, on each of several clusters.

The best rate is the one that is soonest at the goal, by the median over seeds; where none gets there, the one with the
highest final accuracy. Time, not pushes: it is what a policy is chosen by.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pslab.config.run import Run
from pslab.lab.plots.theme import parts, prune_name, sync_name
from pslab.lab.records.time_to_accuracy import best_rate, ends, first, middle, round_below
from pslab.lab.studies.asked import averages

if TYPE_CHECKING:
    from pslab.lab.records.record import Result

BEST, EDGE = "◀", "at the edge of the grid"


def goal(results: Iterable[Result]) -> float:
    """The highest round accuracy that at least half of the curves reach with every seed, at one of their rates."""
    several = [c for c in by_curve(results) if any(g[0].run.workers > 1 for g in c.values())]
    return round_below([max(min(map(_highest, group)) for group in curve.values()) for curve in several])


def best(results: Iterable[Result], accuracy: float | None = None) -> list[Result]:
    """The results of each curve's best learning rate, in the order of first appearance."""
    found = list(results)
    wanted = goal(found) if accuracy is None else accuracy
    return [result for curve in by_curve(found) for result in curve[best_rate(curve, wanted)]]


def by_curve(results: Iterable[Result]) -> list[dict[float, list[Result]]]:
    """What differs in the learning rate and the seed alone belongs together: {rate: results}."""
    groups: dict[str, dict[float, list[Result]]] = {}
    for result in results:
        one = groups.setdefault(result.run.but(seed=0, learning_rate=1.0).digest, {})
        one.setdefault(result.run.learning_rate, []).append(result)
    return list(groups.values())


def weighted(results: Iterable[Result], weight: float | None) -> list[Result]:
    """The results with this push weight, those of policies that have none, and the single machine."""
    return [r for r in results if r.run.push_weight == weight or averages(r.run.sync) or r.run.workers == 1]


def weights(results: Iterable[Result]) -> list[float | None]:
    """The push weights of the policies that have one, in the order of first appearance; [None] if there are none."""
    runs = [r.run for r in results if r.run.workers > 1 and not averages(r.run.sync)]
    return list(dict.fromkeys(run.push_weight for run in runs)) or [None]


def grid(results: Iterable[Result], accuracy: float | None = None) -> pd.DataFrame:
    """Seconds to the goal (median over seeds), a row for each curve and a column for each rate, for people.

    Where it is not reached, the final accuracy stands in brackets. A mark is at each row's best.
    """
    found = list(results)
    wanted = goal(found) if accuracy is None else accuracy
    found_curves = by_curve(found)
    rates = sorted({rate for curve in found_curves for rate in curve})
    rows = {}
    for curve in found_curves:
        chosen, run = best_rate(curve, wanted), next(iter(curve.values()))[0].run
        cells = {f"{rate:g}": _cell(curve.get(rate, []), wanted, rate == chosen) for rate in rates}
        edge = EDGE if len(rates) > 1 and chosen in (rates[0], rates[-1]) else ""
        rows[name(run)] = {**cells, "best": f"{chosen:g}", "note": edge}
    told = f"s to {100 * wanted:g} % at learning rate"
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(columns=told)


def name(run: Run) -> str:
    """A row of the grid: policy, pruning and push weight."""
    if run.workers == 1:
        return "single machine"
    words = [sync_name(run.sync)] + ([prune_name(run.prune)] if run.prune != "none" else [])
    if not averages(run.sync):
        words.append("weight 1/W" if run.push_weight is None else f"weight {run.push_weight:g}")
    return ", ".join(words)


def _cell(results: Sequence[Result], accuracy: float, chosen: bool) -> str:
    if not results:
        return "–"
    mark, there = (f" {BEST}" if chosen else ""), middle(results, accuracy)
    if math.isfinite(there):
        return f"{there:.1f}{mark}"
    gone = any(r.manifest.get("outcome") == "diverged" for r in results)
    return ("diverged" if gone else f"({100 * ends(results):.1f} %)") + mark


def _highest(result: Result) -> float:
    return float(result.accuracy.accuracy.max())


# -- SSP's bound and the learning rate, cluster by cluster -----------------------------------------


def settings(results: Iterable[Result], clusters: Mapping[str, Any], accuracy: float) -> pd.DataFrame:
    """A row for each cluster, staleness bound and learning rate: median seconds to the accuracy (NaN unless more than
    half of the seeds get there), their range, `reached` and `seeds`; `best` marks each cluster's soonest."""
    names = {json.dumps(_fields(cluster), sort_keys=True): name for name, cluster in clusters.items()}
    groups: dict[tuple[str, int, float], list[float]] = {}
    for result in results:
        run = result.run
        key = names[json.dumps(_fields(run.cluster), sort_keys=True)], bound(run.sync), run.learning_rate
        groups.setdefault(key, []).append(first(result, accuracy)["seconds"])
    rows = []
    for (cluster, staleness, rate), times in groups.items():
        late = [math.inf if math.isnan(s) else s for s in times]
        middle = float(np.median(late))
        rows.append({"cluster": cluster, "staleness": staleness, "learning_rate": rate, "low": min(late),
                     "high": max(late), "seconds": middle if math.isfinite(middle) else math.nan,
                     "reached": sum(map(math.isfinite, late)), "seeds": len(times)})  # fmt: skip
    table = pd.DataFrame(rows)
    least = table.groupby("cluster", sort=False).seconds.transform("min")
    # of equals the strictest bound and the smallest rate
    soonest = table[table.seconds == least].sort_values(["staleness", "learning_rate"]).groupby("cluster").head(1)
    return table.assign(best=table.index.isin(soonest.index))


def transfer(table: pd.DataFrame) -> pd.DataFrame:
    """What a setting that is best on one cluster (row) costs on another (column): its time over that one's best time;
    infinite where it is not reached, NaN where nothing is."""
    names = [str(name) for name in dict.fromkeys(table.cluster)]
    cells, own = _seconds(table), {name: best_setting(table, name) for name in names}
    cost = [[_over(cells, there, own[here], own[there]) for there in names] for here in names]
    return pd.DataFrame(cost, index=[_told(here, own[here]) for here in names], columns=names)


def best_setting(table: pd.DataFrame, cluster: str) -> tuple[int, float] | None:
    """A cluster's best bound and learning rate."""
    found = table[table.best & (table.cluster == cluster)]
    return (int(found.staleness.iloc[0]), float(found.learning_rate.iloc[0])) if len(found) else None


def lesson(table: pd.DataFrame) -> str:
    """What the settings say: where the best ones lie, and what it costs to keep one."""
    cost = transfer(table)
    told = "; ".join(map(str, cost.index))
    values = cost.to_numpy(float)
    elsewhere = np.where(np.eye(len(values), dtype=bool) | np.isnan(values), 0.0, values)
    here, there = divmod(int(elsewhere.argmax()), len(values))
    worst = float(elsewhere[here, there])
    if worst <= 1:
        return f"Best: {told}. None of them costs anything elsewhere."
    words = "does not get there" if math.isinf(worst) else f"takes {worst:.1f} times as long as the best"
    return f"Best: {told}. The most that keeping one costs: {cost.index[here]} {words} with {cost.columns[there]}."


def _told(cluster: str, best_: tuple[int, float] | None) -> str:
    return f"{cluster}: never there" if best_ is None else f"{cluster}: s = {best_[0]}, rate {best_[1]:g}"


def _seconds(table: pd.DataFrame) -> dict[tuple[str, int, float], float]:
    keys = zip(table.cluster, table.staleness, table.learning_rate, strict=True)
    return dict(zip(keys, table.seconds.to_numpy(float).tolist(), strict=True))


def _over(
    cells: Mapping[tuple[str, int, float], float], there: str, kept: tuple[int, float] | None,
    own: tuple[int, float] | None,
) -> float:  # fmt: skip
    if kept is None or own is None:
        return math.nan
    spent = cells[there, *kept]
    return math.inf if math.isnan(spent) else spent / cells[there, *own]


def bound(sync: object) -> int:
    """The staleness of an SSP policy."""
    _, positional, named = parts(sync)
    return int([*positional, *named.values()][0])


def _fields(cluster: Any) -> Any:
    return Run(cluster=cluster).plain()["cluster"]
