"""From a Run to an Experiment: names become objects, and what is wrong is found before a process starts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle
import torch
from torch import nn

from pslab.config import sources, spec
from pslab.config.cluster import Cluster, resolve_cluster
from pslab.config.run import Run
from pslab.config.table import ROWS
from pslab.engines.job.experiment import Experiment
from pslab.errors import ConfigError, nearest
from pslab.lab.runs.machine import check_memory
from pslab.policies.orders import FIFO
from pslab.protocol.traits import traits_of
from pslab.tensors.codec.frames import frame_bytes
from pslab.tensors.device import DEVICES
from pslab.tensors.pruning.range_rule import Ranges
from pslab.tensors.pruning.rules import Dense, rule_traits
from pslab.tensors.update import rate_state
from pslab.tensors.update.optimizers import resolve_optimizer
from pslab.tensors.update.store import Part
from pslab.tensors.workload import layer_costs
from pslab.tensors.workload.data import Dataset, data_root, resolve_data
from pslab.tensors.workload.keyspace import Keyspace
from pslab.tensors.workload.models import WeightsOnMeta, build_model, check_model, check_sent, in_dtype, temporary_seed
from pslab.tensors.workload.objective import Loss, Metric, resolve_loss, resolve_metric, targets
from pslab.tensors.workload.running_statistics import Running, running_of

IMAGE = (1, 3, 224, 224)  # the input of torchvision's models
POLICIES = ("sync", "prune", "rate", "ranges", "order", "schedule")


def resolve(run: Run) -> Experiment:
    """The experiment that a run describes.

    Raises:
        ConfigError: the first thing that is wrong; no process has been started.
    """
    policies: dict[str, Any] = {kind: spec.resolve(kind, getattr(run, kind)) for kind in POLICIES}
    cluster = resolve_cluster(run.cluster)
    optimizer = resolve_optimizer(run.optimizer)
    _check_device(run)
    _check_sent(run)
    _check_together(run, policies, cluster)
    dataset = _dataset(run)
    _check_batches(run, dataset)
    dtype = getattr(torch, run.dtype)
    loss, metric = resolve_loss(run.loss, dtype), resolve_metric(run.metric, dtype)
    module, sample = _model(run, dataset, loss, metric)
    keyspace = Keyspace.of(module)
    parts = _parts(policies["ranges"], keyspace)
    _check_credit(run, policies, parts, keyspace.dtype.itemsize)
    shell, running = keyspace.shell(module), Running()
    if run.engine != "timing":
        running = _once(run, "running", lambda: running_of(module, sample))
    return Experiment(
        run=run, optimizer=optimizer, cluster=cluster, dataset=dataset, loss=loss, metric=metric, shell=shell,
        keyspace=keyspace, weights=keyspace.flatten(module), parts=parts,
        layer_shares=_shares(run, policies["ranges"], cluster, module, keyspace, sample),
        running=running, device=DEVICES[run.device], trains=run.engine != "timing", **policies,
    )  # fmt: skip


def _model(run: Run, dataset: Dataset, loss: Loss, metric: Metric | None) -> tuple[nn.Module, torch.Tensor]:
    """The model, and two samples of its input."""
    dtype = getattr(torch, run.dtype)
    if run.engine == "timing" and isinstance(run.model, str) and run.model.startswith("torchvision:"):
        return _without_memory(run.model, dtype)
    if isinstance(run.model, str):
        check_memory(run, _weights_of(run.model, sources.edits()))  # before they are made
    module = in_dtype(build_model(run.model, run.seed), dtype)
    check_memory(run, sum(parameter.numel() for parameter in module.parameters()))
    x, y = dataset.train_x[:2], targets(dataset.train_y[:2], dtype)
    sample = x if x.dtype == torch.int64 else x.to(torch.float32).to(dtype)
    if run.engine != "timing":
        _once(run, "sent", lambda: check_sent(Keyspace.of(module).shell(module)))
    _once(run, "check", lambda: check_model(module, sample, y, loss, metric, dataset.classes))
    return module, sample


@lru_cache(maxsize=4)
def _without_memory(model: str, dtype: torch.dtype) -> tuple[nn.Module, torch.Tensor]:
    """A model whose layers' sizes and operations are known, and whose weights are never made; and an input of it."""
    with WeightsOnMeta():
        return build_model(model, 0).to(device="meta", dtype=dtype), torch.empty(IMAGE, dtype=dtype, device="meta")


@lru_cache(maxsize=16)
def _weights_of(model: str, edits: int) -> int:
    """The number of a model's weights, without making them; 0 if its constructor needs them."""
    try:
        with WeightsOnMeta():
            return sum(parameter.numel() for parameter in build_model(model, 0).parameters())
    except ConfigError:
        return 0


def _once(run: Run, fact: str, find: Callable[[], T]) -> T:
    """A fact about a model, which a sweep may need hundreds of times: found once where all that it tells is names."""
    named = run.model, run.data, run.loss, run.metric
    if not all(isinstance(value, str) for value in named):
        return find()
    key = fact, *named, run.dtype, run.engine == "timing", sources.edits()
    if key not in _FOUND:
        _FOUND[key] = find()
    return _FOUND[key]  # type: ignore[no-any-return]


T = TypeVar("T")
_FOUND: dict[tuple[Any, ...], Any] = {}


def _parts(ranges: Any, keyspace: Keyspace) -> tuple[Part, ...]:
    cuts = ranges.cut([layer.flat for layer in keyspace.layers])
    return tuple(Part((slice(cut.start, cut.stop),), cut.layer) for cut in cuts)


def _shares(
    run: Run, ranges: Any, cluster: Cluster, module: nn.Module, keyspace: Keyspace, sample: torch.Tensor
) -> tuple[layer_costs.Share, ...]:
    """The share of an iteration's time that each layer takes; () where requests are about the whole model."""
    if not ranges.layered:
        return ()
    if given := cluster.layer_shares:
        if len(given) != len(keyspace.layers):
            problem = f"must have a pair for each of the model's {len(keyspace.layers)} layers, not {len(given)}"
            raise ConfigError("cluster.layer_shares", given, problem)
        return layer_costs.normalized(given)

    def counted() -> tuple[layer_costs.Share, ...]:
        with torch.device(sample.device), temporary_seed():
            try:
                return layer_costs.shares(copy.deepcopy(module), keyspace, sample)
            except Exception as error:
                problem = f"layers cannot be counted on an input {list(sample.shape)}: {type(error).__name__}: {error}"
                how = "use ranges='whole', or set cluster.layer_shares"
                raise ConfigError("model", run.model, f"{problem}; {how}") from error

    return _once(run, "shares", counted)


def _check_device(run: Run) -> None:
    if run.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device", "cuda", "torch sees no CUDA device here; use device='cpu'")


def _check_sent(run: Run) -> None:
    """What no worker can be sent is refused before there is one."""
    if not run.unknown or run.engine == "timing":
        return
    try:
        cloudpickle.dumps(run)
    except Exception as error:
        field = run.unknown.partition(":")[0]
        raise ConfigError(field, getattr(run, field), f"cannot be sent to a worker's process: {error}") from error


def _check_together(run: Run, policies: Mapping[str, Any], cluster: Cluster) -> None:
    """What each policy needs of the others, of the engine and of the cluster."""
    if policies["schedule"].needs_budget and run.pushes is None:
        raise ConfigError("schedule", run.schedule, "a decaying learning rate needs a budget: set pushes")
    _check_rate(run, policies["rate"])
    _check_codec(run, policies["prune"])
    _check_virtual(run, policies["prune"], cluster)
    _check_dilation(run, cluster)
    _check_key_ranges(run, policies)
    if traits_of(policies["sync"]).reads_own:
        _check_own_writes(run, policies, "sync", "rmw=off")
    _check_momentum(run, policies["prune"])
    _check_layers(run, policies)
    _check_members(run, cluster)


def _check_rate(run: Run, rate: Any) -> None:
    if (needed := rate_state.needs(rate)) not in rate_state.NEEDS:
        problem = f"needs {needed!r}, which nothing computes; {nearest(needed, filter(None, rate_state.NEEDS))}"
        raise ConfigError("rate", run.rate, problem)
    if run.push_weight is not None and not getattr(rate, "weighted", True):
        users = ", ".join(name for name, row in ROWS["rate"].items() if getattr(row.load(), "weighted", True))
        problem = f"the rate {run.rate!r} does not read it; leave it None, or use rate: {users}"
        raise ConfigError("push_weight", run.push_weight, problem)


def _check_codec(run: Run, rule: Any) -> None:
    if isinstance(rule, Dense) and run.codec not in ("auto", "dense"):
        raise ConfigError("codec", run.codec, "without pruning, gradients are dense: use codec='auto' or 'dense'")
    if not isinstance(rule, Dense) and run.codec == "dense":
        sparse = ", ".join(name for name in ROWS["codec"] if name != "dense")
        raise ConfigError("codec", run.codec, f"pruned gradients are sparse: use {sparse}")


def _check_virtual(run: Run, rule: Any, cluster: Cluster) -> None:
    if run.engine != "local" and not cluster.modelled(run.workers):
        problem = "virtual time needs a modelled compute time: set compute_s, as every preset but 'free' does"
        raise ConfigError("cluster", run.cluster, problem)
    if run.engine != "timing":
        return
    if not isinstance(rule, Ranges) and not (isinstance(rule, Dense) and run.pull == "whole"):
        problem = "without tensors nothing can be pruned: use prune='none' with pull='whole', or a range"
        raise ConfigError("prune", run.prune, problem)
    if run.target_accuracy is not None:
        raise ConfigError("target_accuracy", run.target_accuracy, "without tensors nothing is evaluated")


def _check_dilation(run: Run, cluster: Cluster) -> None:
    """Only what is emulated in real time can be slower than in its own seconds."""
    if run.dilation in ("auto", 1):
        return
    if run.engine != "local":
        raise ConfigError("dilation", run.dilation, "virtual time waits for any machine: use 'auto' or 1")
    if not cluster.modelled(run.workers):
        problem = "workers that compute as fast as this machine do so in real time: set compute_s, or use 'auto' or 1"
        raise ConfigError("dilation", run.dilation, problem)


def _check_key_ranges(run: Run, policies: Mapping[str, Any]) -> None:
    """The keys that are pushed are those that are pulled."""
    rule = policies["prune"]
    if isinstance(rule, Ranges) and run.pull != "range":
        raise ConfigError("pull", run.pull, "ranges are pushed: set pull='range', so that the same keys are pulled")
    if run.pull == "range" and not isinstance(rule, Ranges):
        problem = "the keys that were pushed are pulled: set prune='range:300', say, or use whole or changed"
        raise ConfigError("pull", run.pull, problem)
    if isinstance(rule, Ranges) and rule.applies:
        _check_own_writes(run, policies, "prune", "local_apply=off")


def _check_credit(run: Run, policies: Mapping[str, Any], parts: tuple[Part, ...], itemsize: int) -> None:
    """A message that is larger than the order's credit would never go."""
    credit = getattr(policies["order"], "credit", None)
    largest = max(frame_bytes(part.size, itemsize) for part in parts)
    if credit is not None and isinstance(policies["prune"], Dense) and not policies["order"].admits(0, largest):
        problem = f"a message of {largest} bytes would never go on a credit of {credit}: use a larger credit"
        raise ConfigError("order", run.order, f"{problem}, or smaller slices, such as ranges='layers:40000'")


def _check_own_writes(run: Run, policies: Mapping[str, Any], field: str, instead: str) -> None:
    """A worker that reads its own writes must know what the server will make of them."""
    if not resolve_optimizer(run.optimizer).plain_sgd:
        problem = f"a worker cannot foresee the step of {run.optimizer!r}: use optimizer='sgd', or {instead}"
        raise ConfigError(field, getattr(run, field), problem)
    if not getattr(policies["rate"], "predictable", False):
        problem = f"a worker cannot foresee the rate {run.rate!r}: use another, or {instead}"
        raise ConfigError(field, getattr(run, field), problem)


def _check_momentum(run: Run, rule: Any) -> None:
    """Momentum at the worker and at the server would be momentum of momentum."""
    if rule_traits(rule).momentum and not resolve_optimizer(run.optimizer).without_momentum:
        problem = f"prune={run.prune!r} keeps momentum at the worker, and the server takes plain steps by the mean"
        advice = "use optimizer='sgd' or 'sgd:weight_decay=0.0001', or momentum=0 in the rule"
        raise ConfigError("optimizer", run.optimizer, f"{problem}: {advice}")


def _check_layers(run: Run, policies: Mapping[str, Any]) -> None:
    """What cannot be done layer by layer, and what can be done only so."""
    if not policies["ranges"].layered:
        if not isinstance(policies["order"], FIFO):
            problem = "a worker with one push and one pull has nothing to choose among: set ranges='layers'"
            raise ConfigError("order", run.order, problem)
        return
    traits = traits_of(policies["sync"])
    if isinstance(policies["prune"], Ranges):
        problem = "pushes ranges of keys in turn, whatever their layers: use ranges='whole', or another rule"
        raise ConfigError("prune", run.prune, problem)
    if traits.eager:
        problem = "asks for the whole model as a worker starts to compute: use ranges='whole', or another policy"
        raise ConfigError("sync", run.sync, problem)
    if run.on_nonfinite == "skip":
        problem = "a layer's gradient is pushed before that of the next one is known: use stop, or ranges='whole'"
        raise ConfigError("on_nonfinite", run.on_nonfinite, problem)
    if traits.accumulates:
        problem = "pushes after several gradients, and no layer is ready earlier: use ranges='whole'"
        raise ConfigError("sync", run.sync, problem)
    if rule_traits(policies["prune"]).clip is not None:
        problem = "clip needs the norm of the whole gradient, which is unknown while layers travel one by one"
        raise ConfigError("prune", run.prune, f"{problem}: use clip=none, or ranges='whole'")


def _check_members(run: Run, cluster: Cluster) -> None:
    for name in ("slow", "trace", "leave", "join"):
        if beyond := [worker for worker in getattr(cluster, name) if worker >= run.workers]:
            problem = f"worker {beyond[0]} of {run.workers} does not exist"
            raise ConfigError(f"cluster.{name}", dict(getattr(cluster, name)), problem)
    for name in ("leave", "join", "bandwidth_at"):
        if run.engine == "local" and (given := getattr(cluster, name)):
            problem = "is for virtual time: use engine='virtual' or 'timing'"
            raise ConfigError(f"cluster.{name}", dict(given), problem)
    for fault in cluster.faults:
        if (fault.worker or 0) >= run.workers:
            raise ConfigError("cluster.faults.worker", fault.worker, f"of {run.workers} workers it does not exist")
        if fault.what == "kill" and run.on_death == "stop":
            problem = "a fault kills a worker, which would end the run: set on_death='continue'"
            raise ConfigError("on_death", run.on_death, problem)
    if not any(map(cluster.present, range(run.workers))):
        raise ConfigError("cluster.join", dict(cluster.join), "no worker is present when the run starts")


def _dataset(run: Run) -> Dataset:
    if isinstance(run.data, str):
        return _named_dataset(run.data, data_root(), sources.edits())
    return resolve_data(run.data, data_root())


@lru_cache(maxsize=2)
def _named_dataset(name: str, root: Path, edits: int) -> Dataset:
    """The same object each time, so that a pool that has it in shared memory need not copy it again."""
    return resolve_data(name, root)


def _check_batches(run: Run, dataset: Dataset) -> None:
    examples = len(dataset.train_y)
    if run.workers * run.batch_size > examples:
        problem = f"{run.workers} workers need {run.workers * run.batch_size} examples a round; {dataset.name} has"
        raise ConfigError("batch_size", run.batch_size, f"{problem} {examples}")
