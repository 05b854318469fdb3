"""The post: frames on the emulated links, and how late the machine was in delivering them."""

from __future__ import annotations

import math
import time
from collections import deque

from pslab.config.cluster import Cluster
from pslab.engines.emulation.links import DOWN, UP, Chooser, Network
from pslab.engines.job.notes import Note

Frame = tuple[int, list[Note]]  # (worker, what it sent or gets)


class Post:
    """Between the server and its workers. A cluster without limits has no links: what is sent is there."""

    def __init__(self, cluster: Cluster, workers: int, chooser: Chooser | None = None) -> None:
        self._network = None if cluster.free else Network(cluster, chooser)
        self._on_the_way = dict.fromkeys(range(workers), 0)
        self._inbox: deque[Frame] = deque()
        self._busy_until_s = 0.0
        self.late_s: list[float] = []  #: how late each message was delivered

    def travelling(self, worker: int) -> bool:
        """Whether a frame from or to this worker is on a link, or waits for the server."""
        return self._on_the_way[worker] > 0

    def next_s(self) -> float:
        """The instant at which there is something to do; infinity if there is nothing on the way."""
        if self._inbox:
            return 0.0
        return math.inf if self._network is None else min(self._network.next_s(), self._network.choice_s())

    def send_up(self, worker: int, size_bytes: int, notes: list[Note]) -> None:
        """A worker has handed a frame to its link."""
        self._send(UP, worker, size_bytes, notes)

    def ask(self, worker: int, notes: list[Note]) -> None:
        """A layered worker has handed a request for weights to its link, on which it waits for nobody."""
        self._on_the_way[worker] += 1
        if self._network is None:
            self._inbox.append((worker, notes))
        else:
            self._network.fly(UP, (worker, notes), notes[-1].sent_s)

    def send_down(self, worker: int, size_bytes: int, notes: list[Note]) -> list[Frame]:
        """The server hands a frame to the link; what of it is there at once."""
        if self._network is None:
            return [(worker, notes)]
        self._send(DOWN, worker, size_bytes, notes)
        return []

    def collect(self, *, busy: bool = False) -> list[Frame]:
        """Frames that workers are to get now; those for the server join its inbox.

        That a frame finds the server busy with another one is no fault of the emulation, and not late.
        """
        if self._network is None:
            return []
        now, down = time.monotonic(), []
        for due_s, direction, (worker, notes) in self._network.arrived(now):
            if direction == DOWN:
                self.late_s.append(time.monotonic() - due_s)
                self._on_the_way[worker] -= 1
                down.append((worker, notes))
            else:
                self.late_s.append(0.0 if busy else max(0.0, now - max(due_s, self._busy_until_s)))
                self._inbox.append((worker, notes))
        return down

    def take(self) -> Frame | None:
        """The next frame for the server."""
        if not self._inbox:
            return None
        worker, notes = self._inbox.popleft()
        self._on_the_way[worker] -= 1
        return worker, notes

    def dealt(self) -> None:
        """The server has dealt with the frame that it took."""
        self._busy_until_s = time.monotonic()

    def _send(self, direction: str, worker: int, size_bytes: int, notes: list[Note]) -> None:
        self._on_the_way[worker] += 1
        if self._network is None:
            self._inbox.append((worker, notes))
        else:
            self._network.send(direction, worker, size_bytes, (worker, notes), notes[-1].sent_s)
