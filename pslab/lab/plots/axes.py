"""Axes as plain values: the range, and ticks where plotly's automatic ones do not fit."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from pslab.lab.records.units import plain


class Axis(NamedTuple):
    """An axis of a panel. Panels with equal axes share ticks and title."""

    title: str = ""
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()  #: plotly's automatic ones if empty
    bare: bool = False  #: whether ticks are names, without grid and tick marks
    sized: bool = False  #: whether values are bytes

    @property
    def range(self) -> list[float]:
        """The range in plotly's form: on a logarithmic axis, exponents of 10."""
        return [math.log10(self.low), math.log10(self.high)] if self.log else [self.low, self.high]

    @property
    def layout(self) -> dict[str, Any]:
        """The properties of a plotly axis, without its title."""
        properties: dict[str, Any] = {"range": self.range, "type": "log" if self.log else "linear"}
        if self.ticks:
            properties |= {"tickvals": [at for at, _ in self.ticks], "ticktext": [text for _, text in self.ticks]}
        elif self.log and self.high < 50 * self.low:
            properties |= {"dtick": "D2" if self.high > 3 * self.low else None}
        properties |= {"tickformat": "~s", "ticksuffix": "B"} if self.sized else {}
        return properties | ({"showgrid": False, "ticks": ""} if self.bare else {})


def axis(
    values: Iterable[float], title: str = "", *, log: bool = False, zero: bool = False, pad: float = 0.03,
    sized: bool = False,
) -> Axis:  # fmt: skip
    """Return an axis for these values. A logarithmic axis ignores values that are not positive.

    Args:
        zero: whether the range includes 0.
        pad: room at both ends, as a share of the range.
        sized: whether the values are bytes.
    """
    known = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    low, high = (float(min(known)), float(max(known))) if known else (1.0, 10.0)
    if log:
        room = (high / low) ** pad if high > low else 2.0
        return Axis(title, low / room, high * room, log=True, sized=sized)
    low = min(low, 0.0) if zero else low
    room = pad * ((high - low) or abs(high) or 1.0)
    return Axis(title, low - (0.0 if zero and low == 0 else room), high + room, sized=sized)


def categories(names: Iterable[str], title: str = "") -> Axis:
    """Return an axis with these names at the positions 0, 1, ..."""
    ticks = tuple(enumerate(names))
    return Axis(title, -0.5, len(ticks) - 0.5, ticks=ticks, bare=True)


def lanes(names: Iterable[str]) -> Axis:
    """Return a y axis with these names at the positions 0, 1, ... from the top."""
    shown = categories(names)
    return shown._replace(low=shown.high, high=shown.low)


def lane_px(lanes: Axis, least: float) -> float:
    """Return the height of a lane in px: at least `least`, and enough for each line of the names."""
    return max(least, *(13 * text.count("<br>") + 17 for _, text in lanes.ticks))


def numbered(values: Iterable[float]) -> tuple[tuple[float, str], ...]:
    """Return a tick for each value."""
    return tuple((value, plain(value)) for value in sorted(values))


def nice(low: float, high: float) -> list[float]:
    """Return about five round numbers from low to high."""
    rough = max((high - low) / 5, 1e-12)
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(digit for digit in (1, 2, 5, 10) if digit * power >= rough * 0.999)
    return [round(step * at, 12) for at in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
