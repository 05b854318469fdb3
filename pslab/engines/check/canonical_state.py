"""Copies and canonical forms of state machines, made from outside: the machines need no code for it.

A worker's number is a Name, an int that is recognised wherever a machine or a policy has stored it. So a state can be
copied with its workers renamed, which is sound for code that uses the number as an identity and nothing else.
"""

from __future__ import annotations

import types
from enum import Enum
from typing import Any

from pslab.errors import ConfigError

PLAIN = frozenset({int, str, float, bool, bytes, complex, type(None)})
SHARED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, Enum)
POLICY_STATE = "state"  # the attribute that holds a policy's state


class Name(int):
    """The number of a worker."""

    __slots__ = ()


def names(count: int) -> tuple[Name, ...]:
    """The workers 0, 1, ..."""
    return tuple(map(Name, range(count)))


def copied(value: Any, renamed: tuple[Name, ...], constant: tuple[Any, ...] = ()) -> Any:
    """A copy that shares nothing mutable, with worker i renamed to renamed[i]; `constant` objects are not copied.

    Dictionaries that are attributes of a machine are sorted by key: the machines never use their order. Dictionaries
    inside a policy's state keep theirs.
    """
    return _Copier(renamed, constant).copy(value)


class _Copier:
    def __init__(self, renamed: tuple[Name, ...], constant: tuple[Any, ...]) -> None:
        self.renamed, self.constant = renamed, {id(each) for each in constant}

    def copy(self, value: Any) -> Any:
        kind = type(value)
        if kind is Name:
            return self.renamed[value]
        if kind in PLAIN:
            return value
        if kind is tuple:
            return tuple([self.copy(each) for each in value])
        if kind in (list, set, frozenset):
            return kind(self.copy(each) for each in value)
        if kind is dict:
            return {self.copy(key): self.copy(each) for key, each in value.items()}
        if id(value) in self.constant or isinstance(value, SHARED):
            return value
        if isinstance(value, tuple):
            return kind(*[self.copy(each) for each in value])  # a NamedTuple
        _check(kind)
        new = object.__new__(kind)
        for name, each in attributes(value):
            object.__setattr__(new, name, _sorted(name, self.copy(each)))
        return new


def frozen(value: Any, constant: tuple[Any, ...] = ()) -> Any:
    """A hashable value that is equal for equal states; dictionaries count as in `copied`."""
    return _freeze(value, {id(each) for each in constant})


def _freeze(value: Any, constant: set[int]) -> Any:
    kind = type(value)
    if kind is Name:
        return f"worker {int(value)}"  # no number equals it
    if kind in PLAIN:
        return value
    if kind is tuple or kind is list:
        return (kind, *[_freeze(each, constant) for each in value])
    if kind in (set, frozenset):
        return kind, frozenset(_freeze(each, constant) for each in value)
    if kind is dict:
        return kind, tuple([(_freeze(key, constant), _freeze(each, constant)) for key, each in value.items()])
    if id(value) in constant:
        return kind
    if isinstance(value, SHARED):
        return id(value)
    if isinstance(value, tuple):
        return (kind, *[_freeze(each, constant) for each in value])
    _check(kind)
    return (kind, *[(name, _freeze(_sorted(name, each), constant)) for name, each in attributes(value)])


def _sorted(name: str, value: Any) -> Any:
    return dict(sorted(value.items())) if type(value) is dict and name != POLICY_STATE else value


_known: set[Any] = set()  # classes whose objects hold nothing but their attributes


def _check(kind: Any) -> None:
    """A state cannot contain an object that holds more than its attributes, such as a deque or an array."""
    if kind in _known:
        return
    try:
        _known.add(type(object.__new__(kind)))
    except TypeError:
        problem = "a policy's state cannot hold this to be explored"
        plain = "use numbers, strings, tuples, lists, dicts, sets, or objects with attributes"
        raise ConfigError("sync", kind.__name__, f"{problem}: {plain}") from None


def attributes(value: Any) -> list[tuple[str, Any]]:
    """The attributes of an object, in __slots__ or in __dict__."""
    kind = type(value)
    if kind not in _slots:
        declared = [cls.__dict__.get("__slots__", ()) for cls in kind.__mro__]
        named = [name for each in declared for name in ((each,) if isinstance(each, str) else each)]
        _slots[kind] = tuple(name for name in named if name not in ("__dict__", "__weakref__"))
    found = [(name, getattr(value, name)) for name in _slots[kind] if hasattr(value, name)]
    return [*found, *value.__dict__.items()] if hasattr(value, "__dict__") else found


_slots: dict[Any, tuple[str, ...]] = {}
