"""run(Run) -> Result: from its record if there is one, else executed now."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pslab.config.run import Run
from pslab.errors import RecordError, RunError, RunsInterrupted, StartFailed, SweepFailed, Unwritable
from pslab.lab.records import journal
from pslab.lab.records.drafts import Draft, clean
from pslab.lab.records.record import Result, default_results, emulation_ok, find
from pslab.lab.records.results import Results, Runs
from pslab.lab.runs.interrupts import heed, import_torch, noted
from pslab.lab.runs.machine import check_disk, forget_checkpoints, forget_old_checkpoints, with_checkpoints
from pslab.lab.runs.progress import Progress, taken_before

if TYPE_CHECKING:
    from pslab.engines.experiment.experiment import Interrupted, Outcome

_pool_in_use = threading.Lock()  # one pool per process: a run in a cell must not meet one in the background

AGAIN = "PSLAB_AGAIN"  # in the environment: `sweep` runs again what was not kept


class InvalidRun(UserWarning):
    """The history of a run breaks a rule of the protocol or of its policy."""


class Forgotten(UserWarning):
    """Checkpoints that nobody went on from were removed."""


class NotFoundAgain(UserWarning):
    """A run with an object whose content cannot be known: it is executed each time."""


def run(
    run: Run, *, results: Path | str | None = None, progress: bool | None = None, again: bool | None = None,
    fresh: bool = False,
) -> Result:  # fmt: skip
    """The result of one run; what is recorded is not run again, unless `sweep` is told to.

    Raises:
        ConfigError: the run is impossible; nothing was started.
        RunError: a worker raised or died; what was completed is kept, the message says where.
        RunsInterrupted: (a KeyboardInterrupt) within two seconds; what was completed is kept, the message says where.
    """
    return sweep([run], results=results, progress=progress, again=again, fresh=fresh)[0]


def sweep(
    runs: Iterable[Run], *, results: Path | str | None = None, progress: bool | None = None,
    stop: threading.Event | None = None, again: bool | None = None, fresh: bool = False,
) -> Results:  # fmt: skip
    """The results of many runs, in their order and with the columns of their grid.

    What is missing is run in one pool, one after another; runs in virtual time, whose results do not depend on what
    else the machine does, as many at a time as there are cores.

    With `again`, what is recorded is run again if its emulation was not kept; the old record is moved to
    results/replaced/. None: once in this process, if `pslab figures --again` executes it.

    A run that was ended before its time, however that was, goes on from its newest checkpoint, unless it is to begin
    `fresh`.

    All of them are checked before the first one starts, and each is recorded as soon as it is finished. One that fails
    for a reason of its own does not keep the others from being tried. `stop`, set from another thread, does what an
    interrupt does.

    Raises:
        SweepFailed: some of several runs failed; it has their errors, and the results of the others.
        StartFailed: another thread of this process executes runs.
        Unwritable: nothing can be recorded; what was under way is set aside elsewhere. And what `run` raises.
    """
    wanted = runs if isinstance(runs, Runs) else Runs(runs)
    place = default_results() if results is None else Path(results)
    found = {index: find(each, place) for index, each in enumerate(wanted)}
    missing = [index for index, result in found.items() if result is None or _again(result, again)]
    begun_s = time.monotonic()
    failed: dict[int, Exception] = {}
    journal.note(asked=[each.digest for each in wanted], missing=len(missing))
    if missing:
        with _alone(), noted(stop or threading.Event()) as ended:
            clean(place)
            if words := forget_old_checkpoints(place):
                warnings.warn(words, Forgotten, stacklevel=2)
            for index in missing if fresh else ():
                forget_checkpoints(wanted[index], place)
            ran, failed = _run_missing({index: wanted[index] for index in missing}, place, progress, ended)
            found |= ran
    done = {index: result for index, result in sorted(found.items()) if result is not None and index not in failed}
    journal.note(swept_s=time.monotonic() - begun_s)
    _warn(list(done.values()))
    if len(wanted) == len(failed) == 1:
        raise failed[0]
    complete = Results(done.values(), [wanted.columns[index] for index in done], wanted.orders)
    if failed:
        raise SweepFailed({wanted.words(index): error for index, error in failed.items()}, complete)
    return complete


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


def _run_missing(
    wanted: dict[int, Run], place: Path, progress: bool | None, stop: threading.Event
) -> tuple[dict[int, Result], dict[int, Exception]]:
    """The results of the runs, and why the others have none."""
    import_torch(stop)  # not needed where everything is recorded
    from pslab.engines.virtual.parallel_runs import fits
    from pslab.lab.runs.resolve import resolve

    def alone(each: Run) -> bool:
        """Whether a run that can be is one that takes a core."""
        experiment = resolve(each)  # it is not kept: its weights and data may be many
        check_disk(experiment, place)
        return fits(experiment)

    distinct: dict[str, Run] = {}
    crowd: dict[str, Run] = {}
    for index, each in wanted.items():
        heed(stop)
        name = str(index) if each.unknown else each.digest
        if name not in distinct:
            distinct[name] = each
            crowd |= {name: each} if alone(each) else {}
    shown = Progress(distinct, taken=taken_before(place), at_once=os.cpu_count() or 1, shown=progress)
    found = _in_parallel(crowd, place, shown, stop) if len(crowd) > 1 else {}
    for name, each in distinct.items():
        if name not in found:
            found[name] = _tried(name, each, place, shown, stop)
    each_of = {index: found[str(index) if each.unknown else each.digest] for index, each in wanted.items()}
    done = {index: one for index, one in each_of.items() if not isinstance(one, Exception)}
    return done, {index: one for index, one in each_of.items() if isinstance(one, Exception)}


def _tried(name: str, run: Run, place: Path, shown: Progress, stop: threading.Event) -> Result | Exception:
    """The result of a run, or its own error. What cannot be written is everybody's."""
    try:
        return _execute(name, run, place, shown, stop)
    except RecordError:
        raise
    except Exception as error:
        shown.fail(name, error)
        return error


def _execute(name: str, run: Run, place: Path, shown: Progress, stop: threading.Event) -> Result:
    from pslab.engines.execute import execute, keep_trained
    from pslab.engines.experiment.experiment import Interrupted
    from pslab.lab.judge.tables import tables_of
    from pslab.lab.runs.resolve import resolve

    heed(stop)
    draft = Draft(run, place, again=find(run, place) is not None)
    _run_again.add(run.digest)

    def on_progress(news: dict[str, Any]) -> None:
        if news:
            draft.note(news)
            shown.update(name, news)
        heed(stop)

    begun_s = time.monotonic()
    shown.begin(name)
    try:
        experiment = with_checkpoints(resolve(run), place)
        check_disk(experiment, place)
        outcome = execute(experiment, on_progress)
    except (Interrupted, RunError) as error:
        kept = _set_aside(draft, run, error)
        if isinstance(error, Interrupted):
            if error.outcome is not None and keep_trained(error.outcome, experiment.checkpoints):
                kept += "; asked for again, it goes on with its evaluation"
            raise RunsInterrupted(f"interrupted {kept or 'before the first push; nothing was recorded'}") from None
        error.kept = kept and f"the run ended {kept}"
        heed(stop)  # an error that an interrupt caused is none
        raise
    except BaseException:
        draft.drop()
        heed(stop)
        raise
    outcome.facts.setdefault("wall_s", time.monotonic() - begun_s)
    result = draft.save(*tables_of(run, outcome))
    forget_checkpoints(run, place)
    shown.end(name, _last(outcome))
    return result


def _set_aside(draft: Draft, run: Run, error: Interrupted | RunError) -> str:
    """Keep what a run had completed that came to no end; how much that is, and where. "" if it is nothing."""
    from pslab.lab.judge.tables import tables_of

    outcome = error.outcome
    if outcome is None or not outcome.pushes.size:
        draft.drop()
        return ""
    if isinstance(error, RunError):
        outcome.facts |= {"outcome": "interrupted", "error": str(error)}
    kept = draft.set_aside(*tables_of(run, outcome))
    return f"after {kept.manifest['pushes']} pushes; kept in {kept.path}"


def _in_parallel(
    runs: dict[str, Run], place: Path, shown: Progress, stop: threading.Event
) -> dict[str, Result | Exception]:
    """Virtual runs, several at a time: their results and errors.

    Those without either were under way in a process that is gone, or not begun: alone they come to the same end.
    """
    from pslab.engines.experiment.experiment import Interrupted, Outcome
    from pslab.engines.virtual import parallel_runs
    from pslab.lab.judge.tables import tables_of
    from pslab.lab.runs.resolve import resolve

    names, drafts, done = list(runs), dict[str, Draft](), dict[str, Result | Exception]()
    kept: list[str] = []
    unwritable: list[RecordError] = []

    def heed_all() -> None:
        heed(stop)
        if unwritable:
            raise KeyboardInterrupt

    def take(name: str, news: parallel_runs.News) -> None:
        if name not in drafts:
            drafts[name] = Draft(runs[name], place)
            shown.begin(name)
        if isinstance(news, RunError):
            draft = drafts.pop(name)
            if news.outcome is None:
                draft.drop()
                return
            where = _set_aside(draft, runs[name], news)
            news.kept = where and f"the run ended {where}"
            done[name] = news
            shown.fail(name, news)
        elif not isinstance(news, Outcome):
            if news:
                drafts[name].note(news)
                shown.update(name, news)
        elif news.facts["outcome"] == "interrupted":
            kept.append(_set_aside(drafts.pop(name), runs[name], Interrupted(news)))
        else:
            done[name] = drafts.pop(name).save(*tables_of(runs[name], news))
            forget_checkpoints(runs[name], place)
            shown.end(name, _last(news))

    try:
        experiments = (with_checkpoints(resolve(each), place) for each in runs.values())
        for index, news in parallel_runs.conduct(experiments, heed_all):
            try:
                take(names[index], news)
            except RecordError as error:
                unwritable.append(error)
    except KeyboardInterrupt as interrupt:
        if not unwritable:
            raise RunsInterrupted("; ".join([str(interrupt), *filter(None, kept)])) from None
    except RunError:
        pass
    finally:
        for draft in drafts.values():
            draft.drop()
    if unwritable:
        raise Unwritable("; ".join(map(str, unwritable)))
    return done


def _last(outcome: Outcome) -> float | None:
    return float(outcome.accuracy[-1][2]) if len(outcome.accuracy) else None
