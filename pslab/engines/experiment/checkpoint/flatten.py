"""From objects to a graph of nodes and arrays."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from types import MethodType
from typing import Any

import numpy as np
import torch

from pslab.engines.experiment.checkpoint.graph import (
    DTYPES,
    NO_MODULES,
    SCALARS,
    Externals,
    Graph,
    Modules,
    attributes,
    class_of,
    frozen,
    identity,
)
from pslab.engines.experiment.shared_memory import Arena
from pslab.errors import CheckpointError, shortened


def flatten(value: Any, externals: Externals, arena: Arena | None = None, modules: Modules = NO_MODULES) -> Graph:
    """The graph of a value. Arrays are those that it holds, not copies; tensors in the `arena` are places in it.

    Raises:
        CheckpointError: something that cannot be saved; the message names the way to it.
    """
    writer = _Writer(externals, arena, modules)
    try:
        writer.nodes.append(["is", writer.put(value)])
    except _Unknown as error:
        raise CheckpointError(f"this run cannot be checkpointed: {''.join(error.path)} {error}") from None
    except RecursionError:
        raise CheckpointError("this run cannot be checkpointed: its state is nested too deeply") from None
    return Graph(writer.nodes, writer.arrays)


class Fixed:
    """Objects of the user's that are taken for constants: policies, rules. A run with one that changes is refused."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._objects = dict(objects)
        self._before = {name: _content(value) for name, value in self._objects.items()}

    @classmethod
    def of(cls, job: Any) -> Fixed:
        """Those of a job, which is a Job, of a room above."""
        return cls({name: getattr(job, name) for name in ("sync", "order", "rate", "schedule")})

    def check(self) -> None:
        """They are as they were.

        Raises:
            CheckpointError: one of them has changed itself.
        """
        for name, value in self._objects.items():
            if _content(value) != self._before[name]:
                words = f"its {name}, a {type(value).__name__}, keeps state of its own in its attributes"
                raise CheckpointError(f"this run cannot be checkpointed: {words}")


def _content(value: Any) -> dict[str, Any]:
    """What an object's attributes are: by value, or, where that cannot be, the objects themselves."""
    found: dict[str, Any] = {}
    for name, each in attributes(value).items():
        try:
            nodes, arrays = flatten(each, {})
        except CheckpointError:
            found[name] = id(each)
        else:
            found[name] = nodes, [array.tobytes() for array in arrays]
    return found


class _Unknown(Exception):
    """Something that cannot be saved, and the way to it."""

    def __init__(self, problem: str) -> None:
        self.path: list[str] = []
        super().__init__(problem)


class _Writer:
    def __init__(self, externals: Externals, arena: Arena | None, modules: Modules) -> None:
        self.nodes: list[list[Any]] = []
        self.arrays: list[np.ndarray] = []
        self._arena, self._modules = arena, modules
        self._known: dict[int, tuple[Any, list[int]]] = {}  # by id: the object, which must live on, and its node
        self._external = {identity(value): name for name, value in externals.items()}

    def put(self, value: Any) -> Any:
        """What stands for a value in a node."""
        kind = type(value)
        if kind in SCALARS:
            return value
        if (known := self._known.get(id(value))) is not None:
            return known[1]
        if (name := self._external.get(identity(value))) is not None:
            return self._add(value, "external", name)
        if (write := _WRITERS.get(kind)) is not None:
            return write(self, value)
        return self._object(value)

    def _add(self, value: Any, *node: Any) -> list[int]:
        reference = [len(self.nodes)]
        self.nodes.append(list(node))
        self._known[id(value)] = value, reference
        return reference

    def _each(self, values: Iterable[Any]) -> list[Any]:
        found: list[Any] = []
        try:
            for each in values:
                found.append(self.put(each))
        except _Unknown as error:
            error.path.insert(0, f"[{len(found)}]")
            raise
        return found

    def _named(self, values: Mapping[str, Any]) -> list[Any]:
        found: list[Any] = []
        for name, each in values.items():
            try:
                found += [name, self.put(each)]
            except _Unknown as error:
                error.path.insert(0, f".{name}")
                raise
        return found

    def _sequence(self, value: Any) -> list[int]:
        reference = self._add(value, type(value).__name__)
        self.nodes[reference[0]] += self._each(value)
        return reference

    def _deque(self, value: deque[Any]) -> list[int]:
        reference = self._add(value, "deque", value.maxlen)
        self.nodes[reference[0]] += self._each(value)
        return reference

    def _dict(self, value: dict[Any, Any]) -> list[int]:
        reference = self._add(value, "dict")
        node = self.nodes[reference[0]]
        for key, each in value.items():
            try:
                node += [self.put(key), self.put(each)]
            except _Unknown as error:
                error.path.insert(0, f"[{shortened(key)}]")
                raise
        return reference

    def _value(self, value: Any) -> list[int]:
        """A tuple or a frozen set: what it holds comes before it."""
        return self._add(value, type(value).__name__, *self._each(value))

    def _slice(self, value: slice) -> list[int]:
        return self._add(value, "slice", *self._each((value.start, value.stop, value.step)))

    def _array(self, value: np.ndarray) -> list[int]:
        if value.dtype.str not in DTYPES:
            raise _Unknown(f"is an array of {value.dtype}")
        self.arrays.append(np.ascontiguousarray(value).reshape(value.shape))
        return self._add(value, "array", len(self.arrays) - 1)

    def _scalar(self, value: np.generic) -> list[int]:
        return self._add(value, "scalar", self._array(np.asarray(value)))

    def _bytes(self, value: bytes) -> list[int]:
        return self._add(value, "bytes", self._array(np.frombuffer(value, np.uint8)))

    def _tensor(self, value: torch.Tensor) -> list[int]:
        offset = None if self._arena is None else self._arena.offset_of(value)
        if not value.is_contiguous() or value.device.type != "cpu":
            raise _Unknown(f"is a tensor that is not contiguous on the CPU, but {tuple(value.shape)} on {value.device}")
        if offset is not None:
            return self._add(value, "memory", offset, list(value.shape), str(value.dtype).removeprefix("torch."))
        if value.untyped_storage().nbytes() != value.nbytes:
            raise _Unknown("is a tensor that is part of another one")
        return self._add(value, "tensor", self._array(value.detach().numpy()))

    def _dtype(self, value: torch.dtype) -> list[int]:
        return self._add(value, "dtype", str(value).removeprefix("torch."))

    def _generator(self, value: np.random.Generator) -> list[int]:
        state = value.bit_generator.state
        if state["bit_generator"] != "PCG64":
            raise _Unknown(f"is a generator of {state['bit_generator']}, not of PCG64")
        return self._add(value, "generator", *state["state"].values(), state["has_uint32"], state["uinteger"])

    def _method(self, value: MethodType) -> list[int]:
        if identity(value.__self__) in self._external:
            raise _Unknown(f"is a method, {shortened(value)}, of what the run is given anew")
        return self._add(value, "method", self.put(value.__self__), value.__func__.__name__)

    def _class(self, value: type) -> list[int]:
        """A message's, which may be part of a key."""
        name = f"{value.__module__}:{value.__qualname__}"
        try:
            class_of(name, kind=tuple)
        except CheckpointError:
            raise _Unknown(f"is the class {name}") from None
        return self._add(value, "class", name)

    def _object(self, value: Any) -> list[int]:
        kind = type(value)
        name = f"{kind.__module__}:{kind.__qualname__}"
        try:
            class_of(name, self._modules)
        except CheckpointError:
            raise _Unknown(f"is a {name}, whose state pslab does not know") from None
        if isinstance(value, Enum):
            return self._add(value, "enum", name, value.name)
        if isinstance(value, tuple):
            return self._add(value, "named", name, *self._each(value))
        if frozen(kind):
            return self._add(value, "value", name, *self._named(attributes(value)))
        reference = self._add(value, "restored" if hasattr(kind, "restore") else "object", name)
        if hasattr(kind, "restore"):
            self.nodes[reference[0]].append(self.put(value.saved()))
        else:
            self.nodes[reference[0]] += self._named(attributes(value))
        return reference


_WRITERS: dict[type, Callable[[_Writer, Any], list[int]]] = {
    list: _Writer._sequence, set: _Writer._sequence, deque: _Writer._deque, dict: _Writer._dict,
    tuple: _Writer._value, frozenset: _Writer._value, slice: _Writer._slice, bytes: _Writer._bytes,
    np.ndarray: _Writer._array, torch.Tensor: _Writer._tensor, torch.dtype: _Writer._dtype,
    np.random.Generator: _Writer._generator, MethodType: _Writer._method, type: _Writer._class,
    **{getattr(np, name): _Writer._scalar for name in ("float64", "float32", "int64", "int32", "bool_")},
}  # fmt: skip
