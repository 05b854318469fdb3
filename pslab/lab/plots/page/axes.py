"""Axes as plain values: what they show, where their ticks are, and how much room those take."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pslab.lab.plots.page.theme import TYPE
from pslab.lab.records.units import plain

END = 0.95  # of an axis: a tick from here on
ROW = 14.0  # px: a line of type
NAMED, NAME_LINES = 0.4, 6  # of the page: what names on a y axis take at most, and in how many lines
WIDE = {**dict.fromkeys("iljI|.,:;'! \u00a0\u202ftf()[]/-", 0.3), **dict.fromkeys("mwMW%@—✖…", 0.9)}  # of the type size


def text_px(text: str, size: float = TYPE) -> float:
    """About the width of a text without line breaks, as Helvetica or Arial set it."""
    signs = re.sub(r"<[^>]+>", "", text)
    return 1.02 * size * sum(WIDE.get(sign, 0.69 if sign.isupper() else 0.556) for sign in signs)


def wrapped(text: str, width: float, size: float = TYPE, most: int = 0) -> list[str]:
    """The text in lines of at most so many px; a word that is wider is broken, and what is beyond `most` lines left
    out."""
    lines: list[str] = []
    for word in text.split(" "):
        if lines and text_px(f"{lines[-1]} {word}", size) <= width:
            lines[-1] += f" {word}"
            continue
        while len(begin := _begin(word, width, size)) < len(word):
            lines.append(begin)
            word = word[len(begin) :]
        lines.append(word)
    if not 0 < most < len(lines):
        return lines
    return [*lines[: most - 1], _begin(lines[most - 1], width - text_px("…", size), size) + "…"]


def _begin(word: str, width: float, size: float) -> str:
    """As many letters as fit, at least one."""
    count = len(word)
    while count > 1 and text_px(word[:count], size) > width:
        count -= 1
    return word[:count]


@dataclass(frozen=True)
class Axis:
    """What an axis shows. Neighbouring panels with equal axes share ticks and title."""

    title: str = ""
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()  #: plotly's own if there are none
    bare: bool = False  #: without grid and tick marks

    @property
    def range(self) -> list[float]:
        """As plotly takes it."""
        return [math.log10(self.low), math.log10(self.high)] if self.log else [self.low, self.high]

    def share(self, value: float) -> float:
        """Where a value lies, from 0 (low) to 1 (high); outside them where it is not in the frame."""
        low, high = self.range
        if self.log:
            value = math.log10(value) if value > 0 else low
        return (value - low) / ((high - low) or 1.0)

    @property
    def last_px(self) -> float:
        """The room to the right of an x axis for the half of a tick label at its end, which plotly hides without it."""
        shown = [text for at, text in self.ticks if not self.bare and self.share(at) > END]
        return max((text_px(text) / 2 for text in shown), default=0.0)

    @property
    def names_px(self) -> float:
        """The height of a y axis at which names in several lines do not touch; 0 where each is one line."""
        lines = [text.count("<br>") + 1 for _, text in self.ticks]
        places = sorted(self.share(at) for at, _ in self.ticks)
        nearest = min((high - low for low, high in pairwise(places)), default=1.0)
        return (max(lines) * ROW + 3) / nearest if max(lines, default=1) > 1 else 0.0

    @property
    def ticks_px(self) -> float:
        """The width of the widest tick label."""
        finest = (tick for count in (5, 10) for tick in nice(self.low, self.high, count))  # plotly's lie between
        shown = [text for _, text in self.ticks] or [*map(plain, finest)]
        return max((text_px(line) for text in shown for line in text.split("<br>")), default=0.0)


def axis(
    values: Iterable[float], title: str = "", *, log: bool = False, zero: bool = False, pad: float = 0.03,
    form: Callable[[float, float], str] | None = None,
) -> Axis:  # fmt: skip
    """An axis for these values; those that are not positive have no place on a logarithmic one.

    Args:
        zero: whether it starts at 0.
        pad: room at its ends, as a share of its length.
        form: how a tick is written beside the largest value; plotly's own ticks if None.
    """
    found = np.array([value for value in values if math.isfinite(value) and (value > 0 or not log)], dtype=float)
    low, high = (float(found.min()), float(found.max())) if len(found) else (1.0, 10.0)
    if log:
        room = (high / low) ** pad if high > low else 2.0
        low, high = low / room, high * room
        ticks = tuple((tick, form(tick, high) if form else plain(tick)) for tick in decades(low, high))
        return Axis(title, low, high, True, ticks)
    low = min(low, 0.0) if zero else low
    room = pad * ((high - low) or abs(high) or 1.0)
    low, high = low - (0.0 if zero and low == 0 else room), high + room
    return Axis(title, low, high, ticks=tuple((tick, form(tick, high)) for tick in nice(low, high)) if form else ())


def categories(names: Sequence[str], title: str = "", *, downwards: bool = False, widest: float = 0.0) -> Axis:
    """An axis on which each name has a place: 0, 1, ...; in lines of at most so many px, if that is given."""
    ends = (len(names) - 0.5, -0.5) if downwards else (-0.5, len(names) - 0.5)
    shown = ["<br>".join(wrapped(text, widest, most=NAME_LINES)) if widest else text for text in names]
    return Axis(title, *ends, ticks=tuple(enumerate(shown)), bare=True)


def nice(low: float, high: float, count: int = 5) -> list[float]:
    """About so many round numbers from low to high."""
    low, high = min(low, high), max(low, high)
    rough = max((high - low) / count, 1e-12)
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(each for each in (1, 2, 2.5, 5, 10) if each * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(step * place, 12) for place in range(first, last + 1)]


def fitting(low: float, high: float, width: float, form: Callable[[float], str]) -> tuple[tuple[float, str], ...]:
    """As many round numbers, up to about five, as do not touch side by side, where low to high are so many px."""
    choices = [tuple((tick, form(tick)) for tick in nice(low, high, count)) for count in (5, 4, 3, 2, 1)]
    several = [found for found in choices if len(found) > 1]
    return next((found for found in several if width * (found[1][0] - found[0][0]) / (high - low) >=
                 8 + max(text_px(text) for _, text in found)), [*several, choices[-1]][-1])  # fmt: skip


def decades(low: float, high: float) -> list[float]:
    """Powers of ten from low to high, with multiples of them where there are few."""
    spans = math.log10(high / low)
    steps = (1,) if spans > 2.5 else (1, 3) if spans > 1.5 else (1, 2, 5) if spans > 0.5 else ()
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1, max(1, math.ceil(spans / 8)))
    found = [float(f"{step}e{power}") for power in powers for step in steps]
    return [tick for tick in found if low <= tick * (1 + 1e-9) <= high * (1 + 2e-9)] or nice(low, high)
