"""Dense gradients against the best of each pruning family on two networks, and pruning through epochs: the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pslab.config import Run
from pslab.errors import ConfigError
from pslab.lab.asked import listed
from pslab.spec import build
from pslab.tensors.rules import PRUNERS

BEST = ("static:1%", "std:3", "dynamic:5", "dgc:1%,warm_up=0")
NETWORKS: Mapping[str, str] = MappingProxyType({"100 Mbit/s": "lab-slow-net", "1 Gbit/s": "lab"})
#: To see several epochs of pruning in little time: a narrow model, and a fifth of the digits.
SMALL: Mapping[str, str] = MappingProxyType({"model": "mlp:64", "data": "mnist:12000,2000"})
THRESHOLDS = ("dynamic:5", "dynamic:mode=decay", "dynamic:mode=ratchet", "dynamic:mode=ratchet,restart=off")
STARTS = ("static:1%", "static:1%,residual=off", "dgc:0.1%,warm_up=0", "dgc:0.1%,warm_up=4")


def family_runs(
    *,
    prunes: Sequence[Any] = BEST,
    clusters: Mapping[str, str | Mapping[str, Any]] = NETWORKS,
    in_time: Sequence[Any] = (*THRESHOLDS, *STARTS),
    small: Mapping[str, Any] = SMALL,
    workers: int = 4,
    batch_size: int = 32,
    learning_rate: float = 0.5,
    schedule: Any = "linear",
    pushes: int | None = 1875,
    eval_every: int | None = 75,
    pull: str = "changed",
    model: Any = "mlp",
    data: Any = "mnist:60000,5000",
    seeds: Sequence[int] = (0, 1, 2),
) -> list[Run]:
    """BSP, dense and with each of `prunes` on each network, and a single machine, for each seed; then, with the first
    seed alone, the first of `prunes` on real processes, and each of `in_time` on the `small` problem.

    Raises:
        ConfigError: lists or mappings that are none, or what Run refuses.
    """
    from pslab.lab.studies import alone  # which lists this study

    for name, given, example in (("clusters", clusters, NETWORKS), ("small", small, SMALL)):
        if not isinstance(given, Mapping) or not given:
            raise ConfigError(name, given, f"must be a mapping, such as {dict(example)}")
    first, *others = listed("seeds", seeds)
    dense = Run(workers=workers, batch_size=batch_size, learning_rate=learning_rate, schedule=schedule, pushes=pushes,
                eval_every=eval_every, pull=pull, model=model, data=data, engine="virtual", seed=first)  # fmt: skip
    beside = [dense, *(pruned(dense, prune) for prune in listed("prunes", prunes))]
    on = [run.but(cluster=cluster) for cluster in clusters.values() for run in beside]
    runs = [run.but(seed=seed) for seed in (first, *others) for run in [*on, alone(on[0])]]
    runs.append(on[1].but(engine="local"))
    runs += [pruned(on[0].but(**small), prune) for prune in listed("in_time", in_time)]
    return list({run.digest: run for run in runs}.values())


def pruned(dense: Run, prune: Any) -> Run:
    """The run with a pruner. One with momentum m moves the weights 1 / (1 - m) times as far, and gets so much less of
    the learning rate."""
    rule = build("prune", prune, PRUNERS) if isinstance(prune, str) else prune
    return dense.but(prune=prune, learning_rate=dense.learning_rate * (1 - getattr(rule, "momentum", 0.0)))
