"""Staleness-aware learning rates on clusters that are ever more uneven: the runs, and what is read from them.

Every rate has a grid of learning rates, so that none wins by a larger step. The trials go through the grid with one
seed; each rate then runs with every seed at its own best learning rate, chosen anew for each policy and each cluster:
the one that is soonest, in pushes, at the goal; where none gets there, the one with the highest final accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from pslab.config.run import Run
from pslab.config.spec import build
from pslab.errors import ConfigError
from pslab.lab.records.time_to_accuracy import best_rate, rounded
from pslab.lab.studies.asked import listed
from pslab.policies.rates import Applied

if TYPE_CHECKING:
    from pslab.lab.records.record import Result

#: One learning rate, 0.2, is in all grids but that of AdaGrad, whose learning rate is another quantity.
GRIDS: Mapping[str, list[float]] = MappingProxyType({
    "constant": [0.2, 0.4, 0.8], "dynsgd": [0.1, 0.2, 0.4], "dynsgd:inverse": [0.1, 0.2, 0.4],
    "modulated": [0.1, 0.2, 0.4], "split": [0.05, 0.1, 0.2], "adagrad": [0.0025, 0.005, 0.01],
})  # fmt: skip
PLAIN, CONSGD = "SSP-SGD", "CONSGD"
NAMES: Mapping[str, str] = MappingProxyType({
    "constant": CONSGD, "dynsgd": "DynSGD, versions", "dynsgd:versions": "DynSGD, versions",
    "dynsgd:inverse": "DynSGD, inverse", "dynsgd:stalest": "DynSGD, stalest", "adagrad": "AdaGrad",
    "adagrad:server": "AdaGrad at the server",
})  # fmt: skip
PUBLISHED = 6  # "up to 6x fewer iterations", Jiang et al. (SIGMOD 2017)


# -- runs ------------------------------------------------------------------------------------------


def rate_runs(
    *,
    learning_rates: Mapping[str, Sequence[float]] = GRIDS,
    undivided: Sequence[float] = (0.05, 0.1, 0.2),
    policies: Sequence[Any] = ("ssp:3", "asp"),
    heterogeneity: Sequence[float] = (1, 2, 4, 8),
    workers: int = 4,
    batch_size: int = 64,
    schedule: Any = "constant",
    pushes: int | None = 260,
    eval_every: int | None = 10,
    pull: str = "changed",
    model: Any = "mlp:64",
    data: Any = "mnist:60000,1000",
    engine: str = "virtual",
    cluster: str | Mapping[str, Any] = "lab-slow-net",
    seeds: Sequence[int] = (0, 1, 2),
) -> list[Run]:
    """The trials: each rate with its grid, under each policy and heterogeneity, with the first seed.

    The first quarter of the workers is so many times slower, as `heterogeneity` says. `undivided` is the grid of the
    constant rate with push weight 1.

    Raises:
        ConfigError: a list or mapping that is none, a heterogeneity below 1, or what Run refuses.
    """
    if not isinstance(learning_rates, Mapping) or not learning_rates:
        told = "must map rates to grids, such as {'constant': [0.2, 0.4]}"
        raise ConfigError("learning_rates", learning_rates, told)
    grids: list[tuple[str, float | None, float]] = [("constant", 1.0, rate) for rate in listed("undivided", undivided)]
    grids += [(name, None, rate) for name, grid in learning_rates.items()
              for rate in listed("learning_rates", grid)]  # fmt: skip
    base = Run(workers=workers, batch_size=batch_size, schedule=schedule, pushes=pushes, eval_every=eval_every,
               pull=pull, model=model, data=data, engine=engine, seed=listed("seeds", seeds)[0])  # fmt: skip
    clusters = [_uneven(cluster, factor, workers) for factor in listed("heterogeneity", heterogeneity)]
    runs = [base.but(rate=name, push_weight=weight, learning_rate=rate, sync=policy, cluster=slow)
            for policy in listed("policies", policies) for slow in clusters
            for name, weight, rate in grids]  # fmt: skip
    return list({run.digest: run for run in runs}.values())


def _uneven(cluster: str | Mapping[str, Any], factor: float, workers: int) -> dict[str, Any]:
    """The cluster with its first quarter of workers, at least one, so many times slower."""
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 1 <= factor < math.inf:
        raise ConfigError("heterogeneity", factor, "must be at least 1: how many times slower the slow workers are")
    base = {"preset": cluster} if isinstance(cluster, str) else dict(cluster)
    slow = {worker: float(factor) for worker in range(max(1, workers // 4))}
    return {**base, "slow": slow} if factor > 1 else base


def heterogeneity(run: Run) -> float:
    """How many times slower the slowest worker is."""
    slow = run.cluster.get("slow", {}) if isinstance(run.cluster, Mapping) else {}
    return max([1.0, *map(float, slow.values())])


def name(run: Run) -> str:
    """A rate in words; the constant one with push weight 1 is SSP-SGD, whatever the policy."""
    rate = str(run.rate)
    if rate == "constant" and run.push_weight is not None:
        return PLAIN if run.push_weight == 1 else f"constant, weight {run.push_weight:g}"
    return NAMES.get(rate, rate.replace(":", ", "))


# -- each at its best ------------------------------------------------------------------------------

Cell = tuple[str, float, str]  # policy, heterogeneity, rate


def cells(results: Iterable[Result]) -> dict[Cell, dict[float, list[Result]]]:
    """Policy, heterogeneity and rate -> learning rate -> the results of each seed."""
    found: dict[Cell, dict[float, list[Result]]] = {}
    for result in results:
        run = result.run
        grid = found.setdefault((str(run.sync), heterogeneity(run), name(run)), {})
        grid.setdefault(run.learning_rate, []).append(result)
    return found


def goal(results: Iterable[Result]) -> float:
    """The highest round accuracy (0 to 1) that nine tenths of the cells reach, with one of their learning rates, within
    three quarters of the pushes: then other seeds get there too."""
    bests = sorted(max(_highest(r) for group in grid.values() for r in group) for grid in cells(results).values())
    low = bests[len(bests) // 10] if bests else 0.0
    return rounded(low)


def tuned(trials: Iterable[Result], seeds: Sequence[int]) -> list[Run]:
    """Each cell's run at its best learning rate, for each seed.

    Raises:
        ConfigError: seeds that are no list.
    """
    found = list(trials)
    accuracy = goal(found)
    chosen = [grid[best_rate(grid, accuracy, "pushes")][0].run for grid in cells(found).values()]
    return [run.but(seed=seed) for run in chosen for seed in listed("seeds", seeds)]


def _highest(result: Result) -> float:
    table = result.accuracy
    return float(np.nanmax(table.accuracy[table.pushes <= 0.75 * table.pushes.max()]))


# -- factors ---------------------------------------------------------------------------------------


def factor(rate: str, push_weight: float | None, workers: int) -> Callable[[int], float]:
    """By what a rate multiplies the learning rate of a push that is applied alone, for each staleness.

    A worker that modulates its own step is taken to have seen just that staleness.
    """
    made = build("rate", rate)
    return lambda stale: float(made.scale(Applied(workers, 1, False, push_weight, stale, stale, stale)))


def scalar(run: Run) -> bool:
    """Whether the rate is nothing but a factor that a push's staleness gives."""
    return not getattr(build("rate", str(run.rate)), "needs", "")


def mean_factor(results: Iterable[Result]) -> float:
    """The mean over all pushes of the factor that their staleness gives."""
    found = list(results)
    run = found[0].run
    scale = factor(str(run.rate), run.push_weight, run.workers)
    return float(np.mean([scale(int(stale)) for r in found for stale in r.pushes.staleness]))
