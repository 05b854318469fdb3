"""The figures of merit: quantities of which a run should spend as little as possible until it holds a goal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from pslab.errors import ConfigError, nearest
from pslab.lab.records.units import SPACE, UNITS, digits, size


class Merit(NamedTuple):
    """A quantity that a run spends until it holds a goal; less is better."""

    name: str
    measure: str  #: its measure in `summary`
    columns: tuple[str, ...]  #: columns of `evaluations`, and measures of a whole run, whose sum it is
    title: str  #: the title of an axis
    less: str  #: word for a smaller value: ``"3.2 s sooner"``
    more: str
    same: str  #: words for an equal value
    text: Callable[..., str]  #: returns a value with its unit, with the decimals of a larger value if one is given


def _gradients(value: float, most: float = 0.0) -> str:
    return f"{digits(value)}{SPACE}gradients"


#: The merits by name. Bytes are sent and received by workers; gradients are counted when they are applied.
MERITS: Mapping[str, Merit] = MappingProxyType({merit.name: merit for merit in (
    Merit("seconds", "held_s", ("seconds",), "training time to the goal (s)", "sooner", "later", "as soon as",
          UNITS["s"].form),
    Merit("bytes", "held_bytes", ("bytes_up", "bytes_down"), "bytes sent and received to the goal", "less", "more",
          "as many bytes as", size),
    Merit("gradients", "held_pushes", ("pushes",), "gradients to the goal", "fewer", "more", "as many gradients as",
          _gradients),
)})  # fmt: skip
SECONDS = MERITS["seconds"]


def merit_of(name: str) -> Merit:
    """Return the figure of merit of this name.

    Raises:
        ConfigError: no figure of merit has this name.
    """
    if name not in MERITS:
        raise ConfigError("merit", name, nearest(str(name), MERITS))
    return MERITS[name]
