"""Whether an answer holds on clusters near the one that was asked about."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pslab.config.cluster import resolve_cluster
from pslab.config.run import Run
from pslab.lab.plots.labels import bits
from pslab.lab.records.merit import Merit
from pslab.lab.records.record import Result
from pslab.lab.records.summary import held, measured
from pslab.lab.records.units import SPACE
from pslab.lab.runs.grid import grid
from pslab.lab.runs.run import sweep

HERE = "as it is"  # the row of the cluster that was asked about
ROOM = 2.0  # times the pushes to the target here, what a run has elsewhere
BEST = "best"  # the column that says which policy needs the least


def sensitivity(
    known: Mapping[str, Mapping[int, Result]], target: float, merit: Merit, *, top: int, seeds: int, tie: float,
    results: Path | None, progress: bool | None,
) -> pd.DataFrame:  # fmt: skip
    """See `Advice.sensitivity`.

    Args:
        known: by policy and seed, runs in virtual time that hold the target; the advised policy is the first.
    """
    chosen, shared = list[str](), [*next(iter(known.values()))]
    for name, own in known.items():
        if len(chosen) < top and (both := [seed for seed in shared if seed in own]):
            chosen, shared = [*chosen, name], both
    shared = shared[:seeds]
    advised, *_ = chosen
    near = nearby(known[advised][shared[0]].run)
    found = {(HERE, name): [known[name][seed] for seed in shared] for name in chosen}
    wanted: dict[tuple[str, str, int], Run] = {}
    for words, cluster in near.items():
        for name in chosen:
            found[words, name] = []
            wanted |= {(words, name, result.run.seed): _elsewhere(result, target, cluster)
                       for result in found[HERE, name]}  # fmt: skip
    ran = sweep(wanted.values(), results=results, progress=progress)
    for (words, name, _), result in zip(wanted, ran, strict=True):
        found[words, name].append(result)
    needs = {key: _mean([measured(result, merit.measure, target) for result in own]) for key, own in found.items()}
    rows = {words: {name: needs[words, name] for name in chosen} for words in (HERE, *near)}
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("cluster")
    table[BEST] = [min(chosen, key=lambda name: row[name]) for row in rows.values()]
    table.attrs |= {"merit": merit.name, "seeds": shared}
    table.attrs["sentence"] = _sentence(table, advised, merit, tie)
    return table


def nearby(run: Run) -> dict[str, Any]:
    """The clusters with half and twice the bandwidth, and with the slowest worker half and twice as slow, by words: as
    far as the run's cluster has a bandwidth and a modelled computation, and a worker that is slower than others."""
    cluster, fields = resolve_cluster(run.cluster), dict[str, dict[str, Any]]()
    if (rate := cluster.bandwidth_bit_s) is not None:
        for words, factor in (("half", 0.5), ("twice", 2.0)):
            later = {at_s: factor * bit_s for at_s, bit_s in cluster.bandwidth_at.items()}
            fields[f"{words} the bandwidth ({bits(factor * rate)})"] = {
                "bandwidth_bit_s": factor * rate, **({"bandwidth_at": later} if later else {})}  # fmt: skip
    if cluster.compute_s is not None and run.workers > 1:
        worker = max(range(run.workers), key=lambda each: cluster.slow.get(each, 1.0))
        slow = cluster.slow.get(worker, 1.0)
        for words, factor in (("half", slow / 2), ("twice", slow * 2)):
            if factor >= 1:  # else it is not the slowest any more
                fields[f"worker {worker} {words} as slow (×{factor:g})"] = {"slow": {**cluster.slow, worker: factor}}
    made = grid(run, near={words: {"cluster": each} for words, each in fields.items()}) if fields else []
    return {words: each.cluster for words, each in zip(fields, made, strict=True)}


def _elsewhere(result: Result, target: float, cluster: Any) -> Run:
    """The same run on another cluster, ended by pushes alone: ROOM times as many as it needed here."""
    run, (_, pushes) = result.run, held(result, target)
    every = run.eval_every or 1
    room = run.workers * math.ceil((ROOM * pushes + 2 * every) / run.workers)
    return run.but(cluster=cluster, seconds=None, pushes=room)


def _mean(needs: list[float]) -> float:
    """The geometric mean."""
    return float(np.exp(np.mean(np.log(needs))))


def _sentence(table: pd.DataFrame, advised: str, merit: Merit, tie: float) -> str:
    """Where the advised policy is still the best, and where another one is by more than a tie."""
    holding, others = list[str](), list[str]()
    for words, row in list(zip(table.index, table.to_dict("records"), strict=True))[1:]:
        own, rival = row[advised], row[BEST]
        if math.isinf(row[rival]):
            others.append(f"with {words} no policy arrives")
        elif own <= (1 + tie) * row[rival]:
            holding.append(words)
        else:
            instead = f"instead of {merit.text(own)}" if math.isfinite(own) else f"and {advised} does not arrive"
            others.append(f"with {words} {rival} needs {merit.text(row[rival])} {instead}")
    if len(table.columns) <= len([advised, BEST]):
        return f"there is no policy to compare {advised} with"
    within = f"{100 * tie:g}{SPACE}%"
    holds = [f"{advised} is the best or within {within} of it with {', '.join(holding)}"] if holding else []
    return "; ".join([*holds, *others]) or "this cluster has neither a bandwidth nor a modelled computation to change"
