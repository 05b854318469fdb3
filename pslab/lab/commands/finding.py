"""The findings of the doctor's checks, and how they are printed."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

OK, NOTE, PROBLEM = "ok", "note", "problem"
SIGNS = {OK: "ok", NOTE: "note", PROBLEM: "PROBLEM"}
WIDTH, STATE, NAME = 100, 9, 15  # columns


@dataclass(frozen=True)
class Finding:
    """The result of a check, and a way out if it is not well; a check that raises is a problem."""

    name: str
    state: str  #: ok, note or problem
    found: str
    advice: str = ""


def line(finding: Finding) -> str:
    """A finding in at most WIDTH columns; what to do about it stands on lines of its own."""
    head, left = f"{SIGNS[finding.state]:<{STATE}}{finding.name:<{NAME}}", " " * (STATE + NAME)
    rows = textwrap.wrap(finding.found, WIDTH, initial_indent=head, subsequent_indent=left, break_on_hyphens=False)
    rows = rows or [head.rstrip()]
    if finding.advice:
        rows += textwrap.wrap(f"-> {finding.advice}", WIDTH, initial_indent=left, subsequent_indent=left + "   ",
                              break_on_hyphens=False)  # fmt: skip
    return "\n".join(rows)
