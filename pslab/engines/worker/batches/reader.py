"""The batches of one worker: rows of what lies in memory, or what loading processes have read ahead."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pslab.tensors.workload.data import Batches, Dataset
from pslab.tensors.workload.reading import Column, Pair


class Reader:
    """The examples of one worker's batches, which are read ahead where they do not lie in memory."""

    def __init__(
        self, dataset: Dataset, workers: int, worker: int, batch_size: int, seed: int,
        parts: npt.NDArray[np.int64] | None = None,
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


def _batches(begin: int, *made: Any) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    batches = Batches(*made)  # loading processes are some batches ahead of a worker's own
    return ((each // batches.rounds, batches.at(each)) for each in itertools.count(begin))
