"""Two small records written by hand, whose spans, releases, steps and flows a reader can check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pslab.config.run import Run
from pslab.lab.records import frames
from pslab.lab.records.drafts import Draft
from pslab.lab.records.record import Result

PHASE_COLUMNS = ["worker", "iteration", "phase", "begin_s", "end_s", "waits_for"]
ARRIVAL_COLUMNS = ["kind", "worker", "range", "iteration", "version", "seconds"]
ALL = ["compute", "select", "encode"]  # phases that are about all ranges
PUSH_COLUMNS = ["push", "worker", "iteration", "version_pulled", "version_applied", "staleness", "seconds"]
DENSE = {"range": 0, "loss": 1.0, "density": 1.0, "bytes_up": 100, "bytes_up_raw": 100, "bytes_down": 30,
         "bytes_down_raw": 30}  # fmt: skip

# A phase that waits for no worker ends with its instants.
#: Worker 0 waits for worker 1 in iteration 0, and the other way round in iteration 1.
BSP = [
    (0, 0, "compute", 0.0, 1.0), (0, 0, "select", 1.0, 1.1), (0, 0, "encode", 1.1, 1.2), (0, 0, "push", 1.2, 2.0),
    (0, 0, "apply", 2.0, 2.1), (0, 0, "wait", 2.1, 4.2, 1), (0, 0, "serve", 4.2, 4.3), (0, 0, "pull", 4.3, 5.0),
    (0, 0, "decode", 5.0, 5.1), (1, 0, "compute", 0.0, 3.0), (1, 0, "push", 3.2, 4.0), (1, 0, "apply", 4.0, 4.3),
    (1, 0, "wait", 4.3, 4.3), (1, 0, "serve", 4.3, 4.4), (1, 0, "pull", 4.4, 5.1), (1, 0, "decode", 5.1, 5.2),
    (0, 1, "compute", 5.1, 8.8), (0, 1, "push", 8.8, 9.6), (0, 1, "apply", 9.6, 10.0), (0, 1, "wait", 10.0, 10.0),
    (0, 1, "serve", 10.0, 10.1), (0, 1, "pull", 10.1, 10.6), (1, 1, "compute", 5.2, 6.2), (1, 1, "push", 6.2, 7.0),
    (1, 1, "apply", 7.0, 7.1), (1, 1, "wait", 7.1, 9.9, 0), (1, 1, "serve", 9.9, 10.0), (1, 1, "pull", 10.0, 10.5),
]  # fmt: skip
BSP_PUSHES = [(1, 0, 0, 0, 1, 0, 4.1), (2, 1, 0, 0, 1, 0, 4.1), (3, 0, 1, 1, 2, 0, 9.7), (4, 1, 1, 1, 2, 0, 9.7)]

#: Worker 1 pushes twice while worker 0 computes.
ASP = [
    (0, 0, "compute", 0.0, 4.0), (0, 0, "push", 4.0, 5.0), (0, 0, "apply", 5.0, 5.1), (0, 0, "serve", 5.1, 5.2),
    (0, 0, "pull", 5.2, 6.0), (1, 0, "compute", 0.0, 1.0), (1, 0, "push", 1.0, 2.0), (1, 0, "apply", 2.0, 2.1),
    (1, 0, "serve", 2.1, 2.2), (1, 0, "pull", 2.2, 3.0), (1, 1, "compute", 3.0, 3.5), (1, 1, "push", 3.5, 4.5),
    (1, 1, "apply", 4.5, 4.6), (1, 1, "serve", 4.6, 4.7), (1, 1, "pull", 4.7, 5.5),
]  # fmt: skip
ASP_PUSHES = [(1, 1, 0, 0, 1, 0, 2.05), (2, 1, 1, 1, 2, 0, 4.55), (3, 0, 0, 0, 3, 2, 5.05)]


#: Weights come, and the last push goes, while worker 0 computes; it waits half a second for the last ones.
EAGER = [
    (0, 0, "compute", 0.0, 4.0), (0, 0, "wait", 0.1, 0.1), (0, 0, "serve", 0.1, 0.2), (0, 0, "pull", 0.2, 2.0),
    (0, 0, "decode", 4.0, 4.0), (0, 0, "push", 4.0, 6.0), (0, 0, "apply", 6.0, 6.1), (0, 1, "compute", 4.0, 8.0),
    (0, 1, "wait", 4.1, 4.1), (0, 1, "serve", 4.1, 4.2), (0, 1, "pull", 4.2, 8.5), (0, 1, "push", 8.5, 10.0),
    (0, 1, "apply", 10.0, 10.1), (0, 2, "compute", 8.5, 12.0), (0, 2, "wait", 8.6, 12.5),
]  # fmt: skip
EAGER_PUSHES = [(1, 0, 0, 0, 1, 0, 6.05), (2, 0, 1, 0, 2, 1, 10.05)]


def eager() -> Result:
    return record(None, Run(sync="eager", workers=1, pushes=2), EAGER, EAGER_PUSHES)


def bsp(folder: Path | None = None) -> Result:
    return record(folder, Run(sync="bsp", workers=2, pushes=4), BSP, BSP_PUSHES)


def asp(folder: Path | None = None) -> Result:
    return record(folder, Run(sync="asp", workers=2, pushes=3), ASP, ASP_PUSHES)


def record(folder: Path | None, run: Run, phases: Iterable[tuple], pushes: Iterable[tuple]) -> Result:
    """A finished run with these tables; every push takes 100 bytes, its pull 30."""
    table = pd.DataFrame([(*phase, -1)[: len(PHASE_COLUMNS)] for phase in phases], columns=PHASE_COLUMNS)
    table["range"] = np.where(table.phase.isin(ALL), -1, 0)
    applied = pd.DataFrame(list(pushes), columns=PUSH_COLUMNS).assign(**DENSE)
    evaluated = pd.DataFrame({"pushes": [0], "iteration": [0.0], "seconds": [0.0], "accuracy": [0.1], "loss": [2.3]})
    arrivals = arrived(table, applied, eager=run.sync == "eager")
    tables = {"accuracy": evaluated, "phases": table, "pushes": applied, "arrivals": arrivals}
    return result(folder, run, tables, seconds=11.0, pushes=len(applied))


def result(folder: Path | None, run: Run, tables: dict[str, pd.DataFrame], **facts: Any) -> Result:
    """A finished run with these tables and facts: recorded in a folder, or, without one, nowhere."""
    facts = {"outcome": "budget", "verdict": "unknown", "emulation_ok": True, "emulation": {}, "disturbed": False,
             "accepted": facts["pushes"], "dropped": 0, "deaths": [], **facts}  # fmt: skip
    if folder is not None:
        return Draft(run, folder).save(tables, np.zeros(2, np.float32), facts)
    facts = {"digest": run.digest, "run": run.plain(), **facts, "sha256": {f"{name}.csv": "" for name in tables}}
    return changed(Result(run, Path("results/runs") / run.digest, facts), **tables)


def changed(result: Result, **tables: pd.DataFrame) -> Result:
    """The same result with other tables."""
    result.__dict__.update(tables)
    return result


def arrived(phases: pd.DataFrame, pushes: pd.DataFrame, *, eager: bool = False) -> pd.DataFrame:
    """What arrived: each push, and its worker's next request a tenth of a second later, or as an eager one waits."""
    names = ["worker", "iteration", "range"]
    version = pushes.set_index(names).version_pulled
    rows = []
    for span in phases[phases.phase.isin(["apply", "wait"])].itertuples():
        index = phases.range[span.Index]
        if span.phase == "apply":
            version_pulled = version.get((span.worker, span.iteration, index), 0)
            rows.append(("push", span.worker, index, span.iteration, version_pulled, span.begin_s))
        if span.phase == ("wait" if eager else "apply"):
            held = version.get((span.worker, span.iteration, index), 0)
            rows.append(("pull", span.worker, index, span.iteration + 1, held, span.begin_s + 0.1 * (not eager)))
    return pd.DataFrame(rows, columns=ARRIVAL_COLUMNS).sort_values("seconds", kind="stable", ignore_index=True)


def two_ranges(result: Result) -> Result:
    """The same run with its weights in two ranges, whose requests overlap: the second's a quarter second later."""
    transfers = result.phases[result.phases.phase.isin(["push", "apply", "wait", "serve", "pull"])]
    later = transfers.assign(begin_s=transfers.begin_s + 0.25, end_s=transfers.end_s + 0.25, range=1)
    phases = pd.concat([result.phases, later], ignore_index=True)
    second = result.pushes.assign(range=1, seconds=result.pushes.seconds + 0.25)
    pushes = pd.concat([result.pushes, second], ignore_index=True)
    return changed(result, phases=phases, pushes=pushes, arrivals=arrived(phases, pushes))


def curve(
    folder: Path | None, run: Run, accuracy: Sequence[float], seconds: Sequence[float] | None = None, **facts: Any
) -> Result:
    """A finished run with these evaluations, evenly spaced over its pushes, a second apart; 130 bytes a push.

    Each worker computes three quarters of the time, then waits.
    """
    count, pushes = len(accuracy), run.pushes or 0
    at = np.linspace(0, pushes, count).astype(int)
    instants = np.asarray(range(count) if seconds is None else seconds, float)
    number = np.arange(1, pushes + 1)
    applied = pd.DataFrame({
        "push": number, "worker": (number - 1) % run.workers, "iteration": (number - 1) // run.workers,
        "version_pulled": 0, "version_applied": number, "staleness": number % 4,
        "seconds": np.interp(number, at, instants), **DENSE})  # fmt: skip
    end_s = float(instants[-1])
    rows = [row for worker in range(run.workers) for row in (
        (worker, 0, "compute", 0.0, 0.75 * end_s, -1, -1),
        (worker, 0, "wait", 0.75 * end_s, end_s, 0, 0))]  # fmt: skip
    evaluated = pd.DataFrame({"pushes": at, "iteration": at / run.workers, "seconds": instants, "accuracy": accuracy,
                              "loss": 0.5})  # fmt: skip
    tables = {"accuracy": evaluated, "phases": pd.DataFrame(rows, columns=[*PHASE_COLUMNS, "range"]), "pushes": applied}
    return result(folder, run, tables, **{"seconds": end_s, "pushes": pushes, **facts})


def finished(runs: pd.DataFrame, accuracy: Any, folder: Path | None = None, **facts: Any) -> pd.DataFrame:
    """The rows of runs with their results by `curve`; what is a function is asked for each run."""
    given = {"accuracy": accuracy, **facts}
    return with_results(runs, lambda run: curve(folder, run, **{
        name: each(run) if callable(each) else each for name, each in given.items()}))  # fmt: skip


def with_results(runs: pd.DataFrame, of: Callable[[Run], Result]) -> pd.DataFrame:
    """The rows of runs with what a function gives for each run."""
    return frames.finished(runs, {name: of(run) for name, run in frames.distinct(runs).items()})
