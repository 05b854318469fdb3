"""The dataset and arrays of an experiment in shared memory: the parent writes them, other processes read views."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from pslab.engines.experiment.shared_memory import Arena, aligned
from pslab.tensors.sparse import SparseInputs
from pslab.tensors.workload.data import Column, Dataset, Rows

if TYPE_CHECKING:
    from pslab.engines.experiment.experiment import Experiment

FIELDS = ("train_x", "train_y", "test_x", "test_y")
ARRAYS = ("assignment", "evaluated", "places")  # fields of an Experiment: int64, with an item for each example or key


class TensorLocation(NamedTuple):
    """The offset of a tensor in the data arena."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    def of(self, arena: Arena) -> torch.Tensor:
        """Return a view of the tensor."""
        return arena.tensor(self.offset, math.prod(self.shape), self.dtype).view(self.shape)


class SparseLocation(NamedTuple):
    """The offsets of the tensors of sparse inputs in the data arena."""

    key_count: int
    places: tuple[TensorLocation, ...]


@dataclass(frozen=True)
class SharedDataset:
    """The locations of a dataset's tensors in the data arena; a Column is read without it."""

    name: str
    mean: float | None
    std: float
    classes: int
    places: tuple[TensorLocation | SparseLocation | Column, ...]
    end: int = 0  #: the offset behind its last byte

    @classmethod
    def store(cls, arena: Arena, dataset: Dataset) -> SharedDataset:
        """Copy a dataset into the arena, once for all workers; return its locations."""
        at = 0

        def put(tensor: torch.Tensor) -> TensorLocation:
            nonlocal at
            size_bytes = tensor.numel() * tensor.element_size()
            location = TensorLocation(at, tuple(tensor.shape), tensor.dtype)
            arena.reserve(at + size_bytes)
            arena.tensor(at, tensor.numel(), tensor.dtype).view(location.shape).copy_(tensor)
            at += aligned(size_bytes)
            return location

        def shelve(rows: Rows) -> TensorLocation | SparseLocation | Column:
            if isinstance(rows, SparseInputs):
                return SparseLocation(rows.key_count, tuple(map(put, rows.tensors)))
            return rows if isinstance(rows, Column) else put(rows)

        places = tuple(shelve(getattr(dataset, name)) for name in FIELDS)
        return cls(dataset.name, dataset.mean, dataset.std, dataset.classes, places, at)

    def dataset(self, arena: Arena) -> Dataset:
        """Return the dataset with views of the arena."""

        def view(location: TensorLocation | SparseLocation | Column) -> Rows:
            if isinstance(location, SparseLocation):
                return SparseInputs(location.key_count, *(tensor.of(arena) for tensor in location.places))
            return location if isinstance(location, Column) else location.of(arena)

        views: dict[str, Any] = dict(zip(FIELDS, map(view, self.places), strict=True))
        return Dataset(self.name, **views, mean=self.mean, std=self.std, classes=self.classes)


def store_arrays(arena: Arena, experiment: Experiment, at: int) -> dict[str, TensorLocation]:
    """Copy an experiment's ARRAYS into the data arena from offset `at` on; return their locations by name."""
    locations = dict[str, TensorLocation]()
    for name in ARRAYS:
        if (array := getattr(experiment, name)) is not None:
            locations[name] = where = TensorLocation(aligned(at), array.shape, torch.int64)
            at = where.offset + array.nbytes
            arena.reserve(at)
            where.of(arena).numpy()[:] = array
    return locations
