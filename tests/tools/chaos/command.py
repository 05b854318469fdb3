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
    from pslab.config.run import Run
    from pslab.engines.experiment.experiment import Outcome

ENGINES = ("virtual", "local")
RUNS = {"virtual": 1000, "local": 20}
BOUNDS = {"seed": Bounds(at_least=0, at_most=2**62), "first": Bounds(at_least=0, at_most=2**31),
          "runs": Bounds(at_least=1, at_most=10**9), "minutes": Bounds(above=0, at_most=10**5)}  # fmt: skip
SHOWN = 10  # violations that are printed in full


def add(verbs: Any) -> None:
    """The verb and its options."""
    parser = verbs.add_parser(
        "chaos", help="random runs with random faults: do all invariants hold?",
        description="Execute random runs with random faults, and check the invariants of each by an audit and by a "
        "sequential replay of its pushes. Seed, number and commit determine a run: each violation is printed with the "
        "command that repeats it.",
    )  # fmt: skip
    default = ", ".join(f"{count} {engine}" for engine, count in RUNS.items())
    parser.add_argument("--seed", type=int, default=0, help="the seed from which all runs are drawn")
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--runs", type=int, help=f"number of runs (default: {default})")
    parser.add_argument("--engine", default="virtual", choices=ENGINES, help="virtual: no tensors; local: processes")
    parser.add_argument("--minutes", type=float, help="time limit, on real processes; shows how memory grows")


class Tally:
    """What a campaign has seen."""

    def __init__(self, seed: int, engine: str) -> None:
        self.seed, self.engine, self.runs, self.bad = seed, engine, 0, 0
        self.outcomes, self.faults, self.policies = Counter[str](), Counter[str](), Counter[str]()

    def take(self, number: int, outcome: Outcome | None, found: list[str], run: Run) -> None:
        """Count one run more, and print what is wrong with it."""
        from tools.chaos.campaign import violation

        self.runs += 1
        self.policies[str(run.sync).partition(":")[0]] += 1
        self.outcomes[outcome.facts["outcome"] if outcome else "error"] += 1
        self.faults.update(outcome.facts.get("faults", {}) if outcome else {})
        self.bad += bool(found)
        if found and self.bad <= SHOWN:
            print(violation(self.seed, number, found, run), flush=True)

    def words(self) -> str:
        """The figures in a few lines."""
        faults, policies, ends = (", ".join(f"{count} {name}" for name, count in sorted(each.items())) or "none"
                                  for each in (self.faults, self.policies, self.outcomes))  # fmt: skip
        return (f"{self.runs} runs on the {self.engine} engine, seed {self.seed}, commit {commit()}: {self.bad} "
                f"violations\n  faults: {faults}\n  policies: {policies}\n  ends: {ends}")  # fmt: skip


def main(options: argparse.Namespace) -> int:
    """Run and print. Exit status: 1 if something does not hold, 2 bad arguments."""
    for name, bounds in BOUNDS.items():
        if (value := getattr(options, name)) is not None and not bounds.hold(value):
            raise ConfigError(name, value, f"must be a number {bounds}")
    from tools.chaos.campaign import campaign, performed
    from tools.chaos.soak import soak, still

    begin_s, tally = time.monotonic(), Tally(options.seed, "local" if options.minutes else options.engine)

    def run(number: int) -> None:
        (seen,) = campaign(tally.seed, range(number, number + 1), tally.engine)
        tally.take(number, *seen)

    if options.minutes is not None:
        samples = soak(options.minutes, lambda count: run(options.first + count),
                       lambda: tally.take(-1, *performed(still()), still()))  # fmt: skip
        measured = samples.words()
    else:
        for count in range(options.runs or RUNS[options.engine]):
            run(options.first + count)
        measured = f"  {time.monotonic() - begin_s:.0f} s"
    left = _left_behind()
    print(f"{tally.words()}\n{measured}{left}")
    return 1 if tally.bad or left else 0


def _left_behind() -> str:
    """The processes that are still there once the pool is closed, in words."""
    import multiprocessing as mp

    from pslab.engines.processes import pool

    pool.release()
    here = mp.active_children()
    return f"\n  {len(here)} processes are left behind" if here else ""


def commit() -> str:
    """The commit of this checkout; "unknown" outside of one."""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=Path(__file__).parent, capture_output=True,
                          text=True, check=False)  # fmt: skip
    return done.stdout.strip() or "unknown"
