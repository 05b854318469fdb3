"""The parent's part in a run with processes: shared memory, reports, progress, and the evaluation of snapshots."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from pslab.config.available import cores
from pslab.engines.experiment.evaluations import Evaluations
from pslab.engines.experiment.experiment import Experiment, OnProgress, Trained
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.layout import Layout
from pslab.engines.processes.channel import Report
from pslab.engines.processes.child import Role
from pslab.engines.processes.pool import ENDS, Pool
from pslab.engines.processes.watch import EVALUATING, PREPARING, Phases, Watch
from pslab.errors import RunError, StartFailed
from pslab.tensors.entries import by_key

INTERRUPT_LIMIT_S = 1.2  # for winding up an interrupted run, without the evaluations under way
EVALUATION_LIMIT_S = 0.6  # additional time for evaluations under way
EVALUATOR = Role("pslab.engines.server.evaluate:Evaluating", "evaluator")
POLL_S = 0.1  # between two calls of `on_progress`, which may end the run by raising


class Coordinator(Evaluations):
    """The parent's part in a run with processes, the base class of the engines that use them.

    A process can evaluate if its role has a method `evaluate(index, device)`, which reports "evaluated".
    """

    def __init__(self, pool: Pool, experiment: Experiment, on_progress: OnProgress) -> None:
        super().__init__()
        self.pool, self.experiment, self.on_progress, self.run = pool, experiment, on_progress, experiment.run
        pool.watch = Watch(self.run.lease_s)
        self.news: list[dict[str, Any]] = []

    def lay_out(self) -> Job:
        """Copy the weights and the dataset into shared memory; return the run's Job."""
        experiment, pool = self.experiment, self.pool
        self.layout = layout = Layout.of(experiment)
        pool.arena.give_back()  # zero the bytes of earlier runs, so that no checkpoint contains them
        pool.arena.reserve(layout.end)
        pool.arena.put(layout.server, experiment.weights)  # the server's copy
        return Job.of(experiment, layout, *pool.share(experiment))

    def final_weights(self) -> np.ndarray:
        """Move the server's weights out of shared memory; return them in a record's order and form."""
        layout, experiment = self.layout, self.experiment
        taken = self.pool.arena.taken(layout.server, layout.size, layout.dtype).numpy()
        return experiment.to_record(by_key(taken, experiment.places))

    def await_prepared(self, numbers: Iterable[int]) -> None:
        """Wait until each of these processes has reported "prepared" or has ended; raise the errors of `Pool.reports`.

        Once in each lease, tell `on_progress` which processes still prepare: one may be in an endless loop.
        """
        waiting = set(numbers) - self.pool.ended.keys()
        begin_s = named_s = time.monotonic()
        while waiting:
            news: dict[str, Any] = {}
            if (now := time.monotonic()) - named_s > self.run.lease_s:
                named_s, words = now, f"still {PREPARING} after {now - begin_s:.0f} s"
                news = {"pushes": 0, "seconds": 0.0, "waits": f"{self.pool.who(waiting)}: {words}"}
            self.on_progress(news)
            reports = self.pool.reports(dict.fromkeys(waiting, PREPARING), POLL_S, self.tolerated)
            waiting -= {number for number, _ in reports}

    def tolerated(self, number: int) -> bool:
        """Whether this process may end without ending the run; its error is then in `Pool.ended`."""
        return False

    def take(self, number: int, report: Report) -> None:
        """Handle one report of a process."""
        body = report.body
        if report.kind == "snapshot":
            self.keep_snapshot(body)
        elif report.kind == "evaluated":
            if self.busy.pop(number, None) != body["index"]:
                return  # the run has been rewound to an instant before that snapshot
            size_bytes = self.layout.snapshot_bytes
            self.pool.snapshots.give_back(body["index"] * size_bytes, size_bytes)
            values = body["accuracy"], body["loss"], *body["others"]
            self.news.append(self.count_evaluated(body["index"], values))
        elif report.kind in ENDS:
            self.busy.pop(number, None)  # another process will evaluate its snapshot

    def keep_snapshot(self, body: dict[str, Any]) -> None:
        """Register a snapshot of the weights for evaluation."""
        self.snapshots[body["index"]] = (body["pushes"], body["seconds"])

    def hear(self, owed: Phases, timeout_s: float) -> None:
        """Handle the reports that arrive within `timeout_s`, then pass the news to `on_progress`, which may raise."""
        errors = self._take_all(self.pool.reports(owed, timeout_s, self.tolerated))
        if errors:
            raise errors[0]
        news, self.news = self.news, []
        for item in news or [{}]:
            self.on_progress(item)

    def hear_out(self, numbers: set[int], enough: Callable[[], bool], until_s: float) -> None:
        """Handle reports until `enough()` is true, these processes have ended or it is `until_s`; ignore RunErrors."""
        while not enough() and (left_s := until_s - time.monotonic()) > 0:
            if not (owed := dict.fromkeys(numbers - self.pool.ended.keys(), "")):
                return
            self._take_all(self.pool.reports(owed, left_s, lambda number: True))

    def _take_all(self, reports: Iterable[tuple[int, Report]]) -> list[RunError]:
        errors = []  # every report is handled, even if one of them ends the run
        for number, report in reports:
            try:
                self.take(number, report)
            except RunError as error:
                errors.append(error)
        return errors

    def order_evaluation(self, number: int, index: int, device: str) -> None:
        """Order an idle process to evaluate a snapshot."""
        self.busy[number] = index
        self.pool.order(number, "evaluate", index, device)

    def evaluate(self, numbers: Iterable[int], until_s: float = math.inf, *, last_first: bool = False) -> None:
        """Evaluate the snapshots of a paused or ended run on idle processes, at most one for each core.

        No evaluation begins after `until_s`; evaluations under way may last EVALUATION_LIMIT_S longer.

        Raises:
            RunError: all of these processes have ended, or `Pool.reports` raised it.
        """
        able = set(numbers)
        while time.monotonic() < until_s + EVALUATION_LIMIT_S:
            here = sorted(able - self.pool.ended.keys())[: cores()]
            left = sorted(self.unevaluated, reverse=last_first) if time.monotonic() < until_s else []
            if not here and (left or self.busy):
                errors = (error for number, error in self.pool.ended.items() if number in able)
                raise next(errors, StartFailed("all processes that could evaluate the snapshots have ended: run again"))
            for number, index in zip((n for n in here if n not in self.busy), left):  # noqa: B905
                self.order_evaluation(number, index, self.run.device)
            if not self.busy:
                return
            self.hear(dict.fromkeys(self.busy, EVALUATING), POLL_S)

    def evaluate_rest(self, numbers: Iterable[int]) -> None:
        """Evaluate the remaining snapshots after the training, and report the progress."""
        self.trained = True
        pushes, seconds = self.snapshots[max(self.snapshots)] if self.snapshots else (0, 0.0)
        self.on_progress({"pushes": pushes, "seconds": seconds, **self.to_come()})
        self.evaluate(numbers)

    def left(self) -> Trained | None:
        """Return the evaluated snapshots, and the weights of the others; None if the run has not finished training."""
        if not self.trained:
            return None
        left = [index for index in sorted(self.snapshots) if index not in self.evaluated]
        weights = {index: self.layout.snapshot_in(self.pool.snapshots, index).numpy().copy() for index in left}
        return Trained(dict(self.snapshots), dict(self.evaluated), weights)
