"""claim(text, value, at_least=..., at_most=...): a sentence of a notebook whose number must lie within bounds."""

from __future__ import annotations

import html
import math
import sys
from collections import Counter
from dataclasses import dataclass

from pslab.errors import ConfigError
from pslab.lab.records import journal
from pslab.lab.records.frames import Given, unique
from pslab.lab.records.units import SPACE

ONE = "one seed"
RED, PLAIN = "\x1b[31m", "\x1b[0m"


class _Number(float):
    """A number that is formatted with a space before the per cent sign, as in the other words of a figure."""

    def __format__(self, form: str) -> str:
        return super().__format__(form).replace("%", f"{SPACE}%")


@dataclass(frozen=True)
class Claim:
    """A sentence, its number, and whether the number lies within its bounds (None: not judged)."""

    text: str
    value: float
    bounds: str
    holds: bool | None
    why: str = ""  #: why the claim is not judged
    basis: str = ""  #: the number of seeds, and of runs that diverged

    @property
    def title(self) -> str | None:
        """Return the sentence and its basis, for a figure's title; None if the claim does not hold or is not judged."""
        there = "there is " if self.basis.startswith(ONE) and "seed" in self.text.lower() else ""
        return self.text + (f" ({there}{self.basis})" if self.basis else "") if self.holds else None

    def __repr__(self) -> str:
        if self.holds is None:
            return f"not judged ({self.why}): {self.text}"
        return f"✓ {self.text}" if self.holds else f"✗ {self.text}: {self.value:g} is not {self.bounds}"

    def _repr_html_(self) -> str:
        """Return the claim as HTML in the page's colours; its mark's colour is visible on light and dark pages."""
        if self.holds is None:
            return f"<p style='opacity:.7'>{html.escape(repr(self))}</p>"
        colour = "#388E3C" if self.holds else "#D64545"
        return f"<p><b style='color:{colour}'>{repr(self)[0]}</b>{html.escape(repr(self)[1:])}</p>"


def claim(
    text: str,
    value: float,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    given: bool = True,
    results: Given = (),
) -> Claim:
    """Judge whether `value` lies within the bounds, and return the claim.

    A claim that does not hold is printed in red on stderr and makes `python -m pslab figures` fail; nothing is raised.
    NaN is within no bounds. A claim is not judged if the machine did not keep up with the emulation of a result.

    Args:
        text: the sentence; it may contain ``{value:.2f}``.
        given: whether the claim is made for the notebook's present parameters; if not, it is not judged.
        results: the results on which the claim is based; the title of the claim counts their seeds and diverged runs.

    Raises:
        ConfigError: no bound is given, so the claim would hold for any value.
    """
    if at_least is None and at_most is None:
        raise ConfigError("at_least", None, "a claim needs a bound: give at_least= or at_most=")
    bounds = " and ".join([*([f"at least {at_least:g}"] if at_least is not None else []),
                           *([f"at most {at_most:g}"] if at_most is not None else [])])  # fmt: skip
    low, high = -math.inf if at_least is None else at_least, math.inf if at_most is None else at_most
    value, why, distinct = float(value), "", unique(results)
    if not given:
        why = "it is made for other parameters"
    elif not all(result.emulation_ok for result in distinct):
        why = "the machine did not keep up with the emulated cluster"
    holds = None if why else bool(low <= value <= high)  # bool: a bound may be a NumPy number
    made = Claim(text.format(value=_Number(value)), value, bounds, holds, why, basis(distinct))
    journal.note(claim={"text": made.text, "value": value, "bounds": bounds, "holds": holds, "why": why})
    if holds is False:
        print(f"{RED}{made!r}{PLAIN}", file=sys.stderr)
    return made


def basis(results: Given) -> str:
    """Return the numbers of seeds and of diverged runs in words, ``"1–5 seeds, 2 of 40 runs diverged"``, or ""."""
    if not len(distinct := unique(results)):
        return ""
    counts = {*Counter(result.run.but(seed=0).digest for result in distinct).values()}
    words = ONE if counts == {1} else f"{'–'.join(map(str, sorted({min(counts), max(counts)})))} seeds"
    lost = sum(result.diverged for result in distinct)
    return words + (f", {lost} of {len(distinct)} runs diverged" if lost else "")
