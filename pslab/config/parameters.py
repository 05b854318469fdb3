"""Parameters as the annotated fields of a frozen dataclass: their meaning, and their allowed values.

    staleness: Annotated[int, Bounds(at_least=0), "iterations ahead of the slowest worker"]
    mode: Annotated[str, OneOf("each", "frozen"), "a threshold for every gradient, or one for all"] = "each"

`check` compares an object with its annotations; `pslab list` and `--help` show them. Fields whose type is not number,
string, switch or None are checked by their class.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import textwrap
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from pslab.errors import ConfigError, nearest

TRUE, FALSE = frozenset({"on", "true", "yes", "1"}), frozenset({"off", "false", "no", "0"})
#: The types that are checked, in words. A bool does not count as a number.
WORDS: dict[type, str] = {bool: "on (True) or off (False)", int: "a whole number", float: "a number", str: "a string",
                          types.NoneType: "None"}  # fmt: skip


@dataclass(frozen=True)
class Bounds:
    """The bounds of a number; infinity and NaN are never within bounds."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def hold(self, value: float) -> bool:
        """Whether a value lies within the bounds."""
        return (
            -math.inf < value < math.inf
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        if self.at_least is not None and self.at_most is not None:
            return f"from {_shown(self.at_least)} to {_shown(self.at_most)}"
        ends = {"of at least": self.at_least, "above": self.above, "at most": self.at_most, "below": self.below}
        return " and ".join(f"{words} {_shown(end)}" for words, end in ends.items() if end is not None)


SHARE = Bounds(above=0, at_most=1)  # the number is a share of a whole


class OneOf(tuple[str, ...]):
    """The allowed strings of a field."""

    def __new__(cls, *words: str) -> OneOf:
        return super().__new__(cls, words)


@dataclass(frozen=True)
class Parameter:
    """A field of a dataclass."""

    name: str
    kinds: tuple[Any, ...]  #: the types that a value may have
    default: Any  #: dataclasses.MISSING if the field must be given
    bounds: Bounds
    choices: OneOf  #: () if any string will do
    doc: str

    @property
    def allowed(self) -> str:
        """Return the allowed values in words: ``"a number above 0 and at most 1, or None"``."""
        words = {kind: name for kind, name in WORDS.items() if kind in self.kinds}
        for kind in {int, float} & words.keys():
            words[kind] = f"{words[kind]} {self.bounds}".strip()
        if self.choices:
            words[str] = ", ".join(self.choices)
        return ", or ".join(words.values())

    @property
    def shown(self) -> str:
        """Return the default as a person writes it, such as "on"; "" if the field must be given."""
        if self.default is dataclasses.MISSING:
            return ""
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        return _shown(self.default)

    @property
    def words(self) -> str:
        """Return the parameter's meaning, allowed values and default in words."""
        allowed = self.allowed if {*self.kinds} <= WORDS.keys() else ""
        return "; ".join(filter(None, (self.doc, allowed, f"default: {self.shown}" if self.shown else "")))

    def checked(self, value: Any) -> Any:
        """Check a value and return it, an int as a float if a float is expected. Fields of other types are not checked.

        Raises:
            ValueError: the value has another type, is out of bounds, or is not among the choices.
        """
        if any(kind not in WORDS for kind in self.kinds):
            return value
        kind = next((kind for kind in WORDS if isinstance(value, kind)), None)
        if kind in (int, float) and float in self.kinds:
            value, kind = _float(value), float
        outside = kind in (int, float) and not self.bounds.hold(value)
        unknown = kind is str and self.choices and value not in self.choices
        if kind not in self.kinds or outside or unknown:
            raise self._error(value)
        return value

    def _error(self, value: object) -> ValueError:
        only_words = self.choices and self.kinds == (str,)
        return ValueError(nearest(str(value), self.choices) if only_words else f"must be {self.allowed}")

    def _share(self, text: str) -> float:
        # refuse a whole number without a per cent sign: it may be meant in per cent
        value = number(text)
        if text.isdigit() and 1 <= value <= 100:
            what, everything = ("the whole", ", for everything 100%") if value == 1 else ("more than the whole", "")
            raise ValueError(f"{text} is {what}: for {value:g} in a hundred write {value:g}%{everything}")
        return value

    def read(self, text: str) -> Any:
        """Return the text as a value of one of the types; raise ValueError if the text fits none of them."""
        if self.choices and text in self.choices:
            return text
        if types.NoneType in self.kinds and text.lower() in ("none", "null"):
            return None
        if bool in self.kinds and text.lower() in TRUE | FALSE:
            return text.lower() in TRUE
        if int in self.kinds and (str not in self.kinds or text.lstrip("+-").isdigit()):
            return int(text)
        if float in self.kinds:
            return self._share(text) if self.bounds is SHARE else number(text)
        if str in self.kinds and not self.choices:
            return text
        raise self._error(text)


def _float(value: int | float) -> float:
    """Return the number as a float; infinity, which violates all bounds, if it is too large for a float."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def plain(value: Any) -> Any:
    """Return a value as a cell of a table: a mapping as JSON, an object as its class and arguments."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True, default=str)
    if inspect.isclass(value) or inspect.isroutine(value):
        return value.__name__
    return repr(value) if dataclasses.is_dataclass(value) else type(value).__name__


def number(text: str) -> float:
    """Return 0.01 for ``"0.01"`` and for ``"1%"``; raise ValueError for text that is no number."""
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


@lru_cache(maxsize=256)
def parameters(cls: Any) -> dict[str, Parameter]:
    """Return the fields of a dataclass by name, in their order; {} for any other object."""
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        return {}
    hints = typing.get_type_hints(cls, include_extras=True)
    return {f.name: _parameter(f, hints[f.name]) for f in dataclasses.fields(cls)}


def _parameter(f: dataclasses.Field[Any], hint: Any) -> Parameter:
    kind, *annotations = typing.get_args(hint) if typing.get_origin(hint) is typing.Annotated else (hint,)
    return Parameter(
        name=f.name,
        kinds=typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,),
        default=f.default if f.default_factory is dataclasses.MISSING else f.default_factory(),
        bounds=next((annotation for annotation in annotations if isinstance(annotation, Bounds)), Bounds()),
        choices=next((annotation for annotation in annotations if isinstance(annotation, OneOf)), OneOf()),
        doc=next((annotation for annotation in annotations if isinstance(annotation, str)), ""),
    )


def check(given: Any, prefix: str = "") -> None:
    """Check an object of a frozen dataclass against the annotations of its fields; its `__post_init__` calls this.

    Raises:
        ConfigError: a field has another type or is out of bounds; the first is named, with `prefix` before its name.
    """
    cls: Any = type(given)
    for name, parameter in parameters(cls).items():
        value = getattr(given, name)
        try:
            checked = parameter.checked(value)
        except ValueError as error:
            raise ConfigError(prefix + name, value, str(error)) from None
        if checked is not value:
            object.__setattr__(given, name, checked)


def check_names(
    given: Mapping[str, Any], known: Collection[str], prefix: str = "", problem: str = "there is no such field"
) -> None:
    """Refuse unknown names in a mapping.

    Raises:
        ConfigError: a name is unknown; the first is named, with `prefix` before it.
    """
    for name in given:
        if name not in known:
            raise ConfigError(f"{prefix}{name}", given[name], f"{problem}; {nearest(str(name), known)}")


C = TypeVar("C", bound=type)


def described(cls: C) -> C:
    """Make a dataclass refuse unknown fields and name the nearest valid one, and describe each field in its docstring.

    Raises:
        ConfigError: raised by the dataclass's constructor for an unknown field.
    """
    init, known = vars(cls)["__init__"], parameters(cls)

    @functools.wraps(init)
    def __init__(self: Any, *values: Any, **fields: Any) -> None:  # noqa: N807
        check_names(fields, known, problem=f"{cls.__name__} has no such field")
        init(self, *values, **fields)

    lines = (textwrap.fill(f"{name}: {field.words}", 100, initial_indent="    ", subsequent_indent=" " * 8)
             for name, field in known.items())  # fmt: skip
    cls.__doc__ = "\n".join([inspect.getdoc(cls) or "", "", "Fields:", *lines])
    cls.__init__ = __init__  # type: ignore[misc]
    given = [parameter.replace(annotation=parameter.empty) for parameter in inspect.signature(cls).parameters.values()]
    cls.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]
    return cls
