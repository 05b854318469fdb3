"""The local engine: real processes on this machine, in wall-clock time."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pslab.config.metric import metric_of
from pslab.engines.job.experiment import Experiment
from pslab.engines.job.outcome import Interrupted, OnProgress, Outcome
from pslab.engines.local.attendance import Attendance, how_of
from pslab.engines.local.layered_worker import LocalLayeredWorker
from pslab.engines.local.pace import DILATIONS, STARVED, Pace, kept, larger
from pslab.engines.local.server import LocalServer
from pslab.engines.local.worker import LocalWorker
from pslab.engines.processes import pool as pools
from pslab.engines.processes.channel import Report
from pslab.engines.processes.coordinator import INTERRUPT_LIMIT_S, POLL_S, Coordinator
from pslab.engines.processes.pool import SERVER, Pool
from pslab.engines.processes.precedence import let_others_first
from pslab.engines.processes.watch import EVALUATING, REHEARSING
from pslab.engines.server.evaluate import Evaluating
from pslab.engines.worker.phases import PHASE_COLUMNS

STARVING_LIMIT_S = 0.5  # for which a rehearsal may starve workers that let others first


def execute(experiment: Experiment, on_progress: OnProgress, *, yields: bool | None = None) -> Outcome:
    """Run an experiment on the pool of this process.

    An emulated cluster that this machine cannot keep up with runs slower than in its own seconds, in which everything
    is recorded: as far as `Run.dilation` says, or a rehearsal shows; if that was not enough, once again and slower.
    Limits, such as `Run.lease_s`, are in real seconds.

    Args:
        yields: whether workers compute only where no other process wants to; None: unless that starves them.

    Raises:
        WorkerFailed, WorkerDied, StartFailed: the pool is closed then, and the next run spawns another.
        Interrupted: with what was completed, within two seconds.
    """
    run = experiment.run
    beside = run.evaluate == "beside" or run.target_accuracy is not None
    pool = pools.acquire(run.workers + beside, lambda: on_progress({}))
    try:
        return _LocalRun(pool, experiment, on_progress, beside, yields).conduct()
    except Interrupted:
        raise
    except BaseException:
        pools.release(kill=True)
        raise


def rehearse(experiment: Experiment) -> Pace:
    """How fast this machine is for an experiment, measured by the processes of a run that is then not run.

    Raises:
        WorkerFailed, WorkerDied, StartFailed: the pool is closed then.
    """
    pool = pools.acquire(experiment.run.workers)
    try:
        return _LocalRun(pool, experiment, lambda news: None, beside=False, yields=None).rehearsed()
    except BaseException:
        pools.release(kill=True)
        raise


class _LocalRun(Coordinator):
    """A run in wall-clock time."""

    def __init__(
        self, pool: Pool, experiment: Experiment, on_progress: OnProgress, beside: bool, yields: bool | None,
        before: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(pool, experiment, on_progress)
        self.asked, self.before = yields, before  # `before`: the emulation of an attempt that was not kept
        self.yields, self.dilation, self.pace = bool(yields), 1.0, Pace(0.0, 0.0)
        self.attendance = Attendance(pool, self.run.workers, self.run.on_death)
        self.workers, self.lost = self.attendance.workers, self.attendance.lost
        self.evaluator = self.run.workers if beside else None
        self.facts: dict[str, Any] = {}
        self.phases: list[np.ndarray] = []
        self.pushes = self.arrivals = np.empty((0, 0))
        self.worked: dict[int, dict[str, Any]] = {}
        self.running = self.reached = False

    def conduct(self) -> Outcome:
        start_s = time.monotonic()
        try:
            self._prepare()
            if self.experiment.trains and self.experiment.cluster.emulated:
                self._rehearse()
            self.preparation_s = time.monotonic() - start_s
            self._follow()
            if not self._to_be_repeated():
                self.evaluate(self.unevaluated, self.workers - self.lost)
        except KeyboardInterrupt:
            raise Interrupted(self._wind_up()) from None
        if self._to_be_repeated():
            return self._repeated()
        outcome = self._outcome()
        if self.pool.ended:  # the survivors are well, but the next run needs all processes
            pools.release(kill=True)
        return outcome

    def rehearsed(self) -> Pace:
        """The pace that a run would have now."""
        self._prepare()
        self._rehearse()
        return self.pace

    @property
    def _under_way(self) -> bool:
        """Whether the server or a worker has not yet reported its end."""
        return "outcome" not in self.facts or bool(self.workers - self.lost - set(self.worked))

    @property
    def _all(self) -> set[int]:
        """The processes that have a role."""
        return self.workers | {SERVER} | ({self.evaluator} if self.evaluator is not None else set())

    def _owed(self) -> dict[int, str]:
        """Who owes a report; see pslab.engines.processes.watch."""
        owed = self.attendance.owed("outcome" in self.facts, set(self.worked))
        beside = {} if self.evaluator is None else {self.evaluator: ""}
        return owed | beside | dict.fromkeys(self.busy, EVALUATING)

    def _follow(self) -> None:
        """Take what the processes report until all of them have ended."""
        with self._yielding(self.yields):
            for number in (*sorted(self.workers), SERVER):
                self.pool.order(number, "run", self.dilation)
            self.running = True
            while self._under_way:
                self.hear(self._owed(), POLL_S)
                if self.evaluator is not None and not self.busy and (todo := self.unevaluated):
                    self.order_evaluation(self.evaluator, todo[0], "cpu")
        if self.reached and self.facts["outcome"] == "interrupted":
            self.facts["outcome"] = "target"

    # --- the emulation --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _yielding(self, yields: bool) -> Iterator[bool]:
        """Those that compute let the server first, if the system can: no message is late because others compute."""
        try:
            yield yields and let_others_first(self._computing, True)
        finally:
            let_others_first(self._computing, False)

    @property
    def _computing(self) -> list[int]:
        """The processes that compute, by their numbers in the system."""
        here = self._all - {SERVER} - self.pool.ended.keys()
        return [self.pool.processes[number].pid for number in here]

    def _rehearse(self) -> None:
        """Find out whether workers may let others first, and how slowly the cluster must run."""
        begin_s = time.monotonic()
        self.pace = self._measured()
        if self.asked is not False:
            with self._yielding(True) as done:
                pace = self._measured(max(STARVING_LIMIT_S, 2 * (time.monotonic() - begin_s)))
            self.yields = done and (bool(self.asked) or pace.gradient_s <= STARVED * self.pace.gradient_s)
            self.pace = pace if self.yields else self.pace
        if isinstance(self.run.dilation, float):
            self.dilation = self.run.dilation
        else:
            self.dilation = self.pace.dilation(self.experiment, larger(self.before) if self.before else 1.0)

    def _measured(self, limit_s: float = math.inf) -> Pace:
        """The pace while all workers compute side by side; after so long as usual, if they let others first."""
        until_s = time.monotonic() + limit_s
        for number in sorted(self.workers | {SERVER}):
            self.pool.order(number, "rehearse")

        def meanwhile() -> None:
            if time.monotonic() > until_s:
                let_others_first(self._computing, False)

        reports = self.await_reports(self.workers | {SERVER}, REHEARSING, meanwhile)
        gradients_s = [report.body.get("gradient_s", 0.0) for report in reports]
        return Pace(max(gradients_s), sum(report.body.get("late_s", 0.0) for report in reports))

    def _emulation(self) -> dict[str, Any]:
        """How well the emulation was kept: shares of the workers' time, and what was measured before."""
        alive_s = sum(w["alive_s"] for w in self.worked.values()) or 1.0
        overrun_s = sum(w["overrun_s"] for w in self.worked.values())
        # ranges are on their way at the same time: an iteration has waited for one of them after another's lateness
        late_s = self.facts["late_s_mean"] * self.facts["messages"] / len(self.experiment.parts)
        late_s += self.facts["stalled_s"] + sum(w["late_s"] for w in self.worked.values())
        return {
            "dilation": self.dilation,
            "compute_overrun_share": overrun_s / alive_s,
            "late_message_share": late_s / alive_s,
            "late_message_mean_s": self.facts["late_s_mean"],
            "late_message_99th_s": self.facts["late_s_99th"],
            "real_compute_share": sum(w["real_s"] for w in self.worked.values()) / alive_s,
            "workers_let_others_first": self.yields,
            "rehearsed_gradient_s": self.pace.gradient_s,
            "rehearsed_late_s": self.pace.late_s,
        }

    def _to_be_repeated(self) -> bool:
        """Whether this attempt was not kept, and a slower one may be."""
        able = self.run.dilation == "auto" and self.experiment.cluster.modelled(self.run.workers)
        tried = self.before is not None or self.dilation >= DILATIONS[-1]
        ended = bool(self.lost) or self.facts["outcome"] == "interrupted"
        return able and not tried and not ended and not kept(self._emulation())

    def _repeated(self) -> Outcome:
        """The outcome of another attempt, slower than this one."""
        before = self._emulation()
        self.on_progress({"pushes": 0, "seconds": 0.0, "repeated": True})
        beside = self.evaluator is not None
        return _LocalRun(self.pool, self.experiment, self.on_progress, beside, self.asked, before).conduct()

    def _prepare(self) -> None:
        job = self.lay_out()
        self.pool.start(SERVER, LocalServer, job)
        for worker in sorted(self.workers):
            self.pool.start(worker, LocalLayeredWorker if job.layered else LocalWorker, job)
        if self.evaluator is not None:
            self.pool.start(self.evaluator, Evaluating, job)
        self.await_prepared(self._all)

    def tolerated(self, number: int) -> bool:
        """While the run is under way the server notices, and knows the iteration."""
        going = self.running and self._under_way
        return number in self.workers and (going or self.run.on_death == "continue")

    def take(self, number: int, report: Report) -> None:
        super().take(number, report)
        if report.kind == "progress":
            self.news.append(self.attendance.progress(report.body))
        elif report.kind == "silent" and number not in self.pool.ended:
            self.attendance.waits(number)
        elif report.kind == "failed" and self.run.on_death == "stop":
            raise self.pool.ended[number]
        elif report.kind == "lost":
            self.attendance.lose(report.body)
        elif report.kind == "evaluated":
            self._stop_at_target(report.body["accuracy"])
        elif report.kind == "arrivals":
            self.arrivals = report.table
        elif report.kind == "served":
            self.facts.update(report.body)
            self.pushes = report.table
        elif report.kind == "worked":
            self.worked[number] = report.body
            self.phases.append(report.table)

    def _stop_at_target(self, accuracy: float) -> None:
        target = self.run.target_accuracy
        reached = target is not None and metric_of(self.run).reaches(accuracy, target)
        if reached and "outcome" not in self.facts:
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
                self.hear(self._owed(), left_s)
            if not self._under_way:
                self.evaluate(self.unevaluated[::-1], self.workers - self.lost, until_s)  # the last one first
                outcome = self._outcome()
        if outcome is None or self.lost or self.busy:
            pools.release(kill=True)
        return outcome

    def _outcome(self) -> Outcome:
        phases = np.concatenate([p for p in self.phases if p.size] or [np.empty((0, len(PHASE_COLUMNS)))])
        emulation = self._emulation()
        names = ("outcome", "seconds", "pushes", "accepted", "refused", "dropped", "dropped_bytes", "deaths",
                "diverged", "costs")  # fmt: skip
        facts = {name: self.facts[name] for name in names} | {
            "preparation_s": self.preparation_s,
            "layers_s": np.sum([w["layers_s"] for w in self.worked.values()], axis=0).tolist(),
            "deaths": [{**death, "how": how_of(self.pool.end_of(death["worker"]))} for death in self.facts["deaths"]],
            "dilation": self.dilation,
            "emulation": emulation,
            "emulation_ok": kept(emulation),
            **({"repeated_after": dict(self.before)} if self.before else {}),
            "disturbed": self.evaluator is not None,
        }
        if sweeps := [row for worked in self.worked.values() for row in worked["sweeps"]]:
            facts["sweeps"] = sorted(sweeps)
        if self.lost:
            facts["phases_lost"] = sorted(self.lost)  # with the processes that had them
        return Outcome(self.accuracy(), phases, self.pushes, self.arrivals, self.weights.numpy().copy(), facts)
