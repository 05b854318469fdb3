"""The message of a parent to its children for one run, with the offsets of the data in shared memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from pslab.engines.experiment.experiment import Setup
from pslab.engines.experiment.shared_memory import Arena, aligned
from pslab.engines.experiment.wire import WHOLE
from pslab.policies.partition import servers_of
from pslab.tensors.compression.uncompressed import dense_bytes
from pslab.tensors.sparse import SparseInputs
from pslab.tensors.update.part import joined
from pslab.tensors.workload.data import Column, Dataset, Rows

if TYPE_CHECKING:
    from pslab.engines.experiment.experiment import Experiment
    from pslab.engines.experiment.layout import Layout
    from pslab.protocol.server import Step

FIELDS = ("train_x", "train_y", "test_x", "test_y")
ARRAYS = ("assignment", "evaluated", "places")  # of an experiment: int64, as long as there are examples, or keys


class TensorLocation(NamedTuple):
    """The offset of a tensor in the data arena."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    def of(self, arena: Arena) -> torch.Tensor:
        """The tensor, as a view."""
        return arena.tensor(self.offset, math.prod(self.shape), self.dtype).view(self.shape)


class SparseLocation(NamedTuple):
    """The offsets of the tensors of sparse inputs."""

    key_count: int
    places: tuple[TensorLocation, ...]


@dataclass(frozen=True)
class SharedDataset:
    """Where a dataset's tensors lie in the data arena, or how they are read."""

    name: str
    mean: float | None
    std: float
    classes: int
    places: tuple[TensorLocation | SparseLocation | Column, ...]
    end: int = 0  #: of its bytes in the arena

    @classmethod
    def store(cls, arena: Arena, dataset: Dataset) -> SharedDataset:
        """Copy a dataset into the arena, once for all workers."""
        at = 0

        def put(tensor: torch.Tensor) -> TensorLocation:
            nonlocal at
            size_bytes = tensor.numel() * tensor.element_size()
            place = TensorLocation(at, tuple(tensor.shape), tensor.dtype)
            arena.reserve(at + size_bytes)
            arena.tensor(at, tensor.numel(), tensor.dtype).view(place.shape).copy_(tensor)
            at += aligned(size_bytes)
            return place

        def shelve(rows: Rows) -> TensorLocation | SparseLocation | Column:
            if isinstance(rows, SparseInputs):
                return SparseLocation(rows.key_count, tuple(map(put, rows.tensors)))
            return rows if isinstance(rows, Column) else put(rows)

        places = tuple(shelve(getattr(dataset, name)) for name in FIELDS)
        return cls(dataset.name, dataset.mean, dataset.std, dataset.classes, places, at)

    def dataset(self, arena: Arena) -> Dataset:
        """The dataset, as views of the arena."""

        def view(place: TensorLocation | SparseLocation | Column) -> Rows:
            if isinstance(place, SparseLocation):
                return SparseInputs(place.key_count, *(each.of(arena) for each in place.places))
            return place if isinstance(place, Column) else place.of(arena)

        views: dict[str, Any] = dict(zip(FIELDS, map(view, self.places), strict=True))
        return Dataset(self.name, **views, mean=self.mean, std=self.std, classes=self.classes)


def store_arrays(arena: Arena, experiment: Experiment, at: int) -> dict[str, TensorLocation]:
    """Copy an experiment's arrays into the data arena, from this offset on; return where they lie."""
    found = dict[str, TensorLocation]()
    for name in ARRAYS:
        if (array := getattr(experiment, name)) is not None:
            found[name] = where = TensorLocation(aligned(at), array.shape, torch.int64)
            at = where.offset + array.nbytes
            arena.reserve(at)
            where.of(arena).numpy()[:] = array
    return found


@dataclass(frozen=True, kw_only=True)
class Job(Setup):
    """One run, as the server and the workers get it: where its tensors lie stands for the tensors, and where its ARRAYS
    lie for these when it is sent: `on` makes it whole."""

    layout: Layout
    shelf: SharedDataset
    examples: int  #: in the training data
    evaluated: Any  #: see Experiment
    portable: bool  #: see Experiment
    located: Mapping[str, TensorLocation]  #: of its ARRAYS, in the data arena
    shares: tuple[float, ...]  #: of each range: what handling it costs in virtual time, of what the whole model costs

    @classmethod
    def of(
        cls, experiment: Experiment, layout: Layout, shelf: SharedDataset,
        located: Mapping[str, TensorLocation] | None = None,
    ) -> Job:  # fmt: skip
        """The job of an experiment whose tensors have found their places."""
        shared = {each.name: getattr(experiment, each.name) for each in fields(Setup)}
        return cls(**shared, layout=layout, shelf=shelf, examples=experiment.examples, evaluated=experiment.evaluated,
                   portable=experiment.portable, located=located or {},
                   shares=tuple(part.size / layout.size for part in experiment.parts))  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)} | dict(self.located)

    def on(self, data: Arena) -> Job:
        """The job in a process that was sent it, with views of the data arena for its ARRAYS."""
        views: dict[str, Any] = {name: where.of(data).numpy() for name, where in self.located.items()}
        return replace(self, **views)

    @cached_property
    def ranges_of(self) -> tuple[tuple[int, ...], ...]:
        """The ranges that begin in each layer; all ranges in a single layer unless requests are layer-wise.

        A forward pass waits for them there, and a backward pass makes them ready there: it has passed all others.
        """
        found: list[list[int]] = [[] for _ in self.keyspace.layers] if self.layered else [[]]
        for index, part in enumerate(self.parts):
            found[part.layer if self.layered else 0].append(index)
        return tuple(map(tuple, found))

    @cached_property
    def server_of(self) -> tuple[int, ...]:
        """Of each range its server; server 0 is the one that decides."""
        if self.keyed:  # each has one
            return tuple(range(self.run.servers))
        return servers_of([part.size for part in self.parts], self.run.servers)

    def beside(self, worker: int, index: int) -> bool:
        """Whether the server of a range stands on this worker's machine, so that nothing between them passes a link."""
        return self.cluster.colocated and self.server_of[index] == worker

    @cached_property
    def held(self) -> tuple[tuple[slice, ...], ...]:
        """Of each server the slices of the flat vector that it holds, as few as can be."""
        return tuple(joined(sorted((piece for part, its in zip(self.parts, self.server_of, strict=True) if its == server
                                    for piece in part.slices), key=lambda piece: piece.start))
                     for server in range(self.run.servers))  # fmt: skip

    @cached_property
    def evaluated_at(self) -> Any:
        """Where the weights lie that a snapshot has, if not all: int64, increasing."""
        return self.evaluated if self.places is None else np.sort(self.places[self.evaluated])

    def in_order(self, snapshot: torch.Tensor) -> torch.Tensor:
        """The weights of a snapshot in the order of the flat vector, or of the keys that are evaluated."""
        if self.places is None:
            return snapshot
        return snapshot[np.searchsorted(self.evaluated_at, self.places[self.evaluated])]

    @cached_property
    def _whole_bytes(self) -> tuple[int, ...]:
        return tuple(dense_bytes(part.size, self.number_bytes) for part in self.parts)

    def payload_bytes(self, index: int, size_bytes: int) -> int:
        """What a payload of a range takes on a link: its size, or that of a frame of all entries if it is WHOLE."""
        return self._whole_bytes[index] if size_bytes == WHOLE else size_bytes

    def exchanged(self, iteration: int) -> range:
        """The ranges that an iteration exchanges."""
        return self.traits.rotation.ranges(iteration, len(self.parts))

    def averages(self, step: Step) -> bool:
        """Whether a step is the plain mean of its changes."""
        return self.traits.changes and any(self.traits.averages(push.iteration) for push in step.pushes)

    def learning_rate(self, applied: int) -> float:
        """The scheduled learning rate once so many gradients have been applied."""
        run = self.run
        progress = 0.0 if run.pushes is None else min(1.0, applied / run.pushes)
        return run.learning_rate * self.schedule.factor(progress, applied * run.batch_size / self.examples)
