"""The state of a run as plain values and arrays, and back: a graph of objects, without pickle.

    nodes   JSON: a list with a kind and what it holds; a number, a word or None is itself, [7] is node number 7
    arrays  of NumPy, by their number

An object that several others hold is one node, and one object again. What a resumed run makes anew (its job, memory,
processes, callables) is an *external*: a name in the graph, an object on both sides. Nothing that a file says is
executed: classes are those of the state machines, made without their constructors, and filled with attributes.

A class with state that is no attribute, such as memory that others map, has two methods: `saved() -> value`, and
`restore(value)`, called on an object without attributes once everything else is restored.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType, MappingProxyType, MethodType
from typing import Any, NamedTuple, cast

import numpy as np

from pslab.errors import CheckpointError, shortened

ROOMS = (
    "pslab.protocol.", "pslab.policies.", "pslab.tensors.", "pslab.engines.emulation.", "pslab.engines.server.",
    "pslab.engines.worker.", "pslab.engines.virtual.", "pslab.engines.experiment.wire", "pslab.config.cluster",
)  # fmt: skip
DTYPES = ("|b1", "|u1", "|i1", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8")
SCALARS = (bool, int, float, str, type(None))
Externals = Mapping[str, Any]
Modules = Mapping[str, Mapping[str, Any]]  # by their names: what can be seen there
NO_MODULES: Modules = MappingProxyType({})


class Graph(NamedTuple):
    """A value, its last node."""

    nodes: list[list[Any]]
    arrays: list[np.ndarray]


def externals_of(job: Any, **more: Any) -> dict[str, Any]:
    """The externals of every run: its job, the objects that this holds, and its ranges; and `more`."""
    objects = {f.name: getattr(job, f.name) for f in dataclasses.fields(job)}
    held = {f"job.{name}": value for name, value in objects.items() if not isinstance(value, SCALARS)}
    parts = {f"job.parts.{index}": part for index, part in enumerate(job.parts)}
    return {"job": job, **held, **parts, **more}


def modules_of(job: Any) -> Modules:
    """The modules of the user's own policies, with the names that their functions see: states may be of classes that
    are defined there. What a notebook's cell defines is in no module of the processes that it is sent to."""
    found: dict[str, ChainMap[str, Any]] = {}
    for own in dict.fromkeys(map(type, (job.sync, job.order, job.rate))):
        seen = [function.__globals__ for base in own.__mro__ for function in map(_function, vars(base).values())
                if isinstance(function, FunctionType) and function.__module__ == own.__module__]  # fmt: skip
        found.setdefault(own.__module__, ChainMap()).maps += seen
    return found


def _function(attribute: Any) -> Any:
    """Of a method of a class, a static one or a property the function."""
    return getattr(attribute, "__func__", getattr(attribute, "fget", attribute))


def class_of(name: str, modules: Modules = NO_MODULES, kind: type = object) -> type:
    """The class of a state by "module:name", if it is one of pslab's or of these modules, and of this kind; nothing is
    imported.

    Raises:
        CheckpointError: it is not.
    """
    module, _, path = name.partition(":")
    known = module.startswith(ROOMS)
    seen = getattr(sys.modules.get(module), "__dict__", None) if known else modules.get(module)
    if seen is not None:
        first, *rest = path.split(".")
        found: Any = seen.get(first)
        for part in rest:
            found = getattr(found, part, None)
        named = isinstance(found, type) and (found.__module__, found.__qualname__) == (module, path)
        if named and issubclass(found, kind):
            return cast(type, found)
    raise CheckpointError(f"the state cannot be read: {shortened(name)} is no class of a state")


def identity(value: Any) -> Any:
    """What one object alone has; a method is made anew each time that it is asked for."""
    return (id(value.__self__), value.__func__) if isinstance(value, MethodType) else id(value)


def frozen(kind: Any) -> bool:
    """Whether objects of a class are values: a frozen dataclass."""
    return bool(getattr(getattr(kind, "__dataclass_params__", None), "frozen", False))


def slots(kind: type) -> Iterator[str]:
    """The names of a class's slots."""
    for base in kind.__mro__:
        own = base.__dict__.get("__slots__", ())
        yield from (own,) if isinstance(own, str) else own


def attributes(value: Any) -> dict[str, Any]:
    """All of an object's, in a fixed order."""
    found = {name: getattr(value, name) for name in slots(type(value)) if hasattr(value, name)}
    return {**getattr(value, "__dict__", {}), **found}


def put(shell: Any, name: str, value: Any) -> None:
    """Set an attribute, without any code of the object's class."""
    if name in slots(type(shell)) and not name.startswith("__"):
        object.__setattr__(shell, name, value)
    else:
        vars(shell)[name] = value


def pairs(held: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Each two that follow each other."""
    return zip(held[::2], held[1::2], strict=True)
