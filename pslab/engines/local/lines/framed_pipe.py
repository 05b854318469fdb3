"""A line between a worker and the server: frames of messages over a local stream, and how to wait for one.

Waking a sleeping process costs 20 to 50 microseconds, so a wait first looks for a moment, yielding the core each time,
and then sleeps; a wait without bound would starve the others where processes outnumber cores. Where time is emulated
there is no such moment: who has yielded the core gets it back late, and waits last milliseconds anyway.
"""

from __future__ import annotations

import math
import os
import select
import struct
import time
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection

from pslab.engines.experiment.wire import Frame, Message, pack, unpack

SPIN_S = 50e-6
READ_BYTES, LIMIT_BYTES = 1 << 16, 1 << 26  # at a time; of a frame: numbers do not come on a line, only messages
HEADER = struct.Struct("<Id")  # of a frame: the length of its body, and when it was sent, on the monotonic clock


def ready(sources: Sequence[int], timeout_s: float | None = None, *, spin_s: float = SPIN_S) -> list[int]:
    """The descriptors that can be read, or have ended, in their order; waits until there is one, or for `timeout_s`."""
    # select waits in microseconds; poll and epoll would round up to milliseconds
    found = select.select(sources, (), (), 0)[0]
    if found or timeout_s == 0:
        return found
    until_s = time.monotonic() + (spin_s if timeout_s is None else min(spin_s, timeout_s))
    while time.monotonic() < until_s:
        os.sched_yield()
        if found := select.select(sources, (), (), 0)[0]:
            return found
    left_s = None if timeout_s is None else max(0.0, timeout_s - spin_s)
    return select.select(sources, (), (), left_s)[0]


class NoFrame(EOFError):
    """The other end is there, and has sent what is no frame of this run, or reads nothing: its line has ended."""


class Line:
    """One end. Frames arrive whole and in their order. `late_s` is for how long the last one that was waited for had
    been here when it was read."""

    def __init__(self, pipe: Connection, spin_s: float = SPIN_S) -> None:
        self._pipe, self._rest, self._spin_s = pipe, b"", spin_s  # who holds the pipe keeps it open
        self.late_s, self._sent_s = 0.0, 0.0  # the other end's last frame that was read was sent then
        self.descriptor = pipe.fileno()
        os.set_blocking(self.descriptor, False)

    def send(self, frame: Iterable[Message]) -> None:
        """Send one frame; OSError if the other end is gone."""
        body = pack(frame)
        data = HEADER.pack(len(body), time.monotonic()) + body
        while data:
            try:
                data = data[os.write(self.descriptor, data) :]
            except BlockingIOError:
                select.select((), (self.descriptor,), ())

    def frames(self) -> list[Frame]:
        """The frames that are here; EOFError when the other end is gone and everything has been read; NoFrame if it is
        there, and has sent something else."""
        try:
            data = os.read(self.descriptor, READ_BYTES)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            raise EOFError from None
        if not data:
            raise EOFError
        data, found, at = self._rest + data, [], 0
        while (begin := at + HEADER.size) <= len(data):
            length, sent_s = HEADER.unpack_from(data, at)
            end = begin + length
            if length > LIMIT_BYTES:
                raise NoFrame(f"has sent what is no frame of this run: one of {length} bytes")
            if end > len(data):
                break
            self._sent_s = sent_s
            try:
                found.append(list(unpack(data[begin:end])))
            except struct.error as error:
                raise NoFrame(f"has sent what is no frame of this run: {error}") from None
            at = end
        self._rest = data[at:]
        return found

    def keep(self) -> None:
        """Let what is still to be sent arrive as it is now, whatever becomes of the place where it lies. Here that is
        sent at once."""

    def wait(self, since_s: float = math.inf) -> list[Frame]:
        """The next frames, at least one. Who has waited since an instant before this one says so: it may have been
        stopped between the two."""
        begin_s = min(since_s, time.monotonic())
        while True:
            ready((self.descriptor,), spin_s=self._spin_s)
            if found := self.frames():
                self.late_s = max(0.0, time.monotonic() - max(begin_s, self._sent_s))
                return found
