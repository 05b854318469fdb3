"""Short strings for policies: ``"ssp:3"``, ``"static:1%,residual=off"``, ``"steps:0.1,at=0.5"``.

    spec  = name [":" value {"," value}]
    value = text | field "=" text

Each name stands for a frozen dataclass; values fill its fields in order or by name and are read by the field's type.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

from pslab.config.table import KINDS, ROWS, find, names
from pslab.errors import ConfigError, nearest

TRUE, FALSE = frozenset({"on", "true", "yes", "1"}), frozenset({"off", "false", "no", "0"})


def split(text: str) -> tuple[str, list[str], dict[str, str]]:
    """``"static:1%,residual=off"`` -> ``("static", ["1%"], {"residual": "off"})``."""
    name, _, rest = text.partition(":")
    positional: list[str] = []
    named: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, value = part.partition("=")
        if equals:
            named[key.strip()] = value.strip()
        else:
            positional.append(part)
    return name.strip().lower(), positional, named


def describe(cls: Any) -> str:
    """The fields of a policy with their defaults: ``staleness, residual=True``."""
    parts = []
    for f in dataclasses.fields(cls):
        parts.append(f.name if f.default is dataclasses.MISSING else f"{f.name}={f.default}")
    return ", ".join(parts) or "no parameters"


def read(text: str, kind: Any) -> Any:
    """Text -> a value of the annotated type `kind`; ValueError if it cannot be one."""
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if type(None) in options and text.lower() == "none":
        return None
    if typing.get_origin(kind) is typing.Literal:
        if text in (choices := typing.get_args(kind)):
            return text
        raise ValueError(nearest(text, choices))
    if bool in options and text.lower() in TRUE | FALSE:
        return text.lower() in TRUE
    if int in options and not (str in options and not text.lstrip("+-").isdigit()):
        return int(text)
    if float in options:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    if str in options:
        return text
    raise ValueError(f"not a {getattr(kind, '__name__', kind)}")


def build(kind: str, text: str, field: str = "") -> Any:
    """The object that a string names, such as ``build("sync", "ssp:3")``; an error names `field`, or else the kind.

    Raises:
        ConfigError: unknown name, too many values, unknown or missing parameter, a value of the wrong type or range.
    """
    name = split(text)[0]
    if name not in ROWS[kind]:
        raise ConfigError(field or kind, text, f"unknown name {name!r}; {nearest(name, names(kind))}")
    return make(field or kind, text, ROWS[kind][name].load())


def make(field: str, text: str, cls: Any) -> Any:
    """An object of `cls` with the parameters of the string; what takes no parameters, such as a function, itself.

    Raises:
        ConfigError: as `build`.
    """
    name, positional, named = split(text)
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        if ":" in text:
            raise ConfigError(field, text, f"{name} takes no parameters")
        return cls
    kinds = typing.get_type_hints(cls)
    fields = [f.name for f in dataclasses.fields(cls)]
    if len(positional) > len(fields):
        raise ConfigError(field, text, f"{name} takes {describe(cls)}; got {len(positional)} values")
    arguments = {}
    for key, value in {**dict(zip(fields, positional, strict=False)), **named}.items():
        if key not in fields:
            raise ConfigError(field, text, f"{name} has no parameter {key!r}; it takes {describe(cls)}")
        try:
            arguments[key] = read(value, kinds[key])
        except ValueError as error:
            raise ConfigError(field, text, f"{key}={value!r} cannot be read: {error}") from None
    try:
        return cls(**arguments)
    except TypeError:
        missing = [f.name for f in dataclasses.fields(cls)
                   if f.default is dataclasses.MISSING and f.name not in arguments]
        raise ConfigError(field, text, f"{name} needs {', '.join(missing)}, as in '{name}:VALUE'") from None
    except ValueError as error:
        raise ConfigError(field, text, str(error)) from None


def resolve(kind: str, value: Any) -> Any:
    """The policy that a string names, or the value itself if it can do what a policy of this kind must.

    Raises:
        ConfigError: as `build`; a class instead of an object of it; an object without a method that is needed.
    """
    if isinstance(value, str):
        return build(kind, value)
    methods = ", ".join(KINDS[kind].methods)
    if isinstance(value, type):
        raise ConfigError(kind, value, f"is a class: give an object of it; a {kind} policy needs {methods}")
    missing = [name for name in KINDS[kind].methods if not hasattr(value, name)]
    if missing and find(kind, value) is None:
        raise ConfigError(kind, value, f"has no {', '.join(missing)}; a {kind} policy needs {methods}")
    return value
