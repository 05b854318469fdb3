"""Examples that are read when they are needed, for data larger than the memory, by torch's DataLoader.

An example, with its random augmentation, depends only on the run's seed, the epoch and the example, not on the number
of loading processes or on the process that reads it.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import inspect
import itertools
import multiprocessing
import operator
import shutil
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
)
from torch.utils.data import Dataset as TorchDataset

from pslab.errors import ConfigError
from pslab.tensors.random_streams import Generators, restored_globals, seed_globals

Pair = tuple[Tensor, Tensor]  # inputs and targets
Batch = tuple[int, Sequence[int] | npt.NDArray[np.int64]]  # an epoch, and the positions of examples
PR_SET_PDEATHSIG = 1  # prctl(2)
SHARED = Path("/dev/shm")  # the memory by which loading processes pass on examples
ROOM = "start the container with more shared memory (docker run --shm-size=8g), or use num_workers=0"

TAKEN, ASIDE = "taken", "the run's own replaces it, or it changes no example"
#: For each argument of a DataLoader: one of these two, or why another value than its default is refused.
ARGUMENTS = {
    **dict.fromkeys(("dataset", "sampler", "num_workers", "collate_fn", "timeout", "worker_init_fn",
                     "prefetch_factor"), TAKEN),
    **dict.fromkeys(("shuffle", "generator", "pin_memory", "pin_memory_device", "persistent_workers", "in_order"),
                    ASIDE),
    "batch_size": "a run makes the batches itself: leave it out, and let the Dataset return single examples",
    "batch_sampler": "a run makes the batches itself: give a sampler of indices instead (sampler=)",
    "drop_last": "all test examples are evaluated: leave it out, or remove the last examples from the Dataset",
    "multiprocessing_context": "loading processes are started by fork on Linux: leave it out",
}  # fmt: skip


class Source:
    """The training or the test examples of a torch Dataset or DataLoader, whose arguments are treated as in ARGUMENTS.

    A sampler determines only the set of examples; the run determines batch size and order. An IterableDataset is read
    in its own order, from its beginning in each epoch.

    Raises:
        ConfigError: the Dataset has no length, or is an IterableDataset with several loading processes; an argument of
            the DataLoader is refused; or examples are not (input, target), cannot be read, or differ when read again.
    """

    def __init__(self, name: str, part: str, given: Any) -> None:
        loader = given if isinstance(given, DataLoader) else DataLoader(given)
        self._name, self.part, self.processes = name, part, loader.num_workers
        self.given: Any = loader.dataset  #: the user's Dataset
        self.dataset: Any = loader.dataset
        self.collate, self._begin = loader.collate_fn, loader.worker_init_fn
        self._options = {"timeout": loader.timeout, "prefetch_factor": loader.prefetch_factor}
        self.sequential = isinstance(self.dataset, IterableDataset)
        if self.sequential and self.processes > 1:
            problem = "each of several loading processes would read all of an IterableDataset: use num_workers=1"
            raise self._error(problem)
        try:
            self.count = len(self.dataset)  # type: ignore[arg-type]
        except TypeError:
            raise self._error("its Dataset has no length, which determines an epoch's end: define __len__") from None
        #: the indices of the Dataset's examples that a sampler gives; None: all examples
        self.indices = None if self.sequential else self._indices(loader)
        if self.indices is not None:
            self.dataset, self.count = Subset(self.dataset, self.indices), len(self.indices)
        if refused := _refused(loader, part == "test" and self.count):
            raise self._error(refused)
        self._last: tuple[list[int], Pair] | None = None
        first = range(min(2, self.count))
        self.sample, again = self._tried([first, first])
        #: the targets that are known before a run
        self.targets = _targets(self.dataset, self.sample[1]) if self.collate is default_collate else self.sample[1]
        if not all(map(_same, self.sample, again)):
            problem = "an example differs when it is read again: it must not depend on earlier examples, and must draw"
            how = "random numbers from the global generators of torch, NumPy or Python, or one in its Dataset"
            raise self._error(f"{problem} {how}")

    @property
    def classes(self) -> int:
        """The length of the Dataset's attribute `classes`, or of that attribute of the whole of a Subset; 0 if none."""
        return len(_inherited(self.dataset, "classes") or ())

    def read(self, batches: Iterable[Batch], seed: int, processes: int | None = None) -> Generator[Pair, None, None]:
        """Yield the inputs and targets of these batches, in order, read ahead by the loading processes."""
        dataset = (_Stream if self.sequential else _Drawing)(self, seed)
        processes = self.processes if processes is None else processes
        loader = DataLoader(dataset, batch_sampler=_Keys(batches), collate_fn=self.collate,
                            **_processes(processes, self._begin, self._options))  # fmt: skip
        with _with_children():
            stream = iter(loader)
        while True:
            with restored_globals():  # without loading processes, the Dataset draws random numbers in this process
                try:
                    batch = next(stream)
                except StopIteration:
                    return
                except RuntimeError as error:
                    if processes and any(words in str(error) for words in ("shared memory", "</torch_")):
                        raise self._error(f"its loading processes lack shared memory for batches: {ROOM}") from error
                    raise
            yield self._pair(batch)

    def check_room(self, workers: int, batch_size: int) -> None:
        """Refuse batches that do not fit in the shared memory of loading processes.

        Raises:
            ConfigError: the batches that are read ahead take more than the free memory.
        """
        if not self.processes or not SHARED.is_dir():
            return
        batches = workers * self.processes * (self._options["prefetch_factor"] or 1)
        example_bytes = sum(column.numel() * column.element_size() for column in self.sample) // len(self.sample[0])
        needed, free = batches * batch_size * example_bytes, shutil.disk_usage(SHARED).free
        if needed > free:
            problem = f"{batches} batches that are read ahead take {needed / 2**20:,.0f} MiB of {SHARED}, but only "
            raise self._error(f"{problem}{free / 2**20:,.0f} MiB are free: {ROOM}")

    def examples(self, places: Iterable[int]) -> Pair:
        """Read the examples at these positions immediately, with the same random numbers in every run."""
        wanted = list(places)
        if self._last is None or self._last[0] != wanted:
            self._last = wanted, self._tried([wanted])[0]
        return self._last[1]

    def _tried(self, batches: Sequence[Sequence[int]]) -> list[Pair]:
        """Read batches immediately; in a loading process if there are any, so that this process opens no files."""
        try:
            with Generators(self.dataset, self.collate).restored():  # a run's digest includes their states
                return list(self.read([(0, batch) for batch in batches], 0, min(1, self.processes)))
        except ConfigError:
            raise
        except Exception as error:
            why, lines = f"{type(error).__name__}: {error}", str(error).strip().splitlines()
            why = lines[-1] if lines and lines[0].startswith("Caught ") else why  # skip a loading process's traceback
            raise self._error(f"its examples cannot be read: {why}") from error

    def _indices(self, loader: DataLoader[Any]) -> list[int] | None:
        """Return the indices of the examples that a loader's sampler gives, increasing; None if it gives all.

        Raises:
            ConfigError: the sampler repeats an example, or gives different examples in different epochs.
        """
        sampler: Any = loader.sampler
        weighted = isinstance(sampler, WeightedRandomSampler) or getattr(sampler, "replacement", False)
        plain = type(sampler) in (SequentialSampler, RandomSampler) and sampler.data_source is loader.dataset
        if plain and not weighted and len(sampler) == self.count:
            return None
        epochs = list[list[int]]()
        try:
            trial = copy.deepcopy(sampler, {id(loader.dataset): loader.dataset})
            with restored_globals():
                for epoch in range(2):
                    if hasattr(trial, "set_epoch"):
                        trial.set_epoch(epoch)
                    epochs.append(sorted(map(operator.index, itertools.islice(trial, self.count + 1))))
        except Exception as error:
            problem = f"its sampler cannot be copied and iterated over ({type(error).__name__}: {error}): give one "
            raise self._error(f"{problem}that copy.deepcopy can copy and that yields indices, or none") from error
        taken = epochs[0]
        inside = taken and taken[0] >= 0 and taken[-1] < self.count
        if weighted or taken != epochs[1] or len({*taken}) < len(taken) or not inside:
            problem = f"its sampler ({type(sampler).__name__}) must give the same examples in each epoch, each once, "
            problem += f"as indices from 0 to {self.count - 1}, because a run has an order of its own: leave it out, "
            raise self._error(f"{problem}and choose, repeat or weigh examples in the Dataset")
        return None if len(taken) == self.count else taken

    def _pair(self, batch: Any) -> Pair:
        if not isinstance(batch, (tuple, list)) or [isinstance(part, Tensor) for part in batch] != [True, True]:
            kinds = map(type, batch if isinstance(batch, (tuple, list)) else [batch])
            got = ", ".join(kind.__name__ for kind in kinds)
            raise self._error(f"an example must be (input, target), so that a batch is two tensors, not {got}")
        x, y = batch
        if x.is_complex() or y.is_complex():
            problem = f"an example must have real numbers, not {x.dtype} and {y.dtype}: use torch.view_as_real"
            raise self._error(problem)
        return x, _labels(y)

    def _error(self, problem: str) -> ConfigError:
        return ConfigError("data", self._name, f"{self.part}: {problem}")

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_last": None}


# -- arguments of a DataLoader ---------------------------------------------------------------------


class _Drawing(TorchDataset[Any]):
    """A Dataset that sets the seeds of all generators by epoch and example before it reads the user's Dataset."""

    def __init__(self, source: Source, seed: int) -> None:
        self.dataset, self.given, self._collate, self._part = source.dataset, source.given, source.collate, source.part
        self._seed = seed
        self._generators: Generators | None = None  # found at the first reading in a process
        self._epoch = -1

    def __getitem__(self, key: tuple[int, int]) -> Any:
        epoch, position = key
        if epoch != self._epoch:
            self._set_epoch(epoch)
        self._draw_from(epoch, position)
        return self.dataset[position]

    def _set_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        if set_epoch := _inherited(self.given, "set_epoch"):
            set_epoch(epoch)

    def _draw_from(self, epoch: int, position: int) -> None:
        if self._generators is None:
            # a Dataset may make objects at its first reading, such as a generator: make them equal in all processes
            seed_globals(self._seed, "example", self._part, "first")
            self._read_first()
            self._generators = Generators(self.dataset, self._collate)
        seed_globals(self._seed, "example", self._part, epoch, position)
        self._generators.seed(self._seed, "example", self._part, epoch, position)

    def _read_first(self) -> None:
        self.dataset[0]


class _Stream(_Drawing):
    """Reads an IterableDataset by positions. Reading continues from batch to batch, and begins again in a new epoch, or
    for a position that has already been passed."""

    def __getitems__(self, keys: list[tuple[int, int]]) -> list[Any]:
        epoch, wanted = keys[0][0], [position for _, position in keys]
        if epoch != self._epoch or min(wanted) < self._at:
            self._begin(epoch)
        batches: dict[int, Any] = {}
        while self._at <= max(wanted):
            self._draw_from(epoch, self._at)
            try:
                example = next(self._examples)
            except StopIteration:
                missing = next(position for position in wanted if position not in batches)
                problem = f"the IterableDataset ended before example {missing} of {len(self.dataset)}: correct __len__"
                raise ValueError(problem) from None
            if self._at in wanted:
                batches[self._at] = example
            self._at += 1
        return [batches[position] for position in wanted]

    def _begin(self, epoch: int) -> None:
        self._set_epoch(epoch)
        self._draw_from(epoch, 0)
        self._at, self._examples = 0, iter(self.dataset)

    def _read_first(self) -> None:
        next(iter(self.dataset), None)


class _Keys:
    """A batch_sampler for a DataLoader, which yields each batch as a list of (epoch, position)."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return ([(epoch, int(position)) for position in places] for epoch, places in self._batches)


def _processes(count: int, begin: Callable[[int], object] | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return a DataLoader's options for `count` loading processes."""
    # on Linux forked: they need not import torch, and notice the end of their worker; children of a fork server do not
    how = ("fork" if sys.platform == "linux" else "spawn") if count else None
    return {"num_workers": count, "multiprocessing_context": how, "worker_init_fn": partial(_begin_process, begin),
            "generator": torch.Generator(), **(options if count else {})}  # fmt: skip


def _begin_process(begin: Callable[[int], object] | None, number: int) -> None:
    """Prepare a loading process. It ends at once when its worker is killed; torch's own check takes seconds."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    info: Any = get_worker_info()
    object.__setattr__(info, "dataset", info.dataset.given)  # the user's Dataset, which a worker_init_fn may open
    if begin is not None:
        begin(number)


@contextlib.contextmanager
def _with_children() -> Iterator[None]:
    """Allow this process to have children, which Python forbids to daemons such as workers; they end with it."""
    config: Any = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    before = config.get("daemon")
    config["daemon"] = False
    try:
        yield
    finally:
        config["daemon"] = before


# -- attributes of a user's DataLoader -------------------------------------------------------------


def _refused(loader: DataLoader[Any], evaluated: int) -> str:
    """Return the reason to refuse a DataLoader, or "". `evaluated`: the number of test examples; 0 for training."""
    if type(loader).__iter__ is not DataLoader.__iter__:
        return f"a run does not call {type(loader).__name__}.__iter__: move its code to the Dataset or collate_fn"
    context: Any = loader.multiprocessing_context
    changed = {
        "batch_sampler": loader.batch_size is None and loader.batch_sampler is not None,
        "batch_size": loader.batch_size is None and loader.batch_sampler is None,
        "drop_last": loader.drop_last and evaluated % (loader.batch_size or 1) > 0,
        "multiprocessing_context": context is not None and context.get_start_method() != "fork",
    }
    for name, parameter in list(inspect.signature(DataLoader.__init__).parameters.items())[1:]:
        if name not in ARGUMENTS and getattr(loader, name, parameter.default) != parameter.default:
            return f"{name}= of its DataLoader is not known to pslab and would have no effect: leave it out"
        if changed.get(name):
            return f"{name}= of its DataLoader cannot be used: {ARGUMENTS[name]}"
    return ""


def _inherited(dataset: Any, name: str) -> Any:
    """Return an attribute of a Dataset, or of the Dataset of which it is a part; None if neither has it."""
    while isinstance(dataset, Subset) and not hasattr(dataset, name):
        dataset = dataset.dataset
    return getattr(dataset, name, None)


def _targets(dataset: Any, read: Tensor) -> Tensor:
    """Return the targets of a TensorDataset or of a Subset of it; for another Dataset return `read`."""
    rows = None
    while type(dataset) is Subset:
        indices = torch.as_tensor(dataset.indices)
        dataset, rows = dataset.dataset, indices if rows is None else indices[rows]
    if type(dataset) is not TensorDataset:
        return read
    return _labels(dataset.tensors[-1] if rows is None else dataset.tensors[-1][rows])


def _labels(y: Tensor) -> Tensor:
    return y if y.is_floating_point() else y.long()


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal; NaN equals NaN."""
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())
