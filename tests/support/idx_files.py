"""A small random MNIST as idx files."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np


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
