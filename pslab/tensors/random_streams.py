"""Random streams: all randomness of a run comes from named streams of its root seed."""

from __future__ import annotations

import gc
import hashlib
import json
import operator
import random
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from pslab.config import sources

if TYPE_CHECKING:
    import torch


def seed_of(root: int, *names: str | int) -> int:
    """Return the seed (0 to 2**63 - 1) of the root seed's stream `names`, the same on every machine.

    Raises:
        TypeError: a name is neither a string nor an integer.
    """
    path = [operator.index(root), *(n if isinstance(n, str) else operator.index(n) for n in names)]
    digest = hashlib.sha256(json.dumps(path).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(root: int, *names: str | int) -> torch.Generator:
    """Return a torch generator on the CPU, at the start of the stream."""
    import torch  # late, because processes without torch draw a cluster's times

    return torch.Generator().manual_seed(seed_of(root, *names))


def numpy_generator(root: int, *names: str | int) -> np.random.Generator:
    """Return a NumPy generator at the start of the stream."""
    # a named bit generator, because default_rng() may change, and old runs would not be repeatable
    return np.random.Generator(np.random.PCG64(seed_of(root, *names)))


def seed_globals(root: int, *names: str | int) -> None:
    """Set the seeds of the global generators of torch, Python and NumPy, from which a model's own code draws.

    NumPy's generator uses only 32 bits of the seed. A call takes about 20 us.
    """
    import torch

    seed = seed_of(root, *names)
    # not torch.manual_seed, which also asks every other kind of device and takes as long as a small gradient
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    random.seed(seed_of(root, *names, "python"))
    np.random.seed(seed_of(root, *names, "numpy") % 2**32)


@contextmanager
def restored_globals() -> Iterator[None]:
    """Restore the states of the global generators of torch, Python and NumPy at the end of the block."""
    import torch

    # only if CUDA is initialized: asking for its state would initialize it
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


class Generators:
    """The random generators that objects refer to in attributes, containers and closures, and in the globals and
    classes that a user's code names; except the global generators."""

    def __init__(self, *holders: object) -> None:
        import torch

        kinds = (torch.Generator, random.Random, np.random.RandomState, np.random.BitGenerator)
        seen = {id(item) for item in (torch.default_generator, random._inst, np.random.mtrand._rand)}
        self._found, todo = list[Any](), list[Any](reversed(holders))
        while todo:
            value = todo.pop()
            if id(value) in seen or isinstance(value, torch.Tensor):
                continue
            seen.add(id(value))
            if isinstance(value, kinds):
                self._found += [value] * (not isinstance(value, random.SystemRandom))
            else:
                # skip untracked parts, which are numbers and texts in long lists; but a dict or a tuple that has a
                # generator may be untracked, too
                todo += [part for part in _parts(value) if gc.is_tracked(part) or isinstance(part, (*kinds, dict))
                         or (isinstance(part, tuple) and any(isinstance(item, kinds) for item in part))]  # fmt: skip

    def seed(self, root: int, *names: str | int) -> None:
        """Set the seed of each generator, from a stream of its own."""
        import torch

        for number, source in enumerate(self._found):
            seed = seed_of(root, *names, "generator", number)
            if isinstance(source, torch.Generator):
                source.manual_seed(seed)
            elif isinstance(source, random.Random):
                source.seed(seed)
            elif isinstance(source, np.random.RandomState):
                bits = getattr(np.random, source.get_state(legacy=False)["bit_generator"])
                source.set_state(np.random.RandomState(bits(seed)).get_state(legacy=False))
            else:
                source.state = type(source)(seed).state

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore the generators' states at the end of the block."""
        states: list[Any] = [source.getstate() if isinstance(source, random.Random) else
                             source.state if isinstance(source, np.random.BitGenerator) else source.get_state()
                             for source in self._found]  # fmt: skip
        try:
            yield
        finally:
            for source, state in zip(self._found, states, strict=True):
                if isinstance(source, random.Random):
                    source.setstate(state)
                elif isinstance(source, np.random.BitGenerator):
                    source.state = state
                else:
                    source.set_state(state)


def _parts(value: Any) -> list[Any]:
    """Return the objects that an object refers to. Globals, classes and modules of installed libraries are not
    searched."""
    if isinstance(value, types.FunctionType):
        parts: list[Any] = [value.__closure__, value.__defaults__, value.__kwdefaults__, vars(value)]
        if not sources.installed(str(value.__module__)):
            parts += [value.__globals__[name] for name in _names(value.__code__) if name in value.__globals__]
        return parts
    if isinstance(value, (type, types.ModuleType)):
        named = value.__module__ if isinstance(value, type) else value.__name__
        return [] if sources.installed(str(named)) else [*vars(value).values(), *getattr(value, "__bases__", ())]
    return gc.get_referents(value)


def _names(code: types.CodeType) -> list[str]:
    inner = [name for const in code.co_consts if isinstance(const, types.CodeType) for name in _names(const)]
    return [*code.co_names, *inner]


@contextmanager
def temporary_seed(seed: int = 0) -> Iterator[None]:
    """Seed the global generators from the stream "init" of `seed`; restore them at the end of the block."""
    with restored_globals():
        seed_globals(seed, "init")
        yield
