"""Random streams: all randomness of a run comes from named streams of its root seed."""

from __future__ import annotations

import hashlib
import json
import operator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def seed_of(root: int, *names: str | int) -> int:
    """The seed (0 to 2**63 - 1) of the stream `names` of the root seed, the same on every machine.

    Raises:
        TypeError: a name that is neither a string nor an integer.
    """
    path = [operator.index(root), *(n if isinstance(n, str) else operator.index(n) for n in names)]
    digest = hashlib.sha256(json.dumps(path).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(root: int, *names: str | int) -> torch.Generator:
    """A torch generator on the CPU, at the start of the stream."""
    import torch  # late, because clusters draw their times where torch is not needed

    return torch.Generator().manual_seed(seed_of(root, *names))


def numpy_generator(root: int, *names: str | int) -> np.random.Generator:
    """A NumPy generator at the start of the stream."""
    # default_rng() may become another bit generator one day; a named one keeps old runs repeatable
    return np.random.Generator(np.random.PCG64(seed_of(root, *names)))
