"""A run, seen from the parent: where its tensors lie, what has been measured, and the evaluation of its snapshots."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from pslab.engines.job.experiment import Experiment
from pslab.engines.job.job import Job
from pslab.engines.job.layout import Layout
from pslab.engines.job.outcome import OnProgress
from pslab.engines.processes.channel import Report
from pslab.engines.processes.pool import Pool

INTERRUPT_LIMIT_S = 1.2  # the evaluation that is under way then comes on top
POLL_S = 0.1  # how often the receiver of the news may end the run


class Coordinator:
    """What every engine with processes does; an engine adds how time passes.

    Those that are to evaluate have a role with a method `evaluate(index, device)`, which reports "evaluated".
    """

    def __init__(self, pool: Pool, experiment: Experiment, on_progress: OnProgress) -> None:
        self.pool, self.experiment, self.on_progress, self.run = pool, experiment, on_progress, experiment.run
        self.snapshots: dict[int, tuple[int, float]] = {}  # index -> pushes, seconds
        self.evaluated: dict[int, tuple[float, float]] = {}  # index -> accuracy, loss
        self.busy: dict[int, int] = {}  # who evaluates which snapshot
        self.news: list[dict[str, Any]] = []

    def lay_out(self) -> Job:
        """Weights and data into shared memory; the job of it."""
        experiment, pool = self.experiment, self.pool
        layout = Layout.of(experiment)
        pool.arena.reserve(layout.end)
        self.weights = pool.arena.tensor(layout.server, layout.size, layout.dtype)  # the server's own
        self.weights.copy_(experiment.weights)
        return Job.of(experiment, layout, pool.shelve(experiment.dataset))

    def await_prepared(self, numbers: Iterable[int]) -> None:
        """Until these processes have reported that they have their role."""
        waiting = set(numbers)
        while waiting:
            self.on_progress({})
            waiting -= {n for n, r in self.pool.reports(waiting, POLL_S, lambda n: False) if r.kind == "prepared"}

    def tolerated(self, number: int) -> bool:
        """Whether this process may end without ending the run."""
        return False

    def take(self, number: int, report: Report) -> None:
        """One report of a process."""
        body = report.body
        if report.kind == "snapshot":
            self.keep_snapshot(body)
        elif report.kind == "evaluated":
            self.busy.pop(number, None)
            self.evaluated[body["index"]] = (body["accuracy"], body["loss"])
            pushes, seconds = self.snapshots[body["index"]]
            self.news.append({"pushes": pushes, "seconds": seconds, **body})

    def keep_snapshot(self, body: dict[str, Any]) -> None:
        """A snapshot of the weights was taken, which is to be evaluated."""
        self.snapshots[body["index"]] = (body["pushes"], body["seconds"])

    def hear(self, numbers: set[int], timeout_s: float) -> None:
        """Take the reports that there are, then pass on what is new: its receiver may raise."""
        for number, report in self.pool.reports(numbers, timeout_s, self.tolerated):
            self.take(number, report)
        news, self.news = self.news, []
        for item in news or [{}]:
            self.on_progress(item)

    @property
    def unevaluated(self) -> list[int]:
        """Snapshots that are neither evaluated nor being evaluated."""
        return [i for i in sorted(self.snapshots) if i not in self.evaluated and i not in self.busy.values()]

    def order_evaluation(self, number: int, index: int, device: str) -> None:
        """Let an idle process evaluate a snapshot."""
        self.busy[number] = index
        self.pool.order(number, "evaluate", index, device)

    def evaluate(self, todo: list[int], idle: Iterable[int], until_s: float = math.inf) -> None:
        """Evaluate snapshots of a run that stands still, on as many idle processes as there are cores."""
        numbers = sorted(idle)[: max(1, os.cpu_count() or 1)]
        while (todo and time.monotonic() < until_s) or self.busy:
            for number in numbers:
                if todo and number not in self.busy and time.monotonic() < until_s:
                    self.order_evaluation(number, todo.pop(0), self.run.device)
            self.hear(set(self.busy), POLL_S)

    def accuracy(self) -> np.ndarray:
        """The rows of the evaluated snapshots: pushes, seconds, accuracy, loss."""
        rows = [(*self.snapshots[i], *self.evaluated[i]) for i in sorted(self.evaluated)]
        return np.array(rows, dtype=np.float64).reshape(-1, 4)
