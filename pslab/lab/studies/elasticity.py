"""The runs behind 30_elastic: how fast barriers are found, where they fall, what they save, what they cost."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.studies.asked import averages, listed
from pslab.lab.studies.searching import Searches

SPEEDS = (1.0, 1.37, 2.11, 2.9)  #: seconds of an iteration, by worker
PRESENT_S, PUBLISHED_S = 5e-7, 1.6e-5  #: a predicted point's search: the presets'; ZipLine in C++, ICDM 2019, table II
TIMED = ("bsp", "ssp:3", "ssp:15", "dssp:3,12", "dssp:3,12,literal", "elastic:15", "backup:1", "asp")
PAIRED = ("ssp:15", "dssp:3,12", "dssp:3,12,literal", "asp")
BOUNDS = ("bsp", "ssp:1", "ssp:3", "ssp:7", "ssp:15", "asp")
STRAGGLERS: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    "permanent": {"compute_s": 1.0, "slow": {0: 3.0}},
    "transient": {"compute_s": 1.0, "stall_probability": 0.05, "stall_factor": 5.0},
})  # fmt: skip
PAIR_PUSHES, STRAGGLER_PUSHES, ITERATIONS = 1200, 800, 100
SLOWEST = 3.0  # the last worker of a crowd, against the first


def elastic_groups(
    *,
    sizes: Sequence[int] = (10, 30, 100, 300, 1000),
    ends: Sequence[int] = (15, 50, 150),
    repeats: int = 3,
    speeds: Sequence[float] = SPEEDS,
    duration_s: float = 300.0,
    ratios: Sequence[float] = (1.0, 1.5, 2.0, 3.0, 4.0),
    horizons: Sequence[int] = (15, 30, 60, 120, 240),
    crowds: Sequence[int] = (4, 64),
    search_costs: Sequence[float] = (PRESENT_S, PUBLISHED_S),
    policies: Sequence[Any] = ("bsp", "ssp:3", "dssp:3,12", "asp", "elastic:15"),
    push_weights: Sequence[float | None] = (None, 1.0),
    learning_rates: Sequence[float] = (0.1, 0.2, 0.4, 0.8),
    batch_size: int = 64,
    schedule: Any = "linear",
    pushes: int | None = 320,
    eval_every: int | None = 32,
    pull: str = "changed",
    model: Any = "mlp:64",
    data: Any = "mnist",
    network: str = "lab-slow-net",
    seeds: Sequence[int] = (0, 1, 2),
) -> dict[str, list[Any]]:
    """What is asked for, by the part of the notebook: search, speeds, pair, stragglers, horizon, accuracy.

    `network` is a cluster's preset; how much slower each worker is, `speeds` say.

    Raises:
        ConfigError: lists that are none, or what Run or Searches refuses.
    """
    times = [float(s) for s in listed("speeds", speeds)]
    slow = {worker: s / times[0] for worker, s in enumerate(times) if s != times[0]}
    train = Run(engine="virtual", workers=len(times), batch_size=batch_size, schedule=schedule, pushes=pushes,
                eval_every=eval_every, pull=pull, model=model, data=data, cluster={"preset": network, "slow": slow})
    return {
        "search": [Searches(sizes=sizes, ends=ends, repeats=repeats)],
        "speeds": [timed(policy, {"compute_s": times[0], "slow": slow}, len(times), None, seconds=duration_s)
                   for policy in TIMED],
        "pair": [timed(policy, {"compute_s": 1.0, "slow": {1: float(ratio)}}, 2, PAIR_PUSHES)
                 for ratio in listed("ratios", ratios) for policy in PAIRED],
        "stragglers": _stragglers(len(times), seeds),
        "horizon": _horizon(horizons, crowds, search_costs),
        "accuracy": _trained(train, policies, push_weights, learning_rates, seeds),
    }  # fmt: skip


@functools.wraps(elastic_groups)  # its parameters are the notebook's
def elastic_runs(**parameters: Any) -> list[Any]:
    """All that `elastic_groups` asks for, each once."""
    wanted = [each for group in elastic_groups(**parameters).values() for each in group]
    return list({each.digest: each for each in wanted}.values())


def timed(policy: str, cluster: Mapping[str, Any], workers: int, pushes: int | None, **changes: Any) -> Run:
    """A run in virtual time without tensors."""
    return Run(sync=policy, engine="timing", cluster=dict(cluster), workers=workers, pushes=pushes, **changes)


def crowd(workers: int) -> dict[int, float]:
    """Factors of a crowd: from 1 to SLOWEST in equal steps."""
    return {worker: 1 + (SLOWEST - 1) * worker / (workers - 1) for worker in range(1, workers)}


def _stragglers(workers: int, seeds: Sequence[int]) -> list[Run]:
    chosen = listed("seeds", seeds)
    return [timed(policy, cluster, workers, STRAGGLER_PUSHES, seed=seed) for kind, cluster in STRAGGLERS.items()
            for policy in BOUNDS for seed in (chosen if kind == "transient" else chosen[:1])]  # fmt: skip


def _horizon(horizons: Sequence[int], crowds: Sequence[int], costs: Sequence[float]) -> list[Run]:
    found = []
    for workers in listed("crowds", crowds):
        if not isinstance(workers, int) or workers < 2:
            raise ConfigError("crowds", list(crowds), "must be numbers of workers, from 2")
        cluster = {"compute_s": 0.02, "compute_sigma": 0.1, "slow": crowd(workers)}
        pushes = ITERATIONS * workers * (4 if workers < 16 else 1)
        found += [timed(policy, cluster, workers, pushes) for policy in ("bsp", "asp")]
        found += [timed(f"elastic:{ends}", {**cluster, "search_s": float(cost)}, workers, pushes)
                  for cost in listed("search_costs", costs) for ends in listed("horizons", horizons)]  # fmt: skip
    return found


def _trained(
    run: Run, policies: Sequence[Any], weights: Sequence[float | None], rates: Sequence[float], seeds: Sequence[int]
) -> list[Run]:
    """Each policy with each push weight and rate; one whose step is a mean has no weight."""
    found = []
    for policy in listed("policies", policies):
        own = [None] if averages(policy) else listed("push_weights", weights)
        found += [run.but(sync=policy, push_weight=weight, learning_rate=float(rate), seed=seed) for weight in own
                  for rate in listed("learning_rates", rates) for seed in listed("seeds", seeds)]  # fmt: skip
    return found
