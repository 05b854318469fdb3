"""A parent's message to its child processes for one run, with the offsets of the data in shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pslab.engines.experiment.experiment import Setup
from pslab.engines.experiment.wire import WHOLE
from pslab.policies.partition import servers_of
from pslab.tensors.compression.uncompressed import dense_bytes
from pslab.tensors.update.part import joined

if TYPE_CHECKING:
    from pslab.engines.experiment.experiment import Experiment
    from pslab.engines.experiment.layout import Layout
    from pslab.engines.experiment.shared_dataset import SharedDataset, TensorLocation
    from pslab.engines.experiment.shared_memory import Arena
    from pslab.protocol.server import Step


@dataclass(frozen=True, kw_only=True)
class Job(Setup):
    """An experiment as servers and workers get it, with offsets in shared memory in place of tensors. In a job that is
    sent, locations replace its ARRAYS; `on` restores the arrays."""

    layout: Layout
    shelf: SharedDataset
    examples: int  #: the number of training examples
    evaluated: Any  #: see Experiment
    portable: bool  #: see Experiment
    located: Mapping[str, TensorLocation]  #: the locations of its ARRAYS in the data arena
    shares: tuple[float, ...]  #: per range: its share of the model's weights, and so of the costs in virtual time

    @classmethod
    def of(
        cls, experiment: Experiment, layout: Layout, shelf: SharedDataset,
        located: Mapping[str, TensorLocation] | None = None,
    ) -> Job:  # fmt: skip
        """Return the job of an experiment whose tensors have been copied to shared memory."""
        shared = {field.name: getattr(experiment, field.name) for field in fields(Setup)}
        return cls(**shared, layout=layout, shelf=shelf, examples=experiment.examples, evaluated=experiment.evaluated,
                   portable=experiment.portable, located=located or {},
                   shares=tuple(part.size / layout.size for part in experiment.parts))  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)} | dict(self.located)

    def on(self, data: Arena) -> Job:
        """Return the job with views of the data arena for its ARRAYS, in a process that received it."""
        views: dict[str, Any] = {name: where.of(data).numpy() for name, where in self.located.items()}
        return replace(self, **views)

    @cached_property
    def ranges_of(self) -> tuple[tuple[int, ...], ...]:
        """The ranges that begin in each layer; if requests are not layer-wise, a single item with all ranges.

        A forward pass waits for these ranges at the layer, and a backward pass has their gradients ready after it.
        """
        ranges: list[list[int]] = [[] for _ in self.keyspace.layers] if self.layered else [[]]
        for index, part in enumerate(self.parts):
            ranges[part.layer if self.layered else 0].append(index)
        return tuple(map(tuple, ranges))

    @cached_property
    def server_of(self) -> tuple[int, ...]:
        """The server of each range; server 0 decides."""
        if self.keyed:  # each server has one range
            return tuple(range(self.run.servers))
        return servers_of([part.size for part in self.parts], self.run.servers)

    def beside(self, worker: int, index: int) -> bool:
        """Whether the server of a range is on this worker's host, so that their messages cross no link."""
        return self.cluster.colocated and self.server_of[index] == worker // self.cluster.per_host

    @cached_property
    def held(self) -> tuple[tuple[slice, ...], ...]:
        """Per server: its slices of the flat vector, with adjacent slices merged."""
        return tuple(joined(sorted((piece for part, its in zip(self.parts, self.server_of, strict=True) if its == server
                                    for piece in part.slices), key=lambda piece: piece.start))
                     for server in range(self.run.servers))  # fmt: skip

    @cached_property
    def evaluated_at(self) -> Any:
        """The servers' positions of the weights in a snapshot (int64, increasing); None if it has all weights."""
        return self.evaluated if self.places is None else np.sort(self.places[self.evaluated])

    def in_order(self, snapshot: torch.Tensor) -> torch.Tensor:
        """Return the weights of a snapshot in the order of the flat vector, or of the evaluated keys."""
        if self.places is None:
            return snapshot
        return snapshot[np.searchsorted(self.evaluated_at, self.places[self.evaluated])]

    @cached_property
    def _whole_bytes(self) -> tuple[int, ...]:
        return tuple(dense_bytes(part.size, self.number_bytes) for part in self.parts)

    def payload_bytes(self, index: int, size_bytes: int) -> int:
        """Return the bytes of a range's payload on a link: `size_bytes`, or for WHOLE the bytes of all entries."""
        return self._whole_bytes[index] if size_bytes == WHOLE else size_bytes

    def exchanged(self, iteration: int) -> range:
        """Return the numbers of the ranges that an iteration exchanges."""
        return self.traits.rotation.ranges(iteration, len(self.parts))

    def averages(self, step: Step) -> bool:
        """Whether a step adds the mean of its changes to the weights, without the optimizer."""
        return self.traits.changes and any(self.traits.averages(push.iteration) for push in step.pushes)

    def learning_rate(self, applied: int) -> float:
        """Return the scheduled learning rate after `applied` gradients have been applied."""
        run = self.run
        progress = 0.0 if run.pushes is None else min(1.0, applied / run.pushes)
        return run.learning_rate * self.schedule.factor(progress, applied * run.batch_size / self.examples)
