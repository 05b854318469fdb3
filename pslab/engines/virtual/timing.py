"""Timing: a run in virtual time without tensors, for large clusters."""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from typing import Any

import numpy as np

from pslab.engines.experiment.experiment import Experiment, Interrupted, OnProgress, Outcome
from pslab.engines.experiment.job import Job, SharedDataset
from pslab.engines.experiment.layout import Layout
from pslab.engines.experiment.wire import WHOLE
from pslab.engines.server.ledger import Ledger
from pslab.engines.server.push_accounts import PushAccounts
from pslab.engines.server.store import Shard
from pslab.engines.virtual.simulator import Simulator
from pslab.engines.virtual.worker_node import Gradients
from pslab.engines.worker.range_schedule import RangeOfIteration
from pslab.engines.worker.tensors import Basis, Pulled
from pslab.protocol.server import Reply, Step
from pslab.tensors.codec import sliced_bytes
from pslab.tensors.workload.keyspace import KeyRange


def execute(experiment: Experiment, on_progress: OnProgress) -> Outcome:
    """Run an experiment without tensors.

    Raises:
        Interrupted: with what was completed.
    """
    job = job_without_tensors(experiment)
    return exchange(job, Sizes(job), NoGradients(job), on_progress)


def job_without_tensors(experiment: Experiment) -> Job:
    """The job of an experiment of which only sizes are needed."""
    return Job.of(experiment, Layout.of(experiment), SharedDataset("nothing", 0.0, 1.0, 1, ()))


def exchange(job: Job, shard: Shard, gradients: Gradients, on_progress: OnProgress) -> Outcome:
    """A run's exchange in virtual time; it leaves neither accuracy nor weights. Raises Interrupted."""
    start_s = time.monotonic()
    accounts = PushAccounts(job, Ledger(job, None, None, lambda body: None))
    simulator = Simulator(job, accounts, shard, gradients)
    try:
        simulator.run(on_progress)
    except KeyboardInterrupt:
        simulator.driver.end("interrupted", simulator.scheduler.now)
    driver, spent_s = simulator.driver, time.monotonic() - start_s
    pushes = accounts.ledger.close(accounts.applied, driver.ended_s)
    facts = simulator.facts(0.0, spent_s, spent_s)
    tables = np.empty((0, 4)), simulator.phases(), pushes, accounts.ledger.arrivals
    outcome = Outcome(*tables, np.empty(0, np.float32), facts)
    if driver.outcome == "interrupted":
        raise Interrupted(outcome)
    return outcome


def ranged(job: Job, index: int, keys: KeyRange, codec: str) -> tuple[int, int]:
    """Of what a range has of some keys: the length of a frame, and the number of entries."""
    (own,) = job.parts[index].slices
    each = [(max(s.start, own.start), min(s.stop, own.stop)) for s in job.keyspace.slices(keys)]
    found = [slice(start - own.start, stop - own.start) for start, stop in each if start < stop]
    size_bytes = sliced_bytes(job.parts[index].size, found, job.layout.dtype.itemsize, codec)
    return size_bytes, sum(s.stop - s.start for s in found)


class Sizes:
    """The weights at a server, of which only the sizes are known."""

    converged = False

    def __init__(self, job: Job) -> None:
        self._job = job

    def apply(self, step: Step, rate: float, computing: Collection[int]) -> None:
        """There is nothing to apply it to."""

    def lay(self, reply: Reply) -> int:
        """There is nothing to lay ready; a range of keys has its size."""
        if reply.empty:
            return 0
        if self._job.run.pull != "range":
            return WHOLE
        pull = reply.pull
        return ranged(self._job, pull.range, KeyRange(pull.payload.start, pull.payload.stop), "auto")[0]

    def leave(self, worker: int) -> None:
        """Nothing is kept of a worker."""

    def facts(self) -> dict[str, Any]:
        """No method has computed anything."""
        return {}


class NoGradients:
    """Pushes of the size that they would have, and nothing in them."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._body = {"payloads": [[WHOLE, part.size] for part in job.parts], "loss": math.nan}
        self._nothing = {"payloads": [[0, 0] for _ in job.parts], "loss": math.nan}
        self._turns: dict[int, RangeOfIteration] = {}
        self._iterations: dict[int, int] = {}

    def start(
        self, worker: int, iteration: int, pulled: list[Pulled], settled_s: float, basis: Basis
    ) -> None:
        """Nothing is computed."""
        self._iterations[worker] = iteration
        if basis.turn is not None:
            self._turns[worker] = basis.turn

    def result(self, worker: int, meanwhile: Any) -> dict[str, Any]:
        """The same for all workers, unless they push ranges of keys in turn."""
        if not self._job.traits.pushes(self._iterations[worker]):
            return self._nothing
        if worker not in self._turns:
            return self._body
        job, keys = self._job, self._turns[worker].keys
        payloads = [list(ranged(job, index, keys, job.run.codec)) for index in range(len(job.parts))]
        return {"payloads": payloads, "loss": math.nan}
