"""Dense gradients against the best of each pruning family on two networks, and pruning through epochs: the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pslab.config.run import Run
from pslab.config.spec import build
from pslab.errors import ConfigError
from pslab.lab.studies.asked import listed

BEST, OTHERS = ("static:1%", "dgc:0.3%,warm_up=0"), ("std:3", "dynamic:5")
NETWORKS: Mapping[str, str] = MappingProxyType({"100 Mbit/s": "lab-slow-net", "1 Gbit/s": "lab"})
#: To see several epochs of pruning in little time: a narrow model, and a fifth of the digits.
SMALL: Mapping[str, Any] = MappingProxyType({"model": "mlp:64", "data": "mnist:12000,1000", "pushes": 1125})
RATES: Mapping[str, float] = MappingProxyType({"dgc": 0.2})
THRESHOLDS = ("dynamic:5", "dynamic:mode=decay", "dynamic:mode=ratchet", "dynamic:mode=literal")
STARTS = ("static:1%", "static:1%,residual=off", "dgc:0.1%,warm_up=0", "dgc:0.1%,warm_up=4")


def family_runs(
    *,
    prunes: Sequence[Any] = BEST,
    others: Sequence[Any] = OTHERS,
    clusters: Mapping[str, str | Mapping[str, Any]] = NETWORKS,
    in_time: Sequence[Any] = (*THRESHOLDS, *STARTS),
    small: Mapping[str, Any] = SMALL,
    workers: int = 4,
    batch_size: int = 64,
    learning_rate: float = 0.7,
    learning_rates: Mapping[str, float] = RATES,
    schedule: Any = "linear",
    pushes: int | None = 1875,
    eval_every: int | None = 100,
    pull: str = "changed",
    model: Any = "mlp",
    data: Any = "mnist",
    seeds: Sequence[int] = (0, 1, 2),
) -> list[Run]:
    """BSP on the first network, dense and with each of `prunes`, for each seed; with the first seed alone also with
    each of `others`, on a single machine, with the first of `prunes` on real processes on the last network, and with
    each of `in_time` on the `small` problem.

    A family has the learning rate that `learning_rates` names, or else `learning_rate`. What other networks make of it
    follows without a run: `retimed`.

    Raises:
        ConfigError: lists or mappings that are none, or what Run refuses.
    """
    from pslab.lab.studies.studies import alone  # which lists this study

    for name, given, example in (("clusters", clusters, NETWORKS), ("small", small, SMALL),
                                 ("learning_rates", learning_rates, RATES)):  # fmt: skip
        if not isinstance(given, Mapping) or not given:
            raise ConfigError(name, given, f"must be a mapping, such as {dict(example)}")
    first, *more = listed("seeds", seeds)
    dense = Run(workers=workers, batch_size=batch_size, learning_rate=learning_rate, schedule=schedule, pushes=pushes,
                eval_every=eval_every, pull=pull, model=model, data=data, engine="virtual", seed=first)  # fmt: skip
    slow, *_, fast = [*clusters.values()] * 2
    dense = dense.but(cluster=slow)

    def at_its_rate(prune: Any, run: Run) -> Run:
        return run.but(prune=prune, learning_rate=learning_rates.get(str(prune).partition(":")[0], learning_rate))

    best = [at_its_rate(prune, dense) for prune in listed("prunes", prunes)]
    runs = [dense, *best, *(at_its_rate(prune, dense) for prune in listed("others", others)), alone(dense)]
    runs += [run.but(seed=seed) for seed in more for run in (dense, *best)]
    runs.append(best[0].but(engine="local", cluster=fast))
    runs += [at_its_rate(prune, dense.but(**small)) for prune in listed("in_time", in_time)]
    return list({run.digest: run for run in runs}.values())


def pruned(dense: Run, prune: Any) -> Run:
    """The run with a pruner. One with momentum m moves the weights 1 / (1 - m) times as far, and gets so much less of
    the learning rate."""
    rule = build("prune", prune) if isinstance(prune, str) else prune
    return dense.but(prune=prune, learning_rate=dense.learning_rate * (1 - getattr(rule, "momentum", 0.0)))
