"""run(Run) -> Result and sweep(runs): results are read from records if they exist, and else executed now."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, overload

import pandas as pd

from pslab.config.run import Run
from pslab.config.table import find
from pslab.errors import RecordError, StartFailed, SweepFailed
from pslab.lab.records import card, journal
from pslab.lab.records.disk import find_whole
from pslab.lab.records.drafts import clean
from pslab.lab.records.frames import distinct, finished, runs_in, words
from pslab.lab.records.record import Result, default_results
from pslab.lab.records.record import find as find_run
from pslab.lab.runs.interrupts import Ended, Unwanted, import_torch, noted
from pslab.lab.runs.machine import forget_checkpoints, forget_old_checkpoints
from pslab.protocol.server import least_budget

_pool_in_use = threading.Lock()  # one pool per process: runs in a cell and in the background exclude each other

AGAIN = "PSLAB_AGAIN"  # environment variable: `sweep` executes runs again whose emulation was not kept


class InvalidRun(UserWarning):
    """A run was judged invalid: its replay differs from its record."""


class NobodyWaited(UserWarning):
    """Under a user's policy no worker waited for another, although one worker was faster than another."""

    WORDS = ("let no worker wait, although one worker was faster than another: it acted as asp. Iteration 0 starts "
             "without an event Asked: check that the policy counts it (docs/how-to/policy.md)")  # fmt: skip


class NothingApplied(UserWarning):
    """A run has ended before its first step: its final weights are the initial weights."""


class Forgotten(UserWarning):
    """Checkpoints of runs that were not requested again were removed."""


class NotFoundAgain(UserWarning):
    """A run has an object whose content cannot be determined, so it is executed at each call."""


def run(
    run: Run, *, results: Path | str | None = None, progress: bool | None = None, again: bool | None = None,
    fresh: bool = False,
) -> Result:  # fmt: skip
    """Return the result of a run; a recorded run is not executed again. See `sweep` for the arguments.

    Raises:
        ConfigError: the run is impossible; nothing was started.
        RunError: a worker raised or died; the message says where the completed part of the run is stored.
        RunsInterrupted: a KeyboardInterrupt, raised within two seconds of the interrupt; the message says where the
            completed part of the run is stored.
    """
    return sweep([run], results=results, progress=progress, again=again, fresh=fresh)[0]


@overload
def sweep(runs: pd.DataFrame, **how: Any) -> pd.DataFrame: ...
@overload
def sweep(runs: Run | Iterable[Run], **how: Any) -> list[Result]: ...
def sweep(  # type: ignore[misc]
    runs: Run | Iterable[Run] | pd.DataFrame, *, results: Path | str | None = None, progress: bool | None = None,
    stop: threading.Event | None = None, again: bool | None = None, fresh: bool = False, ended: Ended | None = None,
) -> list[Result] | pd.DataFrame:  # fmt: skip
    """Return the results of runs: of a table its rows with a column `result`; of a list of runs a list in its order.

    Missing runs are executed in one pool, one after another; runs in virtual time, whose results do not depend on the
    machine's load, one on each core at a time.

    With `again`, a recorded run is executed again if its emulation was not kept; the old record is moved to
    results/replaced/. None does so once in this process, if `pslab figures --again` executes the notebook.

    A run on real processes with `on_death="restart"` that ended early for any reason continues from its newest
    checkpoint, unless `fresh` is set. Any other run begins again.

    A damaged record is moved to results/damaged/ with a warning, and its run is executed again.

    All runs are checked before the first one starts, and each is recorded as soon as it is finished. If one run fails
    for a reason of its own, the others are still tried. `stop`, set from another thread, has the effect of an
    interrupt.

    `ended` is called with each result as soon as it is recorded, first with the results recorded earlier. It may return
    digests of runs that are no longer wanted: these are not started, and a current one in virtual time is ended. They
    leave no record and are not among the results. An error raised by `ended` ends the sweep like an interrupt.

    Raises:
        SweepFailed: some of several runs failed; the error has their errors, and the rows or results of the other runs.
        StartFailed: another thread of this process executes runs.
        Unwritable: records cannot be written; the current run is stored elsewhere. Also all errors that `run` raises.
    """
    frame = runs_in(runs)
    asked = distinct(frame)
    wanted = [run.as_now() for run in asked.values()]
    folder = default_results() if results is None else Path(results)
    begun_s, unwanted = time.monotonic(), Unwanted(ended)
    outcomes: dict[int, Result | None] = {}
    failed: dict[int, Exception] = {}
    for index, run in enumerate(wanted):
        try:
            outcomes[index] = find_whole(partial(find_run, run, folder))
        except RecordError as error:
            failed[index] = error
    missing = [index for index, result in outcomes.items() if result is None or _again(result, again)]
    journal.note(asked=[run.digest for run in wanted], missing=len(missing))
    recorded = {
        result.digest: result for index, result in outcomes.items() if result is not None and index not in missing
    }
    for result in recorded.values():
        unwanted.told(result)
    if missing:
        with _alone(), noted(stop or threading.Event()) as interrupt:
            clean(folder)
            if removed := forget_old_checkpoints(folder):
                warnings.warn(removed, Forgotten, stacklevel=2)
            for index in missing if fresh else ():
                forget_checkpoints(wanted[index], folder)
            _run_again.update(wanted[index].digest for index in missing)
            import_torch(interrupt)  # not needed if all runs are recorded
            from pslab.lab.runs.execution import run_missing

            ran = run_missing({index: wanted[index] for index in missing}, folder, progress, interrupt, unwanted)
            failed |= {index: one for index, one in ran.items() if isinstance(one, Exception)}
            outcomes |= {index: one if isinstance(one := ran.get(index), Result) else None for index in missing}
    done = {index: result for index, result in sorted(outcomes.items()) if result is not None and index not in failed}
    journal.note(swept_s=time.monotonic() - begun_s)
    _warn(list(done.values()))
    if len(wanted) == len(failed) == 1:
        raise failed[0]
    complete = finished(frame, {name: done[index] for index, name in enumerate(asked) if index in done})
    rows = complete if isinstance(runs, pd.DataFrame) else complete.result.tolist()
    if failed:
        names = [*asked]
        raise SweepFailed({words(frame, names[index]): error for index, error in failed.items()}, rows, len(done))
    return rows


_run_again: set[str] = set()  # digests of runs executed again in this process


def _again(result: Result, again: bool | None) -> bool:
    wanted = again if again is not None else AGAIN in os.environ and result.digest not in _run_again
    return wanted and not result.emulation_ok


def _warn(results: list[Result]) -> None:
    """Warn of runs without a findable record, of invalid results, and of runs without any step or any wait."""
    for why in sorted({result.run.unknown for result in results} - {""}):
        problem = f"a run is executed at each call, because its record cannot be found again: {why}"
        warnings.warn(problem, NotFoundAgain, stacklevel=3)
    for result in results:
        if result.manifest.get("verdict") == "invalid":
            broken = "; ".join(result.manifest.get("violations", ()))
            problem = f"{result.digest} is judged INVALID, do not trust it: {broken} (see docs/checking.md)"
            warnings.warn(problem, InvalidRun, stacklevel=3)
        if card.nothing_applied(result.manifest):
            from pslab.lab.runs.resolve import resolve  # loads torch, which is not needed to read a record

            wanted, sync = result.run, resolve(result.run).sync
            least = "" if wanted.pushes is None or (count := least_budget(sync, wanted.workers)) is None else (
                f"; pushes={wanted.pushes} is too small: equally fast workers need {count} for a step")  # fmt: skip
            named = f"sync={wanted.sync!r}, prune={wanted.prune!r}, {wanted.workers} workers and seed {wanted.seed}"
            problem = f"no step of the run with {named} ({result.digest}) was applied"
            warnings.warn(f"{problem}: its weights are the initial weights{least}", NothingApplied, stacklevel=3)
        elif find("sync", result.run.sync) is None and _nobody_waited(result):
            warnings.warn(f"{result.run.sync} {NobodyWaited.WORDS}", NobodyWaited, stacklevel=3)


def _nobody_waited(result: Result) -> bool:
    """Whether no worker waited for another one, although one worker is at least two iterations ahead at the end."""
    last = result.pushes.groupby("worker").iteration.max()
    apart = len(last) > 1 and last.max() - last.min() > 1
    return bool(apart) and not (result.phases[result.phases.phase == "wait"].waits_for >= 0).any()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    if not _pool_in_use.acquire(blocking=False):
        raise StartFailed("this process already executes runs in the background: wait for them, or stop them")
    try:
        yield
    finally:
        _pool_in_use.release()
