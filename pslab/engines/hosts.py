"""Hosts: processes that compute the gradients of virtual workers, as many at a time as there are cores.

A virtual worker stays with one host, where its model's buffers, random state and residual are. A gradient is ordered
when its virtual interval begins and awaited when it ends, so gradients whose intervals overlap are computed side by
side, and none depends on when that really happens.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from pslab.engines.arena import Arena
from pslab.engines.control import Note
from pslab.engines.job import Job
from pslab.engines.pool import Pool
from pslab.engines.produce import Producer
from pslab.engines.talk import Report, report
from pslab.tensors.prune import NonFinite

WAIT_S = 0.1


class Hosting:
    """In a host: the virtual workers that live here."""

    def __init__(self, job: Job, workers: list[int], parent: Connection, arena: Arena, data: Arena) -> None:
        self._parent = parent
        self._producers = {worker: Producer(job, worker, arena, data) for worker in workers}
        self.iteration = 0
        report(parent, "prepared")

    def produce(self, worker: int, iteration: int, pulled: list[Note]) -> None:
        """Install what a worker pulled, compute its gradient, lay the frames ready, and tell the parent."""
        self.iteration, producer = iteration, self._producers[worker]
        for note in pulled:
            producer.install(note)
        loss = producer.gradient(iteration)
        try:
            notes, _ = producer.payloads(iteration, loss)
            body: dict[str, Any] = {"payloads": [[note.size_bytes, note.other] for note in notes], "loss": loss}
        except NonFinite:
            body = {"payloads": None, "loss": loss}
        report(self._parent, "produced", {"worker": worker, **body})


class Hosts:
    """In the parent: who lives where, and what has been computed."""

    def __init__(self, pool: Pool, count: int, job: Job) -> None:
        self._pool = pool
        self.numbers = set(range(count))
        self._host = {worker: worker % count for worker in range(job.run.workers)}
        self._done: dict[int, dict[str, Any]] = {}
        self._ordered: set[int] = set()
        for number in self.numbers:
            here = [worker for worker, host in self._host.items() if host == number]
            pool.order(number, "host", (job, here))

    def begin(self, worker: int, iteration: int, pulled: list[Note]) -> None:
        """A virtual worker begins to compute."""
        self._ordered.add(worker)
        self._pool.order(self._host[worker], "produce", (worker, iteration, pulled))

    def result(self, worker: int, meanwhile: Callable[[], None]) -> dict[str, Any]:
        """What it has computed; waits for it."""
        while worker not in self._done:
            self._hear()
            meanwhile()
        self._ordered.discard(worker)
        return self._done.pop(worker)

    def settle(self, until_s: float) -> bool:
        """Wait for what is still being computed, so that the next run finds the hosts idle; whether they are."""
        while self._ordered - set(self._done) and time.monotonic() < until_s:
            self._hear()
        return not self._ordered - set(self._done)

    def take(self, found: Report) -> None:
        """A host has reported."""
        if found.kind == "produced":
            self._done[found.body["worker"]] = found.body

    def _hear(self) -> None:
        for _, found in self._pool.reports(self.numbers, WAIT_S, lambda number: False):
            self.take(found)
