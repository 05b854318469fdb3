"""A worker's batches: its examples, in memory or read ahead, the keys that these hold, and the requests for them."""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.layout import in_turn
from pslab.engines.experiment.shared_memory import Arena
from pslab.tensors.compression import frame
from pslab.tensors.compression.bits import positions
from pslab.tensors.sparse import SparseInputs
from pslab.tensors.workload.data import Batches, Dataset
from pslab.tensors.workload.reading import Column, Pair

Keys = NDArray[np.int64]  # or numbers of examples
LOOKED_AT = 8  # iterations of each worker, whose keys tell the load of each server


class Reader:
    """The examples of one worker's batches, which are read ahead where they do not lie in memory.

    Where workers pull keys, they are over the keys of what is `needed`.
    """

    needed: KeyedRows | None = None

    def __init__(
        self, dataset: Dataset, workers: int, worker: int, batch_size: int, seed: int,
        parts: Keys | None = None,
    ) -> None:  # fmt: skip
        self._dataset, self._seed = dataset, seed
        sequential = isinstance(dataset.train_x, Column) and dataset.train_x.source.sequential
        self._made = len(dataset.train_y), workers, worker, batch_size, seed, sequential, parts
        self.batches = Batches(*self._made)
        self._next, self._stream = -1, iter(list[Pair]())
        self._end: Callable[[], object] = lambda: None

    def at(self, iteration: int) -> Pair:
        """Inputs and targets of an iteration's batch."""
        x, y = self._dataset.train_x, self._dataset.train_y
        if self.needed is not None:
            inputs, examples = self.needed.batch(iteration)
            return inputs, y[torch.from_numpy(examples)]
        if not isinstance(x, Column):
            rows = torch.from_numpy(self.batches.at(iteration))
            return x[rows], y[rows]
        if iteration != self._next:
            self._end()
            self._stream = stream = x.source.read(_batches(iteration, *self._made), self._seed)
            # its loading processes end by order only while their queues live, which a collector of cycles ends first
            self._end = weakref.finalize(self, stream.close)
        self._next = iteration + 1
        return next(self._stream)


def _batches(begin: int, *made: Any) -> Iterator[tuple[int, Keys]]:
    batches = Batches(*made)  # loading processes are some batches ahead of a worker's own
    return ((each // batches.rounds, batches.at(each)) for each in itertools.count(begin))


class KeyedRows:
    """The examples of an iteration's steps over their keys alone, and the places of these keys at the servers.

    Args:
        steps: the numbers of its batches, of which the examples are `rows`.
    """

    def __init__(self, job: Job, inputs: SparseInputs, steps: Sequence[int], rows: Sequence[Keys]) -> None:
        self._job, self.rows, self._narrow = job, np.concatenate(rows), inputs.narrowed(np.concatenate(rows))
        ends = np.cumsum([len(each) for each in rows]).tolist()
        self._steps = dict(zip(steps, pairwise([0, *ends]), strict=True))
        self.places: Keys = self._narrow.keys  #: of its keys at the servers, increasing
        self.order: Keys | None = None  #: of each key its number among these; None: the keys' own
        if job.places is not None:
            held = job.places[self._narrow.keys]
            self.places = np.sort(held)
            self.order = np.searchsorted(self.places, held)

    @cached_property
    def pieces(self) -> list[Any]:
        """For each range the slice of `places` that lies in it."""
        return [slice(*np.searchsorted(self.places, (part.slices[0].start, part.slices[-1].stop)).tolist())
                for part in self._job.parts]  # fmt: skip

    @cached_property
    def positions(self) -> list[torch.Tensor | None]:
        """For each range its places as frames write them, in requests and in pushes; None if it has none."""
        return [positions(torch.from_numpy(self.places[piece] - part.slices[0].start), part.size)
                if piece.start < piece.stop else None
                for part, piece in zip(self._job.parts, self.pieces, strict=True)]  # fmt: skip

    def batch(self, step: int) -> tuple[torch.Tensor, Keys]:
        """The inputs of a step over the keys of all of them, and the numbers of its examples."""
        begin, end = self._steps[step]
        return self._narrow.inputs(begin, end), self.rows[begin:end]


class BatchKeys:
    """The keyed rows of each of a worker's iterations, of one step or of several."""

    def __init__(self, job: Job, worker: int, dataset: Dataset) -> None:
        run, inputs = job.run, dataset.train_x
        assert isinstance(inputs, SparseInputs)  # a run that pulls keys has no others
        self._job, self._inputs = job, inputs
        self._batches = Batches(len(inputs), run.workers, worker, run.batch_size, run.seed, parts=job.assignment)
        self._last: tuple[int, KeyedRows] | None = None

    def of(self, iteration: int) -> KeyedRows:
        """The keyed rows of an iteration; of all examples, if a worker has the same ones in each pass."""
        traits = self._job.traits
        if traits.repeats:
            iteration = 0
        if self._last is None or iteration != self._last[0]:
            steps = range(traits.gradients_before(iteration), traits.gradients_before(iteration + 1))
            if traits.repeats:
                steps = range(self._batches.rounds)
            rows = [self._batches.at(step) for step in steps]
            self._last = iteration, KeyedRows(self._job, self._inputs, steps, rows)
        return self._last[1]


class Requests:
    """The requests of workers for keys, written into shared memory. Servers do not know the batches."""

    def __init__(self, job: Job, arena: Arena, dataset: Dataset) -> None:
        self._job, self._arena = job, arena
        self.keys = [BatchKeys(job, worker, dataset) for worker in range(job.run.workers)]
        self._written: dict[int, tuple[int, Sequence[int]]] = {}  # per worker: the last iteration, and what it took

    def write(self, worker: int, iteration: int) -> Sequence[int]:
        """Ask for the keys of an iteration: of each range the bytes of the request, 0 if it has none of them."""
        before, sizes = self._written.get(worker, (-1, ()))
        if before != iteration:
            place, layout = in_turn(self._job.layout.asked[worker], iteration), self._job.layout
            sizes = [0 if written is None else frame.write(self._arena.bytes(place + offset, room), [[written]])
                     for written, (offset, room) in zip(self.keys[worker].of(iteration).positions, layout.frames,
                                                          strict=True)]  # fmt: skip
            self._written[worker] = iteration, sizes
        return sizes


def requests_of(job: Job, arena: Arena, data: Arena) -> Requests | None:
    """The requests of a run whose workers ask for keys."""
    return Requests(job, arena, job.shelf.dataset(data)) if job.keyed else None


def by_load(job: Job, requests: Requests | None) -> Job:
    """The job of a run in which each of several servers has as much to do with a push, and with a request, as it holds
    of the keys of such a batch: in the mean over the first ones that have any there."""
    if requests is None or job.run.servers == 1:
        return job
    batches = [own.of(iteration) for own in requests.keys for iteration in range(LOOKED_AT)]
    counts = np.array([[piece.stop - piece.start for piece in needed.pieces] for needed in batches])
    parts = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    shares = parts.sum(0) / np.maximum((counts > 0).sum(0), 1)
    return dataclasses.replace(job, shares=tuple(shares.tolist()))

