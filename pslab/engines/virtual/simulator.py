"""A run in virtual time: a server and its workers, and the events between them.

Gradients are real: they are computed on the weights that a worker would have. All times follow from the cluster's
fields.
"""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from pslab.engines.emulation.faults import Faults
from pslab.engines.emulation.faults import facts as fault_facts
from pslab.engines.emulation.link_queue import Waiting
from pslab.engines.emulation.links import UP
from pslab.engines.emulation.traffic import Traffic
from pslab.engines.experiment.experiment import OnProgress
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import Diverged, Frame
from pslab.engines.server.push_accounts import PushAccounts
from pslab.engines.server.rows import Rows
from pslab.engines.server.store import Shard
from pslab.engines.server.worker_status import doings
from pslab.engines.virtual.scheduler import AT_SERVER, AT_WORKER, JOINS, LEAVES, Scheduler
from pslab.engines.virtual.server_node import ServerNode
from pslab.engines.virtual.worker_node import Gradients, WorkerNode
from pslab.engines.worker.phases import PHASE_COLUMNS
from pslab.protocol.server import Server

if TYPE_CHECKING:
    from pslab.engines.worker.keyed import Requests

PROGRESS_PERIOD_S, LONGEST_PERIOD_S = 0.2, 1.0  # between two reports; longer if reports of many workers take long
PROGRESS_SHARE = 0.02  # the share of wall-clock time that reports may take before their period grows
LIVES = 100  # processes that replace a worker in one iteration
EVENTS = 200  # events between two readings of the wall clock


class Simulator:
    """Simulates a run: it processes one event after another, until the server's driver has an outcome."""

    def __init__(
        self, job: Job, accounts: PushAccounts, shard: Shard, gradients: Gradients, requests: Requests | None = None
    ) -> None:
        self._job, run, cluster = job, job.run, job.cluster
        machine = Server(filter(cluster.present, range(run.workers)), len(job.parts), job.sync)
        # only layered requests wait for each other at a link, so that an order can choose
        waiting = Waiting(job, machine) if job.layered and not cluster.free else None
        self._traffic = None if cluster.free else Traffic(job, waiting)
        self.faults = Faults(cluster, run.seed)  #: faults of workers; `Traffic` has the faults of frames
        self._unnoticed: dict[int, dict[str, Any]] = {}  # killed workers whose death the server has not noticed
        self.deaths: list[dict[str, Any]] = []
        self.lives: list[dict[str, Any]] = []  # ended processes that were replaced
        self.scheduler = scheduler = Scheduler(self._traffic, self._arrived)
        self.rows = Rows(len(PHASE_COLUMNS))  #: the phases of all workers
        self.workers = [WorkerNode(job, worker, self, scheduler, gradients, self.rows, waiting, requests)
                        for worker in range(run.workers)]  # fmt: skip
        self._server = ServerNode(job, machine, accounts, shard, waiting, scheduler, self._traffic, self.workers)
        self.driver = self._server.driver
        self.meanwhile: Callable[[], None] = lambda: None  #: called while a gradient is awaited

    def run(self, on_progress: OnProgress, after: Callable[[], None] = lambda: None) -> None:
        """Perform all events of the run, report progress at times, and call `after` after each event."""
        next_s, events = time.monotonic() + PROGRESS_PERIOD_S, 0

        def report() -> None:
            nonlocal next_s
            if (now := time.monotonic()) >= next_s:
                machine = self.driver.machine
                workers = doings(machine, [not node.driver.machine.computing for node in self.workers])
                on_progress({"pushes": machine.gradients, "seconds": self.scheduler.now, "workers": workers})
                spent_s = time.monotonic() - now
                next_s = now + max(PROGRESS_PERIOD_S, min(LONGEST_PERIOD_S, spent_s / PROGRESS_SHARE))

        self.meanwhile = report
        seconds = math.inf if self._job.run.seconds is None else self._job.run.seconds
        with _uncollected():
            self._start()
            driver, scheduler = self.driver, self.scheduler
            while not driver.outcome:
                if not scheduler.turn(seconds):
                    idle = "stalled" if driver.machine.workers else "died"
                    # no event is left: each worker waits for a message that nobody sends, or all have left
                    driver.end(idle if scheduler.empty else "seconds", scheduler.now)
                after()
                events += 1
                # to read the wall clock takes as long as some events
                if events % EVENTS == 0:
                    report()

    def phases(self) -> np.ndarray:
        """The phases of all workers; see Outcome."""
        return self.rows.table()

    def facts(self, preparation_s: float, turning_s: float, wall_s: float) -> dict[str, Any]:
        """Return the facts of a run in virtual time for the manifest; `preparation_s`, `turning_s` and `wall_s` are
        the machine's seconds for preparing, for processing events, and for all."""
        driver, faults = self.driver, self.faults
        # the server may have been busy until the end
        unhandled = [worker for worker in driver.machine.workers if self.scheduler.life[worker] == math.inf]
        frames = faults if self._traffic is None else self._traffic.faults
        sweeps = [list(row) for node in self.workers if (fit := node.driver.range_schedule) for row in fit.sweeps]
        return {
            **driver.facts(),
            "refused": driver.refused + sum(node.driver.refused for node in self.workers) + frames.refused,
            "deaths": [death for death in self.deaths if death["worker"] not in unhandled],
            **({"lives": self.lives} if self.lives else {}),
            "server_busy_s": self._server.busy_s,
            "preparation_s": preparation_s,
            "turning_s": turning_s,
            "wall_s": wall_s,
            "events": self.scheduler.events,
            "emulation_ok": True,  # virtual time does not depend on the machine
            "disturbed": False,
            **({"sweeps": sweeps} if sweeps else {}),
            **({"inner_s": self._job.inner_s} if self._job.inner else {}),
            **({"cost_table": self._job.cluster.costs} if self._job.cluster.costs != "none" else {}),
            **fault_facts(self._job.cluster, faults.rows + (frames.rows if frames is not faults else [])),
        }

    def _start(self) -> None:
        """Schedule departures, joins and kills, and start iteration 0 of every worker that is present."""
        scheduler, cluster = self.scheduler, self._job.cluster
        self.driver.start()
        # 0: every event counts; infinity: none does before the worker joins
        scheduler.life = {node.worker: 0.0 if cluster.present(node.worker) else math.inf for node in self.workers}
        for phase, act, instants in ((LEAVES, self._leaves, cluster.leave), (JOINS, self._joins, cluster.join)):
            for worker, at in sorted(instants.items()):
                if worker < len(self.workers):
                    scheduler.at(at, phase, worker, act, worker)
        for node in self.workers:
            self._plan_kill(node.worker, 0.0)
        for worker in self.driver.machine.workers:
            self.workers[worker].start(0.0)

    # --- for the workers ------------------------------------------------------------------------------------------

    def send(self, worker: int, frame: Frame, now: float) -> None:
        """Send a worker's frame to the server."""
        if self._traffic is None:
            self.scheduler.at(now, AT_SERVER, worker, self._server.arrive, (worker, frame))
        else:
            self._traffic.up(worker, frame, now, self.scheduler.sequence)

    def kill(self, worker: int, now: float) -> None:
        """Kill a worker at this instant, after all its other events."""
        self.scheduler.at(now, LEAVES, worker, self._dies, worker)

    def diverge(self, message: Diverged, now: float) -> None:
        """End the run as diverged."""
        self.driver.diverge(message, now)

    # --- events ---------------------------------------------------------------------------------------------------

    def _arrived(self, direction: str, worker: int, frame: Frame, now: float) -> None:
        if direction == UP:
            self.scheduler.at(now, AT_SERVER, worker, self._server.arrive, (worker, frame))
        else:
            self.scheduler.at(now, AT_WORKER, worker, self.workers[worker].arrive, frame)

    def _leaves(self, worker: int, now: float) -> None:
        """Let a worker leave, and drop its frames under way; do nothing if it was killed and this is unnoticed."""
        if worker in self._unnoticed:
            return
        self.scheduler.life[worker] = math.inf  # drops its events and frames
        self.workers[worker].leave()
        self._server.leave(worker, now)

    def _plan_kill(self, worker: int, now: float) -> None:
        if (at := self.faults.kill_s(worker, now)) < math.inf:
            self.scheduler.at(at, LEAVES, worker, self._dies, worker)

    def _dies(self, worker: int, now: float) -> None:
        """Kill a worker; the server notices this after a lease."""
        if self.scheduler.life[worker] == math.inf:
            return
        iteration = self.workers[worker].driver.iteration
        self.faults.killed(worker, iteration, now)
        self._unnoticed[worker] = {"worker": worker, "iteration": iteration, "how": "was killed by a fault"}
        self.scheduler.life[worker] = math.inf
        self.workers[worker].leave()
        self.scheduler.at(now + self._job.run.lease_s, LEAVES, worker, self._notice, worker)

    def _notice(self, worker: int, now: float) -> None:
        """Let the server notice a worker's death, unless it did before; with on_death="restart", replace the worker."""
        if (death := self._unnoticed.pop(worker, None)) is not None:
            # workers that die before each push would be replaced without end
            before = sum((ended["worker"], ended["iteration"]) == (worker, death["iteration"]) for ended in self.lives)
            replaced = self._job.run.on_death == "restart" and before < LIVES
            (self.lives if replaced else self.deaths).append({**death, "seconds": now})
            self._server.leave(worker, now)
            if replaced:
                self.scheduler.at(now + self._job.cluster.restart_s, JOINS, worker, self._joins, worker)

    def _joins(self, worker: int, now: float) -> None:
        if self.scheduler.life[worker] < math.inf:  # it is present already
            return
        self._notice(worker, now)  # a join also tells the server of the worker's death
        if worker in self.driver.machine.workers:  # the server has not handled its departure yet
            self.scheduler.at(self._server.free_s, JOINS, worker, self._joins, worker)
            return
        # a new number: older events and frames of the worker are dropped
        self.scheduler.sequence += 1
        self.scheduler.life[worker] = self.scheduler.sequence
        self._plan_kill(worker, now)
        self.workers[worker].join(self.driver.join(worker, now), now)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Disable garbage collection, which would take a third of the time: millions of tuples, and no reference cycles."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
