"""Copies and canonical forms of state machines, made from outside: the machines need no code for it."""

from __future__ import annotations

import types
from enum import Enum
from typing import Any

from pslab.errors import ConfigError

PLAIN = frozenset({int, str, float, bool, bytes, complex, type(None)})
SHARED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, Enum)
POLICY_STATE = "state"  # the attribute that holds a policy's state


def copied(value: Any, constant: tuple[Any, ...] = ()) -> Any:
    """A copy that shares nothing mutable; `constant` objects are not copied.

    Dictionaries that are attributes of a machine are sorted by key: the machines never use their order. Dictionaries
    inside a policy's state keep theirs.
    """
    return _copy(value, {id(each) for each in constant})


def _copy(value: Any, constant: set[int]) -> Any:
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is tuple:
        return tuple([_copy(each, constant) for each in value])
    if kind in (list, set, frozenset):
        return kind(_copy(each, constant) for each in value)
    if kind is dict:
        return {_copy(key, constant): _copy(each, constant) for key, each in value.items()}
    if id(value) in constant or isinstance(value, SHARED):
        return value
    if isinstance(value, tuple):
        return kind(*[_copy(each, constant) for each in value])  # a NamedTuple
    _check(kind)
    new = object.__new__(kind)
    for name, each in attributes(value):
        object.__setattr__(new, name, _sorted(name, _copy(each, constant)))
    return new


def frozen(value: Any, constant: tuple[Any, ...] = ()) -> Any:
    """A hashable value that is equal for equal states; dictionaries count as in `copied`."""
    return _freeze(value, {id(each) for each in constant})


def _freeze(value: Any, constant: set[int]) -> Any:
    kind = type(value)
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
    """Refuse an object that holds more than its attributes, such as a deque or an array."""
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
