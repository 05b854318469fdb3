"""Randomness comes from named streams of one root seed, and from nowhere else."""

from __future__ import annotations

import hashlib
import json
import operator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def seed_of(root: int, *names: str | int) -> int:
    """The seed, 0 to 2**63 - 1, of the stream that `names` name under `root`: the same on every machine."""
    path = [operator.index(root), *(n if isinstance(n, str) else operator.index(n) for n in names)]
    digest = hashlib.sha256(json.dumps(path).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(root: int, *names: str | int) -> torch.Generator:
    """A torch generator on the CPU, at the start of the stream."""
    import torch  # only here: clusters and their presets are read where torch is not needed

    return torch.Generator().manual_seed(seed_of(root, *names))


def numpy_generator(root: int, *names: str | int) -> np.random.Generator:
    """A NumPy generator at the start of the stream."""
    # default_rng() may stand for another bit generator one day; a named one keeps old runs repeatable
    return np.random.Generator(np.random.PCG64(seed_of(root, *names)))
