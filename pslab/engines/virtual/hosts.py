"""Hosts: processes that compute the gradients of virtual workers, as many at a time as there are cores.

A gradient is ordered when the server has settled its weights, which then no longer change, and awaited when its
virtual computation ends. So gradients whose virtual intervals overlap are computed side by side, and no gradient
depends on its host or on real time. If the workers' whole state lies in shared memory (`Job.portable`), the next free
host computes the gradient whose weights were settled first; otherwise each virtual worker belongs to one host.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.processes.channel import Report, report
from pslab.engines.processes.child import ProcessContext
from pslab.engines.processes.pool import Pool
from pslab.engines.processes.watch import COMPUTING
from pslab.engines.server.evaluate import Evaluating
from pslab.engines.worker.gradient import module_of
from pslab.engines.worker.modes import producer_of
from pslab.engines.worker.tensors import Basis, Producer, Pulled, RangeOfIteration, Write
from pslab.tensors.finite import NonFinite

WAIT_S = 0.1
AHEAD = 2  # gradients ordered from a host at a time: one that it computes, and the next one


Order = tuple[float, int, int, list[Pulled], Basis]  # instant of settling, worker, iteration, pulled weights, basis


class Host(Evaluating):
    """The role of a host, a process that computes the gradients of virtual workers."""

    called = "host {} of virtual workers"

    def __init__(self, context: ProcessContext, job: Job, workers: list[int]) -> None:
        super().__init__(context, job)
        self._module = module_of(job, job.device) if job.portable else None
        self._producers: dict[int, Producer] = {}
        self._iteration = 0
        for worker in workers[: 1 if job.portable else None]:  # one module, or one for each worker
            self._producer(worker).warm_up()

    @property
    def iteration(self) -> int:
        return self._iteration

    def produce(self, worker: int, iteration: int, pulled: list[Any], basis: list[Any]) -> None:
        """Install the weights that a worker pulled, compute its gradient, write its frames, and report the result."""
        (writes, keys), self._iteration = basis, iteration
        given = Basis([Write(*fields) for fields in writes], None if keys is None else RangeOfIteration(*keys))
        body = body_of(self._producer(worker), iteration, [Pulled(*fields) for fields in pulled], given)
        report(self.context.parent, "produced", {"worker": worker, **body})

    def _producer(self, worker: int) -> Producer:
        producer = self._producers.get(worker)
        if producer is None:
            producer = producer_of(self.job, worker, self.context.arena, self.context.data, self._module)
            self._producers[worker] = producer
        return producer


def body_of(producer: Producer, iteration: int, pulled: list[Pulled], basis: Basis) -> dict[str, Any]:
    """Install the weights that a worker pulled, compute its gradient and write its frames.

    Return "loss", the batch's loss, and "payloads", the bytes and entries for each range; its value is None if the
    gradient is not finite.
    """
    for weights in pulled:
        producer.install(weights)
    loss = producer.gradient(iteration, basis)
    try:
        payloads, _ = producer.payloads(iteration, loss)
    except NonFinite:
        return {"payloads": None, "loss": loss}
    return {"payloads": [[payload.size_bytes, payload.entries] for payload in payloads], "loss": loss}


class Hosts:
    """The parent's part: it distributes the gradients among the hosts, and collects the results."""

    def __init__(self, pool: Pool, count: int, job: Job) -> None:
        self._pool, self._portable = pool, job.portable
        self.numbers = set(range(count))
        # fixed: the state of a worker that is not portable lies in one process
        self._host = {worker: worker % count for worker in range(job.run.workers)}
        self._waiting: dict[int, list[Order]] = {number: [] for number in self.numbers}
        self._busy = dict.fromkeys(self.numbers, 0)
        self._done: dict[int, dict[str, Any]] = {}
        # any host may compute a worker's first gradient, so the parent writes the vectors with which it begins
        if job.portable:
            self._lay_out(pool.arena, pool.data, job)
        for number in self.numbers:
            here = [worker for worker, host in self._host.items() if host == number]
            pool.start(number, Host, job, here)

    def start(self, worker: int, iteration: int, pulled: list[Pulled], settled_s: float, basis: Basis) -> None:
        """Order the gradient of a virtual worker, whose weights were settled at the virtual instant `settled_s`."""
        whose = 0 if self._portable else self._host[worker]  # a portable job has one queue
        # the gradient whose weights were settled first is probably awaited first; the order changes no result
        heappush(self._waiting[whose], (settled_s, worker, iteration, pulled, basis))
        self._feed()

    def result(self, worker: int, meanwhile: Callable[[], None]) -> dict[str, Any]:
        """Wait for the result of a computation and return it."""
        while worker not in self._done:
            self._hear()
            meanwhile()
        return self._done.pop(worker)

    def settle(self, until_s: float) -> bool:
        """Wait until all hosts are idle, so that the next run can use them, or `until_s`; return whether they are."""
        # a report of this run that arrives later would be taken for one of the next run
        while any(self._busy.values()) and time.monotonic() < until_s:
            self._hear()
        return not any(self._busy.values())

    def take(self, number: int, heard: Report) -> None:
        """Handle the report of a host."""
        if heard.kind == "produced":
            # a worker has at most one gradient under way, so its number is enough
            self._done[heard.body["worker"]] = heard.body
            self._busy[number] -= 1
            self._feed()

    def _feed(self) -> None:
        """Send the waiting orders, earliest first, to hosts that have fewer than AHEAD orders."""
        for whose, waiting in self._waiting.items():
            while waiting:
                number = min(self.numbers, key=self._busy.__getitem__) if self._portable else whose
                # few orders are sent ahead, so that a waiting one goes to the host that is free first
                if self._busy[number] >= AHEAD:
                    break
                _, *order = heappop(waiting)
                self._pool.order_plain(number, "produce", *order)
                self._busy[number] += 1

    def _lay_out(self, arena: Arena, data: Arena, job: Job) -> None:
        layout = job.layout
        for offsets in layout.memory_offsets:
            for name, offset in offsets.items():
                arena.tensor(offset, layout.memories[name].entries, layout.memories[name].dtype).zero_()
        if job.keyed:
            from pslab.engines.worker.keyed import lay_initial  # only keyed runs import it

            for worker in range(job.run.workers):
                lay_initial(job, worker, arena, data)
            return
        server = arena.tensor(layout.server, layout.size, layout.dtype)
        for weights in () if layout.in_place else layout.weights:
            arena.tensor(weights, layout.size, layout.dtype).copy_(server)

    def _hear(self) -> None:
        owed = {number: COMPUTING if self._busy[number] else "" for number in self.numbers}
        for number, heard in self._pool.reports(owed, WAIT_S):
            self.take(number, heard)
