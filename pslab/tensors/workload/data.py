"""Datasets by name, the real MNIST among them, and who learns from which example at which iteration."""

from __future__ import annotations

import functools
import gzip
import math
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pslab.config.parameters import Bounds, check
from pslab.config.spec import build
from pslab.config.table import ROWS, names
from pslab.errors import ConfigError, nearest
from pslab.tensors.random_streams import numpy_generator
from pslab.tensors.workload.models import import_named
from pslab.tensors.workload.torchvision_ops import torchvision, with_operators

RAW = Path("MNIST", "raw")
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
TRAIN, TEST, SIDE = 60_000, 10_000, 28
MEAN, STD = 0.1307, 0.3081  # of MNIST's training pixels, as everybody rounds them
CHUNK_BYTES = 1 << 20
VISION = ("CIFAR10", "CIFAR100", "FashionMNIST", "KMNIST", "MNIST", "USPS")
NUMBERS = ("train_x", "train_y", "test_x", "test_y")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples to learn from and to judge by. Immutable by agreement: runs share it.

    Raises:
        ConfigError: shapes, dtypes or labels that do not fit together.
    """

    name: str
    train_x: Tensor = field(repr=False)  #: [N, ...] uint8 or floating point
    train_y: Tensor = field(repr=False)  #: [N] int64, 0 to classes - 1
    test_x: Tensor = field(repr=False)  #: [M, ...]
    test_y: Tensor = field(repr=False)  #: [M] int64
    mean: float  #: of the inputs, for uint8 after division by 255
    std: float
    classes: int

    def __post_init__(self) -> None:
        for name in NUMBERS:
            if not isinstance(value := getattr(self, name), Tensor):
                raise self._error(f"{name} must be a tensor, not {type(value).__name__}")
        for part, x, y in (("train", self.train_x, self.train_y), ("test", self.test_x, self.test_y)):
            if x.ndim < 2 or len(x) == 0 or not (x.dtype == torch.uint8 or x.is_floating_point()):
                raise self._error(f"{part}_x must be [examples, ...] of uint8 or floating point, not {_told(x)}")
            if y.shape != x.shape[:1] or y.dtype != torch.int64:
                raise self._error(f"{part}_y must be [{len(x)}] of int64, one label per example, not {_told(y)}")
            low, high = int(y.min()), int(y.max())
            if low < 0 or high >= self.classes:
                raise self._error(f"labels of {part}_y must be 0 to {self.classes - 1}, not {low} to {high}")
        if self.test_x.shape[1:] != self.train_x.shape[1:] or self.test_x.dtype != self.train_x.dtype:
            raise self._error(
                f"test_x is {_told(self.test_x)}, train_x is {_told(self.train_x)}: "
                "one example must look the same in both"
            )
        if not (math.isfinite(self.mean) and math.isfinite(self.std) and self.std > 0):
            raise self._error(f"mean {self.mean} and std {self.std} must be finite, and std above 0")

    def _error(self, problem: str) -> ConfigError:
        return ConfigError("data", self.name, problem)


@dataclass(frozen=True)
class Mnist:
    """MNIST (LeCun et al., 1998): its first `train` training and `test` test examples, in the order of its files."""

    train: Annotated[int, Bounds(at_least=1, at_most=TRAIN), "training examples"] = TRAIN
    test: Annotated[int, Bounds(at_least=1, at_most=TEST), "test examples"] = TEST

    def __post_init__(self) -> None:
        check(self)


def batch(x: Tensor, dtype: torch.dtype, mean: float, std: float, out: Tensor | None = None) -> Tensor:
    """Inputs of any size as a model takes them: divided by 255 if uint8, then (x - mean) / std, in `dtype`.

    Args:
        x: [B, ...] uint8 or floating point.
        out: where to write, of x's shape and of `dtype`; a new tensor if None.
    """
    if out is None:
        out = torch.empty(x.shape, dtype=dtype, device=x.device)
    elif out.shape != x.shape or out.dtype != dtype:
        raise ValueError(f"out must be {list(x.shape)} of {dtype}, not {_told(out)}")
    out.copy_(x)
    if x.dtype == torch.uint8:
        out.div_(255)
    return out.sub_(mean).div_(std)


def data_root() -> Path:
    """Where datasets lie: $PSLAB_DATA, else the nearest data/ with MNIST from here upwards, else the source tree's."""
    if given := os.environ.get("PSLAB_DATA"):
        return Path(given)
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "data" / RAW).is_dir():
            return folder / "data"
    return Path(__file__).resolve().parents[3] / "data"


def resolve_data(value: object, root: Path | None = None) -> Dataset:
    """The dataset that a Run's `data` stands for.

    "mnist"; "mnist:train=4096,test=1000" (the first so many); "torchvision:CIFAR10" (downloaded into `root` if it is
    not there); "package.module:function" or a callable that returns a Dataset or (train_x, train_y, test_x, test_y);
    a Dataset. Of such a tuple uint8 inputs are normalized by the training part's mean and deviation, floats are taken
    as they are. Named datasets are kept in memory: asked for again, they are the same object.

    Raises:
        ConfigError: an unknown name, missing or broken files, a function that raises, tensors that do not fit.
    """
    root = data_root() if root is None else root
    if isinstance(value, str):
        head, colon, rest = value.partition(":")
        name = head.strip().lower()
        if name in ROWS["data"] or not colon:
            chosen = build("data", value)
            raw = root / RAW
            return _mnist(value, raw, _stamps(raw), chosen)
        if name == "torchvision" and colon:
            return _of_torchvision(value, rest.strip(), root)
        return _returned(value, import_named("data", value))
    if isinstance(value, Dataset):
        return value
    return _returned(getattr(value, "__qualname__", type(value).__name__), value)


def rounds(examples: int, workers: int, batch_size: int) -> int:
    """The iterations of an epoch: in each one, every worker takes a batch."""
    return examples // (workers * batch_size)


class Batches:
    """Which examples a worker learns from: every epoch is one permutation, dealt out in rounds.

    A round takes the next workers x batch_size examples, worker w the w-th batch of them. So W workers with batches of
    b see at an iteration together, and in order, what one worker with batches of W b sees. An epoch's last examples,
    too few for a round, are left out of it.

    Raises:
        ConfigError: more examples in a round than there are.
    """

    def __init__(self, examples: int, workers: int, worker: int, batch_size: int, seed: int) -> None:
        if not 0 <= worker < workers:
            raise ValueError(f"worker {worker} must be from 0 to {workers - 1}")
        self.rounds = rounds(examples, workers, batch_size)  #: per epoch
        if self.rounds == 0:
            raise ConfigError(
                "batch_size",
                batch_size,
                f"{workers} workers take {workers * batch_size} examples in an "
                f"iteration, but there are {examples}: "
                f"it can be at most {examples // workers}",
            )
        self._examples, self._seed, self._batch = examples, seed, batch_size
        self._stride, self._first = workers * batch_size, worker * batch_size
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def at(self, iteration: int) -> npt.NDArray[np.int64]:
        """[batch_size]: indices of the examples of an iteration, which is counted from 0."""
        if iteration < 0:
            raise ValueError(f"iteration {iteration} must be at least 0")
        epoch, turn = divmod(iteration, self.rounds)
        if epoch != self._epoch:
            generator = numpy_generator(self._seed, "epoch", epoch)
            self._epoch, self._order = epoch, generator.permutation(self._examples).astype(np.int64, copy=False)
        begin = turn * self._stride + self._first
        return self._order[begin : begin + self._batch].copy()


def read_idx(path: Path, shape: Sequence[int]) -> Tensor:
    """The bytes of an idx file, gzipped or not, as [n, *shape[1:]] uint8 with n from 1 to shape[0].

    Memory is bounded by `shape`, whatever the file says of itself.

    Raises:
        ConfigError: the file cannot be read, or is not such an array.
    """
    try:
        with path.open("rb") as file:
            stream = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
            return _read_idx(cast(BinaryIO, stream), path, tuple(shape))
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError("data", str(path), f"cannot be read: {type(error).__name__}: {error}") from error


def _read_idx(stream: BinaryIO, path: Path, shape: tuple[int, ...]) -> Tensor:
    header = stream.read(4 + 4 * len(shape))
    magic = bytes([0, 0, 8, len(shape)])  # 8: unsigned bytes
    if len(header) < 4 + 4 * len(shape) or header[:4] != magic:
        raise ConfigError(
            "data",
            str(path),
            f"begins with {header[:4].hex(' ')}, an idx file of {len(shape)} dimensions with {magic.hex(' ')}",
        )
    sizes = tuple(int(n) for n in np.frombuffer(header, ">u4", offset=4))
    if not 1 <= sizes[0] <= shape[0] or sizes[1:] != shape[1:]:
        raise ConfigError("data", str(path), f"says that it holds {list(sizes)}, expected at most {list(shape)}")
    wanted, body = math.prod(sizes), bytearray()
    while len(body) <= wanted and (chunk := stream.read(min(CHUNK_BYTES, wanted + 1 - len(body)))):
        body += chunk
    if len(body) != wanted:
        more = "more" if len(body) > wanted else f"only {len(body)}"
        raise ConfigError("data", str(path), f"must hold {wanted} bytes after its header, it holds {more}")
    return torch.frombuffer(body, dtype=torch.uint8).view(sizes)


def _stamps(raw: Path) -> tuple[tuple[str, int, int], ...]:
    """(path, size, time of change) of MNIST's four files, unpacked or gzipped; ConfigError if one is missing."""
    stamps, missing = [], []
    for name in FILES:
        found = next((p for p in (raw / name, raw / f"{name}.gz") if p.is_file()), None)
        if found is None:
            missing.append(name)
        else:
            stat = found.stat()
            stamps.append((str(found), stat.st_size, stat.st_mtime_ns))
    if missing:
        raise ConfigError(
            "data",
            "mnist",
            f"looked in {raw.absolute()} for {', '.join(missing)} (also with .gz): "
            "put the files there, name another folder in PSLAB_DATA (the one that holds "
            "MNIST/raw), or use 'torchvision:MNIST', which downloads them",
        )
    return tuple(stamps)


@functools.lru_cache(maxsize=4)
def _mnist(text: str, raw: Path, stamps: tuple[tuple[str, int, int], ...], chosen: Mnist) -> Dataset:
    images, labels, test_images, test_labels = (Path(path) for path, _, _ in stamps)
    train_x, train_y = _part(text, images, labels, TRAIN, chosen.train)
    test_x, test_y = _part(text, test_images, test_labels, TEST, chosen.test)
    return Dataset(text, train_x, train_y, test_x, test_y, MEAN, STD, 10)


def _part(text: str, images: Path, labels: Path, limit: int, wanted: int) -> tuple[Tensor, Tensor]:
    """The first `wanted` examples of two files: [wanted, 1, 28, 28] uint8 and [wanted] int64."""
    x, y = read_idx(images, (limit, SIDE, SIDE)), read_idx(labels, (limit,))
    if len(x) != len(y):
        raise ConfigError("data", text, f"{images} holds {len(x)} images, {labels} {len(y)} labels")
    if len(x) < wanted:
        raise ConfigError("data", text, f"{images} holds {len(x)} images, fewer than {wanted}")
    # a part of the images is copied, so that the rest of them is not kept with it
    x = x if wanted == len(x) else x[:wanted].clone()
    return x.unsqueeze(1), y[:wanted].long()


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
            raise ConfigError(
                "data",
                text,
                f"cannot be read from {root.absolute()}, nor downloaded into it "
                f"({type(error).__name__}: {error}): download it where there is a network, "
                f"with torchvision.datasets.{name}(root, download=True), and copy it there",
            ) from error
        parts += [_channels_first(torch.as_tensor(source.data)), torch.as_tensor(source.targets).long()]
    return _measured(text, parts)


def _channels_first(images: Tensor) -> Tensor:
    """[N, H, W] or [N, H, W, C] -> [N, C, H, W]."""
    return images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()


def _returned(name: str, function: Any) -> Dataset:
    """What a user's function returns, as a Dataset."""
    if isinstance(function, Dataset):
        return function
    if not callable(function):
        raise ConfigError(
            "data",
            name,
            f"is {type(function).__name__}: must be a callable or a Dataset, or one of {', '.join(names('data'))}",
        )
    try:
        found = with_operators(function)
    except Exception as error:
        raise ConfigError("data", name, f"the function raised {type(error).__name__}: {error}") from error
    if isinstance(found, Dataset):
        return found
    if not isinstance(found, Sequence) or len(found) != 4:
        got = f"{type(found).__name__} of {len(found)}" if isinstance(found, Sequence) else type(found).__name__
        raise ConfigError("data", name, f"must return a Dataset or ({', '.join(NUMBERS)}), not {got}")
    return _measured(name, [_tensor(name, part, value) for part, value in zip(NUMBERS, found, strict=True)])


def _tensor(name: str, part: str, value: Any) -> Tensor:
    try:
        tensor = torch.as_tensor(value).detach().contiguous()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError("data", name, f"{part} is {type(value).__name__}: must be a tensor ({error})") from error
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        raise ConfigError("data", name, f"{part} holds values that are not finite")
    whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    return tensor.long() if part.endswith("_y") and whole else tensor


def _measured(name: str, parts: list[Tensor]) -> Dataset:
    """A Dataset of four tensors: uint8 inputs by the mean and deviation of the training part, floats as they are."""
    train_x, train_y, test_x, test_y = parts
    mean, std = 0.0, 1.0
    if train_x.dtype == torch.uint8 and train_x.numel():
        counts = np.bincount(train_x.flatten().numpy(), minlength=256)
        values = np.arange(256) / 255
        mean = float(counts @ values / counts.sum())
        std = math.sqrt(float(counts @ (values - mean) ** 2 / counts.sum())) or 1.0
    labels = [y for y in (train_y, test_y) if y.numel() and y.dtype == torch.int64]
    classes = max((int(y.max()) + 1 for y in labels), default=0)
    return Dataset(name, train_x, train_y, test_x, test_y, mean, std, classes)


def _told(x: Tensor) -> str:
    return f"{list(x.shape)} of {x.dtype}"
