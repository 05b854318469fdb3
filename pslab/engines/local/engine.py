"""The local engine: real processes on this machine, in wall-clock time."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from pslab.engines.job.experiment import Experiment
from pslab.engines.job.outcome import Interrupted, OnProgress, Outcome
from pslab.engines.local.layered_worker import LocalLayeredWorker
from pslab.engines.local.server import LocalServer
from pslab.engines.local.worker import LocalWorker
from pslab.engines.processes import pool as pools
from pslab.engines.processes.channel import Report
from pslab.engines.processes.coordinator import INTERRUPT_LIMIT_S, POLL_S, Coordinator
from pslab.engines.processes.pool import SERVER, Pool
from pslab.engines.server.evaluate import Evaluating
from pslab.engines.worker.phases import PHASE_COLUMNS
from pslab.errors import WorkerDied

HONEST_SHARE = 0.05  # of the workers' time that overruns and late messages may take


def execute(experiment: Experiment, on_progress: OnProgress) -> Outcome:
    """Run an experiment on the pool of this process.

    Raises:
        WorkerFailed, WorkerDied, StartFailed: the pool is closed then, and the next run spawns another.
        Interrupted: with what was completed, within two seconds.
    """
    run = experiment.run
    beside = run.evaluate == "beside" or run.target_accuracy is not None
    pool = pools.acquire(run.workers + beside, lambda: on_progress({}))
    try:
        return _LocalRun(pool, experiment, on_progress, beside).conduct()
    except Interrupted:
        raise
    except BaseException:
        pools.release(kill=True)
        raise


class _LocalRun(Coordinator):
    """A run in wall-clock time."""

    def __init__(self, pool: Pool, experiment: Experiment, on_progress: OnProgress, beside: bool) -> None:
        super().__init__(pool, experiment, on_progress)
        self.workers = set(range(self.run.workers))
        self.evaluator = self.run.workers if beside else None
        self.lost: set[int] = set()
        self.facts: dict[str, Any] = {}
        self.phases: list[np.ndarray] = []
        self.pushes = np.empty((0, 0))
        self.worked: dict[int, dict[str, Any]] = {}
        self.running = self.reached = False

    def conduct(self) -> Outcome:
        start_s = time.monotonic()
        try:
            self._prepare()
            self.preparation_s = time.monotonic() - start_s
            self._follow()
            self.evaluate(self.unevaluated, self.workers - self.lost)
        except KeyboardInterrupt:
            raise Interrupted(self._wind_up()) from None
        outcome = self._outcome()
        if self.lost:  # the survivors are well, but the next run needs all processes
            pools.release(kill=True)
        return outcome

    @property
    def _under_way(self) -> bool:
        """Whether the server or a worker has not yet reported its end."""
        return "outcome" not in self.facts or bool(self.workers - self.lost - set(self.worked))

    @property
    def _all(self) -> set[int]:
        """The processes that have a role."""
        return self.workers | {SERVER} | ({self.evaluator} if self.evaluator is not None else set())

    def _follow(self) -> None:
        """Take what the processes report until all of them have ended."""
        for number in (*sorted(self.workers), SERVER):
            self.pool.order(number, "run")
        self.running = True
        while self._under_way:
            self.hear(self._all, POLL_S)
            if self.evaluator is not None and not self.busy and (todo := self.unevaluated):
                self.order_evaluation(self.evaluator, todo[0], "cpu")
        if self.reached and self.facts["outcome"] == "interrupted":
            self.facts["outcome"] = "target"

    def _prepare(self) -> None:
        job = self.lay_out()
        self.pool.start(SERVER, LocalServer, job)
        for worker in sorted(self.workers):
            self.pool.start(worker, LocalLayeredWorker if job.layered else LocalWorker, job)
        if self.evaluator is not None:
            self.pool.start(self.evaluator, Evaluating, job)
        self.await_prepared(self._all)

    def tolerated(self, number: int) -> bool:
        return number in self.workers and self._under_way  # the server notices at once, and knows the iteration

    def take(self, number: int, report: Report) -> None:
        super().take(number, report)
        if report.kind == "progress":
            self.news.append(report.body)
        elif report.kind == "lost":
            self._lose(report.body)
        elif report.kind == "evaluated":
            self._stop_at_target(report.body["accuracy"])
        elif report.kind == "served":
            self.facts.update(report.body)
            self.pushes = report.table
        elif report.kind == "worked":
            self.worked[number] = report.body
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

    def _wind_up(self) -> Outcome | None:
        """After an interrupt: end the run in order and keep what it has completed; all that within the limit."""
        self.on_progress = lambda news: None
        until_s = time.monotonic() + INTERRUPT_LIMIT_S
        outcome = None
        if self.running:
            if "outcome" not in self.facts:
                self.pool.order(SERVER, "stop")
            while self._under_way and (left_s := until_s - time.monotonic()) > 0:
                self.hear(self.workers | {SERVER}, left_s)
            if not self._under_way:
                self.evaluate(self.unevaluated[::-1], self.workers - self.lost, until_s)  # the last one first
                outcome = self._outcome()
        if outcome is None or self.lost:
            pools.release(kill=True)
        return outcome

    def _outcome(self) -> Outcome:
        phases = np.concatenate([p for p in self.phases if p.size] or [np.empty((0, len(PHASE_COLUMNS)))])
        alive_s = sum(w["alive_s"] for w in self.worked.values()) or 1.0
        overrun_s = sum(w["overrun_s"] for w in self.worked.values())
        # ranges are on their way at the same time: an iteration has waited for one of them after another's lateness
        late_s = self.facts["late_s_mean"] * self.facts["messages"] / len(self.experiment.parts)
        honesty = {
            "compute_overrun_share": overrun_s / alive_s,
            "late_message_share": late_s / alive_s,
            "late_message_mean_s": self.facts["late_s_mean"],
            "late_message_99th_s": self.facts["late_s_99th"],
            "real_compute_share": sum(w["real_s"] for w in self.worked.values()) / alive_s,
        }
        keep = ("outcome", "seconds", "pushes", "accepted", "refused", "dropped", "dropped_bytes", "deaths",
                "diverged", "costs")  # fmt: skip
        facts = {name: self.facts[name] for name in keep} | {
            "preparation_s": self.preparation_s,
            "layers_s": np.sum([w["layers_s"] for w in self.worked.values()], axis=0).tolist(),
            "honesty": honesty,
            "honest": honesty["compute_overrun_share"] + honesty["late_message_share"] <= HONEST_SHARE,
            "disturbed": self.evaluator is not None,
        }
        if sweeps := [row for worked in self.worked.values() for row in worked["sweeps"]]:
            facts["sweeps"] = sorted(sweeps)
        return Outcome(self.accuracy(), phases, self.pushes, self.weights.numpy().copy(), facts)
