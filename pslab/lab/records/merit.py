"""The figures of merit: of what as little as possible is to be spent until a goal is held."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from pslab.errors import ConfigError, nearest
from pslab.lab.records.units import SPACE, UNITS, digits, seconds, size


class Merit(NamedTuple):
    """A quantity that a run spends until it holds a goal; less is better."""

    name: str
    measure: str  #: of `summary`
    columns: tuple[str, ...]  #: of `evaluations`, and measures of a whole run, that sum to it
    title: str  #: of an axis
    less: str  #: a difference in words: ``"3.2 s sooner"``
    more: str
    same: str  #: of two runs that need the same
    text: Callable[..., str]  #: a value with its unit, beside a larger one if that is given: ``"4.0 s"`` beside 30.1 s


def _seconds(value: float, most: float | None = None) -> str:
    return UNITS["s"].form(value) if most is None else seconds(value, most)


def _gradients(value: float, most: float = 0.0) -> str:
    return f"{digits(value)}{SPACE}gradients"


#: By name. Bytes are sent and received by workers, gradients are applied ones.
MERITS: Mapping[str, Merit] = MappingProxyType({each.name: each for each in (
    Merit("seconds", "held_s", ("seconds",), "training time to the goal (s)", "sooner", "later", "as soon as",
          _seconds),
    Merit("bytes", "held_bytes", ("bytes_up", "bytes_down"), "bytes sent and received to the goal", "less", "more",
          "as many bytes as", size),
    Merit("gradients", "held_pushes", ("pushes",), "gradients to the goal", "fewer", "more", "as many gradients as",
          _gradients),
)})  # fmt: skip
SECONDS = MERITS["seconds"]


def merit_of(name: str) -> Merit:
    """The figure of merit of this name.

    Raises:
        ConfigError: there is none.
    """
    if name not in MERITS:
        raise ConfigError("merit", name, nearest(str(name), MERITS))
    return MERITS[name]
