"""Records of runs that never ran, with the evaluations that a test wants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pslab.config.run import Run
from pslab.lab.records.record import Draft, Result
from pslab.lab.studies.studies import pruning_runs

Make = Callable[..., Result]
FACTS = {"outcome": "budget", "verdict": "unknown", "honest": True, "honesty": {}, "disturbed": False}


def maker(results: Path) -> Make:
    """Writes a record with n evaluations, evenly spaced over its pushes, a second apart; 10 bytes a push, 5 a pull."""

    def made(run: Run, accuracy: list[float], seconds: list[float] | None = None, **facts: Any) -> Result:
        count = len(accuracy)
        at = np.linspace(0, run.pushes or 0, count).astype(int)
        seconds_ = list(map(float, range(count))) if seconds is None else seconds
        evaluations = pd.DataFrame({"pushes": at, "iteration": at / run.workers, "seconds": seconds_,
                                    "accuracy": accuracy, "loss": 0.5})  # fmt: skip
        tables = {"accuracy": evaluations, "phases": phases(run.workers), "pushes": pushes(run, at, seconds_)}
        told = {**FACTS, **facts, "seconds": seconds_[-1], "pushes": run.pushes}
        return Draft(run, results).save(tables, np.zeros(2, np.float32), told)

    return made


def phases(workers: int) -> pd.DataFrame:
    """Each worker computes 2 s, nobody knows what it does for 1 s, and waits 1 s, half of it for worker 0."""
    rows = [row for w in range(workers) for row in (
        (w, 0, "compute", 0.0, 2.0, -1), (w, 0, "wait", 3.0, 3.5, 0), (w, 0, "wait", 3.5, 4.0, -1))]  # fmt: skip
    return pd.DataFrame(rows, columns=["worker", "iteration", "phase", "begin_s", "end_s", "waits_for"])


def pushes(run: Run, at: np.ndarray, seconds: list[float]) -> pd.DataFrame:
    """At even distances between the evaluations."""
    number = np.arange(1, (run.pushes or 0) + 1)
    return pd.DataFrame({
        "push": number, "worker": (number - 1) % run.workers, "iteration": (number - 1) // run.workers, "range": 0,
        "version_pulled": 0, "version_applied": number, "staleness": number % 4, "loss": 1.0,
        "seconds": np.interp(number, at, seconds),
        "density": 1.0, "bytes_up": 10, "bytes_up_raw": 10, "bytes_down": 5, "bytes_down_raw": 5,
    })  # fmt: skip


def study(make: Make, **parameters: Any) -> list[Result]:
    """Dense, 1 % and the single machine, for 8 pushes; dense reaches 90 % at push 6, 1 % at push 4."""
    ways = {"none": [0.1, 0.5, 0.8, 0.9, 0.95], "static:1%": [0.1, 0.7, 0.9, 0.93, 0.94]}
    runs = pruning_runs(thresholds=["1%"], pushes=8, **parameters)
    return [make(run, ways[str(run.prune)] if run.workers > 1 else [0.1, 0.9, 0.95, 0.96, 0.97]) for run in runs]
