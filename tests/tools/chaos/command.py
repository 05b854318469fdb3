"""pslab chaos [--seed N] [--runs M | --minutes M] [--engine virtual|local]"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pslab.config.parameters import Bounds
from pslab.errors import ConfigError

if TYPE_CHECKING:
    from pslab.config.run import Run

RUNS = {"virtual": 1000, "local": 20}  # as a rule, by the engine
BOUNDS = {"seed": Bounds(at_least=0, at_most=2**62), "first": Bounds(at_least=0, at_most=2**31),
          "runs": Bounds(at_least=1, at_most=10**9), "minutes": Bounds(above=0, at_most=10**5)}  # fmt: skip
SHOWN = 10  # violations that are printed in full
FIELDS = ("sync", "workers", "servers", "ranges", "order", "prune", "pull", "optimizer", "rate", "pushes",
          "cluster", "lease_s", "on_death")  # fmt: skip


def add(verbs: Any) -> None:
    """Add the verb and its options."""
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
    parser.add_argument("--engine", default="virtual", choices=[*RUNS], help="virtual: no tensors; local: processes")
    parser.add_argument("--minutes", type=float, help="time limit, on real processes; shows how memory grows")


class Campaign:
    """Runs of a seed, one by one, and the counts of what they met."""

    def __init__(self, seed: int, engine: str) -> None:
        self.seed, self.engine, self.runs, self.bad = seed, engine, 0, 0
        self.ends, self.faults, self.policies = Counter[str](), Counter[str](), Counter[str]()

    def perform(self, number: int, run: Run | None = None) -> None:
        """Execute the run of a number, or a given run, count it, and print its violations."""
        from tools.chaos.campaign import performed
        from tools.chaos.draw import drawn

        run = run or drawn(self.seed, number, "timing" if self.engine == "virtual" else self.engine)
        outcome, found = performed(run)
        self.runs += 1
        self.policies[str(run.sync).partition(":")[0]] += 1
        self.ends[outcome.facts["outcome"] if outcome else "error"] += 1
        self.faults.update(outcome.facts.get("faults", {}) if outcome else {})
        self.bad += bool(found)
        if found and self.bad <= SHOWN:
            fields = {name: value for name, value in run.plain().items() if name in FIELDS}
            again = f"python -m pslab chaos --seed {self.seed} --first {number} --runs 1 --engine {self.engine}"
            print(f"run {number}: {'; '.join(found)}\n  {json.dumps(fields)}\n  again: {again}", flush=True)

    def words(self) -> str:
        """Return the counts in a few lines."""
        faults, policies, ends = (", ".join(f"{count} {name}" for name, count in sorted(each.items())) or "none"
                                  for each in (self.faults, self.policies, self.ends))  # fmt: skip
        return (f"{self.runs} runs on the {self.engine} engine, seed {self.seed}, commit {commit()}: {self.bad} "
                f"violations\n  faults: {faults}\n  policies: {policies}\n  ends: {ends}")  # fmt: skip


def main(options: argparse.Namespace) -> int:
    """Run and print. Exit status: 1 if something does not hold, 2 bad arguments."""
    for name, bounds in BOUNDS.items():
        if (value := getattr(options, name)) is not None and not bounds.hold(value):
            raise ConfigError(name, value, f"must be a number {bounds}")
    import multiprocessing as mp

    from pslab.engines.processes import pool
    from tools.chaos import soak

    begin_s, samples, number = time.monotonic(), list[soak.Sample](), options.first
    seen, last = Campaign(options.seed, "local" if options.minutes else options.engine), options.first
    last += options.runs or RUNS[seen.engine]
    while time.monotonic() - begin_s < 60 * options.minutes if options.minutes else number < last:
        if options.minutes and (number - options.first) % soak.PERIOD == 0:
            seen.perform(-1, soak.STILL)
            samples.append(soak.sample(time.monotonic() - begin_s))
        seen.perform(number)
        number += 1
    pool.release()
    left = mp.active_children()
    print(seen.words(), soak.words(samples) if samples else f"  {time.monotonic() - begin_s:.0f} s", sep="\n")
    print(*(f"  {len(left)} processes are left behind\n" for _ in left[:1]), end="")
    return 1 if seen.bad or left else 0


def commit() -> str:
    """Return the commit of this checkout; "unknown" outside of one."""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=Path(__file__).parent, capture_output=True,
                          text=True, check=False)  # fmt: skip
    return done.stdout.strip() or "unknown"
