"""The local engine: real processes on this machine, in wall-clock time."""

from __future__ import annotations

import math
import os
import time
from typing import Any

import numpy as np
import torch

from pslab.engines import pool as pools
from pslab.engines.control import SERVER
from pslab.engines.experiment import Experiment, Layout
from pslab.engines.job import Job
from pslab.engines.outcome import Interrupted, OnProgress, Outcome
from pslab.engines.pool import Pool
from pslab.engines.work import PHASE_COLUMNS
from pslab.errors import WorkerDied

HONEST_SHARE = 0.05  # of the workers' time that overruns and late messages may take
INTERRUPT_LIMIT_S = 1.2  # the evaluation that is under way then comes on top
POLL_S = 0.1  # how often the receiver of the news may end the run


def execute(experiment: Experiment, on_progress: OnProgress) -> Outcome:
    """Run an experiment on the pool of this process.

    Raises:
        WorkerFailed, WorkerDied, StartFailed: the pool is closed then, and the next run spawns another.
        Interrupted: with what was finished, within two seconds.
    """
    run = experiment.run
    beside = run.evaluate == "beside" or run.target_accuracy is not None
    pool = pools.acquire(run.workers + beside, lambda: on_progress({}))
    try:
        return _Conduct(pool, experiment, on_progress, beside).conduct()
    except Interrupted:
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
        self.busy: dict[int, int] = {}  # who evaluates which snapshot
        self.lost: set[int] = set()
        self.news: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {}
        self.phases: list[np.ndarray] = []
        self.pushes = np.empty((0, 0))
        self.worked: dict[int, dict[str, Any]] = {}
        self.running = self.reached = False

    def conduct(self) -> Outcome:
        begin_s = time.monotonic()
        try:
            self._prepare()
            self.preparation_s = time.monotonic() - begin_s
            self._follow()
            self._evaluate(self._unevaluated)
        except KeyboardInterrupt:
            raise Interrupted(self._wind_up()) from None
        outcome = self._outcome()
        if self.lost:  # the survivors are well, but the next run needs everybody
            pools.release(kill=True)
        return outcome

    @property
    def _under_way(self) -> bool:
        """Whether the server or a worker has not yet reported its end."""
        return "outcome" not in self.facts or bool(self.workers - self.lost - set(self.worked))

    @property
    def _unevaluated(self) -> list[int]:
        return [i for i in sorted(self.snapshots) if i not in self.evaluated and i not in self.busy.values()]

    def _follow(self) -> None:
        """Take what the processes report until all of them have ended."""
        for number in (*sorted(self.workers), SERVER):
            self.pool.order(number, "run")
        self.running = True
        everyone = self.workers | {SERVER} | ({self.evaluator} if self.evaluator is not None else set())
        while self._under_way:
            self._hear(everyone, POLL_S)
            if self.evaluator is not None and not self.busy and (todo := self._unevaluated):
                self._order_evaluation(self.evaluator, todo[0], "cpu")
        if self.reached and self.facts["outcome"] == "interrupted":
            self.facts["outcome"] = "target"

    def _hear(self, numbers: set[int], timeout_s: float) -> None:
        """Take the reports that there are, then pass on what is new: its receiver may raise."""
        for number, report in self.pool.reports(numbers, timeout_s, self._tolerated):
            self._take(number, report)
        news, self.news = self.news, []
        for item in news or [{}]:
            self.on_progress(item)

    def _prepare(self) -> None:
        experiment, pool = self.experiment, self.pool
        dtype = getattr(torch, self.run.dtype)
        layout = Layout.plan(
            self.run.workers, experiment.keyspace.size, dtype, experiment.parts, in_place=experiment.in_place
        )
        pool.arena.reserve(layout.end)
        self.weights = pool.arena.tensor(layout.server, layout.size, dtype)  # the server's own
        self.weights.copy_(experiment.weights)
        job = Job.of(experiment, layout, pool.shelve(experiment.dataset))
        for number in pool.processes:
            pool.order(number, "prepare", job)
        waiting = set(self.workers)
        while waiting:
            self.on_progress({})
            waiting -= {n for n, r in pool.reports(waiting, POLL_S, lambda n: False) if r.kind == "prepared"}

    def _tolerated(self, number: int) -> bool:
        return number in self.workers and self._under_way  # the server notices at once, and knows the iteration

    def _take(self, number: int, report: Any) -> None:
        body = report.body
        if report.kind == "progress":
            self.news.append(body)
        elif report.kind == "snapshot":
            self.snapshots[body["index"]] = (body["pushes"], body["seconds"])
        elif report.kind == "lost":
            self._lose(body)
        elif report.kind == "evaluated":
            self.busy.pop(number, None)
            self.evaluated[body["index"]] = (body["accuracy"], body["loss"])
            pushes, seconds = self.snapshots[body["index"]]
            self.news.append({"pushes": pushes, "seconds": seconds, **body})
            self._stop_at_target(body["accuracy"])
        elif report.kind == "served":
            self.facts.update(body)
            self.pushes = report.table
        elif report.kind == "worked":
            self.worked[number] = body
            self.phases.append(report.table)

    def _lose(self, death: dict[str, Any]) -> None:
        self.lost.add(death["worker"])
        if death.get("over"):
            return
        if self.run.on_death == "stop" or len(self.lost) == self.run.workers:
            raise WorkerDied(f"worker {death['worker']}", death["iteration"], death["how"])
        self.pool.processes[death["worker"]].kill()  # silent beyond its lease, perhaps, but not gone

    def _stop_at_target(self, accuracy: float) -> None:
        target = self.run.target_accuracy
        if target is not None and accuracy >= target and "outcome" not in self.facts:
            self.pool.order(SERVER, "stop")
            self.reached = True

    def _order_evaluation(self, number: int, index: int, device: str) -> None:
        self.busy[number] = index
        self.pool.order(number, "evaluate", (index, device))

    def _evaluate(self, todo: list[int], until_s: float = math.inf) -> None:
        """Snapshots of the run that has ended, on as many idle workers as there are cores."""
        idle = sorted(self.workers - self.lost)[: max(1, os.cpu_count() or 1)]
        while (todo and time.monotonic() < until_s) or self.busy:
            for number in idle:
                if todo and number not in self.busy and time.monotonic() < until_s:
                    self._order_evaluation(number, todo.pop(0), self.run.device)
            self._hear(set(self.busy), POLL_S)

    def _wind_up(self) -> Outcome | None:
        """After an interrupt: end the run in order and keep what it has finished; all that within the limit."""
        self.on_progress = lambda news: None
        until_s = time.monotonic() + INTERRUPT_LIMIT_S
        outcome = None
        if self.running:
            if "outcome" not in self.facts:
                self.pool.order(SERVER, "stop")
            while self._under_way and (left_s := until_s - time.monotonic()) > 0:
                self._hear(self.workers | {SERVER}, left_s)
            if not self._under_way:
                self._evaluate(self._unevaluated[::-1], until_s)  # the last one first
                outcome = self._outcome()
        if outcome is None or self.lost:
            pools.release(kill=True)
        return outcome

    def _outcome(self) -> Outcome:
        rows = [(*self.snapshots[i], *self.evaluated[i]) for i in sorted(self.evaluated)]
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
            "preparation_s": self.preparation_s,
            "honesty": honesty,
            "honest": honesty["compute_overrun_share"] + honesty["late_message_share"] <= HONEST_SHARE,
            "disturbed": self.evaluator is not None,
        }
        accuracy = np.array(rows, dtype=np.float64).reshape(-1, 4)
        return Outcome(accuracy, phases, self.pushes, self.weights.numpy().copy(), facts)
