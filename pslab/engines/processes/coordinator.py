"""A run, seen from the parent: where its tensors lie, what has been measured, and the evaluation of its snapshots."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from pslab.engines.experiment.experiment import Experiment, OnProgress, Trained
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.layout import Layout
from pslab.engines.processes.channel import Report
from pslab.engines.processes.child import Role
from pslab.engines.processes.pool import ENDS, Pool
from pslab.engines.processes.watch import EVALUATING, PREPARING, Phases, Watch
from pslab.errors import RunError, StartFailed
from pslab.tensors.entries import by_key

INTERRUPT_LIMIT_S = 1.2  # the evaluation that is under way then comes on top
EVALUATION_LIMIT_S = 0.6  # more, for evaluations that have begun
EVALUATOR = Role("pslab.engines.server.evaluate:Evaluating", "evaluator")
POLL_S = 0.1  # how often the receiver of the news may end the run


class Coordinator:
    """The parent of a run with processes; an engine adds how time passes.

    Those that are to evaluate have a role with a method `evaluate(index, device)`, which reports "evaluated".
    """

    def __init__(self, pool: Pool, experiment: Experiment, on_progress: OnProgress) -> None:
        self.pool, self.experiment, self.on_progress, self.run = pool, experiment, on_progress, experiment.run
        self.snapshots: dict[int, tuple[int, float]] = {}  # index -> pushes, seconds
        self.evaluated: dict[int, tuple[float, ...]] = {}  # index -> accuracy, loss, other metrics
        self.busy: dict[int, int] = {}  # process -> the snapshot that it evaluates
        self.trained = False  # only evaluations are left
        pool.watch = Watch(self.run.lease_s)
        self.news: list[dict[str, Any]] = []

    def lay_out(self) -> Job:
        """Lay weights and data into shared memory; return the job of it."""
        experiment, pool = self.experiment, self.pool
        self.layout = layout = Layout.of(experiment)
        pool.arena.give_back()  # an earlier run may have left something there, which is no part of a checkpoint
        pool.arena.reserve(layout.end)
        pool.arena.put(layout.server, experiment.weights)  # the server's own
        return Job.of(experiment, layout, *pool.share(experiment))

    def final_weights(self) -> np.ndarray:
        """The weights as they are now, as a record has them. They are not in shared memory any more."""
        layout, experiment = self.layout, self.experiment
        taken = self.pool.arena.taken(layout.server, layout.size, layout.dtype).numpy()
        return experiment.to_record(by_key(taken, experiment.places))

    def await_reports(
        self, numbers: Iterable[int], phase: str, meanwhile: Callable[[], None] = lambda: None
    ) -> list[Report]:
        """The report with which each of these processes ends a phase; as `Pool.reports`. Once in each lease the
        others are named: one may compute for ever, and no rule can tell."""
        found, waiting = [], set(numbers) - self.pool.ended.keys()
        begin_s = said_s = time.monotonic()
        while waiting:
            news: dict[str, Any] = {}
            if (now := time.monotonic()) - said_s > self.run.lease_s:
                said_s, words = now, f"still {phase} after {now - begin_s:.0f} s"
                news = {"pushes": 0, "seconds": 0.0, "waits": f"{self.pool.who(waiting)}: {words}"}
            self.on_progress(news)
            meanwhile()
            for number, report in self.pool.reports(dict.fromkeys(waiting, phase), POLL_S, self.tolerated):
                waiting.discard(number)
                found.append(report)
        return found

    def await_prepared(self, numbers: Iterable[int]) -> None:
        """Wait until these processes have reported that they have their role."""
        self.await_reports(numbers, PREPARING)

    def tolerated(self, number: int) -> bool:
        """Whether this process may end without ending the run: it then has `Pool.ended`."""
        return False

    def take(self, number: int, report: Report) -> None:
        """Handle one report of a process."""
        body = report.body
        if report.kind == "snapshot":
            self.keep_snapshot(body)
        elif report.kind == "evaluated":
            if self.busy.pop(number, None) != body["index"]:
                return  # the run has gone back behind that snapshot
            self.evaluated[body["index"]] = (body["accuracy"], body["loss"], *body["others"])
            size_bytes = self.layout.snapshot_bytes
            self.pool.snapshots.give_back(body["index"] * size_bytes, size_bytes)
            pushes, seconds = self.snapshots[body["index"]]
            self.news.append({"pushes": pushes, "seconds": seconds, **body, **self._left()})
        elif report.kind in ENDS:
            self.busy.pop(number, None)  # another one evaluates its snapshot

    def _left(self) -> dict[str, Any]:
        """How many snapshots are evaluated, of how many, once that is all there is to do."""
        return {"evaluating": [len(self.evaluated), len(self.snapshots)]} if self.trained else {}

    def keep_snapshot(self, body: dict[str, Any]) -> None:
        """Keep a snapshot of the weights for evaluation."""
        self.snapshots[body["index"]] = (body["pushes"], body["seconds"])

    def forget_snapshots(self, count: int) -> None:
        """Forget the snapshots behind so many: the run goes on from there."""
        for found in (self.snapshots, self.evaluated):
            for index in [index for index in found if index >= count]:
                del found[index]
        self.busy = {number: index if index < count else -1 for number, index in self.busy.items()}

    def hear(self, owed: Phases, timeout_s: float) -> None:
        """Take the reports that have arrived, then pass on the news; its receiver may raise."""
        errors = self._take_all(self.pool.reports(owed, timeout_s, self.tolerated))
        if errors:
            raise errors[0]
        news, self.news = self.news, []
        for item in news or [{}]:
            self.on_progress(item)

    def hear_out(self, numbers: set[int], enough: Callable[[], bool], until_s: float) -> None:
        """Take the last reports of these processes until there are `enough`; their errors are known."""
        while not enough() and (left_s := until_s - time.monotonic()) > 0:
            if not (owed := dict.fromkeys(numbers - self.pool.ended.keys(), "")):
                return
            self._take_all(self.pool.reports(owed, left_s, lambda number: True))

    def _take_all(self, reports: Iterable[tuple[int, Report]]) -> list[RunError]:
        """Take every report, even if one of them ends the run."""
        errors = []
        for number, report in reports:
            try:
                self.take(number, report)
            except RunError as error:
                errors.append(error)
        return errors

    @property
    def unevaluated(self) -> list[int]:
        """Snapshots that are neither evaluated nor being evaluated."""
        return [i for i in sorted(self.snapshots) if i not in self.evaluated and i not in self.busy.values()]

    def order_evaluation(self, number: int, index: int, device: str) -> None:
        """Let an idle process evaluate a snapshot."""
        self.busy[number] = index
        self.pool.order(number, "evaluate", index, device)

    def evaluate(self, numbers: Iterable[int], until_s: float = math.inf, *, last_first: bool = False) -> None:
        """Evaluate the snapshots of a run that stands still, on as many idle processes as there are cores.

        None is begun after `until_s`, and none is waited for longer than EVALUATION_LIMIT_S beyond that.

        Raises:
            WorkerDied: all of these processes are gone. And what `Pool.reports` raises.
        """
        able = set(numbers)
        while time.monotonic() < until_s + EVALUATION_LIMIT_S:
            here = sorted(able - self.pool.ended.keys())[: max(1, os.cpu_count() or 1)]
            left = sorted(self.unevaluated, reverse=last_first) if time.monotonic() < until_s else []
            if not here and (left or self.busy):
                errors = (error for number, error in self.pool.ended.items() if number in able)
                raise next(errors, StartFailed("no process is left that could evaluate the snapshots"))
            for number, index in zip((n for n in here if n not in self.busy), left):  # noqa: B905
                self.order_evaluation(number, index, self.run.device)
            if not self.busy:
                return
            self.hear(dict.fromkeys(self.busy, EVALUATING), POLL_S)

    def evaluate_rest(self, numbers: Iterable[int]) -> None:
        """Evaluate the rest after the training, and report how far that is."""
        self.trained = True
        pushes, seconds = self.snapshots[max(self.snapshots)] if self.snapshots else (0, 0.0)
        self.on_progress({"pushes": pushes, "seconds": seconds, **self._left()})
        self.evaluate(numbers)

    def left(self) -> Trained | None:
        """The snapshots that have been evaluated and those that have not, once that is all there is to do."""
        if not self.trained:
            return None
        left = [index for index in sorted(self.snapshots) if index not in self.evaluated]
        held = {index: self.layout.snapshot_in(self.pool.snapshots, index).numpy().copy() for index in left}
        return Trained(dict(self.snapshots), dict(self.evaluated), held)

    def accuracy(self) -> np.ndarray:
        """The rows of the evaluated snapshots: pushes, seconds, accuracy, loss, other metrics."""
        rows = [(*self.snapshots[i], *self.evaluated[i]) for i in sorted(self.evaluated)]
        return np.array(rows, dtype=np.float64).reshape(-1, 4 + len(self.experiment.metrics))
