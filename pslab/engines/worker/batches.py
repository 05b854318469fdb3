"""Read a worker's batches from memory, or ahead of time from a source."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from pslab.tensors.workload.data import Batches, Column, Dataset

if TYPE_CHECKING:
    from pslab.tensors.workload.reading import Pair

Keys = NDArray[np.int64]  # keys, or numbers of examples


class Reader:
    """Reads one worker's batches from a data set that lies in memory."""

    def __init__(
        self, dataset: Dataset, workers: int, worker: int, batch_size: int, seed: int, parts: Keys | None = None
    ) -> None:
        self.inputs, self.targets, self._seed = dataset.train_x, dataset.train_y, seed
        sequential = isinstance(dataset.train_x, Column) and dataset.train_x.source.sequential
        # kept for `_batches`, which counts the batches a second time
        self._made = len(dataset.train_y), workers, worker, batch_size, seed, sequential, parts
        self.batches = Batches(*self._made)

    def at(self, iteration: int) -> Pair:
        """Return the inputs and the targets of an iteration's batch."""
        rows = torch.from_numpy(self.batches.at(iteration))
        return self.inputs[rows], self.targets[rows]


class StreamReader(Reader):
    """Reads one worker's batches ahead of time from a data set that does not lie in memory."""

    inputs: Column
    _next = -1
    _stream: Iterator[Pair]
    _end: Callable[[], object]

    def at(self, iteration: int) -> Pair:
        # a source is read ahead in order: another iteration than the next one, as after a join, begins a new stream
        if iteration != self._next:
            if self._next >= 0:
                self._end()
            batches = Batches(*self._made)  # an object of its own: loading processes are batches ahead of the worker
            ahead = ((number // batches.rounds, batches.at(number)) for number in itertools.count(iteration))
            self._stream = stream = self.inputs.source.read(ahead, self._seed)
            # loading processes end in order only while their queues exist; garbage collection would delete these first
            self._end = weakref.finalize(self, stream.close)
        self._next = iteration + 1
        return next(self._stream)


def reader_of(dataset: Dataset, *given: Any) -> Reader:
    """Return the reader of one worker's batches; `given`: the other arguments of Reader."""
    return (Reader if dataset.stored else StreamReader)(dataset, *given)
