"""Strings for policies: ``"ssp:3"``, ``"static:1%,residual=off"``, ``"steps:0.1,at=0.5"``.

    spec  = name [":" value {"," value}]
    value = text | field "=" text

Each name is a row of `pslab.config.table` that refers to a frozen dataclass; values are assigned to its fields in order
or by name, and are parsed by the field's type.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from pslab.config.parameters import parameters
from pslab.config.table import KINDS, ROWS, find, names
from pslab.errors import ConfigError, nearest


def split(text: str) -> tuple[str, list[str], dict[str, str]]:
    """Return name, positional and named values: "static:1%,residual=off" -> "static", ["1%"], {"residual": "off"}."""
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
    """Return the fields of a policy with their defaults: ``staleness, residual=True``."""
    fields = parameters(cls).items()
    return ", ".join(f"{name}={p.shown}" if p.shown else name for name, p in fields) or "no parameters"


def build(kind: str, text: str, field: str = "") -> Any:
    """Return the object that a string describes: ``build("sync", "ssp:3")``. Errors name `field`, by default the kind.

    Raises:
        ConfigError: an unknown name, too many values, an unknown or missing parameter, or a value of the wrong type or
            range.
    """
    name = split(text)[0]
    if name not in ROWS[kind]:
        raise ConfigError(field or kind, text, f"unknown name {name!r}; {nearest(name, names(kind))}")
    return make(field or kind, text, ROWS[kind][name].load(), ROWS[kind][name].example)


def make(field: str, text: str, cls: Any, example: str = "") -> Any:
    """Return an object of `cls` with the parameters in the string; if `cls` is a function, return it as it is.

    Errors show the `example`, such as "ssp:3".

    Raises:
        ConfigError: as `build`.
    """
    name, positional, named = split(text)
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        if ":" in text:
            raise ConfigError(field, text, f"{name} takes no parameters: write {name!r}")
        return cls
    fields = parameters(cls)
    if len(positional) > len(fields):
        raise ConfigError(field, text, f"{name} takes {describe(cls)}; got {len(positional)} values: remove some")
    arguments = {}
    first = dict(zip(fields, positional, strict=False))
    if twice := [key for key in first if key in named]:
        raise ConfigError(field, text, f"{twice[0]} is given twice: as {first[twice[0]]!r} and as {named[twice[0]]!r}")
    for key, value in {**first, **named}.items():
        if key not in fields:
            raise ConfigError(field, text, f"{name} has no parameter {key!r}; {nearest(key, fields)}")
        try:
            arguments[key] = fields[key].read(value)
        except ValueError as error:
            raise ConfigError(field, text, f"{key}={value!r} cannot be read: {error}") from None
    missing = [key for key, p in fields.items() if p.default is dataclasses.MISSING and key not in arguments]
    if missing:
        raise ConfigError(field, text, f"{name} needs {', '.join(missing)}, as in '{example or f'{name}:VALUE'}'")
    try:
        return cls(**arguments)
    except ValueError as error:
        raise ConfigError(field, text, str(error)) from None


def resolve(kind: str, value: Any) -> Any:
    """Return the policy that a string describes, or the value itself if it has the methods of this kind of policy.

    Raises:
        ConfigError: as `build`; or the value is a class, or an object that lacks a method.
    """
    if isinstance(value, str):
        return build(kind, value)
    methods = ", ".join(KINDS[kind].methods)
    if isinstance(value, type):
        raise ConfigError(kind, value, f"is a class: give an object of it; an object for {kind} needs {methods}")
    missing = [name for name in KINDS[kind].methods if not hasattr(value, name)]
    if missing and find(kind, value) is None:
        raise ConfigError(kind, value, f"has no {', '.join(missing)}; an object for {kind} needs {methods}")
    return value


def import_named(field: str, text: str, load: Callable[[str], Any] = import_module) -> Any:
    """Return the object that "package.module:attribute" names; the attribute may be dotted. `load` imports the module.

    Raises:
        ConfigError: the text has another form, the module cannot be imported, or it has no such attribute (with the
            nearest one).
    """
    path, colon, attributes = text.partition(":")
    close = get_close_matches(path.strip().lower(), ROWS.get(field, {}), n=1)
    near = f"; did you mean '{close[0]}{colon}{attributes}'?" if close else ""
    if not colon or not all(part.isidentifier() for part in (*path.split("."), *attributes.split("."))):
        raise ConfigError(field, text, f"must have the form package.module:name{near}")
    try:
        loaded = load(path)
    except Exception as error:
        problem = f"{path} cannot be imported: {type(error).__name__}: {error}{near}"
        raise ConfigError(field, text, problem) from error
    for attribute in attributes.split("."):
        if not hasattr(loaded, attribute):
            others = get_close_matches(attribute, dir(loaded), n=3, cutoff=0.4)
            hint = f"; did you mean {' or '.join(repr(n) for n in others)}?" if others else ""
            raise ConfigError(field, text, f"{path} has no {attribute!r}{hint}")
        loaded = getattr(loaded, attribute)
    return loaded
