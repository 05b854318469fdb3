"""A stand-in for weights and gradients, by which a run without tensors still has weights to be compared.

The weights of a range are one number below a prime; a gradient is a function of its worker, its iteration and the
weights that it was computed on. They lie in buffers that are used in turn, as tensors in shared memory do: what is
written too early, or read too late, is another number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.layout import in_turn
from pslab.engines.server.ledger import PUSH_COLUMNS
from pslab.engines.virtual.timing import NoGradients, Sizes
from pslab.engines.worker.tensors import Basis, Pulled
from pslab.protocol.server import Reply, Step

PRIME, DECAY = 2**61 - 1, 1_000_003
COLUMNS = [PUSH_COLUMNS.index(name) for name in ("range", "worker", "iteration", "version_pulled", "version_applied")]


def gradient(worker: int, iteration: int, index: int, weights: int) -> int:
    """Of a range, computed on these weights."""
    return (weights * 6_364_136_223 + (worker + 1) * 1_442_695_040 + iteration * 7_046_029_254 + index) % PRIME


def stepped(weights: int, gradients: Iterable[int]) -> int:
    """The weights after a step: no two orders of steps leave the same."""
    return (weights * DECAY + sum(gradients)) % PRIME


class SumShard(Sizes):
    """The server's numbers."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        workers, ranges = job.run.workers, len(job.parts)
        self.weights = [0] * ranges
        self.laid = [[[0] * (1 + job.traits.eager) for _ in range(ranges)] for _ in range(workers)]
        buffers = job.traits.buffers
        self.gradients = [[[0] * buffers for _ in range(ranges)] for _ in range(workers)]

    def apply(self, step: Step, rate: float, computing: Collection[int]) -> None:
        found = [in_turn(self.gradients[push.worker][step.range], push.iteration) for push in step.pushes]
        self.weights[step.range] = stepped(self.weights[step.range], found)

    def lay(self, reply: Reply) -> int:
        if reply.empty:
            return 0
        buffers = self.laid[reply.pull.worker][reply.pull.range]
        buffers[reply.pull.iteration % len(buffers)] = self.weights[reply.pull.range]
        return super().lay(reply)


class SumGradients(NoGradients):
    """The workers' numbers."""

    def __init__(self, job: Job, shard: SumShard) -> None:
        super().__init__(job)
        self._shard, self._held = shard, [[0] * len(job.parts) for _ in range(job.run.workers)]

    def start(self, worker: int, iteration: int, pulled: list[Pulled], settled_s: float, basis: Basis) -> None:
        super().start(worker, iteration, pulled, settled_s, basis)
        held = self._held[worker]
        for weights in (each for each in pulled if each.size_bytes):
            held[weights.range] = in_turn(self._shard.laid[worker][weights.range], weights.iteration)
        for index, buffers in enumerate(self._shard.gradients[worker]):
            buffers[iteration % len(buffers)] = gradient(worker, iteration, index, held[index])


def replayed(pushes: np.ndarray, ranges: int) -> list[int]:
    """The final weights by the table of pushes alone."""
    versions = [[0] for _ in range(ranges)]
    rows: dict[tuple[int, int], list[int]] = {}
    for index, worker, iteration, pulled, applied in pushes[:, COLUMNS].astype(int).tolist():
        found = gradient(worker, iteration, index, versions[index][pulled])
        rows.setdefault((index, applied), []).append(found)
        if applied == len(versions[index]):
            versions[index].append(0)
        versions[index][applied] = stepped(versions[index][applied - 1], rows[index, applied])
    return [made[-1] for made in versions]
