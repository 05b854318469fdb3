"""The virtual engine: real gradients in exactly reproducible time, or, for large clusters, the time alone."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from pslab.engines.job.experiment import Experiment
from pslab.engines.job.job import Job, Shelf
from pslab.engines.job.layout import Layout
from pslab.engines.outcome import Interrupted, OnProgress, Outcome
from pslab.engines.processes import pool as pools
from pslab.engines.processes.channel import Report
from pslab.engines.processes.coordinator import INTERRUPT_LIMIT_S, Conduct
from pslab.engines.processes.pool import Pool
from pslab.engines.server.ledger import Ledger
from pslab.engines.server.weights import Bookkeeper, Keeper
from pslab.engines.virtual.hosts import Hosts
from pslab.engines.virtual.simulator import Clockwork, NoGradients
from pslab.engines.worker.phases import PHASE_COLUMNS

PROGRESS_PERIOD_S = 0.2
TURNS = 200  # events between two looks at the clock on the wall


def execute(experiment: Experiment, on_progress: OnProgress, hosts: int | None = None) -> Outcome:
    """Run an experiment in virtual time; without tensors if it does not train.

    `hosts` is how many gradients are computed at a time, by default as many as there are cores.

    Raises:
        WorkerFailed, WorkerDied, StartFailed: a host did; the pool is closed then.
        Interrupted: with what was finished, within two seconds.
    """
    if not experiment.trains:
        return _timing(experiment, on_progress)
    threads, count = torch.get_num_threads(), hosts or cores()
    pool = pools.acquire(count, lambda: on_progress({}))
    torch.set_num_threads(1)  # the server is one thread; the cores are the hosts'
    try:
        return _Virtual(pool, experiment, on_progress, count).conduct()
    except Interrupted:
        raise
    except BaseException:
        pools.release(kill=True)
        raise
    finally:
        torch.set_num_threads(threads)


def cores() -> int:
    """How many gradients are computed at a time, and snapshots evaluated. Results do not depend on it."""
    return os.cpu_count() or 1


class _Virtual(Conduct):
    """A run in virtual time, with hosts for its gradients."""

    def __init__(self, pool: Pool, experiment: Experiment, on_progress: OnProgress, count: int) -> None:
        super().__init__(pool, experiment, on_progress)
        self.count, self.begun_s, self.turning_s = count, time.monotonic(), 0.0
        self.clockwork: Clockwork | None = None

    def conduct(self) -> Outcome:
        try:
            job = self.lay_out()
            self.hosts = Hosts(self.pool, self.count, job)
            self.await_prepared(self.hosts.numbers)
            self.preparation_s = time.monotonic() - self.begun_s
            keeper = Keeper(job, self.pool.arena, self.pool.snapshots, self._keep_snapshot)
            clockwork = self.clockwork = Clockwork(job, keeper, self.hosts)
            turning_s = time.monotonic()
            turn(clockwork, self.on_progress, self._stop_at_target)
            self.turning_s = time.monotonic() - turning_s
            pushes = keeper.ledger.close(keeper.applied, clockwork.now)
            self.hosts.settle(math.inf)
            self.evaluate(self.unevaluated, self.hosts.numbers)
        except KeyboardInterrupt:
            raise Interrupted(self._wind_up()) from None
        return self._outcome(clockwork, pushes)

    def take(self, number: int, report: Report) -> None:
        super().take(number, report)
        self.hosts.take(number, report)

    def _keep_snapshot(self, body: dict[str, Any]) -> None:
        self.snapshots[body["index"]] = (body["pushes"], body["seconds"])

    def _stop_at_target(self) -> None:
        """A snapshot is evaluated at its instant, so where a run stops does not depend on the machine."""
        target = self.run.target_accuracy
        if target is not None and self.clockwork is not None and (todo := self.unevaluated):
            self.evaluate(todo, self.hosts.numbers)
            if self.evaluated[max(self.snapshots)][0] >= target:
                self.clockwork.outcome, self.clockwork.now = "target", self.snapshots[max(self.snapshots)][1]

    def _wind_up(self) -> Outcome | None:
        """After an interrupt: what is finished, within the limit."""
        self.on_progress = lambda news: None
        until_s, clockwork, outcome = time.monotonic() + INTERRUPT_LIMIT_S, self.clockwork, None
        if clockwork is not None:
            clockwork.outcome = clockwork.outcome or "interrupted"
            pushes = clockwork.keeper.ledger.close(clockwork.keeper.applied, clockwork.now)
            if self.hosts.settle(until_s):
                self.evaluate(self.unevaluated[::-1], self.hosts.numbers, until_s)  # the last one first
                outcome = self._outcome(clockwork, pushes)
        if outcome is None:
            pools.release(kill=True)
        return outcome

    def _outcome(self, clockwork: Clockwork, pushes: np.ndarray) -> Outcome:
        facts = facts_of(clockwork, self.preparation_s, self.turning_s, time.monotonic() - self.begun_s)
        return Outcome(self.accuracy(), phase_table(clockwork), pushes, self.weights.numpy().copy(), facts)


def _timing(experiment: Experiment, on_progress: OnProgress) -> Outcome:
    job, begun_s = Job.of(experiment, Layout.of(experiment), Shelf("nothing", 0.0, 1.0, 1, ())), time.monotonic()
    keeper = Bookkeeper(job, Ledger(job, None, None, lambda body: None))
    clockwork = Clockwork(job, keeper, NoGradients(job))
    try:
        turn(clockwork, on_progress, lambda: None)
    except KeyboardInterrupt:
        clockwork.outcome = "interrupted"
    pushes = keeper.ledger.close(keeper.applied, clockwork.now)
    spent_s = time.monotonic() - begun_s
    facts = facts_of(clockwork, 0.0, spent_s, spent_s)
    outcome = Outcome(np.empty((0, 4)), phase_table(clockwork), pushes, np.empty(0, np.float32), facts)
    if clockwork.outcome == "interrupted":
        raise Interrupted(outcome)
    return outcome


def turn(clockwork: Clockwork, on_progress: OnProgress, after: Any) -> None:
    """Let every event happen, and tell now and then how far it is."""
    told_s, turns = time.monotonic(), 0

    def tell() -> None:
        nonlocal told_s
        if (now := time.monotonic()) - told_s >= PROGRESS_PERIOD_S:
            told_s = now
            on_progress({"pushes": clockwork.server.gradients, "seconds": clockwork.now,
                         "workers": clockwork.doings()})  # fmt: skip

    clockwork.meanwhile = tell
    with _uncollected():
        clockwork.start()
        while not clockwork.outcome:
            clockwork.turn()
            after()
            turns += 1
            if turns % TURNS == 0:
                tell()


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Millions of tuples are kept and none is in a circle: looking for circles would take a third of the time."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def phase_table(clockwork: Clockwork) -> np.ndarray:
    """Who did what when; see Outcome."""
    return np.array(clockwork.rows, dtype=np.float64).reshape(-1, len(PHASE_COLUMNS))


def facts_of(clockwork: Clockwork, preparation_s: float, turning_s: float, wall_s: float) -> dict[str, Any]:
    """What the manifest says of a run in virtual time; of fitted ranges, the sweeps of each worker."""
    sweeps = [list(row) for turns in clockwork.turns for row in turns.sweeps]
    return {
        "outcome": clockwork.outcome,
        "seconds": clockwork.now,
        "pushes": clockwork.keeper.applied,
        "accepted": clockwork.server.gradients,
        "refused": clockwork.refused,
        "dropped": clockwork.keeper.dropped,
        "dropped_bytes": clockwork.keeper.dropped_bytes,
        "deaths": [],
        "diverged": clockwork.diverged,
        "preparation_s": preparation_s,
        "turning_s": turning_s,
        "wall_s": wall_s,
        "events": clockwork.events,
        "honest": True,  # virtual time is what the cluster says, whatever the machine does
        "disturbed": False,
        **({"sweeps": sweeps} if sweeps else {}),
    }

