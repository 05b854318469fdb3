"""pslab check: explores every order of events in small clusters to check that a policy is safe."""

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
        "check", help="check that a policy is safe, in every order of events in a small cluster", description=(
            "Explore every order of events in a small cluster, with faults: the staleness bound is kept, every "
            "push is applied exactly once, weights do not change while they are read, no worker waits forever."),
    )  # fmt: skip
    parser.add_argument("policies", nargs="*", metavar="POLICY", help=f"ssp:3, package.module:name, ...; default: "
                        f"{' '.join(examples())}")  # fmt: skip
    parser.add_argument("--workers", type=_list, metavar="N[,N...]", help="default: 1,2,3, and 2 with two ranges")
    parser.add_argument("--ranges", type=_list, metavar="N[,N...]", help="default: 1, and 2 with two workers")
    parser.add_argument("--servers", type=int, metavar="N", help="servers that share the ranges; default: 1")
    parser.add_argument("--iterations", type=int, metavar="N", help="per worker; default: enough to break the bound")
    parser.add_argument("--faults", type=_words, metavar="F[,F...]", help=f"some of {', '.join(FAULTS)}, or none; "
                        "default: none, each alone, and all together")  # fmt: skip
    parser.add_argument("--faults-max", type=int, metavar="N", help="faults a run; default: all, 2 with several ranges")
    parser.add_argument("--bound", type=int, metavar="N", help="staleness bound to check; default: the policy's")
    parser.add_argument("--states-max", type=int, default=STATES_MAX, metavar="N", help="limit of one exploration")
    parser.add_argument("--layered", action="store_true", help="workers push and wait range by range, in one pass")
    parser.add_argument("--processes", type=int, metavar="N", help="default: the number of cores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results into this file")


def main(options: argparse.Namespace) -> int:
    """Explore, and print each result once it is known; return 0, or 1 if a check failed or was not finished."""
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
    explored = [{**dataclasses.asdict(result), "verdict": result.verdict} for result in checked.explored]
    content = {"states": checked.states, "seconds": checked.seconds, "clean": checked.clean, "explored": explored}
    try:
        file.write_text(json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise ExportError(f"{file} cannot be written: {error.strerror}; name another file by --json") from None
