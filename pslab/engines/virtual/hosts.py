"""Hosts: processes that compute the gradients of virtual workers, as many at a time as there are cores.

A gradient is ordered when the server has settled its weights and awaited when its virtual computation ends, so
gradients whose intervals overlap are computed side by side, and none depends on when, or where, that really happens.
Where everything that lasts lies in shared memory any host takes the gradient whose weights were settled first;
otherwise a virtual worker stays with one host.
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
AHEAD = 2  # gradients that a host has: one that it computes, and the next


Order = tuple[float, int, int, list[Pulled], Basis]  # settled when; worker, iteration; what it pulled


class Host(Evaluating):
    """The role of a host: the virtual workers that live here, or come by."""

    called = "host {} of virtual workers"

    def __init__(self, context: ProcessContext, job: Job, workers: list[int]) -> None:
        super().__init__(context, job)
        self._module = module_of(job, job.device) if job.portable else None
        self._producers: dict[int, Producer] = {}
        self._iteration = 0
        for worker in workers[: 1 if job.portable else None]:
            self._producer(worker).warm_up()

    @property
    def iteration(self) -> int:
        return self._iteration

    def produce(self, worker: int, iteration: int, pulled: list[Any], basis: list[Any]) -> None:
        """Install what a worker pulled, compute its gradient, lay the frames ready, and report it."""
        (writes, keys), self._iteration = basis, iteration
        given = Basis([Write(*each) for each in writes], None if keys is None else RangeOfIteration(*keys))
        body = body_of(self._producer(worker), iteration, [Pulled(*each) for each in pulled], given)
        report(self.context.parent, "produced", {"worker": worker, **body})

    def _producer(self, worker: int) -> Producer:
        found = self._producers.get(worker)
        if found is None:
            found = producer_of(self.job, worker, self.context.arena, self.context.data, self._module)
            self._producers[worker] = found
        return found


def body_of(producer: Producer, iteration: int, pulled: list[Pulled], basis: Basis) -> dict[str, Any]:
    """Install what a worker pulled, compute its gradient and lay the frames ready: the batch's loss, and of each range
    the payload's size and entries; no payloads if the gradient is not finite."""
    for each in pulled:
        producer.install(each)
    loss = producer.gradient(iteration, basis)
    try:
        payloads, _ = producer.payloads(iteration, loss)
    except NonFinite:
        return {"payloads": None, "loss": loss}
    return {"payloads": [[payload.size_bytes, payload.entries] for payload in payloads], "loss": loss}


class Hosts:
    """In the parent: who computes what, and what has been computed."""

    def __init__(self, pool: Pool, count: int, job: Job) -> None:
        self._pool, self._portable = pool, job.portable
        self.numbers = set(range(count))
        self._host = {worker: worker % count for worker in range(job.run.workers)}
        self._waiting: dict[int, list[Order]] = {number: [] for number in self.numbers}
        self._busy = dict.fromkeys(self.numbers, 0)
        self._done: dict[int, dict[str, Any]] = {}
        if job.portable:
            self._lay_out(pool.arena, pool.data, job)
        for number in self.numbers:
            here = [worker for worker, host in self._host.items() if host == number]
            pool.start(number, Host, job, here)

    def start(
        self, worker: int, iteration: int, pulled: list[Pulled], settled_s: float, basis: Basis
    ) -> None:
        """Start a virtual worker's iteration, whose weights were settled at this virtual instant."""
        whose = 0 if self._portable else self._host[worker]
        heappush(self._waiting[whose], (settled_s, worker, iteration, pulled, basis))
        self._feed()

    def result(self, worker: int, meanwhile: Callable[[], None]) -> dict[str, Any]:
        """Wait for the result of a computation and return it."""
        while worker not in self._done:
            self._hear()
            meanwhile()
        return self._done.pop(worker)

    def settle(self, until_s: float) -> bool:
        """Wait for computations under way, so that the next run meets idle hosts; return whether they are idle."""
        while any(self._busy.values()) and time.monotonic() < until_s:
            self._hear()
        return not any(self._busy.values())

    def take(self, number: int, found: Report) -> None:
        """Take the report of a host."""
        if found.kind == "produced":
            self._done[found.body["worker"]] = found.body
            self._busy[number] -= 1
            self._feed()

    def _feed(self) -> None:
        """Give a host that has room the task that has waited longest."""
        for whose, waiting in self._waiting.items():
            while waiting:
                number = min(self.numbers, key=self._busy.__getitem__) if self._portable else whose
                if self._busy[number] >= AHEAD:
                    break
                _, *order = heappop(waiting)
                self._pool.order_plain(number, "produce", *order)
                self._busy[number] += 1

    def _lay_out(self, arena: Arena, data: Arena, job: Job) -> None:
        layout = job.layout
        for kept in layout.kept:
            for name, place in kept.items():
                arena.tensor(place, layout.memories[name].entries, layout.memories[name].dtype).zero_()
        if job.keyed:
            from pslab.engines.worker.keyed import lay_initial  # no other run loads it

            for worker in range(job.run.workers):
                lay_initial(job, worker, arena, data)
            return
        server = arena.tensor(layout.server, layout.size, layout.dtype)
        for weights in () if layout.in_place else layout.weights:
            arena.tensor(weights, layout.size, layout.dtype).copy_(server)

    def _hear(self) -> None:
        owed = {number: COMPUTING if self._busy[number] else "" for number in self.numbers}
        for number, found in self._pool.reports(owed, WAIT_S):
            self.take(number, found)
