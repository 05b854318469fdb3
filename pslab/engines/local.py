"""The local engine: real processes on this machine, in wall-clock time."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import torch

from pslab.config import Run
from pslab.engines import pool as pools
from pslab.engines.control import SERVER
from pslab.engines.experiment import Experiment, Layout
from pslab.engines.job import Job
from pslab.engines.outcome import OnProgress, Outcome
from pslab.engines.pool import Pool
from pslab.engines.work import PHASE_COLUMNS
from pslab.errors import WorkerDied

HONEST_SHARE = 0.05  # of the workers' time that overruns and late messages may take
INTERRUPT_LIMIT_S = 1.5
POLL_S = 1.0


def execute(experiment: Experiment, on_progress: OnProgress) -> Outcome:
    """Run an experiment on the pool of this process.

    Raises:
        WorkerFailed, WorkerDied, StartFailed: the pool is closed then, and the next run spawns another.
        KeyboardInterrupt: after the run was stopped in order; the pool stays.
    """
    run = experiment.run
    beside = run.target_accuracy is not None
    pool = pools.acquire(run.workers + beside)
    try:
        return _Conduct(pool, experiment, on_progress, beside).conduct()
    except KeyboardInterrupt:
        if not _stopped_in_order(pool, run):
            pools.release(kill=True)
        raise
    except BaseException:
        pools.release(kill=True)
        raise


class _Conduct:
    """One run, seen from the parent."""

    def __init__(self, pool: Pool, experiment: Experiment, on_progress: OnProgress, beside: bool) -> None:
        self.pool, self.experiment, self.on_progress, self.run = pool, experiment, on_progress, experiment.run
        self.workers = set(range(self.run.workers))
        self.evaluator = self.run.workers if beside else None
        self.snapshots: dict[int, tuple[int, float]] = {}
        self.evaluated: dict[int, tuple[float, float]] = {}
        self.lost: set[int] = set()
        self.facts: dict[str, Any] = {}
        self.phases: list[np.ndarray] = []
        self.pushes = np.empty((0, 0))
        self.worked: dict[int, dict[str, Any]] = {}
        self.reached = False

    def conduct(self) -> Outcome:
        self._prepare()
        for number in (*sorted(self.workers), SERVER):
            self.pool.order(number, "run")
        everyone = self.workers | {SERVER} | ({self.evaluator} if self.evaluator is not None else set())
        queue: list[int] = []  # snapshots to evaluate beside the run
        busy = False
        while "outcome" not in self.facts or self.workers - self.lost - set(self.worked):
            for number, report in self.pool.reports(everyone, POLL_S, self._tolerated):
                self._take(number, report)
                if report.kind == "snapshot" and self.evaluator is not None:
                    queue.append(report.body["index"])
                if report.kind == "evaluated":
                    busy = False
                    self._stop_at_target(report.body)
            if queue and not busy and self.evaluator is not None:
                self.pool.order(self.evaluator, "evaluate", (queue.pop(0), "cpu"))
                busy = True
        self._drain(busy)
        self._evaluate_all()
        outcome = self._outcome()
        if self.lost:  # the survivors are well, but the next run needs everybody
            pools.release(kill=True)
        return outcome

    def _prepare(self) -> None:
        experiment, pool = self.experiment, self.pool
        dtype = getattr(torch, self.run.dtype)
        layout = Layout.plan(self.run.workers, experiment.keyspace.size, dtype, experiment.parts)
        pool.arena.reserve(layout.end)
        pool.arena.tensor(layout.initial, layout.size, dtype).copy_(experiment.weights)
        job = Job.of(experiment, layout, pool.shelve(experiment.dataset))
        for number in pool.processes:
            pool.order(number, "prepare", job)
        waiting = set(self.workers)
        while waiting:
            waiting -= {n for n, r in pool.reports(waiting, POLL_S, lambda n: False) if r.kind == "prepared"}

    def _tolerated(self, number: int) -> bool:
        return number in self.workers  # the server notices at once, and knows the iteration

    def _take(self, number: int, report: Any) -> None:
        body = report.body
        if report.kind == "progress":
            self.on_progress(body)
        elif report.kind == "snapshot":
            self.snapshots[body["index"]] = (body["pushes"], body["seconds"])
        elif report.kind == "lost":
            self.lost.add(body["worker"])
            if body.get("over"):
                return
            if self.run.on_death == "stop" or len(self.lost) == self.run.workers:
                raise WorkerDied(f"worker {body['worker']}", body["iteration"], body["how"])
            self.pool.processes[body["worker"]].kill()  # silent beyond its lease, perhaps, but not gone
        elif report.kind == "evaluated":
            self.evaluated[body["index"]] = (body["accuracy"], body["loss"])
            pushes, seconds = self.snapshots[body["index"]]
            self.on_progress({"pushes": pushes, "seconds": seconds, "accuracy": body["accuracy"]})
        elif report.kind == "served":
            self.facts.update(body)
            self.pushes = report.table
        elif report.kind == "worked":
            self.worked[number] = body
            self.phases.append(report.table)

    def _stop_at_target(self, body: dict[str, Any]) -> None:
        target = self.run.target_accuracy
        if target is not None and body["accuracy"] >= target and "outcome" not in self.facts:
            self.pool.order(SERVER, "stop")
            self.reached = True

    def _drain(self, busy: bool) -> None:
        while busy and self.evaluator is not None:
            for number, report in self.pool.reports({self.evaluator}, POLL_S, lambda n: False):
                self._take(number, report)
                busy = False
        if self.reached and self.facts["outcome"] == "interrupted":
            self.facts["outcome"] = "target"

    def _evaluate_all(self) -> None:
        """The snapshots of the timed run, on as many idle workers as there are cores."""
        todo = [index for index in sorted(self.snapshots) if index not in self.evaluated]
        idle = sorted(self.workers - self.lost)[: max(1, os.cpu_count() or 1)]
        busy: dict[int, int] = {}
        device = self.run.device
        while todo or busy:
            for number in idle:
                if todo and number not in busy:
                    busy[number] = todo.pop(0)
                    self.pool.order(number, "evaluate", (busy[number], device))
            for number, report in self.pool.reports(set(busy), POLL_S, lambda n: False):
                self._take(number, report)
                del busy[number]

    def _final_weights(self) -> np.ndarray:
        size, dtype = self.experiment.keyspace.size, getattr(torch, self.run.dtype)
        last = max(self.snapshots)
        return self.pool.snapshots.tensor(last * size * dtype.itemsize, size, dtype).numpy().copy()

    def _outcome(self) -> Outcome:
        rows = [(*self.snapshots[i], *self.evaluated[i]) for i in sorted(self.snapshots)]
        phases = np.concatenate([p for p in self.phases if p.size] or [np.empty((0, len(PHASE_COLUMNS)))])
        alive_s = sum(w["alive_s"] for w in self.worked.values()) or 1.0
        overrun_s = sum(w["overrun_s"] for w in self.worked.values())
        late_s = self.facts["late_s_mean"] * self.facts["messages"]
        honesty = {
            "compute_overrun_share": overrun_s / alive_s,
            "late_message_share": late_s / alive_s,
            "late_message_mean_s": self.facts["late_s_mean"],
            "late_message_99th_s": self.facts["late_s_99th"],
            "real_compute_share": sum(w["real_s"] for w in self.worked.values()) / alive_s,
        }
        keep = ("outcome", "seconds", "pushes", "accepted", "refused", "deaths", "diverged")
        facts = {name: self.facts[name] for name in keep} | {
            "honesty": honesty,
            "honest": honesty["compute_overrun_share"] + honesty["late_message_share"] <= HONEST_SHARE,
            "disturbed": self.evaluator is not None,
        }
        accuracy = np.array(rows, dtype=np.float64).reshape(-1, 4)
        return Outcome(accuracy, phases, self.pushes, self._final_weights(), facts)


def _stopped_in_order(pool: Pool, run: Run) -> bool:
    """After an interrupt: the server ends the run, and everybody is back in the pool within the limit."""
    limit_s = time.monotonic() + INTERRUPT_LIMIT_S
    waiting = {SERVER, *range(run.workers)}
    pool.order(SERVER, "stop")
    try:
        while waiting and (left_s := limit_s - time.monotonic()) > 0:
            for number, report in pool.reports(waiting, left_s, lambda n: False):
                if report.kind in ("served", "worked"):
                    waiting.discard(number)
    except BaseException:
        return False
    return not waiting
