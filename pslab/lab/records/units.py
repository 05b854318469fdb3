"""Numbers in words, with their units."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

SPACE = "\u00a0"  # between a number and its unit
DASH = "–"  # stands for a missing value


def plain(value: object) -> str:
    """Return a value without a unit; the thousands of a number are separated."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (int, float)):
        whole = abs(value) >= 1000 and float(value).is_integer()
        return f"{value:,.0f}".replace(",", "\u202f") if whole else f"{value:g}"
    return str(value)


def size(count: float, most: float = 0.0) -> str:
    """Return bytes in words, ``12345678`` -> ``"12.3 MB"``; with `most`, in the unit of that larger number."""
    unit, step = _byte_unit(count, most)
    shown = count / step
    digits = f"{shown:.0f}" if step == 1 else f"{shown:.1f}" if shown >= 0.995 else f"{shown:#.2g}"
    return f"{digits}{SPACE}{unit}"


def round_size(count: float, most: float = 0.0) -> str:
    """Return bytes for a tick of an axis: ``10_000_000`` -> ``"10 MB"``."""
    unit, step = _byte_unit(count, most)
    return f"{plain(round(count / step, 9))}{SPACE}{unit}" if count else "0"


def _byte_unit(count: float, most: float) -> tuple[str, float]:
    # the unit of the larger number, unless the value is less than a thousandth of it
    led = most if most <= 1000 * count else count
    units = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
    return next(((unit, step) for unit, step in units if max(led, count) >= step), ("B", 1.0))


def digits(value: float, near: float | None = None) -> str:
    """Return a number with three significant digits, or with all digits before the point; "–" for NaN. With `near`, it
    has as many decimals as that number has if written with three digits: (4, 30.1) -> ``"4.0"``."""
    if not math.isfinite(value):
        return DASH if math.isnan(value) else f"{value:g}".replace("inf", "∞")
    if abs(value if near is None else near) >= 100 or (near is None and float(value).is_integer()):
        return plain(round(value))
    return f"{value:#.3g}" if near is None else f"{value:.{2 - math.floor(math.log10(abs(near) or 1))}f}"


class Unit(NamedTuple):
    """How values of a unit are written and drawn; `form` returns a value with its unit."""

    form: Callable[..., str]  #: with a second number, a value in the decimals of that one
    title: str = ""  #: added to an axis' title
    factor: float = 1.0  #: values are multiplied by it before they are drawn
    beside: Callable[..., str] | None = None  #: returns a value in the unit of a larger value, if units may differ
    tick: Callable[..., str] | None = None  #: returns the text of a tick, if units may differ between ticks


UNITS: dict[str, Unit] = {
    "s": Unit(lambda v, *near: f"{digits(v, *near)}{SPACE}s", " (s)"),
    "B": Unit(size, beside=size, tick=round_size),
    "share": Unit(lambda v, *_: f"{100 * v:.1f}{SPACE}%", " (%)", 100),
    "accuracy": Unit(lambda v, *_: f"{100 * v:.2f}{SPACE}%", " (%)", 100),
    "pushes/s": Unit(lambda v, *near: f"{digits(v, *near)}/s"),
    "": Unit(digits),
}
