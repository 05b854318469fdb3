"""run(Run) -> Result: from its record if there is one, else executed now."""

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

_pool_in_use = threading.Lock()  # one pool per process: a run in a cell must not meet one in the background

AGAIN = "PSLAB_AGAIN"  # in the environment: `sweep` executes again runs whose emulation was not kept


class InvalidRun(UserWarning):
    """The history of a run breaks a rule of the protocol or of its policy."""


class NobodyWaited(UserWarning):
    """A policy of the user's held no worker back, though one was faster than another."""

    WORDS = ("held no worker back, though one was faster than another: it ran as asp does. Iteration 0 starts by "
             "itself, without Asked: does the policy count it (docs/how-to/policy.md)?")  # fmt: skip


class NothingApplied(UserWarning):
    """A run has ended before its first step: its weights are the first ones."""


class Forgotten(UserWarning):
    """Checkpoints of runs that were not asked for again were removed."""


class NotFoundAgain(UserWarning):
    """A run with an object whose content cannot be known: it is executed each time."""


def run(
    run: Run, *, results: Path | str | None = None, progress: bool | None = None, again: bool | None = None,
    fresh: bool = False,
) -> Result:  # fmt: skip
    """Return the result of a run; a recorded run is not executed again.

    Raises:
        ConfigError: the run is impossible; nothing was started.
        RunError: a worker raised or died; completed pushes are kept, the message says where.
        RunsInterrupted: (a KeyboardInterrupt) within two seconds; completed pushes are kept, the message says where.
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
    """Return the rows of a grid's table with the column `result`; of a list of runs the results, in their order.

    Missing runs are executed in one pool, one after another; runs in virtual time, whose results do not depend on what
    else the machine does, as many at a time as there are cores.

    With `again`, a recorded run is executed again if its emulation was not kept; the old record is moved to
    results/replaced/. None: once in this process, if `pslab figures --again` executes it.

    A run on real processes with `on_death="restart"` that was ended before its time, however that was, goes on from its
    newest checkpoint, unless it is to begin `fresh`. Any other run begins again.

    A record that is damaged is moved to results/damaged/, with a warning, and its run is executed again.

    All of them are checked before the first one starts, and each is recorded as soon as it is finished. One that fails
    for a reason of its own does not keep the others from being tried. `stop`, set from another thread, does what an
    interrupt does.

    `ended` is called with each result as soon as it is recorded, the ones that were recorded before first. It may name
    runs, by their digests, that are not wanted any more: they are not begun, and of those in virtual time one that is
    under way is ended. They leave no record, and are not among the results. What `ended` raises ends the sweep as an
    interrupt does.

    Raises:
        SweepFailed: some of several runs failed; it has their errors, and the rows, or results, of the others.
        StartFailed: another thread of this process executes runs.
        Unwritable: nothing can be recorded; the run under way is set aside elsewhere. And all that `run` raises.
    """
    frame = runs_in(runs)
    asked = distinct(frame)
    wanted = [run.as_now() for run in asked.values()]
    place = default_results() if results is None else Path(results)
    begun_s, unwanted = time.monotonic(), Unwanted(ended)
    found: dict[int, Result | None] = {}
    failed: dict[int, Exception] = {}
    for index, run in enumerate(wanted):
        try:
            found[index] = find_whole(partial(find_run, run, place))
        except RecordError as error:
            failed[index] = error
    missing = [index for index, result in found.items() if result is None or _again(result, again)]
    journal.note(asked=[each.digest for each in wanted], missing=len(missing))
    recorded = {each.digest: each for index, each in found.items() if each is not None and index not in missing}
    for each in recorded.values():
        unwanted.told(each)
    if missing:
        with _alone(), noted(stop or threading.Event()) as interrupt:
            clean(place)
            if removed := forget_old_checkpoints(place):
                warnings.warn(removed, Forgotten, stacklevel=2)
            for index in missing if fresh else ():
                forget_checkpoints(wanted[index], place)
            _run_again.update(wanted[index].digest for index in missing)
            import_torch(interrupt)  # not needed where everything is recorded
            from pslab.lab.runs.execution import run_missing

            ran = run_missing({index: wanted[index] for index in missing}, place, progress, interrupt, unwanted)
            failed |= {index: one for index, one in ran.items() if isinstance(one, Exception)}
            found |= {index: one if isinstance(one := ran.get(index), Result) else None for index in missing}
    done = {index: result for index, result in sorted(found.items()) if result is not None and index not in failed}
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


_run_again: set[str] = set()  # digests, in this process


def _again(result: Result, again: bool | None) -> bool:
    """Whether a recorded run is to be run again."""
    wanted = again if again is not None else AGAIN in os.environ and result.digest not in _run_again
    return wanted and not result.emulation_ok


def _warn(results: list[Result]) -> None:
    """Warn of runs that are not found again, and at every use of an invalid result, whose curve is marked."""
    for why in sorted({result.run.unknown for result in results} - {""}):
        problem = f"it is executed each time, and its record is not found again, because of {why}"
        warnings.warn(problem, NotFoundAgain, stacklevel=3)
    for result in results:
        if result.manifest.get("verdict") == "invalid":
            broken = "; ".join(result.manifest.get("violations", ()))
            warnings.warn(f"{result.digest} is judged INVALID, do not trust it: {broken}", InvalidRun, stacklevel=3)
        if card.nothing_applied(result.manifest):
            from pslab.lab.runs.resolve import resolve  # with torch, which a record that is found does without

            wanted, sync = result.run, resolve(result.run).sync
            least = "" if wanted.pushes is None or (count := least_budget(sync, wanted.workers)) is None else (
                f"; pushes={wanted.pushes}, and workers that are equally fast need {count}")  # fmt: skip
            problem = f"no step of {result.digest} (sync={wanted.sync!r}, {wanted.workers} workers) was applied"
            warnings.warn(f"{problem}: its weights are the first ones{least}", NothingApplied, stacklevel=3)
        elif find("sync", result.run.sync) is None and _nobody_waited(result):
            warnings.warn(f"{result.run.sync} {NobodyWaited.WORDS}", NobodyWaited, stacklevel=3)


def _nobody_waited(result: Result) -> bool:
    """Whether no worker waited for another one, and one is several iterations ahead at the end."""
    last = result.pushes.groupby("worker").iteration.max()
    apart = len(last) > 1 and last.max() - last.min() > 1
    return bool(apart) and not (result.phases[result.phases.phase == "wait"].waits_for >= 0).any()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    if not _pool_in_use.acquire(blocking=False):
        raise StartFailed("runs are under way in this process, in the background: wait for them, or stop them")
    try:
        yield
    finally:
        _pool_in_use.release()
