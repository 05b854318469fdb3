"""Examples that are read when they are needed, for data that do not fit in memory: torch's DataLoader in a run's order.

What is read, and what a Dataset draws as it reads (augmentation), depends on the run's seed, the epoch and the example
alone: not on the number of loading processes, nor on which process it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import signal
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate
from torch.utils.data import Dataset as TorchDataset

from pslab.errors import ConfigError
from pslab.tensors.random_streams import restored_globals, seed_globals
from pslab.tensors.sparse import SparseInputs

Pair = tuple[Tensor, Tensor]  # inputs and targets
Batch = tuple[int, Sequence[int] | npt.NDArray[np.int64]]  # an epoch, and the places of its examples
PR_SET_PDEATHSIG = 1  # prctl(2)


class Source:
    """The training or the test examples of a torch Dataset, or of a DataLoader: then its dataset, its collate_fn, and
    as many loading processes as its num_workers. Batch size and order are the run's.

    An IterableDataset is read from its beginning in each epoch, as far as it is needed: its examples keep their places.

    Raises:
        ConfigError: no length; an IterableDataset with several loading processes; examples that are no (input, target),
            or cannot be read.
    """

    def __init__(self, name: str, part: str, given: Any) -> None:
        loader = given if isinstance(given, DataLoader) else DataLoader(given)
        self._name, self._part, self.dataset, self.processes = name, part, loader.dataset, loader.num_workers
        self._collate = default_collate if loader.batch_size is None else loader.collate_fn
        self.sequential = isinstance(self.dataset, IterableDataset)
        if self.sequential and self.processes > 1:
            problem = "an IterableDataset gives each of several loading processes all its examples: use num_workers=1"
            raise self._error(problem)
        try:
            self.count = len(self.dataset)  # type: ignore[arg-type]
        except TypeError:
            raise self._error("its Dataset has no length, so that no epoch would end: define __len__") from None
        self._last: tuple[list[int], Pair] | None = None
        self.sample = self.examples(range(min(2, self.count)))

    def read(self, batches: Iterable[Batch], seed: int, processes: int | None = None) -> Generator[Pair, None, None]:
        """The inputs and targets of these batches, in their order, read ahead by the loading processes."""
        dataset = (_Stream if self.sequential else _Drawing)(self.dataset, self._part, seed)
        loader = DataLoader(dataset, batch_sampler=_Keys(batches), collate_fn=self._collate,
                            **_processes(self.processes if processes is None else processes))  # fmt: skip
        with _with_children():
            stream = iter(loader)
        while True:
            with restored_globals():  # where there are no loading processes, a Dataset draws here
                try:
                    found = next(stream)
                except StopIteration:
                    return
            yield self._pair(found)

    def examples(self, places: Iterable[int]) -> Pair:
        """Examples by their places, read here and now; the same draws in every run."""
        wanted = list(places)
        if self._last is None or self._last[0] != wanted:
            try:
                self._last = wanted, next(self.read([(0, wanted)], 0, 0))
            except ConfigError:
                raise
            except Exception as error:
                raise self._error(f"its examples cannot be read: {type(error).__name__}: {error}") from error
        return self._last[1]

    def _pair(self, found: Any) -> Pair:
        if not isinstance(found, (tuple, list)) or [isinstance(each, Tensor) for each in found] != [True, True]:
            kinds = map(type, found if isinstance(found, (tuple, list)) else [found])
            got = ", ".join(kind.__name__ for kind in kinds)
            raise self._error(f"an example must be (input, target), of which a batch makes two tensors, not {got}")
        x, y = found
        return x, y.long() if not y.is_floating_point() else y

    def _error(self, problem: str) -> ConfigError:
        return ConfigError("data", self._name, f"{self._part}: {problem}")

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_last": None}


class Column:
    """The inputs or the targets of a source, as far as a tensor of all of them is asked for its shape and its rows."""

    def __init__(self, source: Source, place: int) -> None:
        self.source, self._place = source, place
        sample = source.sample[place]
        self.shape, self.dtype, self.ndim = torch.Size([source.count, *sample.shape[1:]]), sample.dtype, sample.ndim

    def __len__(self) -> int:
        return self.source.count

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        places = range(len(self))[rows] if isinstance(rows, slice) else rows.tolist()
        return self.source.examples(places)[self._place]

    def numel(self) -> int:
        """Numbers in all of them."""
        return self.shape.numel()

    def is_floating_point(self) -> bool:
        """Whether they are floating point numbers."""
        return self.dtype.is_floating_point


def slices(x: Rows, y: Rows, size: int) -> Iterator[Pair]:
    """All examples, so many at a time, in their order."""
    begins = range(0, len(y), size)
    if isinstance(x, Column):
        yield from x.source.read(((0, range(len(y))[at : at + size]) for at in begins), 0)
        return
    for at in begins:
        yield x[at : at + size], y[at : at + size]


Rows = Tensor | SparseInputs | Column


# -- what is given to a DataLoader -----------------------------------------------------------------


class _Drawing(TorchDataset[Any]):
    """A Dataset whose draws are from the stream of an epoch and an example."""

    def __init__(self, dataset: Any, part: str, seed: int) -> None:
        self._dataset, self._part, self._seed = dataset, part, seed

    def __getitem__(self, key: tuple[int, int]) -> Any:
        epoch, place = key
        seed_globals(self._seed, "example", self._part, epoch, place)
        return self._dataset[place]


class _Stream(_Drawing):
    """An IterableDataset, which may have set_epoch(epoch), read by places. It is read on from batch to batch, and from
    its beginning in each epoch and for a place that it has passed."""

    _epoch = -1

    def __getitems__(self, keys: list[tuple[int, int]]) -> list[Any]:
        epoch, wanted = keys[0][0], [place for _, place in keys]
        if epoch != self._epoch or min(wanted) < self._at:
            self._begin(epoch)
        found: dict[int, Any] = {}
        while self._at <= max(wanted):
            seed_globals(self._seed, "example", self._part, epoch, self._at)
            try:
                example = next(self._examples)
            except StopIteration:
                missing = next(place for place in wanted if place not in found)
                problem = f"the IterableDataset ended before example {missing} of {len(self._dataset)}"
                raise ValueError(problem) from None
            if self._at in wanted:
                found[self._at] = example
            self._at += 1
        return [found[place] for place in wanted]

    def _begin(self, epoch: int) -> None:
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(epoch)
        seed_globals(self._seed, "example", self._part, epoch, 0)
        self._epoch, self._at, self._examples = epoch, 0, iter(self._dataset)


class _Keys:
    """Batches as a DataLoader takes them from a sampler: lists of what a Dataset is asked for."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return ([(epoch, int(place)) for place in places] for epoch, places in self._batches)


def _processes(count: int) -> dict[str, Any]:
    """A DataLoader's so many loading processes; where they can be forked they need not import torch.

    They are their worker's own children, and notice its end; those of a server of forks would not.
    """
    how = ("fork" if sys.platform == "linux" else "spawn") if count else None
    return {"num_workers": count, "multiprocessing_context": how, "worker_init_fn": _end_with_parent,
            "generator": torch.Generator()}  # fmt: skip


def _end_with_parent(number: int) -> None:
    """A loading process ends at once when its worker is killed; torch's own check takes seconds."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def _with_children() -> Iterator[None]:
    """Python lets no daemon, as workers are, have children that it would not end; these end with it."""
    config: Any = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    before = config.get("daemon")
    config["daemon"] = False
    try:
        yield
    finally:
        config["daemon"] = before
