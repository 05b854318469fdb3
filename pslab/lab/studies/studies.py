"""Studies: the runs behind each notebook, and how their results group into labelled curves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pslab.config.cluster import COSTS, PRESETS, Cluster, resolve_cluster
from pslab.config.run import Run
from pslab.config.table import ROWS
from pslab.errors import ConfigError, nearest
from pslab.lab.plots.theme import SPACE, Style, parts, prune_name, single, styles, sync_name
from pslab.lab.studies.asked import averages, listed
from pslab.lab.studies.families import family_runs, pruned

if TYPE_CHECKING:
    from pslab.lab.records.record import Result

#: The cluster of the default figures; without stalls the synchronization policies would be one curve. Real processes
#: pay the costs of coding and serving themselves.
LAB: Mapping[str, Any] = MappingProxyType(
    {"duplex": "full", **{name: value for name, value in PRESETS["lab"].items() if name not in COSTS}}
)
#: Clusters that differ in how uneven their workers are, for the narrow MLP: its dense gradient takes as long as the
#: thesis's over the tenfold bandwidth.
UNEVEN: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    "equal workers": {"preset": "lab-slow-net", "stall_probability": 0.0},
    "short stalls": {"preset": "lab-slow-net", "stall_probability": 0.05, "stall_factor": 5.0},
    "rare long stalls": {"preset": "lab-slow-net", "stall_probability": 0.02, "stall_factor": 15.0},
    "one slow worker": {"preset": "lab-slow-net", "stall_probability": 0.0, "slow": {0: 3.0}},
})  # fmt: skip
NETWORK = ("bandwidth_bit_s", "latency_s", "server_bandwidth_bit_s", "duplex")
THRESHOLDS: dict[str, tuple[str | int, ...]] = {
    "static": ("10%", "1%", "0.1%"), "std": (1, 2, 3), "dynamic": (5,), "dgc": ("1%,warm_up=0", "0.1%,warm_up=0"),
}  # fmt: skip


def pruning_runs(
    *,
    family: str = "static",
    thresholds: Sequence[str | float] | None = None,
    sync: Any = "bsp",
    workers: int = 4,
    batch_size: int = 64,
    learning_rate: float = 0.5,
    schedule: Any = "linear",
    pushes: int | None = 625,
    pull: str = "changed",
    model: Any = "mlp",
    data: Any = "mnist",
    engine: str = "local",
    cluster: str | Mapping[str, Any] = LAB,
    seeds: Sequence[int] = (0,),
) -> list[Run]:
    """Dense, each threshold of one pruning family, and the single machine; for each seed.

    Thresholds may have options behind them: "1%,residual=off", "mode=ratchet,restart=off". A pruner with momentum takes
    its share of the learning rate: `families.pruned`.

    Raises:
        ConfigError: an unknown family, thresholds or seeds that are no list, or what Run refuses.
    """
    if family not in THRESHOLDS:
        raise ConfigError("family", family, nearest(str(family), THRESHOLDS))
    rules = listed("thresholds", THRESHOLDS[family] if thresholds is None else thresholds)
    dense = Run(sync=sync, workers=workers, batch_size=batch_size, learning_rate=learning_rate, schedule=schedule,
                pushes=pushes, pull=pull, model=model, data=data, engine=engine, cluster=_cluster(cluster),
                eval_every=_period(engine, pushes))  # fmt: skip
    crowd = [dense, *(pruned(dense, f"{family}:{rule}") for rule in rules)]
    return _each_seed([*crowd, alone(dense)], seeds)


def sync_runs(
    *,
    policies: Sequence[Any] = ("bsp", "ssp:3", "asp"),
    prune: Any = "none",
    push_weights: Sequence[float | None] = (None,),
    workers: int = 4,
    batch_size: int = 64,
    learning_rate: float | Sequence[float] | Mapping[str, float] = 0.5,
    schedule: Any = "linear",
    pushes: int | None = 625,
    pull: str = "changed",
    model: Any = "mlp",
    data: Any = "mnist",
    engine: str = "local",
    cluster: str | Mapping[str, Any] = LAB,
    seeds: Sequence[int] = (0,),
) -> list[Run]:
    """Each policy with each push weight (the mean of a superstep has none), and the single machine; for each seed.

    `learning_rate` may be a mapping from each policy to its own, or a list: a grid for every curve, of which
    `tuning.best` takes the best one.

    Raises:
        ConfigError: lists that are none, a policy without a learning rate, or what Run refuses.
    """
    chosen, weights = listed("policies", policies), listed("push_weights", push_weights)
    crowd, singles = [], []
    for policy in chosen:
        for rate in _rates(learning_rate, policy):
            run = Run(sync=policy, prune=prune, workers=workers, batch_size=batch_size, learning_rate=rate,
                      schedule=schedule, pushes=pushes, pull=pull, model=model, data=data, engine=engine,
                      cluster=_cluster(cluster), eval_every=_period(engine, pushes))  # fmt: skip
            crowd += [run] if averages(policy) else [run.but(push_weight=weight) for weight in weights]
            singles += [alone(run)] if policy == chosen[0] else []
    return _each_seed([*crowd, *singles], seeds)


def every_policy() -> list[str]:
    """Each synchronization policy of the table, with the parameters of its example."""
    return [row.example or row.name for row in ROWS["sync"].values()]


def ssp_runs(
    *,
    stalenesses: Sequence[int] = (0, 1, 3, 7),
    learning_rates: Sequence[float] = (0.02, 0.04, 0.08),
    clusters: Mapping[str, str | Mapping[str, Any]] = UNEVEN,
    push_weight: float | None = 1.0,
    prune: Any = "none",
    workers: int = 8,
    batch_size: int = 64,
    schedule: Any = "constant",
    target_accuracy: float = 0.8,
    pushes: int | None = 625,
    eval_every: int = 24,
    pull: str = "changed",
    model: Any = "mlp:64",
    data: Any = "mnist:60000,5000",
    engine: str = "virtual",
    seeds: Sequence[int] = (0, 1, 2),
) -> list[Run]:
    """SSP until the target accuracy: each bound with each learning rate on each cluster, for each seed.

    Raises:
        ConfigError: lists that are none, or what Run refuses.
    """
    if not isinstance(clusters, Mapping) or not clusters:
        raise ConfigError("clusters", clusters, "must map names to clusters, such as {'equal': 'steady'}")
    runs = [Run(sync=f"ssp:{bound}", push_weight=push_weight, prune=prune, workers=workers, batch_size=batch_size,
                learning_rate=rate, schedule=schedule, target_accuracy=target_accuracy, pushes=pushes,
                eval_every=eval_every, pull=pull, model=model, data=data, engine=engine, cluster=_cluster(cluster))
            for cluster in clusters.values() for rate in listed("learning_rates", learning_rates)
            for bound in listed("stalenesses", stalenesses)]  # fmt: skip
    return _each_seed(runs, seeds)


#: No latency and no jitter: what is left is computing and two ways on a link.
EVEN: Mapping[str, Any] = MappingProxyType({"compute_s": 0.025, "bandwidth_bit_s": 2e9, "duplex": "full"})
BANDWIDTHS = (12e9, 5e9, 2.5e9, 1.6e9, 1.2e9, 8e8, 6e8)


def overlap_runs(
    *,
    policies: Sequence[Any] = ("asp", "eager"),
    bandwidths: Sequence[float] = BANDWIDTHS,
    workers: int = 2,
    batch_size: int = 64,
    learning_rate: float = 0.2,
    pushes: int = 240,
    model: Any = "mlp",
    data: Any = "mnist",
    cluster: Mapping[str, Any] = EVEN,
    seed: int = 0,
) -> list[Run]:
    """Each policy on real processes, and in virtual time for each bandwidth, over links of full and half duplex.

    Raises:
        ConfigError: lists that are none, a cluster that is no mapping, or what Run refuses.
    """
    if not isinstance(cluster, Mapping):
        raise ConfigError("cluster", cluster, "must be a mapping: its bandwidth is varied")
    real = [Run(sync=policy, workers=workers, batch_size=batch_size, learning_rate=learning_rate, pushes=pushes,
                model=model, data=data, cluster=dict(cluster), seed=seed) for policy in listed("policies", policies)]
    links = [{"bandwidth_bit_s": bandwidth, "duplex": duplex} for duplex in ("full", "half")
             for bandwidth in listed("bandwidths", bandwidths)]  # fmt: skip
    return [*real, *(run.but(engine="timing", cluster={**cluster, **link}) for run in real for link in links)]


STUDIES: dict[str, Callable[..., Sequence[Any]]] = {
    "11_families": family_runs, "20_sync_policies": sync_runs, "25_ssp_tuning": ssp_runs, "40_eager": overlap_runs}


def alone(run: Run) -> Run:
    """The single-machine run beside a distributed one: the same modelled computation, no network, nothing pruned."""
    cluster = run.cluster
    if isinstance(cluster, str) and cluster != "free":
        cluster = {"preset": cluster}
    if isinstance(cluster, Mapping):
        cluster = _without_preset(cluster)
        exchange = {*NETWORK, *COSTS} - {"apply_s"}
        cluster = {key: value for key, value in cluster.items() if key not in exchange}
        if "slow" in cluster:
            cluster["slow"] = {worker: factor for worker, factor in cluster["slow"].items() if int(worker) == 0}
    return run.but(workers=1, sync="bsp", prune="none", pull="whole", push_weight=None, cluster=cluster)


def _without_preset(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """The cluster's fields, those of the preset that it builds on included."""
    fields = dict(cluster)
    if "preset" not in fields:
        return fields
    whole, untouched = resolve_cluster(fields), Cluster()
    return {f.name: getattr(whole, f.name) for f in dataclasses.fields(Cluster)
            if getattr(whole, f.name) != getattr(untouched, f.name)}


def _period(engine: str, pushes: int | None) -> int | None:
    """Pushes between evaluations; None is Run's own. A real run is not evaluated until it has ended, which takes longer
    than some of the runs: a curve needs a point at every fifteenth of its way."""
    return max(1, pushes // 15) if engine == "local" and isinstance(pushes, int) else None


def _cluster(cluster: str | Mapping[str, Any]) -> str | dict[str, Any]:
    return dict(cluster) if isinstance(cluster, Mapping) else cluster


def _each_seed(runs: Sequence[Run], seeds: Sequence[int]) -> list[Run]:
    wanted = [run.but(seed=seed) for seed in listed("seeds", seeds) for run in runs]
    return list({run.digest: run for run in wanted}.values())


def _rates(rates: float | Sequence[float] | Mapping[str, float], policy: Any) -> list[float]:
    if isinstance(rates, Mapping):
        if policy not in rates:
            told = f"has no entry for {policy!r}; {nearest(str(policy), rates)}"
            raise ConfigError("learning_rate", dict(rates), told)
        return [rates[policy]]
    return listed("learning_rate", rates) if isinstance(rates, (list, tuple)) else [rates]  # type: ignore[list-item]


# -- curves ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """Runs that differ in nothing but the seed."""

    label: str
    style: Style
    results: tuple[Result, ...]
    single: bool  #: the single machine beside distributed runs

    @property
    def run(self) -> Run:
        return self.results[0].run

    @property
    def legend(self) -> str:
        """The label with its marks: see `notes`."""
        diverged = [r for r in self.results if r.manifest.get("outcome") == "diverged"]
        share = f" ({len(diverged)} of {len(self.results)} seeds)" if 0 < len(diverged) < len(self.results) else ""
        marks = "".join(mark for mark, _, test in MARKS if any(test(r.manifest) for r in self.results))
        return self.label + marks + (f", diverged{share}" if diverged else "")


#: What must not go unsaid in a figure: mark, words, test on the manifest.
MARKS: tuple[tuple[str, str, Callable[[Mapping[str, Any]], bool]], ...] = (
    ("*", "the machine was too slow to emulate this cluster honestly: read no seconds from it",
     lambda m: m.get("honest") is False),
    ("†", "evaluated beside the training, which disturbs its seconds", lambda m: bool(m.get("disturbed"))),
    ("‡", "judged invalid: the run broke a rule of its policy", lambda m: m.get("verdict") == "invalid"),
)


def curves(results: Iterable[Result]) -> list[Curve]:
    """One curve for each run but for its seed, in the order of first appearance, labelled by what differs."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.run.but(seed=0).digest, []).append(result)
    found = [sorted(group, key=lambda r: r.run.seed) for group in groups.values()]
    runs = [group[0].run for group in found]
    return [
        Curve(label, style, tuple(group), single(group[0].run, runs))
        for label, style, group in zip(labels(runs), styles(runs), found, strict=True)
    ]


def labels(runs: Sequence[Run]) -> list[str]:
    """What differs among the runs, in words; "single machine" for the one without a network."""
    crowd = [run for run in runs if not single(run, runs)]
    alone_ = [run for run in runs if single(run, runs)]
    names = {id(run): _words(run, _differing(crowd) or ["sync", "prune"]) for run in crowd}
    for run in alone_:
        own = _differing(alone_) or [name for name in _differing(runs) if name == "learning_rate"]
        names[id(run)] = ", ".join(filter(None, ["single machine", _words(run, own)]))
    found = [names[id(run)] for run in runs]
    # two spellings of one policy are two runs: then the spelling tells them apart
    return [f"{name} ({run.sync}, {run.prune})" if found.count(name) > 1 else name
            for name, run in zip(found, runs, strict=True)]


def caption(found: Sequence[Curve], spread: str = "median and range of ", labelled: bool = True) -> list[str]:
    """What all curves share: policies, workers, rate, push weight, stop rule, seeds; then the cluster; then notes.

    The signs that stand in labels are explained if the figure has any.
    """
    crowd = [curve.run for curve in found if not curve.single]
    if not crowd:
        return []
    shared = [name for name in CAPTION if name not in _differing(crowd)]
    words = [_first_word(name, crowd) for name in shared]
    if "push_weight" in shared and not _first_word("push_weight", crowd):
        words.append("one step a round by the mean gradient")
    words += ["η: learning rate"] if labelled and "learning_rate" not in shared else []
    lines = [", ".join([*filter(None, words), _seeds(found, spread)])]
    if "cluster" not in _differing(crowd):
        lines.append(f"cluster: {describe_cluster(crowd[0].cluster, crowd[0].engine)}")
    if any(curve.single and not _networked(curve.run) for curve in found):
        lines[-1] += "; single machine: the same computation, no network"
    return lines + notes(found)


def _first_word(name: str, runs: Sequence[Run]) -> str:
    return next(filter(None, (WORDS[name](run) for run in runs)), "")


def notes(found: Iterable[Curve]) -> list[str]:
    """The meaning of the marks that occur in the legend."""
    manifests = [result.manifest for curve in found for result in curve.results]
    return [f"{mark} {text}" for mark, text, test in MARKS if any(test(m) for m in manifests)]


def describe_cluster(cluster: str | Mapping[str, Any], engine: str = "local") -> str:
    """The cluster in words, with units. Real processes have costs of their own, whatever it says of them."""
    if cluster == "free":
        return "none emulated"
    c = _without_preset({"preset": cluster} if isinstance(cluster, str) else cluster)
    words = []
    if c.get("bandwidth_bit_s"):
        words.append(f"{_bits(c['bandwidth_bit_s'])} per worker, {c.get('duplex', 'full')} duplex")
    words += [f"from {_ms(float(at))} on {_bits(float(rate))}" for at, rate in dict(c.get("bandwidth_at", {})).items()]
    if c.get("latency_s"):
        words.append(f"{_ms(c['latency_s'])} latency")
    if c.get("server_bandwidth_bit_s"):
        words.append(f"{_bits(c['server_bandwidth_bit_s'])} at the server")
    if c.get("compute_s"):
        jitter = f" (log-normal, σ{SPACE}{c['compute_sigma']:g})" if c.get("compute_sigma") else ""
        words.append(f"computation {_ms(c['compute_s'])}{jitter}")
    if c.get("stall_probability"):
        words.append(f"stalls ×{c.get('stall_factor', 1):g} in {100 * c['stall_probability']:g}{SPACE}% of iterations")
    words += [f"worker {worker} ×{factor:g} slower" for worker, factor in dict(c.get("slow", {})).items()]
    words += ["selecting, coding and serving cost time"] if engine != "local" and {*COSTS} & {*c} else []
    words += ["recorded computation times"] if c.get("trace") else []
    for name, verb in (("leave", "leaves"), ("join", "joins")):
        words += [f"worker {worker} {verb} at {_ms(at)}" for worker, at in dict(c.get(name, {})).items()]
    return ", ".join(words) or "none emulated"


def _bits(rate: float) -> str:
    unit, size = next((u for u in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)) if rate >= u[1]), ("bit/s", 1.0))
    return f"{rate / size:g}{SPACE}{unit}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:g}{SPACE}ms"


def _networked(run: Run) -> bool:
    return isinstance(run.cluster, Mapping) and any(run.cluster.get(name) for name in NETWORK if name != "duplex")


def _seeds(found: Sequence[Curve], spread: str) -> str:
    counts = sorted({len(curve.results) for curve in found})
    if counts == [1]:
        return "one seed"
    return f"{spread}{'–'.join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))} seeds"


def _weight(run: Run) -> str:
    if averages(run.sync):
        return ""  # the mean of a superstep has no weight
    return "push weight 1/W" if run.push_weight is None else f"push weight {run.push_weight:g}"


def _stop(run: Run) -> str:
    rules = [f"{run.pushes} pushes" if run.pushes else "", f"{run.seconds:g}{SPACE}s" if run.seconds else "",
             f"{100 * run.target_accuracy:g}{SPACE}% accuracy" if run.target_accuracy else ""]
    return "stops at " + " or ".join(filter(None, rules))


def _named(prefix: str, name: str) -> Callable[[Run], str]:
    def words(run: Run) -> str:
        value = getattr(run, name)
        first, positional, named = parts(value)
        if first in UNSAID:
            return ""
        first = first.upper() if first in CAPITALS else first
        return " ".join(filter(None, [prefix, first, *positional, *(f"{k}={v}" for k, v in named.items())]))
    return words


def _data(run: Run) -> str:
    """``"mnist:60000,5000"`` -> ``"MNIST (60000 to train, 5000 to test)"``."""
    name, positional, named = parts(run.data)
    if name != "mnist":
        return _named("", "data")(run)
    counts = dict(zip(("train", "test"), positional, strict=False)) | named
    told = ", ".join(f"{count} to {what}" for what, count in counts.items())
    return "MNIST" + (f" ({told})" if told else "")


CAPITALS = ("sgd", "mlp", "cnn", "mnist")
UNSAID = ("constant", "fifo")
#: How each field of Run is said; the order is that of a label.
WORDS: dict[str, Callable[[Run], str]] = {
    "model": _named("", "model"),
    "data": lambda run: _data(run),
    "sync": lambda run: sync_name(run.sync),
    "prune": lambda run: prune_name(run.prune),
    "ranges": lambda run: "" if run.ranges == "whole" else f"requests by {run.ranges}",
    "workers": lambda run: f"{run.workers} worker{'s' if run.workers != 1 else ''}",
    "batch_size": lambda run: f"batch {run.batch_size} each",
    "optimizer": _named("", "optimizer"),
    "learning_rate": lambda run: f"learning rate {run.learning_rate:g}",
    "schedule": _named("schedule", "schedule"),
    "push_weight": _weight,
    "pushes": _stop, "seconds": _stop, "target_accuracy": _stop,
    "cluster": lambda run: describe_cluster(run.cluster),
    "pull": lambda run: f"pull {run.pull}",
    "codec": lambda run: f"codec {run.codec}",
    "rate": _named("rate", "rate"), "order": _named("order", "order"),
    "engine": lambda run: f"{run.engine} engine", "device": lambda run: run.device, "dtype": lambda run: run.dtype,
    "eval_every": lambda run: f"evaluated every {run.evaluation_period} pushes",
    "evaluate": lambda run: f"evaluated {run.evaluate} the run",
    "on_death": lambda run: f"on death {run.on_death}", "lease_s": lambda run: f"lease {run.lease_s:g}{SPACE}s",
}
#: ... in a legend, where there is less room.
SHORT: dict[str, Callable[[Run], str]] = {"learning_rate": lambda run: f"η{SPACE}={SPACE}{run.learning_rate:g}"}
CAPTION = ("model", "data", "sync", "prune", "workers", "batch_size", "optimizer", "learning_rate", "schedule",
           "push_weight", "pushes")  # fmt: skip


def _differing(runs: Sequence[Run]) -> list[str]:
    plain = [run.plain() for run in runs]
    return [name for name in WORDS if any(values[name] != plain[0][name] for values in plain)]


def _words(run: Run, names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, ((WORDS | SHORT)[name](run) for name in names))))
