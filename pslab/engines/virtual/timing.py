"""Runs in virtual time without tensors, for large clusters.

The length of a pruned push is known if the rule fixes the number of entries. It also depends on the entries' positions,
as does the number of weights in a reply with `pull="changed"`. Here the entries of a push are spread evenly over their
range, and the entries of different pushes are independent: after pushes of the shares d_1, d_2, ... of a range,
n (1 - (1 - d_1) (1 - d_2) ...) of its n weights have changed. Pushes of real data have more entries in common, so that
their replies are shorter.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from typing import Any

import numpy as np
import torch

from pslab.engines.experiment.experiment import Experiment, Interrupted, OnProgress, Outcome
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.layout import Layout
from pslab.engines.experiment.shared_dataset import SharedDataset
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

HEAD_BYTES = 8  # of positions: their form and their number
ALL_LOG = -1e3  # the logarithm for a push of all entries: exp(ALL_LOG) is 0


def execute(experiment: Experiment, on_progress: OnProgress) -> Outcome:
    """Execute an experiment without tensors.

    Raises:
        Interrupted: the run was interrupted; the error contains the completed part.
    """
    job = job_without_tensors(experiment)
    return exchange(job, Sizes(job), NoGradients(job), on_progress)


def job_without_tensors(experiment: Experiment) -> Job:
    """Return the Job of an experiment without its dataset, if only sizes are needed."""
    return Job.of(experiment, Layout.of(experiment), SharedDataset("nothing", 0.0, 1.0, 1, ()))


def exchange(job: Job, shard: Shard, gradients: Gradients, on_progress: OnProgress) -> Outcome:
    """Simulate the exchange of a run; return its outcome, without accuracy and weights, or raise Interrupted."""
    start_s = time.monotonic()
    # the same driver, accounts and tables as with tensors: only shard and gradients are replaced
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
    """Return the slices of the flat vector that a range and these keys have in common."""
    (span,) = job.parts[index].slices
    ends = [(max(s.start, span.start), min(s.stop, span.stop)) for s in job.keyspace.slices(keys)]
    return [slice(start, stop) for start, stop in ends if start < stop]


class Sizes:
    """The weights at a server, of which only sizes are known."""

    converged = False

    def __init__(self, job: Job) -> None:
        self._job = job
        self._downlink = None if job.downlink is None else job.downlink.compression(job)
        self._unknown = set[tuple[int, int]]()  # (worker, range) whose next reply has all weights
        # per range and version: the logarithm of the share of its weights that have not changed yet
        self._unchanged = [[0.0] for _ in job.parts]

    def apply(self, step: Step, rate: float, computing: Collection[int]) -> None:
        """Count the weights that a step changes."""
        size, logs = self._job.parts[step.range].size, self._unchanged[step.range]
        # an optimizer with moments moves every weight in each step
        shares = [push.payload.entries / size if self._job.optimizer.plain_sgd else 1.0 for push in step.pushes
                  if push.payload.entries]  # fmt: skip
        # a sum of logarithms: the share between any two versions is one difference
        logs.append(logs[-1] + sum(math.log1p(-share) if share < 1 else ALL_LOG for share in shares))

    def lay(self, reply: Reply) -> int:
        """Return the bytes of a reply's frame, WHOLE for a plain array, or 0 for an empty reply."""
        if reply.empty:
            return 0
        if self._downlink is not None:
            key = reply.pull.worker, reply.pull.range
            if key in self._unknown:  # a worker that has returned
                self._unknown.remove(key)
                return WHOLE
            return self._downlink.sizes(reply.pull.range, self._job.number_bytes, turn=reply.pull.iteration)[0]
        if self._job.run.pull == "changed":
            index, part = reply.pull.range, self._job.parts[reply.pull.range]
            logs = self._unchanged[index]
            # expm1 keeps the digits of a small share
            changed = round(-math.expm1(logs[reply.version] - logs[reply.pull.version]) * part.size)
            if changed == part.size:
                return dense_bytes(changed, self._job.number_bytes)
            return _even_bytes(changed, part.size, self._job.number_bytes)
        made, part = self._job.compression, self._job.parts[reply.pull.range]
        if made is not None and made.rule.tells:
            sizes = [count * self._job.number_bytes for count in (part.size, made.served(reply.pull.range))]
            return length([[torch.empty(size, dtype=torch.uint8, device="meta") for size in sizes]])
        if self._job.run.pull != "range":
            return WHOLE
        pull, begin = reply.pull, part.slices[0].start
        slices = ranged(self._job, pull.range, KeyRange(pull.payload.start, pull.payload.stop))
        indices = torch.cat([torch.arange(0), *(torch.arange(s.start, s.stop) - begin for s in slices)])
        return _frame_bytes(len(positions(indices, part.size)), len(indices) * self._job.number_bytes)

    def leave(self, worker: int) -> None:
        """Note that a worker that has left needs all weights if it returns."""
        self._unknown |= {(worker, index) for index in range(len(self._job.parts))}

    def facts(self) -> dict[str, Any]:
        """Return no facts: without tensors, no method computes anything."""
        return {}


def _even_bytes(changed: int, size: int, number_bytes: int) -> int:
    """Return the bytes of a reply with `changed` entries, evenly spread among `size`."""
    alike = max(1, size // DRAWN)  # a large range has this many equal pieces
    count, size = changed // alike, size // alike
    return alike * _frame_bytes(even_bytes(count, size), count * number_bytes)


def even_bytes(count: int, size: int) -> int:
    """Return the length in bytes of `positions` of the indices i * size // count, for i below `count`."""
    if not count:
        return HEAD_BYTES
    # between two indices there are `least` others, or one more; before index 0 there are none
    least, gaps = size // count - 1, count - 1
    wider = (size - -(-size // count)) - (least + 1) * gaps
    gap_bytes = 1 + (gaps - wider) * _leb128_bytes(least) + wider * _leb128_bytes(least + 1)
    runs = 1 + wider + (gaps - wider if least else 0)
    return HEAD_BYTES + min(gap_bytes, -(-size // 8), 8 * runs)


def _leb128_bytes(number: int) -> int:
    return max(1, -(-number.bit_length() // 7))


def _frame_bytes(positions_bytes: int, values_bytes: int) -> int:
    return length([[torch.empty(size, dtype=torch.uint8, device="meta") for size in (positions_bytes, values_bytes)]])


class NoGradients:
    """A source of gradients that gives each push its size, and no content."""

    def __init__(self, job: Job) -> None:
        self._job = job
        # dense pushes of a fragment are equal: made once, not for each of millions of pushes
        self._bodies = [{"payloads": [[WHOLE, job.parts[index].size] for index in job.exchanged(fragment)],
                         "loss": math.nan} for fragment in range(job.traits.rotation.fragments)]  # fmt: skip
        self._nothing = {"payloads": [[0, 0] for _ in job.parts], "loss": math.nan}
        self._ranges: dict[int, RangeOfIteration] = {}
        self._iterations: dict[int, int] = {}
        self._pruned = job.sends_frames and not isinstance(job.prune, Ranges)

    def start(self, worker: int, iteration: int, pulled: list[Pulled], settled_s: float, basis: Basis) -> None:
        """Note the iteration; no gradient is computed."""
        self._iterations[worker] = iteration
        if basis.range is not None:
            self._ranges[worker] = basis.range

    def result(self, worker: int, meanwhile: Any) -> dict[str, Any]:
        """Return the sizes of a worker's push, with the loss NaN; see `Gradients`."""
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
        """Return the bytes and the number of entries of a push for each range."""
        job, made = self._job, self._job.compression
        assert made is not None
        step = job.traits.gradients_before(iteration)
        epoch = step / max(1, rounds(job.examples, job.run.workers, job.run.batch_size))
        return [made.sizes(index, job.number_bytes, turn=iteration, epoch=epoch) for index in job.exchanged(iteration)]
