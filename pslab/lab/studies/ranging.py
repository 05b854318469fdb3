"""Range push and pull: the runs behind 60_ranges, and what is read from them beside the model.

How long iterations take is asked of the thesis's MLP in virtual time, without its gradients; what is learned, of a
narrow one over a link that is as narrow, so that exchanging takes as many times as long as computing; real processes
are one run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pslab.config.cluster import resolve_cluster
from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.plots.theme import number, parts
from pslab.lab.records.intervals import overlapped
from pslab.lab.studies.asked import listed
from pslab.policies.planning.range_size import PROBES, Line, best_size, exchange_s

if TYPE_CHECKING:
    from pslab.lab.records.record import Result

FITTED = ("keys", "alpha_s", "beta_s", "compute_s")
WARM = 0.25  # share of a worker's iterations at the beginning, and at the end, that is left out
#: No jitter: what is left is the model's. Exchanging all keys takes about four times as long as computing.
LINKS: Mapping[str, Any] = MappingProxyType({"compute_s": 0.02, "bandwidth_bit_s": 4e8, "latency_s": 5e-4})
LONGER: Mapping[str, Any] = MappingProxyType({
    "model": "mlp:128", "workers": 2, "learning_rate": 0.5, "pushes": 1100,
    "cluster": {"compute_s": 0.02, "bandwidth_bit_s": 8e7, "latency_s": 0.0005},
})  # fmt: skip
NARROW: Mapping[str, Any] = MappingProxyType({"compute_s": 0.02, "bandwidth_bit_s": 2.6e7, "latency_s": 5e-4})


# -- runs ------------------------------------------------------------------------------------------


def range_runs(
    *,
    sizes: Sequence[int] = (50, 100, 200, 300, 400, 500, 600, 800, 1100, 1546),
    cluster: Mapping[str, Any] = LINKS,
    model: Any = "mlp",
    sync: Any = "eager",
    workers: int = 4,
    batch_size: int = 64,
    halves_s: float = 6.0,
    trained: Any = "mlp:64",
    trained_sizes: Sequence[int] = (13, 51, 101),
    trained_cluster: Mapping[str, Any] = NARROW,
    learning_rate: float = 0.2,
    pushes: int = 400,
    longer: Mapping[str, Any] = LONGER,
    longer_size: int = 110,
    data: Any = "mnist",
    seeds: Sequence[int] = (0, 1, 2),
) -> list[Run]:
    """In virtual time without gradients: everything, each size, and the fitted one, for good and over a bandwidth that
    halves. With gradients, for each seed: the same, a size whose rest is dropped, and a longer one, which differs in
    what `longer` says; and for one seed everything that long. One on real processes.

    Raises:
        ConfigError: lists that are none, clusters that are no mappings, or what Run refuses.
    """
    for name, value in (("cluster", cluster), ("trained_cluster", trained_cluster), ("longer", longer)):
        if not isinstance(value, Mapping):
            raise ConfigError(name, value, "must be a mapping of fields to values, such as {'compute_s': 0.02}")
    if isinstance(halves_s, bool) or not isinstance(halves_s, (int, float)) or not 0 < halves_s < 3600:
        raise ConfigError("halves_s", halves_s, "must be the seconds after which the bandwidth halves, such as 6.0")
    base = Run(model=model, sync=sync, workers=workers, batch_size=batch_size, data=data, engine="timing",
               cluster=dict(cluster), pushes=80 * workers)  # fmt: skip
    changing = {**cluster, "compute_sigma": 0.1, "bandwidth_at": {halves_s: cluster.get("bandwidth_bit_s", 1e9) / 2}}
    timed = [base, *(ranged(base, size) for size in listed("sizes", sizes)), ranged(base, "fit"),
             ranged(base.but(cluster=changing, pushes=None, seconds=2.5 * halves_s), "fit")]  # fmt: skip
    learner = base.but(model=trained, engine="virtual", cluster=dict(trained_cluster), learning_rate=learning_rate,
                       pushes=pushes)  # fmt: skip
    chosen = listed("trained_sizes", trained_sizes)
    crowd = [learner, *(ranged(learner, size) for size in chosen), ranged(learner, "fit"),
             ranged(learner, f"{chosen[len(chosen) // 2]},residual=off")]  # fmt: skip
    long = learner.but(**{"schedule": "linear", **longer})
    crowd += [ranged(long, longer_size)]
    real = ranged(base.but(engine="local", workers=2, pushes=60, cluster=slower(cluster)), sizes[len(sizes) // 3])
    each = [run.but(seed=seed) for seed in listed("seeds", seeds) for run in crowd]
    return [*timed, *each, long.but(seed=seeds[0]), real]


def slower(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Everything takes twice as long, so that real processes keep up: r* stays as it is."""
    halved = {name: cluster[name] / 2 for name in ("bandwidth_bit_s", "server_bandwidth_bit_s") if name in cluster}
    return {**cluster, **halved, **{name: 2 * cluster[name] for name in ("compute_s", "latency_s") if name in cluster}}


def ranged(run: Run, size: int | str) -> Run:
    """The run with ranges of so many keys."""
    return run.but(prune=f"range:{size}", pull="range")


# -- which of them ---------------------------------------------------------------------------------


def timed(results: Sequence[Result]) -> list[Result]:
    """Those without gradients over links that stay as they are."""
    return [r for r in results if r.run.engine == "timing" and not resolve_cluster(r.run.cluster).bandwidth_at]


def changing(results: Sequence[Result]) -> list[Result]:
    """Those over a bandwidth that changes."""
    return [r for r in results if resolve_cluster(r.run.cluster).bandwidth_at]


def trained(results: Sequence[Result], *, long: bool = False) -> list[Result]:
    """Those with gradients in virtual time: the short ones, or those to the goal."""
    return [r for r in results if r.run.engine == "virtual" and (r.run.schedule != "constant") == long]


def real(results: Sequence[Result]) -> list[Result]:
    """Those on real processes."""
    return [r for r in results if r.run.engine == "local"]


def size_of(run: Run) -> float | None:
    """Keys in a range; None if it is fitted, infinite if everything travels."""
    name, positional, _ = parts(run.prune)
    return float("inf") if name != "range" else number(positional)


def keeps(run: Run) -> bool:
    """Whether what is not sent is kept."""
    return "residual" not in parts(run.prune)[2]


# -- what an iteration takes -----------------------------------------------------------------------


def iterations(result: Result) -> pd.DataFrame:
    """Of each worker's iterations in the middle of a run: seconds of the whole, of computing, of exchanging its range
    (the longer way, or, where they do not overlap, both), of the worker idle and of its link unused."""
    phases = result.phases.assign(spent_s=result.phases.end_s - result.phases.begin_s)
    over = overlapped(result)
    found = []
    for worker, own in phases.groupby("worker"):
        each = own.groupby(["iteration", "phase"])
        first, last, spent = (found.unstack() for found in (each.begin_s.min(), each.end_s.max(), each.spent_s.sum()))
        pull_s = last["pull"] - (first["compute"] if over else first["push"]) - spent["wait"]
        exchange_s = np.maximum(pull_s, last["apply"] - first["push"]) if over else pull_s
        whole_s = first["compute"].shift(-1) - first["compute"]
        table = pd.DataFrame({"whole_s": whole_s, "compute_s": spent["compute"], "exchange_s": exchange_s,
                              "idle_s": first["compute"].shift(-1) - last["compute"],
                              "unused_s": (whole_s - exchange_s).clip(lower=0.0)}).dropna()  # fmt: skip
        cut = int(WARM * len(table))
        found.append(table.iloc[cut : len(table) - cut].assign(worker=worker))
    return pd.concat(found).reset_index()


def exchanges(results: Sequence[Result]) -> pd.DataFrame:
    """A row for each of the runs: keys in a range (all, where everything travels), its kind, mean seconds of
    `iterations`, and those of the model."""
    line, compute_s, keys = model(results)
    rows = []
    for result in results:
        size = size_of(result.run)
        told = settled(result) if size is None else min(size, keys)
        kind = "fitted" if size is None else "everything" if size > keys else "range"
        mean = iterations(result)[["whole_s", "exchange_s", "idle_s", "unused_s"]].mean()
        rows.append({"keys": told, "kind": kind, **mean, "model_s": max(compute_s, exchange_s(line, told))})
    return pd.DataFrame(rows)


def model(results: Sequence[Result], keys: int | None = None) -> tuple[Line, float, int]:
    """T(r) = alpha + beta r of the cluster, its T_c and the number of keys: with keys that are all of the mean size.

    Half of the latency is a request's, or, without overlap, a push's.
    """
    cluster, keys = resolve_cluster(results[0].run.cluster), keys or keys_of(results)
    key_bytes = float(results[0].pushes.bytes_up_raw.max()) / keys
    byte_s = (cluster.bandwidth_bit_s or np.inf) / 8
    ways = 1 if any(overlapped(result) for result in results) and cluster.duplex == "full" else 2
    return Line(2 * cluster.latency_s, ways * key_bytes / byte_s), float(cluster.compute_s or 0.0), keys


def keys_of(results: Sequence[Result]) -> int:
    """The keys of their model: a fitted range begins with all of them."""
    found = [int(sweeps(result)["keys"].max()) for result in results if result.manifest.get("sweeps")]
    if not found:
        raise ConfigError("sizes", None, "the number of keys is known of fitted ranges: run range:fit, too")
    return max(found)


def crossing(results: Sequence[Result]) -> int:
    """r*, by the cluster."""
    line, compute_s, keys = model(results)
    return best_size(line, compute_s, keys)


# -- what is fitted --------------------------------------------------------------------------------


def sweeps(result: Result) -> pd.DataFrame:
    """Each worker's sweeps: the iteration and the second with which they begin, keys, alpha, beta and T_c by then."""
    table = pd.DataFrame(result.manifest["sweeps"], columns=["worker", "iteration", *FITTED])
    begins = result.phases[result.phases.phase == "compute"].groupby(["worker", "iteration"]).begin_s.min()
    return table.join(begins, on=["worker", "iteration"]).dropna(subset="begin_s").reset_index(drop=True)


def settled(result: Result) -> float:
    """The fitted size in the end: the median of the workers' last sweeps."""
    return float(sweeps(result).groupby("worker")["keys"].last().median())


def levels(result: Result) -> tuple[tuple[int, float], tuple[int, float]]:
    """r* by the cluster and the fitted size, before a bandwidth changes and in the end: the median over workers."""
    cluster, table = resolve_cluster(result.run.cluster), sweeps(result)
    line, compute_s, keys = model([result])
    ((at, bandwidth),) = cluster.bandwidth_at.items()
    slower = line._replace(beta_s=line.beta_s * (cluster.bandwidth_bit_s or bandwidth) / bandwidth)
    before = float(table[table.begin_s < at].groupby("worker")["keys"].last().median())
    return (best_size(line, compute_s, keys), before), (best_size(slower, compute_s, keys), settled(result))


def right_after(result: Result) -> float:
    """The fitted size right after the third sweep, the last one that probes: the median over workers."""
    return float(np.median(sweeps(result).groupby("worker")["keys"].nth(PROBES)))
