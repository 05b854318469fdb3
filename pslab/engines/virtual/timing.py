"""Runs in virtual time without tensors, for large clusters.

Of pushes that are pruned only by a rule that fixes how many entries it sends is known how long they are. Which entries
these are decides how their positions are written, and how many weights an answer with `pull="changed"` has. Here they
are spread evenly over their range, and those of different pushes are independent: after pushes of the shares d_1, d_2,
... of a range, n (1 - (1 - d_1) (1 - d_2) ...) of its n weights have changed. Gradients of real data have more in
common, so that their answers are shorter.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from typing import Any

import numpy as np
import torch

from pslab.engines.experiment.experiment import Experiment, Interrupted, OnProgress, Outcome
from pslab.engines.experiment.job import Job, SharedDataset
from pslab.engines.experiment.layout import Layout
from pslab.engines.experiment.wire import WHOLE
from pslab.engines.server.ledger import Ledger
from pslab.engines.server.push_accounts import PushAccounts
from pslab.engines.server.store import Shard
from pslab.engines.virtual.simulator import Simulator
from pslab.engines.virtual.worker_node import Gradients
from pslab.engines.worker.tensors import Basis, Pulled, RangeOfIteration
from pslab.protocol.server import Reply, Step
from pslab.tensors.compression.bits import positions
from pslab.tensors.compression.frame import length
from pslab.tensors.compression.pieces import DRAWN
from pslab.tensors.compression.sparse import Ranges
from pslab.tensors.compression.uncompressed import dense_bytes
from pslab.tensors.workload.data import rounds
from pslab.tensors.workload.keyspace import KeyRange

ALL_LOG = -1e3  # of a push of all entries: exp of it is 0


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


def ranged(job: Job, index: int, keys: KeyRange) -> list[slice]:
    """Return the slices of the flat vector that a range has of some keys."""
    (own,) = job.parts[index].slices
    each = [(max(s.start, own.start), min(s.stop, own.stop)) for s in job.keyspace.slices(keys)]
    return [slice(start, stop) for start, stop in each if start < stop]


class Sizes:
    """The weights at a server, of which only the sizes are known."""

    converged = False

    def __init__(self, job: Job) -> None:
        self._job = job
        self._downlink = None if job.downlink is None else job.downlink.compression(job)
        self._unknown = set[tuple[int, int]]()  # (worker, range) whose next answer has all weights
        self._even_bytes: dict[tuple[int, int], int] = {}  # of so many entries, evenly spread among so many
        # of each range, and each version of it: the logarithm of the share of its weights that never changed
        self._unchanged = [[0.0] for _ in job.parts]

    def apply(self, step: Step, rate: float, computing: Collection[int]) -> None:
        """Count the weights that a step changes."""
        size, logs = self._job.parts[step.range].size, self._unchanged[step.range]
        shares = [push.payload.entries / size if self._job.optimizer.plain_sgd else 1.0 for push in step.pushes
                  if push.payload.entries]  # fmt: skip
        logs.append(logs[-1] + sum(math.log1p(-share) if share < 1 else ALL_LOG for share in shares))

    def lay(self, reply: Reply) -> int:
        """There is nothing to lay ready; a range of keys, and the weights that have changed, have their size."""
        if reply.empty:
            return 0
        if self._downlink is not None:
            return self._difference_bytes(reply)
        if self._job.run.pull == "changed":
            index, part = reply.pull.range, self._job.parts[reply.pull.range]
            logs = self._unchanged[index]
            changed = round(-math.expm1(logs[reply.version] - logs[reply.pull.version]) * part.size)
            if changed == part.size:
                return dense_bytes(changed, self._job.number_bytes)
            if (changed, part.size) not in self._even_bytes:  # which in rounds is the same for all workers
                alike = max(1, part.size // DRAWN)  # pieces of a large range, of which one is looked at
                count, size = changed // alike, part.size // alike
                even = torch.arange(count) * size // max(count, 1)
                self._even_bytes[changed, part.size] = alike * self._entries_bytes(even, size)
            return self._even_bytes[changed, part.size]
        made, part = self._job.compression, self._job.parts[reply.pull.range]
        if made is not None and made.rule.tells:
            return dense_bytes(part.size + made.served(reply.pull.range), self._job.number_bytes)
        if self._job.run.pull != "range":
            return WHOLE
        pull, begin = reply.pull, part.slices[0].start
        held = ranged(self._job, pull.range, KeyRange(pull.payload.start, pull.payload.stop))
        indices = torch.cat([torch.arange(0), *(torch.arange(s.start, s.stop) - begin for s in held)])
        return self._entries_bytes(indices, part.size)

    def _difference_bytes(self, reply: Reply) -> int:
        key = reply.pull.worker, reply.pull.range
        if key in self._unknown:  # a worker that has come back
            self._unknown.remove(key)
            return WHOLE
        assert self._downlink is not None
        return self._downlink.sizes(reply.pull.range, self._job.number_bytes, turn=reply.pull.iteration)[0]

    def _entries_bytes(self, indices: torch.Tensor, n: int) -> int:
        """Return the length of a frame of these entries."""
        values = torch.empty(len(indices) * self._job.number_bytes, dtype=torch.uint8)
        return length([[positions(indices, n), values]])

    def leave(self, worker: int) -> None:
        """Forget the weights that a worker holds."""
        self._unknown |= {(worker, index) for index in range(len(self._job.parts))}

    def facts(self) -> dict[str, Any]:
        """No method has computed anything."""
        return {}


class NoGradients:
    """Pushes of the size that they would have, and nothing in them."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._bodies = [{"payloads": [[WHOLE, job.parts[index].size] for index in job.exchanged(fragment)],
                         "loss": math.nan} for fragment in range(job.traits.rotation.fragments)]  # fmt: skip
        self._nothing = {"payloads": [[0, 0] for _ in job.parts], "loss": math.nan}
        self._ranges: dict[int, RangeOfIteration] = {}
        self._iterations: dict[int, int] = {}
        self._pruned = job.sends_frames and not isinstance(job.prune, Ranges)

    def start(
        self, worker: int, iteration: int, pulled: list[Pulled], settled_s: float, basis: Basis
    ) -> None:
        """Note the iteration; no gradient is computed."""
        self._iterations[worker] = iteration
        if basis.range is not None:
            self._ranges[worker] = basis.range

    def result(self, worker: int, meanwhile: Any) -> dict[str, Any]:
        """The same for all workers in an iteration, unless they push ranges of keys in turn."""
        iteration = self._iterations[worker]
        if not self._job.traits.pushes(iteration):
            return self._nothing
        if self._pruned:
            return {"payloads": self._chosen(iteration), "loss": math.nan}
        if worker not in self._ranges:
            return self._bodies[iteration % len(self._bodies)]
        made = self._job.compression
        assert made is not None
        slices = self._job.keyspace.slices(self._ranges[worker].keys)
        payloads = [made.sizes(index, self._job.number_bytes, slices=tuple(slices))
                    for index in range(len(self._job.parts))]  # fmt: skip
        return {"payloads": payloads, "loss": math.nan}

    def _chosen(self, iteration: int) -> list[list[int]]:
        """Return the length of a frame and the number of its values, for each range."""
        job, made = self._job, self._job.compression
        assert made is not None
        step = job.traits.gradients_before(iteration)
        epoch = step / max(1, rounds(job.examples, job.run.workers, job.run.batch_size))
        return [made.sizes(index, job.number_bytes, turn=iteration, epoch=epoch) for index in job.exchanged(iteration)]
