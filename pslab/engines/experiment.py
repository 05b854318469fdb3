"""An experiment: a Run whose names have become objects, and where its tensors lie in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn

from pslab.config import Run
from pslab.engines.arena import aligned
from pslab.engines.cluster import Cluster
from pslab.policies.rates import Rate
from pslab.policies.schedules import Schedule
from pslab.protocol.messages import Sync
from pslab.protocol.pool import Order
from pslab.protocol.worker import BUFFERS, EAGER_BUFFERS
from pslab.tensors import rating
from pslab.tensors.data import Dataset
from pslab.tensors.keyspace import Keyspace
from pslab.tensors.optimizers import OptimizerSpec
from pslab.tensors.prune import Memory, memories
from pslab.tensors.rules import PRUNERS, Whole
from pslab.tensors.store import Part
from pslab.tensors.wire import largest_frame_bytes

T = TypeVar("T")

SQUARES = "squares"  # the memory of a rate that needs its worker's own


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that an engine needs, checked. `weights` are the initial ones, flat."""

    run: Run
    sync: Sync
    rate: Rate
    ranges: Any  #: how the model is cut into ranges
    order: Order
    schedule: Schedule
    prune: Any  #: a rule of pslab.tensors.prune, or one of the user's
    optimizer: OptimizerSpec
    cluster: Cluster
    dataset: Dataset
    shell: nn.Module  #: the model without its weights
    keyspace: Keyspace
    weights: torch.Tensor
    parts: tuple[Part, ...]
    layer_shares: tuple[tuple[float, float], ...] = ()  #: layer-wise: of an iteration's time, forward and backward
    trains: bool = True  #: if not, workers only exchange: no gradient is computed, nothing is evaluated (benchmarks)

    @property
    def in_place(self) -> bool:
        """Whether workers compute on the server's own weights: nobody computes as they change.

        In wall-clock time also over no link: what an emulated one brings is to be brought.
        """
        alone = self.cluster.free or self.run.engine != "local"
        return self.run.pull == "whole" and alone and getattr(self.sync, "barrier", False)

    @property
    def eager(self) -> bool:
        """Whether weights arrive while their worker computes on older ones."""
        return bool(getattr(self.sync, "eager", False))

    @property
    def own(self) -> bool:
        """Whether a worker applies to its own weights what it has not yet sent."""
        return bool(getattr(self.prune, "applies", False))

    @property
    def layered(self) -> bool:
        """Whether a layer's requests go when it is ready, and wait for no other layer."""
        return bool(self.ranges.layered)

    @property
    def portable(self) -> bool:
        """Whether any process may compute any worker's gradient, since all that lasts lies in shared memory.

        Not so for a model with buffers, or of the user's own layers or rule, which may remember what they like.
        """
        modules = [type(module).__module__.split(".")[:2] for module in self.shell.modules()]
        known = all(name in (["torch", "nn"], ["pslab", "tensors"]) for name in modules)
        own = type(self.prune) in PRUNERS.values()
        return known and own and not list(self.shell.buffers()) and self.run.device == "cpu"

    @property
    def sparse(self) -> bool:
        """Whether gradients travel as frames of entries; if not they are read where the worker computed them."""
        return not isinstance(self.prune, Whole)

    @property
    def memories(self) -> dict[str, Memory]:
        """What each worker keeps from one gradient to the next."""
        size, dtype = self.keyspace.size, getattr(torch, self.run.dtype)
        pruned = memories(self.prune, len(self.keyspace.layers), size, dtype) if self.sparse else {}
        return {**pruned, **({SQUARES: Memory(size, dtype)} if rating.needs(self.rate) in rating.AT_WORKER else {})}


def in_turn(places: Sequence[T], iteration: int) -> T:
    """Of buffers that are used in turn, an iteration's."""
    return places[iteration % len(places)]


@dataclass(frozen=True)
class Layout:
    """Byte offsets of a run's buffers in its arena."""

    size: int
    dtype: torch.dtype
    server: int  #: the server's weights
    weights: tuple[int, ...]  #: per worker: what it has of the server's weights
    gradients: tuple[tuple[int, ...], ...]  #: per worker and buffer
    up: tuple[tuple[int, ...], ...]  #: per worker and buffer: room for a push's frames
    arrivals: tuple[tuple[int, ...], ...]  #: per worker: where a whole pull is laid; eager: by the iteration's parity
    used: tuple[int, ...]  #: per worker: what it computes on; its copy of the server's, if that has all of its own
    down: tuple[tuple[int, ...], ...]  #: per worker: room for a pull's frames; eager: by the iteration's parity
    memories: dict[str, Memory]  #: what each worker keeps from one gradient to the next
    kept: tuple[dict[str, int], ...]  #: per worker: where that lies, if any process may compute for it
    frames: tuple[tuple[int, int], ...] = field(default=())  #: per range: offset and room inside such a place
    end: int = 0
    in_place: bool = False  #: the workers' weights are the server's

    @classmethod
    def of(cls, experiment: Experiment) -> Layout:
        """Lay out buffers for an experiment's weights, cut into ranges. What is not touched takes no memory."""
        workers, size, parts = experiment.run.workers, experiment.keyspace.size, experiment.parts
        dtype, in_place, eager = getattr(torch, experiment.run.dtype), experiment.in_place, experiment.eager
        frames, room = [], 0
        for part in parts:
            largest = aligned(largest_frame_bytes(part.size, dtype.itemsize))
            frames.append((room, largest))
            room += largest
        at = 0

        def take(size_bytes: int) -> int:
            nonlocal at
            begin, at = at, at + aligned(size_bytes)
            return begin

        flat = size * dtype.itemsize
        server = take(flat)
        weights = tuple(server if in_place else take(flat) for _ in range(workers))
        buffers = range(EAGER_BUFFERS if eager else BUFFERS)
        gradients = tuple(tuple(take(flat) for _ in buffers) for _ in range(workers))
        up = tuple(tuple(take(room) for _ in buffers) for _ in range(workers))
        down = tuple(tuple(take(room) for _ in range(1 + eager)) for _ in range(workers))
        memories = experiment.memories
        kept = tuple({name: take(memory.entries * memory.dtype.itemsize) for name, memory in memories.items()}
                     for _ in range(workers))  # fmt: skip
        arrivals = tuple(tuple(take(flat) for _ in range(2)) if eager else (own,) for own in weights)
        used = tuple(take(flat) if eager or experiment.own else own for own in weights)
        places = server, weights, gradients, up, arrivals, used, down, memories, kept
        return cls(size, dtype, *places, frames=tuple(frames), end=at, in_place=in_place)
