"""Measurements of computing, selecting, coding, applying and messages here, as a cluster for virtual runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pslab.config import spec
from pslab.config.run import Run
from pslab.errors import ConfigError

if TYPE_CHECKING:
    from pslab.config.cluster import Cluster
    from pslab.lab.records.record import Result

ROUNDS = 60
WARM = 10  # first rounds, which are not counted
OBJECT = "#"  # marks a user's object in a record, which has only its name and digest
MEASURED = {"select": "select_s", "encode": "encode_s", "decode": "decode_s"}


def calibrate(run: Run, *, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure a short run on this machine; return a cluster, as a mapping of its fields, for virtual runs like `run`.

    In the short run all worker processes are busy at once. It measures the costs of this model, batch, rule, optimizer
    and rate; factors in the cluster give the costs of others. If the run's cluster has no `compute_s`, the mean
    computing time and the spread of its logarithm are measured, too; if weights are requested layer by layer, also each
    layer's share of the time. The links are not measured: they are the links of the run's cluster.

    Raises:
        ConfigError: the run is impossible. RunError: a worker raised or died.
    """
    from pslab.engines.local.engine import execute
    from pslab.engines.worker.phases import PHASE_COLUMNS, PHASES
    from pslab.lab.runs.resolve import resolve

    outcome = execute(resolve(short_run(run, rounds)), lambda news: None)
    phases = pd.DataFrame(outcome.phases, columns=PHASE_COLUMNS)
    phases["phase"] = phases.phase.astype(int).map(dict(enumerate(PHASES)))
    return _cluster(run, phases, outcome.facts)


def short_run(run: Run, rounds: int = ROUNDS) -> Run:
    """Return the run on real processes and in real seconds, with so few rounds, to measure its costs."""
    budget = rounds * run.workers
    return run.but(engine="local", ray=None, pushes=budget, seconds=None, target_accuracy=None, target_held=False,
                   eval_every=budget, evaluate="after", dilation=1)  # fmt: skip


def calibrated(result: Result) -> dict[str, Any]:
    """Return a cluster as `calibrate` does, from the record of a finished run on real processes. A record always gives
    the same cluster, so that virtual runs with this cluster are found in their records.

    Raises:
        ConfigError: the run was not on real processes, so nothing was measured.
    """
    costs = result.manifest.get("costs")
    if result.run.engine != "local" or not isinstance(costs, Mapping):
        raise ConfigError("engine", result.run.engine, "costs are measured in real runs: set engine='local'")
    return _cluster(result.run, result.phases, result.manifest)


def trace(result: Result) -> dict[int, list[float]]:
    """Return the seconds of each gradient of a finished run, by worker, in the form of a cluster's `trace`."""
    computing = result.phases[result.phases.phase == "compute"].sort_values("iteration")
    spent = (computing.end_s - computing.begin_s).round(6)
    return {int(str(worker)): [float(s) for s in seconds] for worker, seconds in spent.groupby(computing.worker)}


def _cluster(run: Run, phases: pd.DataFrame, facts: Mapping[str, Any]) -> dict[str, Any]:
    from pslab.config.cluster import resolve_cluster
    from pslab.lab.judge import policy_of
    from pslab.protocol.traits import Traits, traits_of

    try:
        sync = policy_of(run, facts)
    except ConfigError:  # a record does not contain the user's objects
        sync = None
    traits = Traits() if sync is None else traits_of(sync)
    costs, layers_s = facts["costs"], facts.get("layers_s") or ()
    warm = phases[phases.iteration >= min(WARM, phases.iteration.max() // 2)]
    spent = (warm.end_s - warm.begin_s).groupby([warm.phase, warm.worker, warm.iteration]).sum()  # sum over the ranges
    by_phase = {str(name): times for name, times in spent.groupby(level=0)}
    cluster = resolve_cluster(run.cluster)
    fields = {f.name: getattr(cluster, f.name) for f in dataclasses.fields(cluster)}
    ranges = int(phases[phases.phase == "push"].groupby(["worker", "iteration"]).size().max()) if len(phases) else 1
    fields |= {name: value * (1 if name == "message_s" else ranges) for name, value in costs.items()}  # of all ranges
    for name, field in MEASURED.items():
        fields[field] = float(by_phase[name].mean()) if name in by_phase else 0.0
    if cluster.compute_s is None:
        named = ((int(worker), int(iteration)) for _, worker, iteration in by_phase["compute"].index)
        counts = np.array([traits.unassigned(*name) for name in named], float)
        compute_s = by_phase["compute"] / counts
        fields["compute_s"] = float(compute_s.mean())
        # the mean of n gradients spreads less than one, by the root of n
        fields["compute_sigma"] = float(np.log(compute_s).std() * counts.mean() ** 0.5) if len(compute_s) > 1 else 0.0
    if layers_s:
        fields["layer_shares"] = [[forward, backward] for forward, backward in layers_s]
    fields["slow"] = dict(cluster.slow)
    del fields["costs"]  # the computing times of all workers are measured
    select, apply, inner = _factors(run, cluster, sync)
    fields |= {"select_s": fields["select_s"] / select, "apply_s": fields["apply_s"] / apply}
    if cluster.compute_s is None:  # the measured times include the steps of the workers' own optimizer
        fields["compute_s"] = max(0.0, fields["compute_s"] - inner * fields["apply_s"])
    fields["find_s"] = fields["search_s"] = 0.0  # they are part of the measured times of serving and of messages
    return {name: value for name, value in fields.items() if value is not None and not _nothing(value)}


def _factors(run: Run, cluster: Cluster, sync: Any) -> tuple[float, float, float]:
    """Return three ratios: the run's time of selecting to the cluster's `select_s`, its time of applying to `apply_s`,
    and the time of a step of the workers' own optimizer to `apply_s` (0 if the workers have none)."""
    from pslab.engines.experiment.experiment import apply_factor, select_factor
    from pslab.lab.runs.resolve import optimizers_of
    from pslab.protocol.traits import traits_of
    from pslab.tensors.compression.uncompressed import Everything
    from pslab.tensors.update.methods import TRAINING
    from pslab.tensors.update.optimizers import resolve_optimizer

    def found(kind: str) -> Any:
        value = getattr(run, kind)
        return value if isinstance(value, str) and OBJECT in value else spec.resolve(kind, value)

    prune, rate, optimizer = found("prune"), found("rate"), run.optimizer
    known = not (isinstance(optimizer, str) and OBJECT in optimizer)
    plain = resolve_optimizer(optimizer if known else "sgd")
    inner = 0.0
    if known and sync is not None and traits_of(sync).method in TRAINING:
        plain, worker_optimizer, _ = optimizers_of(run, sync)
        assert worker_optimizer is not None
        inner = apply_factor(cluster, worker_optimizer.spec, None, False)
    select = select_factor(cluster, prune, rate) or 1.0  # a dense gradient needs no selection
    return select, apply_factor(cluster, plain, rate, not isinstance(prune, Everything)) or 1.0, inner


def _nothing(value: Any) -> bool:
    return isinstance(value, float) and (value == 0.0 or math.isnan(value))
