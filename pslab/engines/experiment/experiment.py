"""An experiment (a Run whose names have become objects, with its data and initial weights), and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from pslab.config.cluster import APPLY_FACTORS, RANK_FACTORS, SELECT_FACTORS, Cluster
from pslab.config.products import MKL
from pslab.config.table import find
from pslab.protocol.traits import Traits, traits_of
from pslab.tensors.compression import compression
from pslab.tensors.device import Device
from pslab.tensors.entries import KeptVector
from pslab.tensors.sparse import SparseInputs
from pslab.tensors.update import methods, rate_state
from pslab.tensors.workload.objective import Loss, Metric, accuracy, cross_entropy
from pslab.tensors.workload.running_statistics import calibration

if TYPE_CHECKING:  # not loaded by runs that do not use them
    from pslab.config.cluster import Cluster
    from pslab.config.run import Run
    from pslab.engines.experiment.checkpoint.store import CheckpointStore
    from pslab.policies.rates import Rate
    from pslab.policies.schedules import Schedule
    from pslab.protocol.requests import Order
    from pslab.protocol.traits import Sync
    from pslab.tensors.compression.downlink import DownlinkRules
    from pslab.tensors.compression.pieces import Compression
    from pslab.tensors.update.inner import InnerOptimizer
    from pslab.tensors.update.optimizers import OptimizerSpec
    from pslab.tensors.update.part import Part
    from pslab.tensors.workload.data import Dataset
    from pslab.tensors.workload.keyspace import Keyspace

SQUARES = "squares"  # the name of each worker's sums of squares in `memories`


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The part of an experiment that every process of a run gets: checked policies, model and cluster."""

    run: Run
    sync: Sync
    rate: Rate
    ranges: Any  #: the policy that cuts the model into ranges
    order: Order
    schedule: Schedule
    prune: Any  #: a rule of pslab.tensors.compression, or the user's own
    quantize: Any  #: a rule of pslab.tensors.compression, or the user's own
    optimizer: OptimizerSpec
    cluster: Cluster
    shell: nn.Module  #: the model without its weights
    keyspace: Keyspace
    parts: tuple[Part, ...]
    downlink: DownlinkRules | None = None  #: the rules for answers to pulls; None: answers are not compressed
    inner: InnerOptimizer | None = None  #: the optimizer of each worker, if the policy's method has one
    outer_learning_rate: float = 1.0  #: the learning rate for pushes that are changes of the weights
    loss: Loss = cross_entropy
    metric: Metric | None = accuracy  #: None: the mean loss
    whole: tuple[bool, bool] = (False, False)  #: whether loss and metric are computed on the whole test set at once
    metrics: tuple[str, ...] = ()  #: the names of the metric's values after the first
    layer_shares: tuple[tuple[float, float], ...] = ()  #: per layer, if layered: its shares (forward, backward) of time
    running: tuple[str, ...] = ()  #: paths of the norms whose statistics an evaluation recomputes
    device: Device = field(default=Device())  #: where workers compute
    products: str = MKL  #: the library that multiplies matrices, in all processes
    unreached: tuple[str, ...] = ()  #: names of parameters on which no loss depends: frozen, and not exchanged
    assignment: Any = None  #: the worker of each training example (int64 [N]); None: shuffled in each epoch
    places: Any = None  #: the position of each key at the servers (int64 [keys]); None: keys are in order
    trains: bool = True  #: False (benchmarks): workers exchange, but compute no gradients, and nothing is evaluated

    @cached_property
    def traits(self) -> Traits:
        """The traits of the synchronization policy."""
        return traits_of(self.sync)

    @property
    def in_place(self) -> bool:
        """Whether workers compute on the server's weights themselves, not on a copy.

        Pulls must be of whole, uncompressed weights alone. The policy must have a barrier, so that weights do not
        change meanwhile, and with engine="local" the cluster must have no emulated links. With engine="ray" workers
        compute on the weights as they were sent; there the policy needs no barrier, but must not be eager.
        """
        alone = self.cluster.free or self.run.engine != "local"
        tells = self.compression is not None and self.compression.rule.tells
        whole = self.run.pull == "whole" and self.downlink is None and not tells
        if self.run.engine == "ray":  # weights are copied once, when they are sent
            return whole and not self.traits.eager
        return whole and alone and self.traits.barrier

    @property
    def applies_own_pushes(self) -> bool:
        """Whether a worker applies its gradients to its own weights before it has sent them."""
        return bool(getattr(self.prune, "applies", False))

    @cached_property
    def layered(self) -> bool:
        """Whether each layer is pushed and pulled by itself, as soon as it is ready."""
        return bool(self.ranges.layered)

    @property
    def replaces(self) -> bool:
        """Whether a worker that dies is replaced, so that its state must be stored in shared memory."""
        return self.run.on_death == "restart" and self.run.engine == "local" and not self.device.separate

    @cached_property
    def sends_frames(self) -> bool:
        """Whether pushes are frames of entries; if not, servers read gradients in the worker's buffer."""
        return self.keyed or self.compression is not None

    @property
    def positioned(self) -> bool:
        """Whether frames contain positions of entries, which compiled loops read and write."""
        return self._chosen or self.run.pull != "whole" or self.downlink is not None

    @property
    def _chosen(self) -> bool:
        return self.keyed or (self.compression is not None and self.compression.rule.chooses)

    @cached_property
    def compression(self) -> Compression | None:
        """The compression of pushes; None if pushes contain all values uncompressed, or with pull="keys"."""
        return None if self.keyed else compression(self.prune, self.quantize, self.parts, self.keyspace, self.run.seed)

    @cached_property
    def keyed(self) -> bool:
        """Whether workers pull and push only the keys of their batches."""
        return self.run.pull == "keys"

    @cached_property
    def select_factor(self) -> float:
        """The time to select a gradient's entries in virtual time, as a multiple of the cluster's `select_s`."""
        return select_factor(self.cluster, self.prune, self.rate)

    @property
    def number_bytes(self) -> int:
        """The number of bytes of an uncompressed number on a link."""
        return self.cluster.wire_bytes or getattr(torch, self.run.dtype).itemsize

    @property
    def push_weight(self) -> float | None:
        """The weight of a push that is applied alone; None stands for 1 / workers."""
        given = self.run.push_weight
        return 1.0 if given is None and self.optimizer.divides else given

    @cached_property
    def apply_factor(self) -> float:
        """The time to apply a push in virtual time, as a multiple of the cluster's `apply_s`."""
        return apply_factor(self.cluster, self.optimizer, self.rate, self._chosen)

    @cached_property
    def inner_s(self) -> float:
        """The seconds of a step of a worker's optimizer in virtual time: as for a dense push at the server, or 0."""
        if self.inner is None:
            return 0.0
        return self.cluster.apply_s * apply_factor(self.cluster, self.inner.spec, None, False)

    @property
    def memories(self) -> dict[str, KeptVector]:
        """The vectors that each worker stores from one gradient to the next, by name."""
        size, dtype = self.keyspace.size, getattr(torch, self.run.dtype)
        pruned = {} if self.compression is None else self.compression.memories
        squares = rate_state.needs(self.rate) in rate_state.AT_WORKER
        sums = {SQUARES: KeptVector(size, dtype)} if squares else {}
        return {**pruned, **sums, **methods.memories(self.sync, size, dtype, self.inner)}


@dataclass(frozen=True, kw_only=True)
class Experiment(Setup):
    """All inputs of an engine. `weights` are the initial weights, flat, in the servers' order."""

    dataset: Dataset
    weights: torch.Tensor
    checkpoints: CheckpointStore | None = None  #: None: the run makes no checkpoints
    #: all trainable parameters at the start, flat, and which of them are exchanged; None: all are
    recorded: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def examples(self) -> int:
        """The number of training examples."""
        return len(self.dataset.train_y)

    @property
    def portable(self) -> bool:
        """Whether any process may compute any worker's gradient, because all state is in shared memory.

        False for a model with buffers, for the user's own layers, loss or rules, which may have other state, and for
        data that are read ahead in the order of one worker.
        """
        modules = [type(module).__module__.split(".")[:2] for module in self.shell.modules()]
        known = all(name in (["torch", "nn"], ["pslab", "tensors"]) for name in modules)
        named = all(find(kind, rule) is not None for kind, rule in (
            ("prune", self.prune), ("quantize", self.quantize), ("loss", self.run.loss)))  # fmt: skip
        return known and named and self.dataset.stored and not list(self.shell.buffers()) and not self.device.separate

    def to_record(self, weights: np.ndarray) -> np.ndarray:
        """Return all trainable parameters, flat: the exchanged `weights`, and the initial values of the others."""
        if self.recorded is None:
            return weights
        whole, exchanged = self.recorded[0].copy(), self.recorded[1]
        whole[exchanged] = weights
        return whole

    @cached_property
    def evaluated(self) -> Any:
        """The keys whose weights an evaluation reads (int64, increasing, at least one); None: all keys."""
        train, test = self.dataset.train_x, self.dataset.test_x
        if not self.keyed or not isinstance(train, SparseInputs) or not isinstance(test, SparseInputs):
            return None
        rows = calibration(self.run.seed, self.examples) if self.running else np.empty(0, np.int64)
        keys = np.union1d(test.keys_of(np.arange(len(test))), train.keys_of(rows))
        return keys if len(keys) else np.zeros(1, np.int64)


def select_factor(cluster: Cluster, prune: Any, rate: Any) -> float:
    """Return the time to select a gradient's entries in virtual time, as a multiple of the cluster's `select_s`: 1 for
    a user's own rule; a division by the rate's sums at the worker is included."""
    factors, row = {**SELECT_FACTORS, **cluster.select_factor}, find("prune", prune)
    longer = RANK_FACTORS.get(row.name, 0.0) * (getattr(prune, "rank", 2) - 2) if row else 0.0
    factor = (factors[row.name] if row else 1.0) * (1 + longer)
    return factor + factors[needed] if (needed := rate_state.needs(rate)) in rate_state.AT_WORKER else factor


def apply_factor(cluster: Cluster, optimizer: OptimizerSpec, rate: Any, sparse: bool) -> float:
    """Return the time to apply a push in virtual time, as a multiple of the cluster's `apply_s`: 1 for plain SGD with a
    rate without state at the server, and more for other optimizers and rates."""
    factors = {**APPLY_FACTORS, **cluster.apply_factor}
    factor, name, needed = 1.0, optimizer.cls.__name__.lower(), rate_state.needs(rate)
    if not optimizer.plain_sgd:
        factor = factors.get(name, factors["other"])[sparse]
    return factor + factors[needed][sparse] - 1.0 if needed in rate_state.AT_SERVER else factor


# --- the output of an engine, for the records: plain tables and facts -----------------------------------------------

OnProgress = Callable[[dict[str, Any]], None]
"""A callback that gets reports of a run, as dicts, and may raise KeyboardInterrupt to end the run in order.

{"pushes", "seconds", "workers"} comes several times a second, {"pushes", "seconds", "accuracy", "loss"} when a snapshot
was evaluated, and {} ten times a second. An item of "workers" is {"doing": computing, waiting, transferring or dead,
"for": [workers], "iteration"}. Other keys are texts: "repeated" (why the run has begun again), "checkpoint" (from which
checkpoint the run continues, or why there are none) and "waits" (which workers wait, after no push came for a lease).
"evaluating" is [evaluated, all] snapshots once the training is over."""


TABLES = ("accuracy", "phases", "pushes", "arrivals", "weights")  # the arrays of an Outcome, in their order


class Trained(NamedTuple):
    """The snapshots of a run whose training is over."""

    snapshots: Mapping[int, tuple[int, float]]  #: by number: pushes, seconds
    evaluated: Mapping[int, tuple[float, ...]]  #: by number: accuracy, loss, other metrics
    left: Mapping[int, np.ndarray]  #: by number, if not evaluated: the weights


@dataclass
class Outcome:
    """The outcome of a run. Tables are float64 [rows, columns]; seconds count from the run's start."""

    accuracy: np.ndarray  #: pushes, seconds, accuracy, loss, other metrics
    phases: np.ndarray  #: see pslab.engines.worker.phases.PHASE_COLUMNS
    pushes: np.ndarray  #: see pslab.engines.server.ledger.PUSH_COLUMNS
    arrivals: np.ndarray  #: see pslab.engines.server.ledger.ARRIVAL_COLUMNS
    weights: np.ndarray  #: the final weights, flat
    facts: dict[str, Any] = field(default_factory=dict)
    trained: Trained | None = None  #: None unless the run was interrupted after the training
    metrics: tuple[str, ...] = ()  #: the names of the other metrics in `accuracy`


class Interrupted(KeyboardInterrupt):
    """Raised when a run was interrupted and ended in order; `outcome` has its completed part, None if there is none."""

    def __init__(self, outcome: Outcome | None) -> None:
        self.outcome = outcome
        super().__init__("interrupted")
