"""pslab check: is a policy safe?"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from pslab.engines.check.plan import HEAD, STATES_MAX, Checked, check, examples, row
from pslab.engines.check.result import Explored
from pslab.engines.check.worker import FAULTS
from pslab.errors import ExportError


def add(verbs: Any) -> None:
    """Add the verb and its options."""
    parser = verbs.add_parser(
        "check", help="is a policy safe? every order of events in a small cluster, with faults", description=(
            "Explore every order in which things can happen to a small cluster: the staleness bound is kept, every "
            "push is applied exactly once, weights do not change while they are read, no worker waits forever."),
    )  # fmt: skip
    parser.add_argument("policies", nargs="*", metavar="POLICY", help=f"ssp:3, package.module:name, ...; default: "
                        f"{' '.join(examples())}")  # fmt: skip
    parser.add_argument("--workers", type=_list, metavar="N[,N...]", help="default: 1,2,3, and 2 with two ranges")
    parser.add_argument("--ranges", type=_list, metavar="N[,N...]", help="default: 1, and 2 with two workers")
    parser.add_argument("--servers", type=int, metavar="N", help="that hold the ranges; one decides; default: 1")
    parser.add_argument("--iterations", type=int, metavar="N", help="of a worker; default: as the policy's bound needs")
    parser.add_argument("--faults", type=_words, metavar="F[,F...]", help=f"some of {', '.join(FAULTS)}, or none; "
                        "default: none, each alone, and all together")  # fmt: skip
    parser.add_argument("--faults-max", type=int, metavar="N", help="in a run; default: all, 2 with several ranges")
    parser.add_argument("--bound", type=int, metavar="N", help="of iterations ahead; default: the policy's own")
    parser.add_argument("--states-max", type=int, default=STATES_MAX, metavar="N", help="of one exploration, at most")
    parser.add_argument("--layered", action="store_true", help="workers push and wait range by range, in one pass")
    parser.add_argument("--processes", type=int, metavar="N", help="default: as many as cores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results into this file")


def main(options: argparse.Namespace) -> int:
    """Explore, and print each result as it is found. Exit status: 1 violated or unfinished, 2 bad arguments."""
    given = dict(vars(options))
    policies, file = given.pop("policies"), given.pop("json")
    checked = check(*policies, on_explored=_Table(), **given)
    print("\n".join(checked.summary()))
    if file:
        _write(file, checked)
    return 0 if checked.clean else 1


class _Table:
    """Prints a row for each exploration, under a header."""

    started = False

    def __call__(self, explored: Explored) -> None:
        if not self.started:
            print(HEAD)
        self.started = True
        print(row(explored), flush=True)


def _list(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _words(text: str) -> list[str]:
    return [] if text == "none" else list(FAULTS) if text == "all" else text.split(",")


def _write(file: Path, checked: Checked) -> None:
    explored = [{**dataclasses.asdict(each), "verdict": each.verdict} for each in checked.explored]
    content = {"states": checked.states, "seconds": checked.seconds, "clean": checked.clean, "explored": explored}
    try:
        file.write_text(json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise ExportError(f"{file} cannot be written: {error.strerror}") from None
