"""pslab doctor: what is well here, what is not, and what to do about it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import textwrap
from collections.abc import Iterator
from typing import Any

from pslab.lab.commands import checks
from pslab.lab.commands.checks import PROBLEM, Finding

WIDTH, STATE, NAME = 100, 9, 15
SIGNS = {"ok": "ok", "note": "note", "problem": "PROBLEM"}


def examine() -> Iterator[Finding]:
    """Each check's finding, as soon as it is there; what a check raises is its finding."""
    for check in checks.CHECKS:
        try:
            yield check()
        except Exception as error:  # a broken installation raises of every kind
            name = check.__name__.replace("_", " ")
            first = (str(error).strip().splitlines() or [""])[0]
            yield Finding(name, PROBLEM, f"{type(error).__name__}: {first}",
                          "mend what is said here, or set the environment up anew: make clean test")  # fmt: skip


def line(finding: Finding) -> str:
    """A finding in a table of at most WIDTH columns; what to do is on a line of its own."""
    head, left = f"{SIGNS[finding.state]:<{STATE}}{finding.name:<{NAME}}", " " * (STATE + NAME)
    rows = textwrap.wrap(finding.found, WIDTH, initial_indent=head, subsequent_indent=left, break_on_hyphens=False)
    rows = rows or [head.rstrip()]
    if finding.advice:
        rows += textwrap.wrap(f"-> {finding.advice}", WIDTH, initial_indent=left, subsequent_indent=left + "   ",
                              break_on_hyphens=False)  # fmt: skip
    return "\n".join(rows)


def add(verbs: Any) -> None:
    """The verb and its options."""
    parser = verbs.add_parser("doctor", help="what is not well here, and what to do about it")
    parser.add_argument("--json", action="store_true", help="as JSON")


def main(options: argparse.Namespace) -> int:
    """Look at everything and report it; exit status 1 if there is a problem."""
    found = []
    for finding in examine():
        found.append(finding)
        if not options.json:
            print(line(finding), flush=True)
    counts = {state: sum(finding.state == state for finding in found) for state in SIGNS}
    if options.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in found], indent=1))
    else:
        print(", ".join(f"{count} {SIGNS[state]}" for state, count in counts.items() if count))
    return 1 if counts[PROBLEM] else 0
