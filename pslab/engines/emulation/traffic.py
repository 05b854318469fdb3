"""Frames of messages on the cluster's links: how a frame is split, and how many bytes each part has."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

from pslab.config.cluster import ALLREDUCE
from pslab.engines.emulation.faults import Faults, place_of
from pslab.engines.emulation.links import DOWN, UP, Chooser, Network
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import Frame
from pslab.protocol.messages import Ack, Pull, Push, Weights


class Traffic(Network):
    """The links of a cluster with limits or faults. A message that arrives is (worker, frame, stamp)."""

    def __init__(self, job: Job, chooser: Chooser | None = None, faults: Faults | None = None) -> None:
        self._ring = job.cluster.aggregate == ALLREDUCE
        self._pushed: dict[tuple[int, int], int] = {}  # in a ring, by worker and range: the bytes of the push
        super().__init__(job.cluster, None if getattr(job.order, "in_turn", False) else chooser, job.run.servers,
                         job.run.workers - 1 if self._ring else None)  # fmt: skip
        self._job, self.faults = job, faults or Faults(job.cluster, job.run.seed)
        self._held: list[tuple[float, int, str, tuple[Any, ...]]] = []  # crossed, and not arrived
        self._crossed = 0
        self._due_s: dict[tuple[Any, ...], float] = {}  # by direction, worker, range and kind: the last arrival

    def next_s(self) -> float:
        return min(super().next_s(), self._held[0][0]) if self._held else super().next_s()

    def arrived(self, now: float) -> list[tuple[float, str, Any]]:
        crossed = super().arrived(now)
        if not self.faults.of_frames:
            return crossed
        for at, direction, (worker, frame, stamp, fate) in crossed:
            stream = direction, worker, *place_of(frame)[1:]  # messages of a stream keep their order
            self._due_s[stream] = due_s = max(at + fate.delay_s, self._due_s.get(stream, 0.0))
            for _ in range(fate.copies):
                self._crossed += 1
                heappush(self._held, (due_s, self._crossed, direction, (worker, frame, stamp)))
        there = []
        while self._held and self._held[0][0] <= now:
            at, _, direction, content = heappop(self._held)
            there.append((at, direction, content))
        self._look()
        return there

    def _look(self) -> None:
        super()._look()
        if self._held:
            self.soonest_s = min(self.soonest_s, self._held[0][0])

    def up(self, worker: int, frame: Frame, now: float, stamp: Any = None) -> int:
        """Send a frame from a worker to servers; return the number of frames that will arrive."""
        arriving = 0
        for part in self._apart(frame):
            content, copies = self._content(UP, worker, part, now, stamp)
            arriving += copies
            self._go(UP, worker, part, content, now)
        return arriving

    def down(self, worker: int, frame: Frame, now: float, stamp: Any = None) -> int:
        """Send a frame from a server to a worker; return the number of frames that will arrive."""
        content, copies = self._content(DOWN, worker, frame, now, stamp)
        self._go(DOWN, worker, frame, content, now)
        return copies

    def _go(self, direction: str, worker: int, frame: Frame, content: tuple[Any, ...], now: float) -> None:
        index = frame[-1].range
        server = self._job.server_of[index]
        if self._job.beside(worker, index):
            self.pass_by(direction, worker, self._size_bytes(worker, frame), content, now, server)
        elif self._job.layered and type(frame[-1]) is Pull:
            self.fly(direction, worker, content, now, server)
        else:
            self.send(direction, worker, self._size_bytes(worker, frame), content, now, server)

    def _content(
        self, direction: str, worker: int, frame: Frame, now: float, stamp: Any
    ) -> tuple[tuple[Any, ...], int]:
        """Return the message that the links deliver for a frame, and how often the frame arrives."""
        if not self.faults.of_frames:
            return (worker, frame, stamp), 1
        fate = self.faults.fate(direction, worker, frame, now)
        return (worker, frame, stamp, fate), fate.copies

    def _apart(self, frame: Frame) -> Sequence[Frame]:
        # a layered worker sends each message alone; an eager worker's pulls do not wait for its pushes; and each
        # server gets a separate frame
        job, server_of = self._job, self._job.server_of
        if job.layered:
            return [[message] for message in frame]
        parts = [frame]
        if not job.traits.eager and job.run.servers == 1:
            return parts
        if job.traits.eager:
            pulls = [message for message in frame if type(message) is Pull]
            parts = [pulls, [message for message in frame if type(message) is not Pull]]
        if job.run.servers > 1:
            parts = [own_part for part in parts for own_part in _by_server(part, server_of)]
        return [part for part in parts if part]

    def _size_bytes(self, worker: int, frame: Frame) -> float:
        if self._ring:
            return self._passed_on_bytes(worker, frame)
        total = 0
        for message in frame:
            if type(message) is Pull:
                total += message.payload.size_bytes
            elif type(message) is not Ack:
                total += self._job.payload_bytes(message.range, message.payload.size_bytes)
        return total

    def _passed_on_bytes(self, worker: int, frame: Frame) -> float:
        """Return the bytes that each worker of a ring sends for a frame: (workers - 1) / workers of its push or sum."""
        total, workers = 0, self._job.run.workers
        for message in frame:
            key = worker, message.range
            if type(message) is Push:
                self._pushed[key] = self._job.payload_bytes(message.range, message.payload.size_bytes)
            total += self._pushed[key] if type(message) in (Push, Weights) else 0
        return total * (workers - 1) / workers


def _by_server(frame: Frame, server_of: Sequence[int]) -> list[Frame]:
    frames: dict[int, Frame] = {}
    for message in frame:
        frames.setdefault(server_of[message.range], []).append(message)
    return [frames[server] for server in sorted(frames)]
