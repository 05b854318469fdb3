"""Short strings for policies: ``"ssp:3"``, ``"static:1%,residual=off"``, ``"steps:0.1,at=0.5"``.

    spec  = name [":" value {"," value}]
    value = text | field "=" text

Each name stands for a frozen dataclass; values fill its fields in order or by name and are read by the field's type.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

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


def describe(cls: type) -> str:
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


def build(field: str, text: str, table: Mapping[str, type[Any]]) -> Any:
    """The object that a policy string names.

    Raises:
        ConfigError: unknown name, too many values, unknown or missing field, a value of the wrong type or range.
    """
    name, positional, named = split(text)
    if name not in table:
        raise ConfigError(field, text, f"unknown name {name!r}; {nearest(name, table)}")
    cls = table[name]
    kinds = typing.get_type_hints(cls)
    fields = [f.name for f in dataclasses.fields(cls)]
    if len(positional) > len(fields):
        raise ConfigError(field, text, f"{name} takes {describe(cls)}; got {len(positional)} values")
    values = {**dict(zip(fields, positional, strict=False)), **named}
    arguments = {}
    for key, value in values.items():
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
