"""pslab chaos [--seed N] [--runs M | --minutes M] [--engine virtual|local]"""

from __future__ import annotations

import argparse
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pslab.config.parameters import Bounds
from pslab.errors import ConfigError

if TYPE_CHECKING:
    from pslab.engines.experiment.experiment import Outcome

ENGINES = ("virtual", "local")
RUNS = {"virtual": 1000, "local": 20}
SHOWN = 10  # violations that are printed in full


def add(verbs: Any) -> None:
    """The verb and its options."""
    parser = verbs.add_parser(
        "chaos", help="random runs with random faults: does all hold that must?",
        description="Random runs with random faults, which the judge and a sequential replay of their pushes hold to "
        "what must be. The seed, the number of a run and the commit say all: each violation comes with the command "
        "that repeats it.",
    )  # fmt: skip
    default = ", ".join(f"{count} {engine}" for engine, count in RUNS.items())
    parser.add_argument("--seed", type=int, default=0, help="of the campaign")
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--runs", type=int, help=f"how many (default: {default})")
    parser.add_argument("--engine", default="virtual", choices=ENGINES, help="virtual: no tensors; local: processes")
    parser.add_argument("--minutes", type=float, help="runs on real processes for so long, and how memory grows")


class Tally:
    """What a campaign has seen."""

    def __init__(self, seed: int, engine: str) -> None:
        self.seed, self.engine, self.runs, self.bad = seed, engine, 0, 0
        self.outcomes, self.faults, self.policies = Counter[str](), Counter[str](), Counter[str]()

    def take(self, number: int, outcome: Outcome | None, found: list[str], run: Any) -> None:
        """One run more."""
        from tools.chaos.campaign import Violation

        self.runs += 1
        self.policies[run.sync.partition(":")[0]] += 1
        self.outcomes[outcome.facts["outcome"] if outcome else "error"] += 1
        if outcome:
            self.faults.update(outcome.facts.get("faults", {}))
        if found:
            self.bad += 1
            if self.bad <= SHOWN:
                print(Violation(self.seed, number, self.engine, "; ".join(found), run), flush=True)

    def words(self) -> str:
        """The figures in a few lines."""
        def counts(of: Counter[str]) -> str:
            return ", ".join(f"{count} {name}" for name, count in sorted(of.items())) or "none"

        return (f"{self.runs} runs on the {self.engine} engine, seed {self.seed}, commit {commit()}: {self.bad} "
                f"violations\n  faults: {counts(self.faults)}\n  policies: {counts(self.policies)}\n"
                f"  ends: {counts(self.outcomes)}")  # fmt: skip


def main(options: argparse.Namespace) -> int:
    """Run and print. Exit status: 1 if something does not hold, 2 bad arguments."""
    _check("seed", options.seed, Bounds(at_least=0, at_most=2**62))
    _check("first", options.first, Bounds(at_least=0, at_most=2**31))
    _check("runs", options.runs, Bounds(at_least=1, at_most=10**9))
    _check("minutes", options.minutes, Bounds(above=0, at_most=10**5))
    if options.minutes is not None:
        return _soak(options)
    from tools.chaos.campaign import campaign

    begin_s, tally = time.monotonic(), Tally(options.seed, options.engine)
    numbers = range(options.first, options.first + (options.runs or RUNS[options.engine]))
    for number, seen in zip(numbers, campaign(options.seed, numbers, options.engine), strict=True):
        tally.take(number, *seen)
    left = _left_behind()
    print(f"{tally.words()}\n  {time.monotonic() - begin_s:.0f} s{left}")
    return 1 if tally.bad or left else 0


def _soak(options: argparse.Namespace) -> int:
    from tools.chaos.campaign import campaign, performed
    from tools.chaos.soak import soak, still

    tally = Tally(options.seed, "local")

    def each(number: int) -> None:
        number += options.first
        (seen,) = campaign(options.seed, range(number, number + 1), "local")
        tally.take(number, *seen)

    def quiet() -> None:
        tally.take(-1, *performed(still()), still())

    samples = soak(options.minutes, each, quiet)
    left = _left_behind()
    print(f"{tally.words()}\n{samples.words()}{left}")
    return 1 if tally.bad or left else 0


def _left_behind() -> str:
    """The processes that are still there once the pool is closed, in words."""
    import multiprocessing as mp

    from pslab.engines.processes import pool

    pool.release()
    here = mp.active_children()
    return f"\n  {len(here)} processes are left behind" if here else ""


def _check(name: str, value: float | None, bounds: Bounds) -> None:
    if value is not None and not bounds.hold(value):
        raise ConfigError(name, value, f"must be a number {bounds}")


def commit() -> str:
    """The commit of this checkout; "unknown" outside of one."""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=Path(__file__).parent, capture_output=True,
                          text=True, check=False)  # fmt: skip
    return done.stdout.strip() or "unknown"
