"""Frames of messages on the cluster's links: what goes by itself, and what it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pslab.engines.emulation.links import DOWN, UP, Chooser, Network
from pslab.engines.job.job import Job
from pslab.engines.job.wire import REQUEST_BYTES, Frame
from pslab.protocol.messages import Ack, Pull


class Traffic(Network):
    """The links of a cluster with limits, for frames. What arrives is (worker, frame, stamp)."""

    def __init__(self, job: Job, chooser: Chooser | None = None) -> None:
        super().__init__(job.cluster, chooser)
        self._job = job

    def up(self, worker: int, frame: Frame, now: float, stamp: Any = None) -> int:
        """A worker hands a frame to its link; returns the number of frames that it travels as."""
        parts = self._apart(frame)
        for part in parts:
            if self._job.layered and type(part[-1]) is Pull:
                self.fly(UP, (worker, part, stamp), now)
            else:
                self.send(UP, worker, self._size_bytes(part), (worker, part, stamp), now)
        return len(parts)

    def down(self, worker: int, frame: Frame, now: float, stamp: Any = None) -> None:
        """The server hands a frame to the link."""
        self.send(DOWN, worker, self._size_bytes(frame), (worker, frame, stamp), now)

    def _apart(self, frame: Frame) -> Sequence[Frame]:
        """Requests of a layered worker go one by one; those of an eager one wait for no push's bytes."""
        if self._job.layered:
            return [[message] for message in frame]
        if self._job.traits.eager:
            pulls = [message for message in frame if type(message) is Pull]
            others = [message for message in frame if type(message) is not Pull]
            return [part for part in (pulls, others) if part]
        return (frame,)

    def _size_bytes(self, frame: Frame) -> int:
        total = 0
        for message in frame:
            if type(message) is Pull:
                total += REQUEST_BYTES
            elif type(message) is not Ack:
                total += self._job.payload_bytes(message.range, message.payload.size_bytes)
        return total
