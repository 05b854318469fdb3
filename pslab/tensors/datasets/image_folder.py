"""A user's images, in folders named by class; decoded once, or when they are needed."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from pslab.config import sources
from pslab.config.available import cores
from pslab.config.parameters import Bounds, check
from pslab.errors import ConfigError
from pslab.tensors.workload.data import Dataset, measured, streamed
from pslab.tensors.workload.torchvision_ops import torchvision

LIMIT_BYTES = 2 * 10**9  # limit of all decoded images; workers share one copy, and this process has another
TESTS = ("test", "val")


@dataclass(frozen=True)
class ImageFolder:
    """The images in PATH/train/CLASS and PATH/test/CLASS (or PATH/val/CLASS), scaled and cropped to one square.

    Classes are numbered in the order of their names. The shorter side is scaled to `side` pixels, and the longer one is
    cropped on both ends. All images are decoded before the run, into at most 2 GB of uint8; or, with memory=off, each
    image is decoded when it is needed, in the worker's process or in its loading processes.
    """

    path: Annotated[str, "a path, absolute, from ~, or from the working directory"]
    side: Annotated[int, Bounds(at_least=1, at_most=4096), "pixels of an image's height and width"] = 64
    colour: Annotated[bool, "whether images have three channels, or one grey channel"] = True
    memory: Annotated[bool, "whether all images are decoded before the run, or when they are needed"] = True
    loaders: Annotated[
        int, Bounds(at_least=0, at_most=64), "the number of processes of each worker that read ahead"
    ] = 0

    def __post_init__(self) -> None:
        check(self)
        if self.memory and self.loaders:
            raise ConfigError("loaders", self.loaders, "images are read before the run: set memory=off, or loaders=0")

    def dataset(self, name: str, root: Path) -> Dataset:
        """Return the images as [N, 3 or 1, side, side] uint8 with labels; the same object until the folders change.

        Raises:
            ConfigError: missing folders, different classes in training and test, too many images, a broken image.
        """
        folder = Path(self.path).expanduser().absolute()
        tests = [folder / test for test in TESTS if (folder / test).is_dir()]
        if not (folder / "train").is_dir() or len(tests) != 1:
            problem = f"{folder} needs a folder train and one of {' and '.join(TESTS)}, with a folder for each class"
            raise ConfigError("data", name, problem)
        return _read(name, self, folder / "train", tests[0], str(sources.folder(folder, content=self.memory)))


@functools.lru_cache(maxsize=2)
def _read(name: str, chosen: ImageFolder, train: Path, test: Path, content: str) -> Dataset:
    parts = [_listed(name, folder) for folder in (train, test)]
    (_, classes), (_, tested) = parts
    if classes != tested:
        different = ", ".join(sorted({*classes} ^ {*tested})[:5])
        raise ConfigError("data", name, f"{train} and {test} must have the same classes: only one has {different}")
    if not chosen.memory:
        return streamed(name, *(DataLoader(Images(name, chosen, *part), num_workers=chosen.loaders) for part in parts))
    bytes_each = (3 if chosen.colour else 1) * chosen.side**2
    count = sum(len(samples) for samples, _ in parts)
    if count * bytes_each > LIMIT_BYTES:
        side = int((LIMIT_BYTES / count / (bytes_each / chosen.side**2)) ** 0.5)
        problem = f"{count} images of {bytes_each} bytes take {count * bytes_each / 1e9:.1f} GB of memory, more than"
        fits = f"side={side} fits" + (", or colour=off" if chosen.colour else "")
        fits += "; memory=off reads each when it is needed"
        raise ConfigError("data", name, f"{problem} {LIMIT_BYTES / 1e9:g} GB: {fits}")
    tensors = [tensor for samples, _ in parts for tensor in _decoded(name, chosen, samples)]
    return measured(name, tensors)


def _listed(name: str, folder: Path) -> tuple[list[tuple[str, int]], list[str]]:
    """Return (file, number of its class) of each image, sorted, and the names of the classes."""
    try:
        files: Any = torchvision().datasets.ImageFolder(str(folder))
    except OSError as error:
        raise ConfigError("data", name, f"{folder} must have a folder of images for each class: {error}") from error
    return files.samples, files.classes


def _decoded(name: str, chosen: ImageFolder, samples: Sequence[tuple[str, int]]) -> tuple[Tensor, Tensor]:
    """Return the images [N, channels, side, side] uint8, and their labels [N] int64."""
    x = np.empty((len(samples), 3 if chosen.colour else 1, chosen.side, chosen.side), np.uint8)

    def decode(index: int) -> None:
        x[index] = _image(name, chosen, samples[index][0])

    with ThreadPoolExecutor(cores()) as threads:
        for _ in threads.map(decode, range(len(samples))):
            pass
    return torch.from_numpy(x), torch.tensor([label for _, label in samples])


def _image(name: str, chosen: ImageFolder, file: str) -> npt.NDArray[np.uint8]:
    from PIL import Image, ImageOps  # torchvision's own

    side, channels = chosen.side, 3 if chosen.colour else 1
    try:
        with Image.open(file) as image:
            fitted = ImageOps.fit(image.convert("RGB" if chosen.colour else "L"), (side, side),
                                  Image.Resampling.BILINEAR)  # fmt: skip
    except Exception as error:  # a decoder may raise anything
        raise ConfigError("data", name, f"{file} cannot be read as an image, remove it: {error}") from error
    return np.asarray(fitted).reshape(side, side, channels).transpose(2, 0, 1)


class Images(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Images of a folder as a torch Dataset, which decodes each image when it is read."""

    def __init__(self, name: str, chosen: ImageFolder, samples: Sequence[tuple[str, int]], classes: list[str]) -> None:
        self._name, self._chosen, self._samples, self.classes = name, chosen, samples, classes

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        file, label = self._samples[index]
        return torch.from_numpy(_image(self._name, self._chosen, file).copy()), label
