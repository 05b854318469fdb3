"""The queues of a worker's link (pushes at the worker, answers at the server), from which an order picks the next."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pslab.engines.experiment.job import Job
from pslab.errors import ProtocolError
from pslab.protocol.messages import Pull, Push
from pslab.protocol.requests import Request, View
from pslab.protocol.server import Reply, Server

# direction; worker, frame (its last message gives range and iteration), stamp
Message = tuple[str, tuple[Any, ...]]


class Waiting:
    """The run's request order with the counters that it may read; links ask it which message to send next."""

    def __init__(self, job: Job, server: Server) -> None:
        ranges = len(job.parts)
        self._order, self._server = job.order, server
        self._limit = 4 * ranges  # pushes and pulls of two iterations: more cannot wait
        self._fetched = [[0] * ranges for _ in range(job.run.workers)]
        self.blocked: list[int | None] = [None] * job.run.workers  #: per worker: the range that it waits for
        self._layers = tuple(part.layer for part in job.parts)
        self._sizes = tuple(part.size * job.layout.dtype.itemsize for part in job.parts)
        links = [job.cluster.bandwidth_of.get(n, job.cluster.bandwidth_bit_s) for n in range(job.run.workers)]
        self._byte_s = [math.inf if bit_s is None else bit_s / 8 for bit_s in links]
        self._forward_s = tuple((job.cluster.compute_s or 0.0) * forward for forward, _ in job.layer_shares)

    def pick(self, worker: int, waiting: list[Message]) -> int:
        """Return the position of the message that is sent next.

        Raises:
            ProtocolError: too many messages wait, or the order picks none of the waiting requests.
        """
        if len(waiting) == 1:
            return 0
        if len(waiting) > self._limit:
            raise ProtocolError(f"{len(waiting)} requests of worker {worker} wait, but at most {self._limit} can")
        requests = tuple(_request(message) for message in waiting)
        picked = self._order.pick(requests, self.view(worker))
        for position, request in enumerate(requests):
            if request is picked:
                return position
        raise ProtocolError(f"{self._order} picked {picked}, which is not ready: `pick` must return one of `ready`")

    def admits(self, under_way_bytes: float, size_bytes: float) -> bool:
        """Whether another message may be sent: with a credit, if the credit allows it; else if none is under way."""
        admits = getattr(self._order, "admits", None)
        return admits(under_way_bytes, size_bytes) if self.acknowledged and admits else under_way_bytes == 0

    @property
    def acknowledged(self) -> bool:
        """Whether the order has a credit, so that senders count bytes until they are acknowledged."""
        return getattr(self._order, "credit", None) is not None

    def answered(self, reply: Reply) -> None:
        """Record the weights that were read for a worker."""
        pull = reply.pull
        self._fetched[pull.worker][pull.range] = self._server.ranges[pull.range].window.base

    def view(self, worker: int) -> View:
        """Return the counters and sizes that an order may read when it picks a request of this worker."""
        ranges = self._server.ranges

        def alone(index: int) -> bool:
            part = ranges[index]
            others = part.window.counts.get(part.window.base, 0)  # workers that have pushed this iteration
            return part.clocks.get(worker) == part.window.base and others == part.window.members - 1

        counts = _Each(len(ranges), lambda index: ranges[index].clocks.get(worker, 0))
        low = _Each(len(ranges), lambda index: ranges[index].window.base)
        return View(worker, self.blocked[worker], self._fetched[worker], counts, low, _Each(len(ranges), alone),
                    self._layers, self._sizes, self._forward_s, self._byte_s[worker])  # fmt: skip


class _Each(Sequence[Any]):
    # computed for a range when it is read, because there may be thousands

    def __init__(self, length: int, of: Callable[[int], Any]) -> None:
        self._length, self._of = length, of

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if not -self._length <= index < self._length:
            raise IndexError(index)  # also ends a loop over the items
        return self._of(index % self._length)


def _request(message: Message) -> Request:
    last = message[1][1][-1]
    return last if isinstance(last, Push) else Pull(last.worker, last.range, last.iteration, last.version)
