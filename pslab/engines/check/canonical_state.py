"""Copies and hashable forms of state machines, made from their attributes."""

from __future__ import annotations

import types
from enum import Enum
from typing import Any

from pslab.errors import ConfigError

PLAIN = frozenset({int, str, float, bool, bytes, complex, type(None)})
SHARED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, Enum)
POLICY_STATE = "state"  # the attribute that holds a policy's state


def copied(value: Any, constant: tuple[Any, ...] = ()) -> Any:
    """Return a copy that shares no mutable object with `value`; objects in `constant` are not copied.

    Dictionaries that are attributes of a machine are sorted by key, because the machines never use their order.
    Dictionaries inside a policy's state keep their order.
    """
    return _copy(value, {id(item) for item in constant})


def _copy(value: Any, constant: set[int]) -> Any:
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is tuple:
        return tuple([_copy(item, constant) for item in value])
    if kind in (list, set, frozenset):
        return kind(_copy(item, constant) for item in value)
    if kind is dict:
        return {_copy(key, constant): _copy(item, constant) for key, item in value.items()}
    if id(value) in constant or isinstance(value, SHARED):
        return value
    if isinstance(value, tuple):
        return kind(*[_copy(item, constant) for item in value])  # a NamedTuple
    _check(kind)
    new = object.__new__(kind)
    for name, item in attributes(value):
        object.__setattr__(new, name, _sorted(name, _copy(item, constant)))
    return new


def frozen(value: Any, constant: tuple[Any, ...] = ()) -> Any:
    """Return a hashable value that is equal for equal states; dictionaries are treated as in `copied`."""
    return _freeze(value, {id(item) for item in constant})


def _freeze(value: Any, constant: set[int]) -> Any:
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is tuple or kind is list:
        return (kind, *[_freeze(item, constant) for item in value])
    if kind in (set, frozenset):
        return kind, frozenset(_freeze(item, constant) for item in value)
    if kind is dict:
        return kind, tuple([(_freeze(key, constant), _freeze(item, constant)) for key, item in value.items()])
    if id(value) in constant:
        return kind
    if isinstance(value, SHARED):
        return id(value)
    if isinstance(value, tuple):
        return (kind, *[_freeze(item, constant) for item in value])
    _check(kind)
    return (kind, *[(name, _freeze(_sorted(name, item), constant)) for name, item in attributes(value)])


def _sorted(name: str, value: Any) -> Any:
    return dict(sorted(value.items())) if type(value) is dict and name != POLICY_STATE else value


_known: set[Any] = set()  # classes whose objects have no state beside their attributes


def _check(kind: Any) -> None:
    """Refuse a class whose objects have state beside their attributes, such as a deque or an array."""
    if kind in _known:
        return
    try:
        _known.add(type(object.__new__(kind)))
    except TypeError:
        problem = "the checker cannot copy an object of this class in a policy's state"
        plain = "use numbers, strings, tuples, lists, dicts, sets, or objects with attributes instead"
        raise ConfigError("sync", kind.__name__, f"{problem}: {plain}") from None


def attributes(value: Any) -> list[tuple[str, Any]]:
    """Return the (name, value) pairs of an object's attributes, from __slots__ and __dict__."""
    kind = type(value)
    if kind not in _slots:
        declared = [cls.__dict__.get("__slots__", ()) for cls in kind.__mro__]
        named = [name for slots in declared for name in ((slots,) if isinstance(slots, str) else slots)]
        _slots[kind] = tuple(name for name in named if name not in ("__dict__", "__weakref__"))
    values = [(name, getattr(value, name)) for name in _slots[kind] if hasattr(value, name)]
    return [*values, *value.__dict__.items()] if hasattr(value, "__dict__") else values


_slots: dict[Any, tuple[str, ...]] = {}
