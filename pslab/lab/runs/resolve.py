"""From a Run to an Experiment: names become objects, and mistakes are reported before a process starts."""

from __future__ import annotations

import math
import warnings
from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import cloudpickle
import numpy as np
import torch
from torch import nn

from pslab.config import products, sources, spec
from pslab.config.cluster import Cluster, resolve_cluster
from pslab.config.ray_options import RayOptions
from pslab.config.run import FIELDS, NAMED, Run, named_object
from pslab.config.table import find
from pslab.engines.experiment.compatibility import check_factored, check_order, check_servers, check_together, lengths
from pslab.engines.experiment.experiment import Experiment
from pslab.errors import ConfigError, shortened
from pslab.lab.runs.machine import check_memory
from pslab.lab.runs.objects import check_defaults, check_objects, note_trial
from pslab.policies.partition import evenly, in_parts
from pslab.protocol.server import first_step
from pslab.protocol.traits import sized, traits_of
from pslab.tensors.device import DEVICES, no_cuda
from pslab.tensors.entries import as_held, renumbered
from pslab.tensors.products import check_products
from pslab.tensors.random_streams import restored_globals, seed_globals, temporary_seed
from pslab.tensors.sparse import SparseInputs, on_keys
from pslab.tensors.update.methods import TRAINING
from pslab.tensors.update.optimizers import OptimizerSpec, resolve_optimizer
from pslab.tensors.update.part import Part, joined
from pslab.tensors.workload import layer_costs
from pslab.tensors.workload.data import Column, Dataset, batch, data_root, resolve_data, rounds
from pslab.tensors.workload.keyspace import Keyspace
from pslab.tensors.workload.models import (
    WeightsOnMeta,
    build_model,
    check_model,
    check_sent,
    fitted,
    in_dtype,
    running_norms,
)
from pslab.tensors.workload.module_copies import check_patched, copied
from pslab.tensors.workload.objective import Loss, Metric, accuracy, resolve_loss, resolve_metric, targets, with_ignored
from pslab.tensors.workload.running_statistics import calibration_batches, recompute

if TYPE_CHECKING:
    from pslab.tensors.update.inner import InnerOptimizer
    from pslab.tensors.workload.example_check import Objective

IMAGE = (1, 3, 224, 224)  # the input of torchvision's models
LARGE = 2**24  # weights; a larger model gets no memory, and is not tried, if only time is modelled
TRIALS = 8  # trials of a model whose first trial does not reach all parameters
POLICIES = ("sync", "prune", "quantize", "rate", "ranges", "order", "schedule")


def resolve(run: Run) -> Experiment:
    """Return the experiment that a run describes.

    Raises:
        ConfigError: the run is impossible; the first error is reported, and no process has been started.
    """
    try:
        return _resolved(run)
    finally:
        note_trial()


def _resolved(run: Run) -> Experiment:
    _check_objects_given(run)
    policies: dict[str, Any] = {kind: spec.resolve(kind, getattr(run, kind)) for kind in POLICIES}
    cluster = resolve_cluster(run.cluster)
    optimizer, inner, outer_learning_rate = optimizers_of(run, policies["sync"])
    _check_device(run)
    check_defaults(run)
    check_products(library := run.products_of(products.here()))
    _check_sent(run)
    downlink = None
    if run.downlink != "none":
        from pslab.tensors.compression.downlink import downlink_rules  # not loaded by other runs

        downlink = downlink_rules(run.downlink)
    check_together(run, policies, cluster)
    dataset = _dataset(run)
    check_objects(run, dataset)
    _check_batches(run, dataset)
    how_long = lengths(run, rounds(len(dataset.train_y), run.workers, run.batch_size))
    policies |= {kind: sized(policies[kind], how_long) for kind in ("sync", "schedule")}
    dtype = getattr(torch, run.dtype)
    loss = resolve_loss(run.loss, dtype)
    metric = with_ignored(resolve_metric(run.metric, dtype), loss)
    module, sample = _model(run, dataset)
    keyspace = Keyspace.of(module)
    _check_keys(run, dataset, keyspace)
    _check_layers(run, policies["ranges"], module)
    shell, running = module, tuple[str, ...]()
    if run.engine != "timing":
        shell = keyspace.shell(module)
        check_patched(module, loss, metric)
        _once(run, "sent", lambda: check_sent(shell))
    tried = _on_keys(module, keyspace, sample) if run.pull == "keys" else (module, sample)
    recorded, unreached, more = None, tuple[str, ...](), dict[str, Any]()
    if not sample.is_meta:
        y = targets(dataset.extreme_targets(), dtype)
        sizes = min(2, run.batch_size), min(2, len(dataset.test_y))
        named = metric if find("metric", run.metric) is not None else None  # a user's loss is tried on more examples
        unreached = _once(run, f"check {run.pull == 'keys'} {sizes}",
                          lambda: check_model(*tried, y, loss, named, dataset.classes, sizes))  # fmt: skip
        objective = _once(run, "objective", lambda: _objective(run, dataset, *tried, loss, metric))
        if objective is not None:
            more = {"whole": objective.whole, "metrics": objective.others}
            if remark := objective.remark(run.workers):
                warnings.warn(remark, stacklevel=3)
    if unreached:
        unreached = _once(run, "unreached", lambda: _unreached(unreached, module, dataset, loss))
    if unreached:
        module, recorded = _without(unreached, module, keyspace)
        keyspace = Keyspace.of(module)
        shell = keyspace.shell(module)
    if run.engine != "timing":
        running = _once(run, "running", lambda: running_norms(*tried))
    assignment = _assigned(run, dataset)
    owner = _owner(run, dataset, assignment)
    places = None if owner is None else renumbered(owner)
    parts = _parts(run, policies, keyspace, owner)
    check_servers(run, parts)
    check_order(run, policies, parts, keyspace.dtype.itemsize)
    if run.pull != "keys":  # their sizes depend on the keys of a batch
        cluster = resolve_cluster(run.cluster, keyspace.size)
    experiment = Experiment(
        run=run, optimizer=optimizer, downlink=downlink, inner=inner, outer_learning_rate=outer_learning_rate,
        cluster=cluster, dataset=dataset, loss=loss, metric=metric,
        shell=shell, keyspace=keyspace, weights=as_held(_flat(module, keyspace), places), places=places, parts=parts,
        layer_shares=_shares(run, policies["ranges"], cluster, module, keyspace, sample),
        running=running, unreached=unreached, recorded=recorded, device=DEVICES[run.device], products=library,
        assignment=assignment, trains=run.engine != "timing", **more, **policies,
    )  # fmt: skip
    check_factored(run, experiment.compression)
    return experiment


def _check_objects_given(run: Run) -> None:
    for field in NAMED:
        if named_object(value := getattr(run, field)):
            name = value.partition("#")[0]
            how = f"pass your object as {field}={name}; pslab export DIGEST --to notebook writes its definition"
            raise ConfigError(field, value, f"this run used your {name}, which the record does not contain: {how}")


def optimizers_of(run: Run, sync: Any) -> tuple[OptimizerSpec, InnerOptimizer | None, float]:
    """Return the server's optimizer, the workers' own optimizer, and the server's learning rate for pushed changes.

    The last two are None and 1 if workers push gradients, and so take no steps of their own.
    """

    def at_server(value: object) -> OptimizerSpec:
        if not (spec := resolve_optimizer(value)).divides:
            return spec
        step = first_step(sync, run.workers)
        return spec.of(1 if step is not None and step.aggregate else run.workers)

    if traits_of(sync).method not in TRAINING:
        for name in ("inner", "outer_learning_rate"):
            if (value := getattr(run, name)) != FIELDS[name].default:
                problem = "applies only if workers take steps between exchanges: use a policy such as sync='diloco:20'"
                raise ConfigError(name, value, problem)
        return at_server(run.optimizer), None, 1.0
    from pslab.tensors.update.inner import resolve_inner  # under other policies workers have no optimizer

    outer = sync.outer if run.optimizer == FIELDS["optimizer"].default else run.optimizer
    rate = sync.outer_learning_rate if run.outer_learning_rate is None else run.outer_learning_rate
    return at_server(outer), resolve_inner(run.inner or sync.inner, sync.fresh), rate


def trained_model(run: Run, weights: np.ndarray) -> nn.Module:
    """Return a run's model in evaluation mode, with these flat weights and with recomputed running statistics.

    Raises:
        ConfigError: the model or the data cannot be made (see `resolve`), or the weights are of another model.
    """
    dataset = _dataset(run)
    made, sample = _model(run, dataset)
    module, keyspace = copied(made), Keyspace.of(made)  # a factory may return the user's own object
    if len(weights) != keyspace.size:
        problem = f"has {keyspace.size:,} trainable weights, but the record has {len(weights):,}"
        raise ConfigError("model", run.model, f"{problem}: define the model as when the run was executed")
    keyspace.bind(module, torch.from_numpy(weights.copy()))
    for parameter in module.parameters():
        parameter.data = parameter.data.clone()  # a copy, not a view of all weights
    norms = running_norms(made, sample)
    with restored_globals():
        seed_globals(run.seed, "evaluate")
        recompute(module, norms, lambda: (batch(x, keyspace.dtype, dataset.mean, dataset.std)
                                          for x in calibration_batches(dataset, run.seed)))  # fmt: skip
    return module.eval()


def _model(run: Run, dataset: Dataset) -> tuple[nn.Module, torch.Tensor]:
    """Return the model and two inputs; if only time is modelled, a large model and its inputs have no memory."""
    dtype, model = getattr(torch, run.dtype), fitted(run.model, math.prod(dataset.train_x.shape[1:]))
    name, timing = model if isinstance(model, str) else "", run.engine == "timing"
    sized = None
    if name or timing:
        sized = (_without_memory if name else _without_memory.__wrapped__)(model, dtype, sources.edits())
    if timing and sized is not None:  # a cached model without memory
        if name.startswith(("torchvision:", "sizes:")):
            return sized, torch.empty(IMAGE, dtype=dtype, device="meta")
        if _size(sized) > LARGE:
            return sized, _inputs(dataset, slice(2), dtype).to("meta")
    elif sized is not None:
        check_memory(run, _size(sized))  # before the weights are made
    module = in_dtype(build_model(model, run.seed), dtype)
    if sized is None and not timing:
        check_memory(run, _size(module))
    return module, _inputs(dataset, slice(2), dtype)


def _inputs(dataset: Dataset, rows: slice, dtype: torch.dtype) -> torch.Tensor:
    """Return training examples as inputs of the model: tokens as integers, other inputs in the run's dtype."""
    x = dataset.train_x[rows]
    return x.long() if dataset.tokens or x.dtype == torch.int64 else x.to(torch.float32).to(dtype)


def _objective(
    run: Run, dataset: Dataset, module: nn.Module, sample: torch.Tensor, loss: Loss, metric: Metric | None
) -> Objective | None:
    """Return how a user's loss and metric depend on the examples; None if the run names both."""
    loss_given, metric_given = find("loss", run.loss) is None, metric is not None and metric is not accuracy
    if not (loss_given or metric_given):
        return None
    from pslab.tensors.workload.example_check import EXAMPLES, check_objective  # named ones are not tried

    y: Any = dataset.train_y
    here = isinstance(y, torch.Tensor)
    count = min(EXAMPLES if here else EXAMPLES // 16, len(y))  # other examples are read, a stream's from its start
    rows: Any = slice(count)
    if here or not y.source.sequential:
        order = y.argsort() if here and y.ndim == 1 else torch.arange(len(y))
        rows = order[torch.linspace(0, len(y) - 1, count).long()]
        rows = rows[torch.randperm(count, generator=torch.Generator().manual_seed(0))]
    target = targets(y[rows], getattr(torch, run.dtype))
    return check_objective(module, sample, target, len(dataset.test_y), loss if loss_given else None,
                           metric if metric_given else None)  # fmt: skip


def _unreached(names: tuple[str, ...], module: nn.Module, dataset: Dataset, loss: Loss) -> tuple[str, ...]:
    """Try the model on other examples and random draws; return the parameters in `names` without any gradient."""
    count = len(dataset.train_y)
    dtype = next(module.parameters()).dtype
    for trial in range(1, TRIALS):
        rows = slice(begin := min(count * trial // TRIALS, max(count - 2, 0)), begin + 2)
        y = targets(dataset.train_y[rows], dtype)
        missed = check_model(module, _inputs(dataset, rows, dtype), y, loss, None, dataset.classes, seed=trial)
        names = tuple(name for name in names if name in missed)
    return names


def _without(
    unreached: tuple[str, ...], module: nn.Module, keyspace: Keyspace
) -> tuple[nn.Module, tuple[np.ndarray, np.ndarray]]:
    """Return a copy of the model with these parameters frozen, and the pair (all initial weights, flat; mask of the
    weights that are exchanged)."""
    problem = f"no loss reaches {', '.join(unreached[:5])}{', ...' * (len(unreached) > 5)} of the model"
    warnings.warn(f"{problem}: these parameters stay as they are, as in torch, and are not exchanged", stacklevel=4)
    exchanged, frozen = np.ones(keyspace.size, bool), copied(module)
    for slot in keyspace.parameters:
        if slot.name in unreached:
            exchanged[slot.offset : slot.offset + slot.size] = False
            frozen.get_parameter(slot.name).requires_grad_(False)
    return frozen, (keyspace.flatten(module).numpy(), exchanged)


def _on_keys(module: nn.Module, keyspace: Keyspace, sample: torch.Tensor) -> tuple[nn.Module, torch.Tensor]:
    """Return a model and an input that have only the input's keys, as in a worker that pulls keys."""
    keys, shell = np.unique(sample.col_indices().numpy()).astype(np.int64), keyspace.shell(module)
    keyspace.bind_keys(shell, _flat(module, keyspace)[keys])
    return shell, on_keys(sample, keys)


def _flat(module: nn.Module, keyspace: Keyspace) -> torch.Tensor:
    """Return the initial weights, flat; a view if there is one parameter, because a model of keys may be large."""
    if len(keyspace.parameters) > 1:
        return keyspace.flatten(module)
    return module.get_parameter(keyspace.parameters[0].name).detach().reshape(-1)


@lru_cache(maxsize=16)
def _without_memory(model: object, dtype: torch.dtype, edits: int) -> nn.Module | None:
    """Return a model without memory for its weights (device "meta"); None if it cannot be built so."""
    try:
        with WeightsOnMeta():
            return build_model(model, 0).to(device="meta", dtype=dtype)
    except ConfigError:
        return None


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _once(run: Run, fact: str, find: Callable[[], T]) -> T:
    """Return find(), cached by `fact` and the run's model, data, loss and metric, because a sweep asks many times."""
    if run.unknown:
        return find()
    plain = run.plain()
    named = (repr(plain.get(name)) for name in ("model", "data", "loss", "metric"))
    key = fact, *named, run.dtype, run.engine == "timing", sources.edits()
    if key not in _FOUND:
        _FOUND[key] = find()
    return _FOUND[key]  # type: ignore[no-any-return]


T = TypeVar("T")
_FOUND: dict[tuple[Any, ...], Any] = {}


def _parts(run: Run, policies: dict[str, Any], keyspace: Keyspace, owner: Any) -> tuple[Part, ...]:
    sync, ranges = policies["sync"], policies["ranges"]
    if (fragments := traits_of(sync).rotation.fragments) > 1:
        of = sync.fragment_of([(layer.name, layer.stop - layer.start) for layer in keyspace.layers])
        return tuple(Part(joined(layer.flat for layer, number in zip(keyspace.layers, of, strict=True)
                                 if number == fragment)) for fragment in range(fragments))  # fmt: skip
    cuts = ranges.cut([layer.flat for layer in keyspace.layers])
    edges = [0, *(cut.stop for cut in cuts)]
    if [cut.start for cut in cuts] != edges[:-1] or edges[-1] != keyspace.size or sorted({*edges}) != edges:
        problem = f"cuts at {shortened(edges)}: ranges must follow each other from 0 to {keyspace.size}"
        raise ConfigError("ranges", str(run.ranges), f"{problem}, and each must have a weight: correct its `cut`")
    cuts = evenly(cuts, run.servers) if owner is None else in_parts(cuts[0], np.bincount(owner).tolist())
    if not ranges.layered:
        return tuple(Part((slice(cut.start, cut.stop),)) for cut in cuts)
    begins, edges = [layer.flat.start for layer in keyspace.layers], [0, *(cut.stop for cut in cuts)]
    first, last = ([bisect_right(begins, at) - 1 for at in ends] for ends in (edges[:-1], [at - 1 for at in edges[1:]]))
    if run.engine == "local" and first != last:
        merged = next(at for at in range(len(first)) if first[at] != last[at])
        problem = f"merges layers {first[merged]} to {last[merged]}, and real processes push each layer by itself"
        raise ConfigError("ranges", str(run.ranges), f"{problem}: use engine='virtual', or ranges within layers")
    return tuple(Part((slice(cut.start, cut.stop),), layer) for cut, layer in zip(cuts, first, strict=True))


def _shares(
    run: Run, ranges: Any, cluster: Cluster, module: nn.Module, keyspace: Keyspace, sample: torch.Tensor
) -> tuple[layer_costs.Share, ...]:
    """Return each layer's shares of an iteration's computing time; () if weights are not requested layer by layer."""
    if not ranges.layered:
        return ()
    if given := cluster.layer_shares:
        if len(given) != len(keyspace.layers):
            problem = f"must have one pair for each of the model's {len(keyspace.layers)} layers; it has {len(given)}"
            raise ConfigError("cluster.layer_shares", given, problem)
        return layer_costs.normalized(given)

    def counted() -> tuple[layer_costs.Share, ...]:
        with torch.device(sample.device), temporary_seed():
            try:
                return layer_costs.shares(copied(module), keyspace, sample)
            except Exception as error:
                where = f"in a forward pass on an input {list(sample.shape)}: {type(error).__name__}: {error}"
                problem = f"the operations of each layer cannot be counted {where}"
                how = "use ranges='whole', or set cluster.layer_shares"
                raise ConfigError("model", run.model, f"{problem}; {how}") from error

    return _once(run, "shares", counted)


def _check_keys(run: Run, dataset: Dataset, keyspace: Keyspace) -> None:
    inputs, shapes = dataset.train_x, [slot.shape for slot in keyspace.parameters]
    if run.pull != "keys":
        return
    if not isinstance(inputs, SparseInputs):
        problem = "only sparse rows have keys: use sparse data such as data='functions', or pull='whole'"
        raise ConfigError("pull", run.pull, problem)
    if keyspace.size != inputs.key_count or [shape[:1] for shape in shapes] != [(inputs.key_count,)]:
        problem = f"must have one weight for each of the data's {inputs.key_count} keys, and no others, as 'linear' has"
        how = f"its parameters have the shapes {list(map(list, shapes))}: use such a model, or pull='whole'"
        raise ConfigError("model", run.model, f"{problem}; {how}")


def _check_layers(run: Run, ranges: Any, module: nn.Module) -> None:
    if ranges.layered and getattr(module, "tied", False):
        problem = ("its first layer, the table of bytes, is also its last layer, but requests layer by layer need each "
                   "layer at one point of a pass: use ranges='whole'")  # fmt: skip
        raise ConfigError("model", run.model, problem)


def _assigned(run: Run, dataset: Dataset) -> Any:
    """Return the worker of each training example; None if the examples are shuffled among workers in each epoch."""
    if run.partition == "shuffled":
        return None
    if not isinstance(dataset.train_x, SparseInputs):
        problem = "needs sparse rows with keys: use data='functions', for example, or partition='shuffled'"
        raise ConfigError("partition", run.partition, problem)
    from pslab.tensors.partitioning.partition import partition  # shuffled examples do not need it

    rows = dataset.train_x.rows(dataset.name)
    return _once(run, f"partition {run.partition} {run.workers} {run.seed}",
                 lambda: partition(rows, run.workers, run.partition, seed=run.seed))  # fmt: skip


def _owner(run: Run, dataset: Dataset, assignment: Any) -> Any:
    """Return the server of each key; None if each server has a contiguous part of the keys."""
    if run.placement == "even":
        return None
    from pslab.tensors.partitioning.placement import place  # the even placement does not need it
    from pslab.tensors.partitioning.traffic import used

    rows = dataset.train_x.rows(dataset.name)  # type: ignore[union-attr]  # only sparse rows have keys
    return _once(run, f"placement {run.servers} {run.partition} {run.workers} {run.seed}",
                 lambda: place(used(rows, assignment, run.workers), rows.key_count, run.servers))  # fmt: skip


def _check_device(run: Run) -> None:
    if run.device != "cuda":
        return
    if run.engine != "ray":
        if not torch.cuda.is_available():
            raise ConfigError("device", "cuda", no_cuda())
    elif not RayOptions.of(run.ray).gpus:  # each worker checks its own host
        problem = "device='cuda' needs a GPU, or a share of a GPU, for each worker: set ray={'gpus': 0.5}"
        raise ConfigError("ray.gpus", 0.0, problem)


def _check_sent(run: Run) -> None:
    if not run.unknown or run.engine == "timing":
        return
    try:
        cloudpickle.dumps(run)
    except Exception as error:
        field = run.unknown.partition(":")[0]
        problem = f"cannot be sent to a worker's process: {error}; open files, locks, ... only when they are used"
        raise ConfigError(field, getattr(run, field), problem) from error


def _dataset(run: Run) -> Dataset:
    if isinstance(run.data, str):
        return _named_dataset(run.data, data_root(), sources.edits())
    return resolve_data(run.data, data_root())


@lru_cache(maxsize=2)
def _named_dataset(name: str, root: Path, edits: int) -> Dataset:
    # cached, so that a pool that has the dataset in shared memory need not copy it again
    return resolve_data(name, root)


def _check_batches(run: Run, dataset: Dataset) -> None:
    if run.device != "cpu" and isinstance(dataset.train_x, SparseInputs):
        problem = f"sparse data such as {dataset.name} can be used on the CPU only: set device='cpu'"
        raise ConfigError("device", run.device, problem)
    examples = len(dataset.train_y)
    if run.workers * run.batch_size > examples:
        needed = f"{run.workers} workers need {run.workers * run.batch_size} examples a round"
        problem = f"{needed}; {dataset.name} has {examples}: use smaller batches or fewer workers"
        raise ConfigError("batch_size", run.batch_size, problem)
    if isinstance(dataset.train_x, Column) and run.engine != "timing":
        dataset.train_x.source.check_room(run.workers, run.batch_size)
