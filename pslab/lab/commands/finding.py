"""Findings of the checks of `pslab doctor` and `pslab verify`, and their printed form."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

OK, NOTE, PROBLEM = "ok", "note", "problem"
SIGNS = {OK: "ok", NOTE: "note", PROBLEM: "PROBLEM"}
WIDTH, STATE, NAME = 100, 9, 15  # columns


@dataclass(frozen=True)
class Finding:
    """The result of a check, with advice if it is a note or a problem."""

    name: str
    state: str  #: ok, note or problem
    text: str
    advice: str = ""


def line(finding: Finding) -> str:
    """Return a finding in at most WIDTH columns; its advice starts on a new line."""
    head, left = f"{SIGNS[finding.state]:<{STATE}}{finding.name:<{NAME}}", " " * (STATE + NAME)
    rows = textwrap.wrap(finding.text, WIDTH, initial_indent=head, subsequent_indent=left, break_on_hyphens=False)
    rows = rows or [head.rstrip()]
    if finding.advice:
        rows += textwrap.wrap(f"-> {finding.advice}", WIDTH, initial_indent=left, subsequent_indent=left + "   ",
                              break_on_hyphens=False)  # fmt: skip
    return "\n".join(rows)
