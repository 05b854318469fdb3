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

if TYPE_CHECKING:  # what a run does not have it does not load
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

SQUARES = "squares"  # the memory of a rate that needs its worker's own


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The part of an experiment that every process of a run has: its policies, model and cluster, all checked."""

    run: Run
    sync: Sync
    rate: Rate
    ranges: Any  #: how the model is cut into ranges
    order: Order
    schedule: Schedule
    prune: Any  #: a rule of pslab.tensors.compression, or one of the user's
    quantize: Any  #: likewise
    optimizer: OptimizerSpec
    cluster: Cluster
    shell: nn.Module  #: the model without its weights
    keyspace: Keyspace
    parts: tuple[Part, ...]
    downlink: DownlinkRules | None = None  #: of answers to pulls, if they are differences
    inner: InnerOptimizer | None = None  #: of each worker, if the policy's method has one
    outer_learning_rate: float = 1.0  #: of pushes that are changes of the weights
    loss: Loss = cross_entropy
    metric: Metric | None = accuracy  #: None stands for the mean loss
    whole: tuple[bool, bool] = (False, False)  #: whether loss and metric are computed of the whole test set at once
    metrics: tuple[str, ...] = ()  #: the names of a metric's values but the first
    layer_shares: tuple[tuple[float, float], ...] = ()  #: layer-wise: of an iteration's time, forward and backward
    running: tuple[str, ...] = ()  #: paths of the norms whose statistics an evaluation recomputes
    device: Device = field(default=Device())  #: where workers compute
    products: str = MKL  #: the library that multiplies matrices, in all processes
    unreached: tuple[str, ...] = ()  #: parameters that no loss reaches: frozen in the shell, and not exchanged
    assignment: Any = None  #: the worker of each training example (int64 [N]), if they are shared out once
    places: Any = None  #: of each key where servers hold it (int64 [keys]), if that is not in the order of the keys
    trains: bool = True  #: if not, workers only exchange: no gradient is computed, nothing is evaluated (benchmarks)

    @cached_property
    def traits(self) -> Traits:
        """The traits of the synchronization policy."""
        return traits_of(self.sync)

    @property
    def in_place(self) -> bool:
        """Whether workers compute on the server's own weights: no worker computes as they change.

        In wall-clock time only where no link is emulated: the weights cross such a link as copies.
        """
        alone = self.cluster.free or self.run.engine != "local"
        tells = self.compression is not None and self.compression.rule.tells
        whole = self.run.pull == "whole" and self.downlink is None and not tells
        if self.run.engine == "ray":  # weights are copied once, when they are sent
            return whole and not self.traits.eager
        return whole and alone and self.traits.barrier

    @property
    def applies_own_pushes(self) -> bool:
        """Whether a worker applies to its own weights what it has not yet sent."""
        return bool(getattr(self.prune, "applies", False))

    @cached_property
    def layered(self) -> bool:
        """Whether a layer's requests go when it is ready, and wait for no other layer."""
        return bool(self.ranges.layered)

    @property
    def replaces(self) -> bool:
        """Whether a worker that dies is replaced, and what it keeps lies where its successor finds it."""
        return self.run.on_death == "restart" and self.run.engine == "local" and not self.device.separate

    @cached_property
    def sends_frames(self) -> bool:
        """Whether gradients travel as frames of entries; if not they are read where the worker computed them."""
        return self.keyed or self.compression is not None

    @property
    def positioned(self) -> bool:
        """Whether frames that travel have positions of entries, which compiled loops read and write."""
        return self._chosen or self.run.pull != "whole" or self.downlink is not None

    @property
    def _chosen(self) -> bool:
        """Whether a push holds some entries of a gradient, and not all."""
        return self.keyed or (self.compression is not None and self.compression.rule.chooses)

    @cached_property
    def compression(self) -> Compression | None:
        """The compression of pushes; None if they hold all values as they are."""
        return None if self.keyed else compression(self.prune, self.quantize, self.parts, self.keyspace, self.run.seed)

    @cached_property
    def keyed(self) -> bool:
        """Whether workers pull and push just the keys that their batches hold."""
        return self.run.pull == "keys"

    @cached_property
    def select_factor(self) -> float:
        """What a gradient takes at its worker, in the cluster's `select_s`."""
        return select_factor(self.cluster, self.prune, self.rate)

    @property
    def number_bytes(self) -> int:
        """The bytes on a link of a number that no code shortens."""
        return self.cluster.wire_bytes or getattr(torch, self.run.dtype).itemsize

    @property
    def push_weight(self) -> float | None:
        """The factor of a push that is applied alone; None: 1 / workers, unless the optimizer divides by itself."""
        given = self.run.push_weight
        return 1.0 if given is None and self.optimizer.divides else given

    @cached_property
    def apply_factor(self) -> float:
        """What a push takes at the server, in the cluster's `apply_s`."""
        return apply_factor(self.cluster, self.optimizer, self.rate, self._chosen)

    @cached_property
    def inner_s(self) -> float:
        """What a step of the workers' own optimizer takes in virtual time: what a dense push takes at the server."""
        if self.inner is None:
            return 0.0
        return self.cluster.apply_s * apply_factor(self.cluster, self.inner.spec, None, False)

    @property
    def memories(self) -> dict[str, KeptVector]:
        """What each worker keeps from one gradient to the next."""
        size, dtype = self.keyspace.size, getattr(torch, self.run.dtype)
        pruned = {} if self.compression is None else self.compression.memories
        squares = rate_state.needs(self.rate) in rate_state.AT_WORKER
        own = {SQUARES: KeptVector(size, dtype)} if squares else {}
        return {**pruned, **own, **methods.memories(self.sync, size, dtype, self.inner)}


@dataclass(frozen=True, kw_only=True)
class Experiment(Setup):
    """Everything that an engine needs. `weights` are the initial ones, flat, as servers hold them."""

    dataset: Dataset
    weights: torch.Tensor
    checkpoints: CheckpointStore | None = None  #: where they lie, if there are to be any
    #: all trainable parameters at the start, flat, and which entries are exchanged; None: all of them are
    recorded: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def examples(self) -> int:
        """The number of training examples."""
        return len(self.dataset.train_y)

    @property
    def portable(self) -> bool:
        """Whether any process may compute any worker's gradient, since all that lasts lies in shared memory.

        Not so for a model with buffers, or of the user's own layers, loss or rule, which may remember what they like,
        nor for data that are read ahead, in the order of one worker.
        """
        modules = [type(module).__module__.split(".")[:2] for module in self.shell.modules()]
        known = all(name in (["torch", "nn"], ["pslab", "tensors"]) for name in modules)
        named = all(find(kind, rule) is not None for kind, rule in (
            ("prune", self.prune), ("quantize", self.quantize), ("loss", self.run.loss)))  # fmt: skip
        return known and named and self.dataset.stored and not list(self.shell.buffers()) and not self.device.separate

    def to_record(self, weights: np.ndarray) -> np.ndarray:
        """Return the weights of all trainable parameters, flat, from the exchanged ones."""
        if self.recorded is None:
            return weights
        whole, exchanged = self.recorded[0].copy(), self.recorded[1]
        whole[exchanged] = weights
        return whole

    def from_record(self, weights: np.ndarray) -> np.ndarray:
        """Return the exchanged weights, from the weights of all trainable parameters."""
        return weights if self.recorded is None else weights[self.recorded[1]]

    @cached_property
    def evaluated(self) -> Any:
        """The keys whose weights an evaluation reads (int64, increasing, at least one); None: it reads all weights."""
        train, test = self.dataset.train_x, self.dataset.test_x
        if not self.keyed or not isinstance(train, SparseInputs) or not isinstance(test, SparseInputs):
            return None
        rows = calibration(self.run.seed, self.examples) if self.running else np.empty(0, np.int64)
        found = np.union1d(test.keys_of(np.arange(len(test))), train.keys_of(rows))
        return found if len(found) else np.zeros(1, np.int64)


def select_factor(cluster: Cluster, prune: Any, rate: Any) -> float:
    """What a gradient takes at its worker in virtual time, in the cluster's `select_s`: the rule's selection (1 of a
    user's own rule), and the division by the rate if the worker does that."""
    factors, row = {**SELECT_FACTORS, **cluster.select_factor}, find("prune", prune)
    longer = RANK_FACTORS.get(row.name, 0.0) * (getattr(prune, "rank", 2) - 2) if row else 0.0
    found = (factors[row.name] if row else 1.0) * (1 + longer)
    return found + factors[needed] if (needed := rate_state.needs(rate)) in rate_state.AT_WORKER else found


def apply_factor(cluster: Cluster, optimizer: OptimizerSpec, rate: Any, sparse: bool) -> float:
    """What a push takes at the server in virtual time, in the cluster's `apply_s`: 1 for plain SGD at a rate that keeps
    nothing there, and what other optimizers and rates take longer."""
    factors = {**APPLY_FACTORS, **cluster.apply_factor}
    found, name, needed = 1.0, optimizer.cls.__name__.lower(), rate_state.needs(rate)
    if not optimizer.plain_sgd:
        found = factors.get(name, factors["other"])[sparse]
    return found + factors[needed][sparse] - 1.0 if needed in rate_state.AT_SERVER else found


# --- what an engine hands to the records: plain tables and facts ----------------------------------------------------

OnProgress = Callable[[dict[str, Any]], None]
"""Gets {"pushes", "seconds", "workers"} now and then, {"pushes", "seconds", "accuracy", "loss"} when a snapshot was
evaluated, and {} ten times a second meanwhile. Each of "workers" is {"doing": computing, waiting, transferring or dead,
"for": [workers], "iteration"}. With "repeated", which says why, the run has begun again;
"checkpoint" says from which one the run goes on, or why there are none;
"waits" says who waits for whom where no push came for a lease;
"evaluating" is [done, of] snapshots once the training is over.
It may raise KeyboardInterrupt to end the run in order."""


TABLES = ("accuracy", "phases", "pushes", "arrivals", "weights")  # the arrays of an Outcome, in their order


class Trained(NamedTuple):
    """The snapshots of a run whose training is over."""

    snapshots: Mapping[int, tuple[int, float]]  #: by number: pushes, seconds
    evaluated: Mapping[int, tuple[float, ...]]  #: of some: accuracy, loss, other metrics
    left: Mapping[int, np.ndarray]  #: of the others their weights


@dataclass
class Outcome:
    """The outcome of a run that has ended. Tables are float64 [rows, columns]; seconds count from its start."""

    accuracy: np.ndarray  #: pushes, seconds, accuracy, loss, other metrics
    phases: np.ndarray  #: see pslab.engines.worker.phases.PHASE_COLUMNS
    pushes: np.ndarray  #: see pslab.engines.server.ledger.PUSH_COLUMNS
    arrivals: np.ndarray  #: see pslab.engines.server.ledger.ARRIVAL_COLUMNS
    weights: np.ndarray  #: the final ones, flat
    facts: dict[str, Any] = field(default_factory=dict)
    trained: Trained | None = None  #: of one that was interrupted while it was evaluated
    metrics: tuple[str, ...] = ()  #: the names of the other metrics


class Interrupted(KeyboardInterrupt):
    """A run that was interrupted and ended in order; `outcome` has its completed iterations, None if there are none."""

    def __init__(self, outcome: Outcome | None) -> None:
        self.outcome = outcome
        super().__init__("interrupted")
