"""The keys that a worker's iterations need, and its requests for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslab.engines.job.job import Job
from pslab.engines.job.layout import in_turn
from pslab.engines.job.shared_memory import Arena
from pslab.tensors.codec.frames import request_into
from pslab.tensors.sparse.inputs import SparseInputs
from pslab.tensors.workload.data import Batches, Dataset

Keys = NDArray[np.int64]
LOOKED_AT = 8  # iterations of each worker, whose keys tell the load of each server


class BatchKeys:
    """The distinct keys of the examples of each of a worker's iterations, of one step or of several.

    They are named by where servers hold them."""

    def __init__(self, job: Job, worker: int, dataset: Dataset) -> None:
        run, inputs = job.run, dataset.train_x
        assert isinstance(inputs, SparseInputs)  # a run that pulls keys has no others
        self._inputs, self._traits, self._places = inputs, job.traits, job.places
        self._batches = Batches(len(inputs), run.workers, worker, run.batch_size, run.seed, parts=job.assignment)
        self._last: tuple[int, Keys] = -1, np.empty(0, np.int64)

    def of(self, iteration: int) -> Keys:
        """Increasing. Where a worker has the same examples in each pass, the keys of all of them, always."""
        traits = self._traits
        if traits.repeats:
            iteration = 0
        if iteration != self._last[0]:
            steps = range(traits.gradients_before(iteration), traits.gradients_before(iteration + 1))
            if traits.repeats:
                steps = range(self._batches.rounds)
            rows = np.concatenate([self._batches.at(step) for step in steps])
            keys = self._inputs.keys_of(rows)
            self._last = iteration, keys if self._places is None else np.sort(self._places[keys])
        return self._last[1]


class Requests:
    """What workers ask for, written into their places in shared memory. The servers know no batches."""

    def __init__(self, job: Job, arena: Arena, dataset: Dataset) -> None:
        self._job, self._arena = job, arena
        self.keys = [BatchKeys(job, worker, dataset) for worker in range(job.run.workers)]
        self._written: dict[int, tuple[int, Sequence[int]]] = {}  # per worker: the last iteration, and what it took

    def write(self, worker: int, iteration: int) -> Sequence[int]:
        """Ask for the keys of an iteration: of each range the bytes of the request, 0 if it has none of them."""
        before, sizes = self._written.get(worker, (-1, ()))
        if before != iteration:
            place, keys = in_turn(self._job.layout.asked[worker], iteration), self.keys[worker].of(iteration)
            sizes = [self._write(place + offset, room, index, keys)
                     for index, (offset, room) in enumerate(self._job.layout.frames)]  # fmt: skip
            self._written[worker] = iteration, sizes
        return sizes

    def _write(self, at: int, room: int, index: int, keys: Keys) -> int:
        part = self._job.parts[index]
        places = part.inside(keys, keys).indices
        if places is None or not len(places):
            return 0
        return request_into(self._arena.bytes(at, room), places, part.size, self._job.run.codec)


def requests_of(job: Job, arena: Arena, data: Arena) -> Requests | None:
    """The requests of a run whose workers ask for keys."""
    return Requests(job, arena, job.shelf.dataset(data)) if job.keyed else None


def by_load(job: Job, requests: Requests | None) -> Job:
    """The job of a run in which each of several servers has as much to do with a push, and with a request, as it holds
    of the keys of such a batch: in the mean over the first ones that have any there."""
    if requests is None or job.run.servers == 1:
        return job
    batches = [own.of(iteration) for own in requests.keys for iteration in range(LOOKED_AT)]
    counts = np.array([[piece.stop - piece.start for piece in pieces(job, keys)] for keys in batches])
    parts = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    shares = parts.sum(0) / np.maximum((counts > 0).sum(0), 1)
    return dataclasses.replace(job, shares=tuple(shares.tolist()))


def pieces(job: Job, keys: Keys) -> list[Any]:
    """Of each range its part of some keys, as a slice of them."""
    return [slice(*np.searchsorted(keys, (part.slices[0].start, part.slices[-1].stop))) for part in job.parts]
