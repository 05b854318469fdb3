"""Datasets by name or from a function, and the examples of each worker at each iteration."""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pslab.config.spec import build
from pslab.config.table import ROWS, names
from pslab.errors import ConfigError, nearest
from pslab.tensors.random_streams import numpy_generator
from pslab.tensors.sparse import SparseInputs, SparseRows
from pslab.tensors.workload.objective import NO_LABEL, described
from pslab.tensors.workload.torchvision_ops import import_named, torchvision, with_operators

if TYPE_CHECKING:
    from pslab.tensors.workload.reading import Pair, Source

VISION = ("CIFAR10", "CIFAR100", "FashionMNIST", "KMNIST", "MNIST", "USPS")
READ = (torch.utils.data.Dataset, torch.utils.data.DataLoader)  # a function may return two of them
SCALE = 1024  # examples from which mean and deviation are measured, if a dataset is not in memory
TENSORS = ("train_x", "train_y", "test_x", "test_y")


class Column:
    """The inputs (position 0) or the targets (1) of a source, with a tensor's shape and indexing by rows."""

    def __init__(self, source: Source, position: int) -> None:
        self.source, self._position = source, position
        sample = source.sample[position]
        self.shape, self.dtype, self.ndim = torch.Size([source.count, *sample.shape[1:]]), sample.dtype, sample.ndim

    def __len__(self) -> int:
        return self.source.count

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        wanted = range(len(self))[rows] if isinstance(rows, slice) else rows.tolist()
        return self.source.examples(wanted)[self._position]

    def numel(self) -> int:
        """Return the number of values in all rows."""
        return self.shape.numel()

    def is_floating_point(self) -> bool:
        """Whether the values are floating point numbers."""
        return self.dtype.is_floating_point


Rows = Tensor | SparseInputs | Column


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test examples. Several runs share a dataset, so it must not be changed.

    Raises:
        ConfigError: shapes or dtypes of inputs, targets, training and test examples differ, or a label is too large.
    """

    name: str
    train_x: Rows = field(repr=False)  #: [N, ...] uint8, floating point, or int64: indices, which stay as they are
    #: [N, ...] int64: labels, 0 to classes - 1, or labels that the loss ignores; or floating point: numbers
    train_y: Rows = field(repr=False)
    test_x: Rows = field(repr=False)  #: [M, ...]
    test_y: Rows = field(repr=False)  #: [M, ...]
    #: the inputs' mean (of uint8 inputs after division by 255); None: uint8 inputs are tokens, indices like int64
    mean: float | None
    std: float  #: the inputs' standard deviation, likewise
    classes: int  #: 0 without labels

    def __post_init__(self) -> None:
        for name in TENSORS:
            if not isinstance(value := getattr(self, name), Rows):
                raise self._error(f"{name} must be a tensor, not {type(value).__name__}")
        for part, x, y in (("train", self.train_x, self.train_y), ("test", self.test_x, self.test_y)):
            if x.ndim < 2 or len(x) == 0 or not (x.dtype in (torch.uint8, torch.int64) or x.is_floating_point()):
                wanted = "[examples, ...] of uint8, int64 or floating point"
                raise self._error(f"{part}_x must be {wanted}, not {_form(x)}")
            if y.shape[:1] != x.shape[:1] or not (y.dtype == torch.int64 or y.is_floating_point()) or not y.numel():
                wanted = f"[{len(x)}, ...] of int64 (labels) or floating point, one target per example"
                raise self._error(f"{part}_y must be {wanted}, not {_form(y)}")
            labels = _known(y)
            if labels.dtype == torch.int64 and int(labels.max()) >= self.classes:
                low, high = int(labels.min()), int(labels.max())
                raise self._error(f"labels of {part}_y must be 0 to {self.classes - 1}, not {low} to {high}")
        for name in ("x", "y"):
            train, test = getattr(self, f"train_{name}"), getattr(self, f"test_{name}")
            if test.shape[1:] != train.shape[1:] or test.dtype != train.dtype:
                sides = f"test_{name} is {_form(test)}, train_{name} is {_form(train)}"
                raise self._error(f"{sides}: one example must have the same shape and dtype in both")
        if self.tokens and self.train_x.dtype != torch.uint8:
            raise self._error(f"with mean=None inputs are tokens and must be uint8, not {described(self.train_x)}")
        if not (math.isfinite(self.mean or 0.0) and math.isfinite(self.std) and self.std > 0):
            raise self._error(f"mean {self.mean} and std {self.std} must be finite, and std above 0")

    @property
    def tokens(self) -> bool:
        """Whether uint8 inputs are indices, as int64 inputs are, and not levels to be normalized."""
        return self.mean is None

    @property
    def stored(self) -> bool:
        """Whether all examples are in memory; otherwise they are read when they are needed."""
        return not isinstance(self.train_x, Column)

    def extreme_targets(self) -> Tensor:
        """Return two of the targets that are known before a run, with the largest and with the smallest label; the
        first two if targets are not labels."""
        known = [_known(y) for y in (self.train_y, self.test_y)]
        if known[0].is_floating_point():
            return known[0][:2]
        highest = [y[y.flatten(1).amax(1).argmax() if y.ndim > 1 else y.argmax()] for y in known]
        lowest = [y[y.flatten(1).amin(1).argmin() if y.ndim > 1 else y.argmin()] for y in known]
        return torch.stack([max(highest, key=lambda y: int(y.max())), min(lowest, key=lambda y: int(y.min()))])

    def _error(self, problem: str) -> ConfigError:
        return ConfigError("data", self.name, problem)


def batch(x: Tensor, dtype: torch.dtype, mean: float | None, std: float, out: Tensor | None = None) -> Tensor:
    """Normalize inputs: divide uint8 by 255, then return (x - mean) / std in `dtype`. Indices (int64, and uint8 without
    a mean) become int64; sparse inputs are not normalized.

    Args:
        x: [B, ...] uint8, floating point or int64.
        out: the tensor to write normalized inputs to, of x's shape and of `dtype`; None: a new tensor.

    Raises:
        ValueError: `out` has another shape or dtype.
    """
    if mean is None or (x.dtype == torch.int64 and out is None):
        return x.long()
    if x.layout == torch.sparse_csr:
        return x.to(dtype)
    if out is None:
        out = torch.empty(x.shape, dtype=dtype, device=x.device)
    elif out.shape != x.shape or out.dtype != dtype:
        raise ValueError(f"out must be {list(x.shape)} of {dtype}, not {described(out)}")
    out.copy_(x)
    if x.dtype == torch.uint8:
        out.div_(255)
    return out.sub_(mean).div_(std)


def _form(x: Rows) -> str:
    return f"{list(x.shape)} of {x.dtype}"


def _known(y: Any) -> Tensor:
    known: Tensor = y.source.targets if isinstance(y, Column) else y
    return known


def label_error(
    dataset: Dataset, part: str, output: object, target: Tensor, examples: Sequence[int] | npt.NDArray[np.int64],
    loss: object,
) -> ConfigError | None:  # fmt: skip
    """Return the error about the first example whose label has no output of the model and is not ignored by the loss;
    None if there is no such example."""
    if not isinstance(output, Tensor) or output.ndim != target.ndim + 1 or target.is_floating_point():
        return None
    bad = ((target < 0) | (target >= output.shape[1])) & (target != getattr(loss, "ignore_index", NO_LABEL))
    bad = bad.flatten(1) if bad.ndim > 1 else bad
    if not bool(bad.any()):
        return None
    row = int((bad if bad.ndim == 1 else bad.any(1)).nonzero()[0])
    label, example = int(target[row].flatten()[bad[row].flatten()][0]), examples[row]
    x = dataset.test_x if part == "test" else dataset.train_x
    if isinstance(x, Column) and x.source.indices is not None:
        example = x.source.indices[example]
    problem = f"{part} example {example} has the label {label}, and the model has {output.shape[1]} outputs, for "
    problem += f"labels 0 to {output.shape[1] - 1}: correct it, give the model more outputs, or use a loss that "
    problem += "ignores it, such as torch.nn.CrossEntropyLoss(ignore_index=...)"
    return ConfigError("data", dataset.name, problem)


def rounds(examples: int, workers: int, batch_size: int) -> int:
    """Return the number of rounds in an epoch. In a round, every worker takes a batch."""
    return examples // (workers * batch_size)


class Batches:
    """The batches of one worker: every epoch is a permutation of all examples, taken round by round.

    A round takes the next workers x batch_size examples; worker w takes the w-th batch. So at each iteration,
    W workers with batches of b together take the examples that one worker with batches of W b takes, in the same order.
    The last examples of an epoch, too few for a round, are left out. With `sequential`, examples are not permuted.

    `parts` gives the worker of each example. With it, a worker takes all its own examples in each epoch, in as many
    batches as the other workers: a worker with more examples has larger batches.

    Raises:
        ConfigError: a round takes more examples than there are, or a worker has fewer examples than rounds.
    """

    def __init__(self, examples: int, workers: int, worker: int, batch_size: int, seed: int,
                 sequential: bool = False, parts: npt.NDArray[np.int64] | None = None) -> None:  # fmt: skip
        if not 0 <= worker < workers:
            raise ValueError(f"worker {worker} must be from 0 to {workers - 1}")
        self.rounds = rounds(examples, workers, batch_size)  #: rounds per epoch
        if self.rounds == 0:
            many = f"{workers} workers take {workers * batch_size} examples in an iteration, but there are {examples}"
            raise ConfigError("batch_size", batch_size, f"{many}: it can be at most {examples // workers}")
        self._examples, self._workers, self._seed, self._batch = examples, workers, seed, batch_size
        self._stride, self._first = workers * batch_size, worker * batch_size
        self._epoch, self._order, self._sequential = -1, np.empty(0, np.int64), sequential
        self._worker, self._own = worker, None if parts is None else np.flatnonzero(parts == worker)
        if self._own is not None and len(self._own) < self.rounds:
            few = f"worker {worker} has {len(self._own)} examples, too few for a pass of {self.rounds} batches"
            raise ConfigError("batch_size", batch_size, f"{few}: set a larger batch_size")

    def at(self, iteration: int) -> npt.NDArray[np.int64]:
        """Return the indices [batch_size] of an iteration's examples; iterations count from 0."""
        if iteration < 0:
            raise ValueError(f"iteration {iteration} must be at least 0")
        epoch, turn = divmod(iteration, self.rounds)
        if self._own is not None:
            if epoch != self._epoch:
                self._epoch = epoch
                self._order = numpy_generator(self._seed, "epoch", epoch, self._worker).permutation(self._own)
            begin, end = (len(self._own) * at // self.rounds for at in (turn, turn + 1))
            return self._order[begin:end].copy()
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.arange(self._examples)
            if not self._sequential:
                generator = numpy_generator(self._seed, "epoch", epoch)
                self._order = generator.permutation(self._examples).astype(np.int64, copy=False)
        start = turn * self._stride + self._first
        return self._order[start : start + self._batch].copy()

    def share(self, iteration: int) -> float:
        """Return the weight of a batch's mean in a round's mean, such that all examples count equally."""
        if self._own is None:
            return 1.0
        turn = iteration % self.rounds
        taken = len(self._own) * (turn + 1) // self.rounds - len(self._own) * turn // self.rounds
        return taken * self.rounds * self._workers / self._examples


def batch_slices(examples: int, size: int) -> list[slice]:
    """Split the numbers of `examples` examples into batches. A single last example joins the batch before it, because
    batch normalization and models that squeeze fail on a batch of one."""
    ends = list(range(0, examples, max(2, size)))[1:]
    if ends and ends[-1] == examples - 1:
        ends.pop()
    return [slice(begin, end) for begin, end in itertools.pairwise([0, *ends, examples])]


def read_batches(x: Rows, y: Rows, batches: Sequence[slice | npt.NDArray[np.int64]]) -> Iterator[Pair]:
    """Yield the inputs and the targets of each batch."""
    if isinstance(x, Column):
        examples = np.arange(len(y))
        yield from x.source.read(((0, examples[batch]) for batch in batches), 0)
        return
    for batch in batches:
        rows = batch if isinstance(batch, slice) else torch.from_numpy(batch)
        yield x[rows], y[rows]


def data_root() -> Path:
    """Return the folder of datasets: $PSLAB_DATA; else the first folder data/ with MNIST/raw in the working directory,
    its parents or the parents of this file; else ./data."""
    if given := os.environ.get("PSLAB_DATA"):
        return Path(given)
    here = Path.cwd()
    for folder in (here, *here.parents, *Path(__file__).resolve().parents):
        if (folder / "data" / "MNIST" / "raw").is_dir():
            return folder / "data"
    return here / "data"


def resolve_data(value: object, root: Path | None = None) -> Dataset:
    """Return the dataset of a Run's `data`.

    A name of the table, such as "mnist:train=4096,test=1000" or "folder:PATH"; "torchvision:CIFAR10" (downloaded into
    `root` if absent); a Dataset; "package.module:function", or a callable, that returns a Dataset, (train_x, train_y,
    test_x, test_y), or (train, test) of torch's Datasets or DataLoaders, which `reading.Source` reads. uint8 inputs are
    normalized by mean and standard deviation; floating point inputs are not changed.

    Raises:
        ConfigError: an unknown name, missing or broken files, a function that raises; or `Dataset` refuses the tensors.
    """
    root = data_root() if root is None else root
    if isinstance(value, str):
        head, colon, rest = value.partition(":")
        name = head.strip().lower()
        if name in ROWS["data"] or not colon:
            dataset: Dataset = build("data", value).dataset(value, root)
            return dataset
        if name == "torchvision" and colon:
            return _of_torchvision(value, rest.strip(), root)
        return _returned(value, import_named("data", value))
    if isinstance(value, Dataset):
        return value
    return _returned(getattr(value, "__qualname__", type(value).__name__), value)


@functools.lru_cache(maxsize=2)
def _of_torchvision(text: str, name: str, root: Path) -> Dataset:
    if name.lower() not in (known := {n.lower(): n for n in VISION}):
        raise ConfigError("data", text, f"unknown dataset {name!r}; {nearest(name, known)}")
    name = known[name.lower()]
    kind, parts = getattr(torchvision().datasets, name), []
    for train in (True, False):
        try:
            source = kind(str(root), train=train, download=True)
        except Exception as error:
            why = f"cannot be read from {root.absolute()}, nor downloaded into it ({type(error).__name__}: {error})"
            how = f"call torchvision.datasets.{name}(root, download=True) on a machine with a network"
            raise ConfigError("data", text, f"{why}: {how}, and copy the files there") from error
        parts += [_channels_first(torch.as_tensor(source.data)), torch.as_tensor(source.targets).long()]
    return measured(text, parts)


def _channels_first(images: Tensor) -> Tensor:  # [N, H, W] or [N, H, W, C] -> [N, C, H, W]
    return images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()


def _returned(name: str, function: Any) -> Dataset:
    """Return the dataset that a user's function makes; `function` may also be a Dataset itself."""
    if isinstance(function, Dataset):
        return function
    if not callable(function):
        problem = f"is {type(function).__name__}: must be a callable or a Dataset, or one of {', '.join(names('data'))}"
        raise ConfigError("data", name, problem)
    try:
        made = with_operators(function)
    except Exception as error:
        problem = f"the function, called without arguments, raised {type(error).__name__}: {error}"
        raise ConfigError("data", name, problem) from error
    if isinstance(made, Dataset):
        return made
    if isinstance(made, Sequence) and len(made) == 2 and all(isinstance(half, READ) for half in made):
        return streamed(name, *made)
    if not isinstance(made, Sequence) or len(made) != 4:
        got = f"{type(made).__name__} of {len(made)}" if isinstance(made, Sequence) else type(made).__name__
        wanted = f"a Dataset, ({', '.join(TENSORS)}), or (train, test) of torch's Datasets or DataLoaders"
        raise ConfigError("data", name, f"must return {wanted}, not {got}")
    return measured(name, [_tensor(name, part, value) for part, value in zip(TENSORS, made, strict=True)])


def _tensor(name: str, part: str, value: Any) -> Tensor:
    try:
        tensor = torch.as_tensor(value).detach().contiguous()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError("data", name, f"{part} is {type(value).__name__}: must be a tensor ({error})") from error
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        raise ConfigError("data", name, f"{part} contains values that are not finite: replace NaN and infinity")
    integers = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    return tensor.long() if integers and (part.endswith("_y") or tensor.dtype != torch.uint8) else tensor


def measured(name: str, parts: list[Tensor]) -> Dataset:
    """Make a Dataset of four tensors, with mean and standard deviation of uint8 training inputs; else with 0 and 1."""
    train_x, train_y, test_x, test_y = parts
    mean, std = _scale(train_x)
    labels = [y for y in (train_y, test_y) if y.numel() and y.dtype == torch.int64]
    classes = max((int(y.max()) + 1 for y in labels), default=0)
    return Dataset(name, train_x, train_y, test_x, test_y, mean, std, classes)


def streamed(name: str, train: Any, test: Any) -> Dataset:
    """Make a Dataset that is read when it is needed, from two torch Datasets or DataLoaders.

    uint8 inputs are normalized by the mean and standard deviation of 1,024 examples at equal distances (the first
    examples of an IterableDataset). The number of classes is the length of the training Dataset's attribute `classes`,
    or the largest label read before the run plus 1, if that is larger.

    Raises:
        ConfigError: `reading.Source` or `Dataset` refuses the data.
    """
    from pslab.tensors.workload.reading import Source  # late: tensors in memory do not need it

    first, second = Source(name, "train", train), Source(name, "test", test)
    step = 1 if first.sequential else max(1, first.count // SCALE)
    x, y = first.examples(range(0, first.count, step)[:SCALE]) if first.sample[0].dtype == torch.uint8 else first.sample
    mean, std = _scale(x)
    labels = [column for column in (first.targets, second.targets, y) if column.dtype == torch.int64 and column.numel()]
    classes = max((int(y.max()) + 1 for y in labels), default=0)
    train_x, train_y, test_x, test_y = (Column(column, position) for column in (first, second) for position in (0, 1))
    return Dataset(name, train_x, train_y, test_x, test_y, mean, std, max(first.classes, classes) if labels else 0)


def of_rows(rows: SparseRows) -> Dataset:
    """Make a Dataset of sparse rows, divided into training and test rows.

    Raises:
        ConfigError: there are no training rows or no test rows.
    """
    test = rows.take(np.flatnonzero(rows.test))
    for table, what in ((rows.training, "train on"), (test, "test with")):
        if not len(table):
            raise ConfigError("data", rows.name, f"has no rows to {what}: use more rows")
    labels = [torch.from_numpy(table.labels).long() for table in (rows.training, test)]
    inputs = [SparseInputs.of(table) for table in (rows.training, test)]
    return Dataset(rows.name, inputs[0], labels[0], inputs[1], labels[1], 0.0, 1.0, 2)


def _scale(x: Tensor) -> tuple[float, float]:
    """Return mean and standard deviation of uint8 inputs / 255; 0 and 1 for inputs of other dtypes."""
    if x.dtype != torch.uint8 or not x.numel():
        return 0.0, 1.0
    counts, values = np.bincount(x.flatten().numpy(), minlength=256), np.arange(256) / 255
    mean = float(counts @ values / counts.sum())
    return mean, math.sqrt(float(counts @ (values - mean) ** 2 / counts.sum())) or 1.0
