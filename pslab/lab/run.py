"""run(Run) -> Result: from the record if there is one, from real processes if not."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from pslab.config import Run
from pslab.lab.progress import Progress
from pslab.lab.record import Result, clean, default_results, find, save


def run(run: Run, *, results: Path | str | None = None, progress: bool | None = None) -> Result:
    """The result of one run; a finished one is never run twice.

    Raises:
        ConfigError: the run cannot be; nothing was started.
        RunError: a worker raised or died.
    """
    return sweep([run], results=results, progress=progress)[0]


def sweep(runs: Iterable[Run], *, results: Path | str | None = None, progress: bool | None = None) -> list[Result]:
    """The results of many runs, in their order. What is missing is run, one after another, in one pool.

    All of them are checked before the first one starts, and each is recorded as soon as it is finished.
    """
    wanted = list(runs)
    place = default_results() if results is None else Path(results)
    found = {index: find(each, place) for index, each in enumerate(wanted)}
    missing = [index for index, result in found.items() if result is None]
    if missing:
        clean(place)
        found |= _run_missing({index: wanted[index] for index in missing}, place, progress)
    return [result for _, result in sorted(found.items()) if result is not None]


def _run_missing(wanted: dict[int, Run], place: Path, progress: bool | None) -> dict[int, Result | None]:
    from pslab.lab.resolve import resolve  # torch: not needed where everything is on disk

    distinct = {each.digest if each.cacheable else str(index): each for index, each in wanted.items()}
    for each in distinct.values():
        resolve(each)
    shown = Progress(len(distinct), shown=progress)
    done = {name: _execute(each, place, shown) for name, each in distinct.items()}
    return {index: done[each.digest if each.cacheable else str(index)] for index, each in wanted.items()}


def _execute(run: Run, place: Path, shown: Progress) -> Result:
    from pslab.engines.local import execute
    from pslab.engines.serve import PUSH_COLUMNS
    from pslab.engines.work import PHASE_COLUMNS, PHASES
    from pslab.lab.resolve import resolve

    shown.begin(run)
    outcome = execute(resolve(run), shown.update)
    accuracy = pd.DataFrame(outcome.accuracy, columns=["pushes", "seconds", "accuracy", "loss"])
    accuracy.insert(1, "iteration", accuracy.pushes / run.workers)
    phases = pd.DataFrame(outcome.phases, columns=PHASE_COLUMNS)
    phases["phase"] = phases.phase.astype(int).map(dict(enumerate(PHASES)))
    pushes = pd.DataFrame(outcome.pushes, columns=PUSH_COLUMNS)
    tables = {
        "accuracy": accuracy.astype({"pushes": int}),
        "phases": phases.astype({"worker": int, "iteration": int, "waits_for": int}).sort_values("begin_s"),
        "pushes": pushes.astype({name: int for name in PUSH_COLUMNS if name not in ("seconds", "loss", "density")}),
    }
    result = save(run, tables, outcome.weights, {**outcome.facts, "verdict": "unknown"}, place)
    shown.end(outcome.facts["seconds"], float(outcome.accuracy[-1][2]))
    return result
