"""The virtual engine: real gradients in exactly reproducible time."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable

import numpy as np

from pslab.config.available import cores
from pslab.engines.experiment.experiment import Experiment, Interrupted, OnProgress, Outcome
from pslab.engines.processes import pool as pools
from pslab.engines.processes.channel import Report
from pslab.engines.processes.coordinator import INTERRUPT_LIMIT_S, Coordinator
from pslab.engines.processes.pool import Pool
from pslab.engines.server.ledger import Ledger
from pslab.engines.server.push_accounts import PushAccounts
from pslab.engines.server.shard_modes import shard_of
from pslab.engines.virtual.hosts import Hosts
from pslab.engines.virtual.simulator import Simulator
from pslab.engines.worker.modes import requests_of
from pslab.errors import RunError, WorkerDied
from pslab.tensors.device import one_thread


def execute(
    experiment: Experiment, on_progress: OnProgress, hosts: int | None = None,
    simulator: Callable[..., Simulator] = Simulator,
) -> Outcome:  # fmt: skip
    """Execute an experiment in virtual time, with this class of simulator.

    `hosts` is the number of gradients that are computed at a time, by default the number of cores. If a host dies, the
    run is repeated once, with the same bits, unless `Run.on_death` is "stop".

    Raises:
        WorkerFailed, WorkerDied, StartFailed: a host raised, died or did not start; the pool is closed.
        Interrupted: the run was interrupted; within two seconds, the error contains the completed part.
    """
    try:
        return _execute(experiment, on_progress, hosts, simulator)
    except WorkerDied as error:
        if experiment.run.on_death == "stop":
            raise
        # nothing of the run is lost but time: no result depends on a host
        on_progress({"pushes": 0, "seconds": 0.0, "repeated": f"{error}: once again"})
        return _execute(experiment, on_progress, hosts, simulator)


def _execute(
    experiment: Experiment, on_progress: OnProgress, hosts: int | None, simulator: Callable[..., Simulator]
) -> Outcome:
    count = hosts or cores()
    pool = pools.acquire(count, lambda: on_progress({}))
    try:
        with one_thread():  # the hosts use the cores
            return VirtualRun(pool, experiment, on_progress, count, simulator).conduct()
    except Interrupted:
        raise
    except BaseException:
        # a host may still compute, and its report would come to the next run
        pools.release(kill=True)
        raise


class VirtualRun(Coordinator):
    """A run in virtual time. Hosts compute its gradients: the processes of a pool, or this process itself."""

    def __init__(
        self, pool: Pool, experiment: Experiment, on_progress: OnProgress, count: int, made: Callable[..., Simulator]
    ) -> None:
        super().__init__(pool, experiment, on_progress)
        self._made = made
        self.count, self.start_s, self.turning_s = count, time.monotonic(), 0.0
        self.simulator: Simulator | None = None

    def conduct(self) -> Outcome:
        try:
            job = self.lay_out()
            self.hosts = Hosts(self.pool, self.count, job)
            self.await_prepared(self.hosts.numbers)
            self.preparation_s, arena, snapshots = time.monotonic() - self.start_s, self.pool.arena, self.pool.snapshots
            requests = requests_of(job, arena, self.pool.data)
            if requests is not None and job.run.servers > 1:
                # frequent keys are not spread evenly: a server's costs follow the keys that batches have there
                job = dataclasses.replace(job, shares=requests.shares)
            shard = shard_of(job, arena)
            ledger = Ledger(job, shard.weights, snapshots, self.keep_snapshot)
            self.simulator = simulator = self._made(job, PushAccounts(job, ledger), shard, self.hosts, requests)
            begun_s = time.monotonic()
            simulator.run(self.on_progress, self._stop_at_target)
            self.turning_s = time.monotonic() - begun_s
            pushes = self._close(simulator)
            self.hosts.settle(math.inf)  # a host that still computes cannot evaluate
            self.evaluate_rest(self.hosts.numbers)
        except KeyboardInterrupt:
            raise Interrupted(self._wind_up()) from None
        except RunError as error:
            error.outcome = self._wind_up()
            raise
        return self._outcome(simulator, pushes)

    def take(self, number: int, report: Report) -> None:
        super().take(number, report)
        self.hosts.take(number, report)

    def _stop_at_target(self) -> None:
        """Evaluate new snapshots at once if there is a target accuracy, so that no machine's speed changes the end."""
        if self.run.target_accuracy is not None and self.simulator is not None and self.unevaluated:
            self.evaluate(self.hosts.numbers)
            # the snapshot's instant, not the present one: evaluation takes no virtual time
            if self.reached_target:
                self.simulator.driver.end("target", self.snapshots[max(self.snapshots)][1])

    def _wind_up(self) -> Outcome | None:
        self.on_progress = lambda news: None  # it may raise again
        until_s, simulator = time.monotonic() + INTERRUPT_LIMIT_S, self.simulator
        outcome, settled = None, False
        if simulator is not None:
            if not simulator.driver.outcome:  # an interrupt during the evaluations keeps it
                simulator.driver.end("interrupted", simulator.scheduler.now)
            pushes = self._close(simulator)
            with contextlib.suppress(RunError):  # the run ends for an earlier reason
                if settled := self.hosts.settle(until_s):
                    self.evaluate(self.hosts.numbers, until_s, last_first=True)
            outcome = self._outcome(simulator, pushes)
        # the next run must find every process of the pool idle
        if outcome is None or not settled or self.busy:
            pools.release(kill=True)
        return outcome

    def _close(self, simulator: Simulator) -> np.ndarray:
        accounts = simulator.driver.accounts
        return accounts.ledger.close(accounts.applied, simulator.driver.ended_s)

    def _outcome(self, simulator: Simulator, pushes: np.ndarray) -> Outcome:
        facts = simulator.facts(self.preparation_s, self.turning_s, time.monotonic() - self.start_s)
        arrivals = simulator.driver.accounts.ledger.arrivals
        tables = self.accuracy(), simulator.phases(), pushes, arrivals, self.final_weights()
        return Outcome(*tables, facts, self.left(), self.experiment.metrics)
