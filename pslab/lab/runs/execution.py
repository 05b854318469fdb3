"""The execution of runs that have no record: one after another, but virtual runs several at a time. It loads torch."""

from __future__ import annotations

import threading
import time
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pslab.config import spec
from pslab.config.available import cores
from pslab.config.run import Run
from pslab.engines.execute import awaits_evaluation, execute, fits
from pslab.engines.experiment.experiment import Interrupted, Outcome
from pslab.errors import RecordError, RunError, RunsInterrupted, Unwritable
from pslab.lab.judge import tables_of
from pslab.lab.records.card import times
from pslab.lab.records.drafts import Draft
from pslab.lab.records.record import Result, find
from pslab.lab.runs.interrupts import Unwanted, heed
from pslab.lab.runs.machine import check_disk, checkpoints, forget_checkpoints, with_checkpoints
from pslab.lab.runs.progress import Progress, taken_before
from pslab.lab.runs.resolve import POLICIES, resolve

if TYPE_CHECKING:
    from pslab.engines.virtual.parallel_runs import News

Found = dict[str, Result | Exception]


def run_missing(
    wanted: dict[int, Run], results: Path, progress: bool | None, stop: threading.Event, unwanted: Unwanted
) -> dict[int, Result | Exception]:
    """Execute runs; return for each index the result or the error. All runs are checked before the first one starts.

    `unwanted` gets each result as soon as it is recorded. A run whose digest is in `unwanted` then is not started, or
    is ended, and has neither a result nor an error.
    """
    names = {index: str(index) if run.unknown else run.digest for index, run in wanted.items()}
    distinct: dict[str, Run] = {}
    small: dict[str, Run] = {}  # runs that need one core
    for index, run in wanted.items():
        distinct.setdefault(names[index], run)
    for run, kind in product(distinct.values(), POLICIES):
        spec.resolve(kind, getattr(run, kind))  # a misspelt name is refused before a bar is drawn
    with Progress(distinct, taken=taken_before(results), at_once=cores(), shown=progress) as shown:
        for name, run in distinct.items():
            heed(stop)
            shown.say(name, "is checked")
            small |= {name: run} if _checked(run, results) else {}
        finished = _in_parallel(small, results, shown, stop, unwanted) if len(small) > 1 else {}
        for name, run in distinct.items():
            if name in finished:
                continue
            heed(stop)
            if run.digest in unwanted.digests:
                shown.drop(name)
                continue
            finished[name] = _tried(_UnderWay(name, run, results, shown), stop)
            unwanted.told(finished[name])
    return {index: finished[name] for index, name in names.items() if name in finished}


def _checked(run: Run, results: Path) -> bool:
    """Check that a run can be executed; return whether it can be executed beside others, each on one core."""
    experiment = resolve(run)  # the experiment is not stored: its weights and data may be large
    check_disk(experiment, results)
    return fits(experiment) and not awaits_evaluation(checkpoints(run, results))


class _UnderWay:
    """A current run, with the draft of its record and its progress."""

    def __init__(self, name: str, run: Run, results: Path, shown: Progress) -> None:
        self.name, self.run, self.place, self.shown = name, run, results, shown
        self.draft = Draft(run, results, again=find(run, results) is not None)
        self._begun_s = time.monotonic()
        shown.begin(name)

    def note(self, news: dict[str, Any]) -> None:
        if news:
            self.draft.note(news)
            self.shown.update(self.name, news)

    def save(self, outcome: Outcome) -> Result:
        """Write the record of the finished run, remove its checkpoints, and return its result."""
        outcome.facts.setdefault("wall_s", time.monotonic() - self._begun_s)
        result = self.draft.save(*tables_of(self.run, outcome))
        forget_checkpoints(self.run, self.place)
        self.shown.end(self.name, float(outcome.accuracy[-1][2]) if len(outcome.accuracy) else None,
                       times(result.manifest))  # fmt: skip
        return result

    def set_aside(self, error: Interrupted | RunError) -> str:
        """Store the completed part of an unfinished run; return its size and folder in words, "" if it has no push."""
        outcome = error.outcome
        if outcome is None or not outcome.pushes.size:
            self.draft.drop()
            return ""
        if isinstance(error, RunError):
            outcome.facts |= {"outcome": "interrupted", "error": str(error)}
        result = self.draft.set_aside(*tables_of(self.run, outcome))
        where = f"after {result.manifest['pushes']} pushes; kept in {result.path}"
        if isinstance(error, RunError):
            error.saved = f"the run ended {where}"
        return where

    def interrupted(self, outcome: Outcome | None) -> str:
        """Store the completed part of an interrupted run; return in words its size, its folder and how to continue."""
        from pslab.engines.trained import keep_trained  # no other run loads it

        message = self.set_aside(Interrupted(outcome))
        if outcome is not None and keep_trained(outcome, checkpoints(self.run, self.place)):
            message += "; the next call continues with its evaluation"
        return message


def _tried(current: _UnderWay, stop: threading.Event) -> Result | Exception:
    """Execute a run; return its result or its error. A RecordError is raised, because it concerns the whole sweep."""
    try:
        return _execute(current, stop)
    except RecordError:
        raise
    except Exception as error:
        current.shown.fail(current.name, error)
        return error


def _execute(current: _UnderWay, stop: threading.Event) -> Result:
    def on_progress(news: dict[str, Any]) -> None:
        current.note(news)
        heed(stop)

    try:
        experiment = with_checkpoints(resolve(current.run), current.place)
        check_disk(experiment, current.place)
        outcome = execute(experiment, on_progress)
    except Interrupted as interrupt:
        message = current.interrupted(interrupt.outcome)
        raise RunsInterrupted(f"interrupted {message or 'before the first push; nothing was recorded'}") from None
    except BaseException as error:
        if isinstance(error, RunError):
            current.set_aside(error)
        else:
            current.draft.drop()
        heed(stop)  # an error caused by an interrupt is not reported
        raise
    return current.save(outcome)


def _in_parallel(
    runs: dict[str, Run], results: Path, shown: Progress, stop: threading.Event, unwanted: Unwanted
) -> Found:
    """Execute virtual runs, several at a time; return their results and errors by name.

    A run without a result or error was unwanted, was not started, or its process died. The caller executes it alone.
    """
    from pslab.engines.virtual import parallel_runs  # a single run, or a run on another engine, does not load it

    names, under_way, done = list(runs), dict[str, _UnderWay](), Found()
    messages: list[str] = []
    unwritable: list[RecordError] = []
    failed: list[BaseException] = []  # an error that the caller's function `ended` has raised

    def heed_all() -> None:
        heed(stop)
        if unwritable or failed:
            raise KeyboardInterrupt

    def finish(name: str, outcome: Outcome) -> None:
        done[name] = result = under_way.pop(name).save(outcome)
        try:
            unwanted.told(result)
        except BaseException as error:  # the other runs shut down cleanly first
            failed.append(error)

    def take(name: str, news: News) -> None:
        if name not in under_way:
            under_way[name] = _UnderWay(name, runs[name], results, shown)
        current, ended = under_way[name], isinstance(news, (RunError, Outcome))
        if ended and runs[name].digest in unwanted.digests:
            under_way.pop(name).draft.drop()
        elif isinstance(news, RunError):
            under_way.pop(name)
            current.set_aside(news)
            if news.outcome is not None:
                done[name] = news
                shown.fail(name, news)
        elif not isinstance(news, Outcome):
            current.note(news)
        elif news.facts["outcome"] == "interrupted" or news.trained is not None:
            messages.append(under_way.pop(name).interrupted(news))
        else:
            finish(name, news)

    try:
        experiments = (with_checkpoints(resolve(run), results) for run in runs.values())
        of = [run.digest for run in runs.values()]
        for index, news in parallel_runs.conduct(experiments, heed_all, lambda index: of[index] in unwanted.digests):
            try:
                take(names[index], news)
            except RecordError as error:
                unwritable.append(error)
    except KeyboardInterrupt as interrupt:
        if not (unwritable or failed):
            raise RunsInterrupted("; ".join([str(interrupt), *filter(None, messages)])) from None
    except RunError:
        pass
    finally:
        for current in under_way.values():
            current.draft.drop()
    if unwritable:
        raise Unwritable("; ".join(map(str, unwritable)))
    if failed:
        raise failed[0]
    return done
