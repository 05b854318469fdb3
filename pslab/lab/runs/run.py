"""run(Run) -> Result: from its record if there is one, else executed now."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pslab.config.run import Run
from pslab.errors import RunError, StartFailed
from pslab.lab.records import journal
from pslab.lab.records.record import Draft, Result, clean, default_results, emulation_ok, find
from pslab.lab.records.results import Results, Runs
from pslab.lab.runs.progress import Progress, taken_before

if TYPE_CHECKING:
    from pslab.engines.job.outcome import Interrupted, Outcome

_pool_in_use = threading.Lock()  # one pool per process: a run in a cell must not meet one in the background

HEED_S = 0.1
UNHEEDED_S = 2.0  # after an interrupt that has no effect another one takes effect at once
_heeded: weakref.WeakSet[threading.Event] = weakref.WeakSet()
AGAIN = "PSLAB_AGAIN"  # in the environment: `sweep` runs again what was not kept


class InvalidRun(UserWarning):
    """The history of a run breaks a rule of the protocol or of its policy."""


class NotFoundAgain(UserWarning):
    """A run with an object whose content cannot be known: it is executed each time."""


def run(
    run: Run, *, results: Path | str | None = None, progress: bool | None = None, again: bool | None = None
) -> Result:
    """The result of one run; what is recorded is not run again, unless `sweep` is told to.

    Raises:
        ConfigError: the run is impossible; nothing was started.
        RunError: a worker raised or died; what was completed is kept, the message says where.
        KeyboardInterrupt: within two seconds; what was completed is kept, the message says where.
    """
    return sweep([run], results=results, progress=progress, again=again)[0]


def sweep(
    runs: Iterable[Run], *, results: Path | str | None = None, progress: bool | None = None,
    stop: threading.Event | None = None, again: bool | None = None,
) -> Results:  # fmt: skip
    """The results of many runs, in their order and with the columns of their grid.

    What is missing is run in one pool, one after another; runs in virtual time, whose results do not depend on what
    else the machine does, as many at a time as there are cores.

    With `again`, what is recorded is run again if its emulation was not kept; the old record is moved to
    results/replaced/. None: once in this process, if `pslab figures --again` executes it.

    All of them are checked before the first one starts, and each is recorded as soon as it is finished. `stop`, set
    from another thread, does what an interrupt does.

    Raises:
        StartFailed: another thread of this process executes runs. And what `run` raises.
    """
    wanted = runs if isinstance(runs, Runs) else Runs(runs)
    place = default_results() if results is None else Path(results)
    found = {index: find(each, place) for index, each in enumerate(wanted)}
    missing = [index for index, result in found.items() if result is None or _again(result, again)]
    begun_s = time.monotonic()
    journal.note(asked=[each.digest for each in wanted], missing=len(missing))
    if missing:
        with _alone(), _noted(stop or threading.Event()) as ended:
            clean(place)
            found |= _run_missing({index: wanted[index] for index in missing}, place, progress, ended)
    done = [result for _, result in sorted(found.items()) if result is not None]
    journal.note(swept_s=time.monotonic() - begun_s)
    _warn(done)
    return wanted.finished(done)


_run_again: set[str] = set()  # digests, in this process


def _again(result: Result, again: bool | None) -> bool:
    """Whether a recorded run is to be run again."""
    wanted = again if again is not None else AGAIN in os.environ and result.digest not in _run_again
    return wanted and not emulation_ok(result.manifest)


def _warn(results: list[Result]) -> None:
    """Of what is not found again, and at every use of an invalid result: its record stays, and its curve is marked."""
    for why in sorted({result.run.unknown for result in results} - {""}):
        words = f"it is executed each time, and its record is not found again, because of {why}"
        warnings.warn(words, NotFoundAgain, stacklevel=3)
    for result in results:
        if result.manifest.get("verdict") == "invalid":
            words = "; ".join(result.manifest.get("violations", ()))
            warnings.warn(f"{result.digest} is judged INVALID, do not trust it: {words}", InvalidRun, stacklevel=3)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    if not _pool_in_use.acquire(blocking=False):
        raise StartFailed("runs are under way in this process, in the background: wait for them, or stop them")
    try:
        yield
    finally:
        _pool_in_use.release()


@contextlib.contextmanager
def _noted(stop: threading.Event) -> Iterator[threading.Event]:
    """An interrupt sets `stop`, which is checked many times a second; so does SIGTERM, which then takes effect.

    At an arbitrary instruction it would tear a message, a record or the import of torch.
    """
    if threading.current_thread() is not threading.main_thread():
        yield stop  # interrupts are the main thread's
        return
    received: list[tuple[int, float]] = []

    def note(number: int, frame: object) -> None:
        received.append((number, time.monotonic()))
        stop.set()
        if stop not in _heeded and received[-1][1] - received[0][1] > UNHEEDED_S:  # a policy may loop for ever
            raise KeyboardInterrupt("interrupted where it was")

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if signal.SIGTERM in [number for number, _ in received]:  # what was finished is kept; now it ends as is wished
            signal.raise_signal(signal.SIGTERM)
    _heed(stop)


def _run_missing(
    wanted: dict[int, Run], place: Path, progress: bool | None, stop: threading.Event
) -> dict[int, Result | None]:
    _import_torch(stop)  # not needed where everything is recorded
    from pslab.engines.virtual.side_by_side import fits
    from pslab.lab.runs.resolve import resolve

    distinct: dict[str, Run] = {}
    crowd: dict[str, Run] = {}
    for index, each in wanted.items():
        _heed(stop)
        name = str(index) if each.unknown else each.digest
        if name not in distinct:
            distinct[name] = each
            crowd |= {name: each} if fits(resolve(each)) else {}
    shown = Progress(distinct, taken=taken_before(place), at_once=os.cpu_count() or 1, shown=progress)
    done = _side_by_side(crowd, place, shown, stop) if len(crowd) > 1 else {}
    done |= {name: _execute(name, each, place, shown, stop) for name, each in distinct.items() if name not in done}
    return {index: done[str(index) if each.unknown else each.digest] for index, each in wanted.items()}


def _import_torch(stop: threading.Event) -> None:
    """In a thread, which goes on if the cell is interrupted: half an import of torch cannot be completed later."""

    def load() -> None:
        with contextlib.suppress(Exception):  # an error is raised again where it is used
            importlib.import_module("pslab.lab.runs.resolve")

    loading = threading.Thread(target=load, daemon=True)
    loading.start()
    while loading.is_alive():
        loading.join(HEED_S)
        _heed(stop)


def _execute(name: str, run: Run, place: Path, shown: Progress, stop: threading.Event) -> Result:
    from pslab.engines.execute import execute
    from pslab.engines.job.outcome import Interrupted
    from pslab.lab.runs.machine import check_disk
    from pslab.lab.runs.resolve import resolve

    _heed(stop)
    draft = Draft(run, place, again=find(run, place) is not None)
    _run_again.add(run.digest)

    def on_progress(news: dict[str, Any]) -> None:
        if news:
            draft.note(news)
            shown.update(name, news)
        _heed(stop)

    begun_s = time.monotonic()
    shown.begin(name)
    try:
        experiment = resolve(run)
        check_disk(experiment, place)
        outcome = execute(experiment, on_progress)
    except (Interrupted, RunError) as error:
        kept = _set_aside(draft, run, error)
        if isinstance(error, Interrupted):
            raise KeyboardInterrupt(f"interrupted {kept or 'before the first push; nothing was recorded'}") from None
        error.kept = kept and f"the run ended {kept}"
        _heed(stop)  # an error that an interrupt caused is none
        raise
    except BaseException:
        draft.drop()
        _heed(stop)
        raise
    outcome.facts.setdefault("wall_s", time.monotonic() - begun_s)
    result = draft.save(*tables_of(run, outcome))
    shown.end(name, outcome.facts["seconds"], _last(outcome))
    return result


def _set_aside(draft: Draft, run: Run, error: Interrupted | RunError) -> str:
    """Keep what a run had completed that came to no end; how much that is, and where. "" if it is nothing."""
    outcome = error.outcome
    if outcome is None or not outcome.pushes.size:
        draft.drop()
        return ""
    if isinstance(error, RunError):
        outcome.facts |= {"outcome": "interrupted", "error": str(error)}
    kept = draft.set_aside(*tables_of(run, outcome))
    return f"after {kept.manifest['pushes']} pushes; kept in {kept.path}"


def _side_by_side(
    runs: dict[str, Run], place: Path, shown: Progress, stop: threading.Event
) -> dict[str, Result | None]:
    """Virtual runs, several at a time: those that are completed when all are, or when one of them fails.

    The one that failed fails again when it is executed alone, which shows which one it is.
    """
    from pslab.engines.job.outcome import Outcome
    from pslab.engines.virtual import side_by_side as crowd
    from pslab.lab.runs.resolve import resolve

    names, drafts, done = list(runs), dict[str, Draft](), dict[str, Result | None]()
    experiments = (resolve(each) for each in runs.values())
    try:
        for index, news in crowd.conduct(experiments, lambda: _heed(stop)):
            name = names[index]
            if name not in drafts:
                drafts[name] = Draft(runs[name], place)
                shown.begin(name)
            if not isinstance(news, Outcome):
                if news:
                    drafts[name].note(news)
                    shown.update(name, news)
                continue
            done[name] = drafts.pop(name).save(*tables_of(runs[name], news))
            shown.end(name, news.facts["seconds"], _last(news))
    except RunError:
        pass
    finally:
        for draft in drafts.values():
            draft.drop()
    return done


def _last(outcome: Outcome) -> float | None:
    return float(outcome.accuracy[-1][2]) if len(outcome.accuracy) else None


def _heed(stop: threading.Event) -> None:
    if stop.is_set():
        _heeded.add(stop)  # what is kept now is not to be torn
        raise KeyboardInterrupt("interrupted; every run that was finished is recorded")


def tables_of(run: Run, outcome: Outcome) -> tuple[dict[str, pd.DataFrame], np.ndarray, dict[str, Any]]:
    """An engine's arrays as tidy tables; the weights; the facts."""
    from pslab.engines.server.ledger import ARRIVAL_COLUMNS, ARRIVALS, PUSH_COLUMNS
    from pslab.engines.worker.phases import PHASE_COLUMNS, PHASES
    from pslab.lab.judge.verdict import judge

    accuracy = pd.DataFrame(outcome.accuracy, columns=["pushes", "seconds", "accuracy", "loss"])
    accuracy.insert(1, "iteration", accuracy.pushes / run.workers)
    phases = pd.DataFrame(outcome.phases, columns=PHASE_COLUMNS)
    phases["phase"] = phases.phase.astype(int).map(dict(enumerate(PHASES)))
    pushes = pd.DataFrame(outcome.pushes, columns=PUSH_COLUMNS)
    arrivals = pd.DataFrame(outcome.arrivals, columns=ARRIVAL_COLUMNS)
    arrivals["kind"] = arrivals.kind.astype(int).map(dict(enumerate(ARRIVALS)))
    floats = ("seconds", "begin_s", "end_s", "loss", "density", "kind", "phase")  # and words

    def typed(table: pd.DataFrame) -> pd.DataFrame:
        return table.astype({name: int for name in table if name not in floats})

    tables = {
        "accuracy": accuracy.astype({"pushes": int}),
        "phases": typed(phases).sort_values("begin_s"),
        "pushes": typed(pushes),
        "arrivals": typed(arrivals),
    }
    largest = float(np.abs(outcome.weights).max(initial=0.0))
    judged = judge(run, tables, outcome.facts).facts()
    return tables, outcome.weights, {**outcome.facts, "largest_weight": largest, **judged}
