"""Images of the user's in folders named by class, decoded once."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from pslab.config import sources
from pslab.config.parameters import Bounds, check
from pslab.errors import ConfigError
from pslab.tensors.workload.data import Dataset, measured
from pslab.tensors.workload.torchvision_ops import torchvision

LIMIT_BYTES = 2 * 10**9  # of all decoded images; workers share one copy, and this process has another
TESTS = ("test", "val")


@dataclass(frozen=True)
class ImageFolder:
    """The images in PATH/train/CLASS and PATH/test/CLASS (or PATH/val/CLASS), scaled and cropped to one square.

    Classes are numbered in the order of their names. The shorter side is scaled to `side` pixels, and what the longer
    one has beyond it is cut off on both ends. All images are decoded before the run, into at most 2 GB of uint8.
    """

    path: Annotated[str, "absolute, from ~, or from the working directory"]
    side: Annotated[int, Bounds(at_least=1, at_most=4096), "pixels of an image's height and width"] = 64
    colour: Annotated[bool, "three channels, or one of grey"] = True

    def __post_init__(self) -> None:
        check(self)

    def dataset(self, name: str, root: Path) -> Dataset:
        """The images as [N, 3 or 1, side, side] uint8 with their labels; the same object until the folders change.

        Raises:
            ConfigError: missing folders, other classes to test than to train, too many images, one that is broken.
        """
        place = Path(self.path).expanduser().absolute()
        tests = [place / each for each in TESTS if (place / each).is_dir()]
        if not (place / "train").is_dir() or len(tests) != 1:
            problem = f"{place} must have a folder train and one of {' and '.join(TESTS)}, with a folder for each class"
            raise ConfigError("data", name, problem)
        return _read(name, self, place / "train", tests[0], str(sources.folder(place)))


@functools.lru_cache(maxsize=2)
def _read(name: str, chosen: ImageFolder, train: Path, test: Path, content: str) -> Dataset:
    parts = [_listed(name, folder) for folder in (train, test)]
    (_, classes), (_, tested) = parts
    if classes != tested:
        apart = sorted({*classes} ^ {*tested})
        raise ConfigError("data", name, f"{train} and {test} have other classes: {', '.join(apart[:5])}")
    each = (3 if chosen.colour else 1) * chosen.side**2
    count = sum(len(samples) for samples, _ in parts)
    if count * each > LIMIT_BYTES:
        side = int((LIMIT_BYTES / count / (each / chosen.side**2)) ** 0.5)
        problem = f"{count} images of {each} bytes take {count * each / 1e9:.1f} GB of memory, more than"
        fits = f"side={side} fits" + (", or colour=off" if chosen.colour else "")
        raise ConfigError("data", name, f"{problem} {LIMIT_BYTES / 1e9:g} GB: {fits}")
    tensors = [tensor for samples, _ in parts for tensor in _decoded(name, chosen, samples)]
    return measured(name, tensors)


def _listed(name: str, folder: Path) -> tuple[list[tuple[str, int]], list[str]]:
    """(file, class) of each image, in the order of their names; the classes."""
    try:
        found: Any = torchvision().datasets.ImageFolder(str(folder))
    except OSError as error:
        raise ConfigError("data", name, f"{folder}: {error}") from error
    return found.samples, found.classes


def _decoded(name: str, chosen: ImageFolder, samples: Sequence[tuple[str, int]]) -> tuple[Tensor, Tensor]:
    """[N, channels, side, side] uint8, and [N] int64."""
    from PIL import Image, ImageOps  # torchvision's own

    channels, side = 3 if chosen.colour else 1, chosen.side
    x = np.empty((len(samples), channels, side, side), np.uint8)

    def decode(place: int) -> None:
        file = samples[place][0]
        try:
            with Image.open(file) as image:
                fitted = ImageOps.fit(image.convert("RGB" if chosen.colour else "L"), (side, side),
                                      Image.Resampling.BILINEAR)  # fmt: skip
        except Exception as error:  # a decoder may raise anything
            raise ConfigError("data", name, f"{file} is no image that can be read: {error}") from error
        x[place] = np.asarray(fitted).reshape(side, side, channels).transpose(2, 0, 1)

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for _ in threads.map(decode, range(len(samples))):
            pass
    return torch.from_numpy(x), torch.tensor([label for _, label in samples])
