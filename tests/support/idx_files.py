"""Small data sets on disk: a random MNIST as idx files, and pictures in folders."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
from PIL import Image


def idx(array: np.ndarray) -> bytes:
    """An unsigned array as an idx file."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def digits(examples: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random images [examples, 28, 28] and labels [examples]."""
    generator = np.random.default_rng(seed)
    return (generator.integers(0, 256, (examples, 28, 28), np.uint8), generator.integers(0, 10, examples, np.uint8))


def write(folder: Path, *, packed: bool = True) -> None:
    """Write digits(20, 20) for training and digits(10, 10) for tests into folder/raw; the latter gzipped if packed."""
    (folder / "raw").mkdir(parents=True)
    for kind, count in (("train", 20), ("t10k", 10)):
        images, labels = digits(count, count)
        for name, array in ((f"{kind}-images-idx3-ubyte", images), (f"{kind}-labels-idx1-ubyte", labels)):
            if kind == "t10k" and packed:
                (folder / "raw" / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
            else:
                (folder / "raw" / name).write_bytes(idx(array))


COLOURS = {"ants": (200, 40, 0), "bees": (0, 40, 200)}


def draw_pictures(folder: Path) -> None:
    """Write eight images a class to train and four to test, of several sizes; the left half is a class's colour."""
    for part, count in (("train", 8), ("test", 4)):
        for label, colour in COLOURS.items():
            (folder / part / label).mkdir(parents=True)
            for at in range(count):
                image = np.zeros((12 + at, 20, 3), np.uint8)
                image[:, :10] = colour
                image[0, 0] = at
                Image.fromarray(image).save(folder / part / label / f"{at}.png")
