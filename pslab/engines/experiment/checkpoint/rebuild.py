"""From a graph of nodes and arrays to objects."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any

import numpy as np
import torch

from pslab.engines.experiment.checkpoint.graph import NO_MODULES, Externals, Graph, Modules, class_of, pairs, put
from pslab.engines.experiment.shared_memory import Arena
from pslab.errors import CheckpointError, shortened

_NOTHING = object()


def rebuild(graph: Graph, externals: Externals, arena: Arena | None = None, modules: Modules = NO_MODULES) -> Any:
    """The value of a graph, with arrays of its own.

    Raises:
        CheckpointError: no graph that `flatten` makes, or one of another version of pslab.
    """
    try:
        return _Reader(graph, externals, arena, modules).value()
    except CheckpointError:
        raise
    except Exception as error:  # a hostile graph finds what no check has thought of; it has executed nothing
        raise CheckpointError(f"the state cannot be read: {type(error).__name__}: {shortened(error, str)}") from error


class _Reader:
    """In three rounds: objects that others may hold before they are complete, values, and what objects hold."""

    def __init__(self, graph: Graph, externals: Externals, arena: Arena | None, modules: Modules) -> None:
        self._nodes, self._arrays = graph
        self._externals, self._arena, self._modules = externals, arena, modules
        self._made: list[Any] = [_NOTHING] * len(self._nodes)

    def value(self) -> Any:
        for place, (kind, *held) in enumerate(self._nodes):
            if (make := self._SHELLS.get(kind)) is not None:
                self._made[place] = make(self, *held)
        for place, (kind, *held) in enumerate(self._nodes):
            if kind not in self._SHELLS:
                self._made[place] = self._VALUES[kind](self, *held)
        restored = []
        for shell, (kind, *held) in zip(self._made, self._nodes, strict=True):
            if kind == "restored":
                restored.append((shell, held[1]))
            elif kind in self._SHELLS:
                self._fill(shell, kind, held)
        for shell, state in restored:
            shell.restore(self.get(state))
        return self._made[-1]

    def get(self, value: Any) -> Any:
        """What stands in a node is meant."""
        if type(value) is not list:
            return value
        (place,) = value
        if type(place) is not int or place < 0 or self._made[place] is _NOTHING:
            raise CheckpointError(f"the state cannot be read: there is no node {shortened(place)} yet")
        return self._made[place]

    def _fill(self, shell: Any, kind: str, held: Sequence[Any]) -> None:
        get = self.get
        if kind == "object":
            for name, value in pairs(held[1:]):
                put(shell, name, get(value))
        elif kind == "dict":
            shell.update({get(key): get(value) for key, value in pairs(held)})
        elif kind == "set":
            shell.update(map(get, held))
        else:
            shell.extend(map(get, held[1:] if kind == "deque" else held))

    def _class(self, name: str, *_: Any) -> Any:
        return object.__new__(class_of(name, self._modules))

    def _external(self, name: str) -> Any:
        return self._externals[name]

    def _named(self, name: str, *values: Any) -> Any:
        kind: Any = class_of(name, self._modules)
        if len(kind._fields) != len(values):
            raise CheckpointError(f"the state is of another version of pslab: {name} has the fields {kind._fields}")
        return tuple.__new__(kind, map(self.get, values))

    def _value(self, name: str, *held: Any) -> Any:
        made = self._class(name)
        for attribute, value in pairs(held):
            put(made, attribute, self.get(value))
        return made

    def _enum(self, name: str, member: str) -> Any:
        kind: Any = class_of(name, self._modules)
        return kind.__members__[member]

    def _array(self, number: int) -> np.ndarray:
        return self._arrays[number].copy()

    def _tensor(self, array: Any) -> torch.Tensor:
        return torch.from_numpy(self.get(array))

    def _memory(self, offset: int, shape: Sequence[int], dtype: str) -> torch.Tensor:
        count = 1
        for length in shape:
            count *= length
        if self._arena is None or min(offset, *shape, 0) < 0:
            raise CheckpointError("the state cannot be read: a place in memory that there is not")
        kind = self._dtype(dtype)
        if offset + count * kind.itemsize > self._arena.size_bytes:
            raise CheckpointError("the state cannot be read: a place in memory beyond its end")
        return self._arena.tensor(offset, count, kind).view(*shape)

    def _dtype(self, name: str) -> torch.dtype:
        found = getattr(torch, name)
        if not isinstance(found, torch.dtype):
            raise CheckpointError(f"the state cannot be read: {shortened(name)} is no type of numbers")
        return found

    def _generator(self, state: int, increment: int, has: int, kept: int) -> np.random.Generator:
        made = np.random.PCG64(0)
        made.state = {"bit_generator": "PCG64", "state": {"state": state, "inc": increment},
                      "has_uint32": has, "uinteger": kept}  # fmt: skip
        return np.random.Generator(made)

    def _method(self, owner: Any, name: str) -> Any:
        found = self.get(owner)
        kind = type(found)
        if any(found is each for each in self._externals.values()) or name.startswith("__"):
            raise CheckpointError(f"the state cannot be read: no state holds the method {shortened(name)}")
        class_of(f"{kind.__module__}:{kind.__qualname__}", self._modules)
        return MethodType(getattr(kind, name), found)

    _SHELLS: Mapping[str, Callable[..., Any]] = {
        "list": lambda self, *held: [], "dict": lambda self, *held: {}, "set": lambda self, *held: set(),
        "deque": lambda self, length, *held: deque(maxlen=length), "object": _class, "restored": _class,
    }  # fmt: skip
    _VALUES: Mapping[str, Callable[..., Any]] = {
        "is": get, "external": _external, "named": _named, "value": _value, "enum": _enum, "array": _array,
        "tensor": _tensor, "memory": _memory, "dtype": _dtype, "method": _method,
        "generator": _generator, "class": lambda self, name: class_of(name, kind=tuple),
        "tuple": lambda self, *held: tuple(map(self.get, held)),
        "frozenset": lambda self, *held: frozenset(map(self.get, held)),
        "slice": lambda self, *held: slice(*map(self.get, held)),
        "bytes": lambda self, array: self.get(array).tobytes(),
        "scalar": lambda self, array: self.get(array)[()],
    }  # fmt: skip
