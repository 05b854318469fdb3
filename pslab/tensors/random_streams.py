"""Random streams: all randomness of a run comes from named streams of its root seed."""

from __future__ import annotations

import hashlib
import json
import operator
import random
from collections.abc import Iterator
from contextlib import contextmanager
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


def seed_globals(root: int, *names: str | int) -> None:
    """Start the global generators of torch, Python and NumPy at streams of these names, for a model's own code.

    It takes about 20 us. NumPy's takes 32 of the seed's bits.
    """
    import torch

    seed = seed_of(root, *names)
    # torch.manual_seed asks every other kind of device too, which takes as long as a small gradient
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    random.seed(seed_of(root, *names, "python"))
    np.random.seed(seed_of(root, *names, "numpy") % 2**32)


@contextmanager
def restored_globals() -> Iterator[None]:
    """Restore the global generators of torch, Python and NumPy afterwards."""
    import torch

    # a CUDA that is not initialized has no state to restore, and asking for it would initialize it
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
