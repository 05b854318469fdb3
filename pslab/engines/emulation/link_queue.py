"""Messages that wait for a worker's link: pushes at the worker, answers at the server; an order chooses the next."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pslab.engines.experiment.job import Job
from pslab.errors import ProtocolError
from pslab.protocol.messages import Pull, Push
from pslab.protocol.requests import Request, View
from pslab.protocol.server import Reply, Server

# direction; worker, frame (the last message is what it is about), stamp
Message = tuple[str, tuple[Any, ...]]


class Waiting:
    """A run's order as its links ask it, with what it may know: the server's counters, and what each worker has."""

    def __init__(self, job: Job, server: Server) -> None:
        ranges = len(job.parts)
        self._order, self._server = job.order, server
        self._limit = 4 * ranges  # two iterations' pushes and pulls: more than can be waiting
        self._held = [[0] * ranges for _ in range(job.run.workers)]
        self.blocked: list[int | None] = [None] * job.run.workers  #: per worker: the range that its computing waits for
        self._layers = tuple(part.layer for part in job.parts)
        self._sizes = tuple(part.size * job.layout.dtype.itemsize for part in job.parts)
        bandwidth = job.cluster.bandwidth_bit_s
        self._byte_s = math.inf if bandwidth is None else bandwidth / 8
        self._forward_s = tuple((job.cluster.compute_s or 0.0) * forward for forward, _ in job.layer_shares)

    def pick(self, worker: int, waiting: list[Message]) -> int:
        """The place of the message whose request goes next.

        Raises:
            ProtocolError: more is waiting than can be, or the order picks what is not.
        """
        if len(waiting) == 1:
            return 0
        if len(waiting) > self._limit:
            raise ProtocolError(f"{len(waiting)} requests of worker {worker} wait; at most {self._limit} can")
        requests = tuple(_request(message) for message in waiting)
        picked = self._order.pick(requests, self.view(worker))
        for place, request in enumerate(requests):
            if request is picked:
                return place
        raise ProtocolError(f"{self._order} picked {picked}, which is not ready")

    def admits(self, under_way_bytes: float, size_bytes: float) -> bool:
        """Without a credit one at a time; with one as many as it allows."""
        admits = getattr(self._order, "admits", None)
        return admits(under_way_bytes, size_bytes) if self.acknowledged and admits else under_way_bytes == 0

    @property
    def acknowledged(self) -> bool:
        """Whether the order has a credit, which comes back with an acknowledgement."""
        return getattr(self._order, "credit", None) is not None

    def answered(self, reply: Reply) -> None:
        """Record the weights that were read for a worker."""
        pull = reply.pull
        self._held[pull.worker][pull.range] = self._server.ranges[pull.range].window.base

    def view(self, worker: int) -> View:
        """Return what an order may know when it picks a request of this worker."""
        ranges = self._server.ranges

        def alone(index: int) -> bool:
            part = ranges[index]
            others = part.window.counts.get(part.window.base, 0)  # who has pushed the iteration at the low bound
            return part.clocks.get(worker) == part.window.base and others == part.window.members - 1

        counts = _Each(len(ranges), lambda index: ranges[index].clocks.get(worker, 0))
        low = _Each(len(ranges), lambda index: ranges[index].window.base)
        return View(worker, self.blocked[worker], self._held[worker], counts, low, _Each(len(ranges), alone),
                    self._layers, self._sizes, self._forward_s, self._byte_s)  # fmt: skip


class _Each(Sequence[Any]):
    """Something of each range, found where it is asked for: there may be thousands."""

    def __init__(self, length: int, of: Callable[[int], Any]) -> None:
        self._length, self._of = length, of

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if not -self._length <= index < self._length:
            raise IndexError(index)  # which also ends an iteration
        return self._of(index % self._length)


def _request(message: Message) -> Request:
    last = message[1][1][-1]
    return last if isinstance(last, Push) else Pull(last.worker, last.range, last.iteration, last.version)
