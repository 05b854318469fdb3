"""What a parent sends to its children for one run, and where the data lie in shared memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from pslab.config.cluster import Cluster
from pslab.config.run import Run
from pslab.engines.job.experiment import Experiment
from pslab.engines.job.layout import Layout
from pslab.engines.job.shared_memory import Arena, aligned
from pslab.policies.rates import Rate
from pslab.policies.schedules import Schedule
from pslab.protocol.requests import Order
from pslab.protocol.traits import Sync
from pslab.tensors.update.optimizers import OptimizerSpec
from pslab.tensors.update.store import Part
from pslab.tensors.workload.data import Dataset
from pslab.tensors.workload.keyspace import Keyspace

FIELDS = ("train_x", "train_y", "test_x", "test_y")


@dataclass(frozen=True)
class Shelf:
    """Where a dataset's tensors lie in the data arena: (offset, shape, dtype) each."""

    name: str
    mean: float
    std: float
    classes: int
    places: tuple[tuple[int, tuple[int, ...], torch.dtype], ...]

    @classmethod
    def store(cls, arena: Arena, dataset: Dataset) -> Shelf:
        """Copy a dataset into the arena, once for all workers."""
        at, places, tensors = 0, [], [getattr(dataset, name) for name in FIELDS]
        for tensor in tensors:
            places.append((at, tuple(tensor.shape), tensor.dtype))
            at += aligned(tensor.numel() * tensor.element_size())
        arena.reserve(at)
        for (offset, shape, dtype), tensor in zip(places, tensors, strict=True):
            arena.tensor(offset, math.prod(shape), dtype).view(shape).copy_(tensor)
        return cls(dataset.name, dataset.mean, dataset.std, dataset.classes, tuple(places))

    def dataset(self, arena: Arena) -> Dataset:
        """The dataset, as views of the arena."""
        views = {
            name: arena.tensor(offset, math.prod(shape), dtype).view(shape)
            for name, (offset, shape, dtype) in zip(FIELDS, self.places, strict=True)
        }
        return Dataset(name=self.name, **views, mean=self.mean, std=self.std, classes=self.classes)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run, as the server and the workers get it."""

    run: Run
    sync: Sync
    rate: Rate
    order: Order
    schedule: Schedule
    prune: Any
    optimizer: OptimizerSpec
    cluster: Cluster
    shell: nn.Module
    keyspace: Keyspace
    parts: tuple[Part, ...]
    layer_shares: tuple[tuple[float, float], ...]
    layout: Layout
    shelf: Shelf
    sparse: bool
    trains: bool
    portable: bool
    eager: bool
    own: bool
    layered: bool

    @cached_property
    def ranges_of(self) -> tuple[tuple[int, ...], ...]:
        """Of each layer its ranges, in order; one layer for all of them unless requests are layer-wise."""
        found: dict[int, list[int]] = {}
        for index, part in enumerate(self.parts):
            found.setdefault(part.layer, []).append(index)
        return tuple(tuple(found[layer]) for layer in sorted(found))

    def learning_rate(self, applied: int) -> float:
        """The scheduled learning rate once so many gradients have been applied."""
        run = self.run
        progress = 0.0 if run.pushes is None else min(1.0, applied / run.pushes)
        return run.learning_rate * self.schedule.factor(progress)

    @classmethod
    def of(cls, experiment: Experiment, layout: Layout, shelf: Shelf) -> Job:
        """The job of an experiment whose tensors have found their places."""
        same = ("run", "sync", "rate", "order", "schedule", "prune", "optimizer", "cluster", "shell", "keyspace",
                "parts", "layer_shares", "sparse", "trains", "portable", "eager", "own", "layered")  # fmt: skip
        return cls(**{name: getattr(experiment, name) for name in same}, layout=layout, shelf=shelf)
