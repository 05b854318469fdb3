"""A stream of frames between two processes of a run.

`send` does not wait for the other end, unless `waits` is set. Then it reads while it waits, because two ends that both
only write would wait for each other forever. Bytes that the socket does not accept at once are sent later, so
`descriptor` may be ready only because the socket accepts more. If the other end reads nothing for a lease, it counts as
dead, even if it computes.

Waking up a sleeping process takes 20 to 50 microseconds, and its next work then takes twice its time. So a wait first
polls for a short time (`Spin`), yielding the core after each look, and then sleeps. Longer polling would starve other
processes if there are more processes than cores. In emulated time a wait does not poll: waits last milliseconds, and a
process that yields the core gets it back late.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection

from pslab.engines.experiment.wire import Frame, Message, pack, unpack
from pslab.errors import FrameError

HEADER = struct.Struct("<Id")  # length of the frame's messages in bytes, monotonic instant of sending
SPIN_S, LONG_SPIN_S = 50e-6, 500e-6  # the longer time is used while recent waits take less than half of it
READ_BYTES = 1 << 16  # read at a time
FRAME_BYTES = 1 << 22  # the most bytes of the messages in a frame


class NoFrame(EOFError):
    """Raised when the other end has sent invalid bytes, or has read nothing for a lease."""


class Stream:
    """An end of a stream. Frames arrive whole and in order.

    Args:
        kinds: the classes of messages that the other end may send.
        waits: whether `send` returns only when the socket has accepted all bytes.
        lease_s: the stream ends if the other end reads nothing for so many seconds.
    """

    def __init__(self, pipe: Connection, kinds: tuple[type, ...], *, lease_s: float, waits: bool = False) -> None:
        self._pipe, self._kinds, self._waits = pipe, kinds, waits  # a reference keeps the pipe open
        self._lease_s, self._took_s = lease_s, 0.0  # the last time that waiting bytes were accepted
        self.sent_s = 0.0  #: when the last frame that was read was sent
        self._to_send = b""
        self._rest = b""  # the beginning of an incomplete frame
        self._found: list[Frame] = []
        self._ended: EOFError | None = None  # why the stream has ended
        self._stream = pipe.fileno()
        os.set_blocking(self._stream, False)
        # only for `shutdown`; of a copy of the descriptor, because the pipe closes its own
        self._socket = socket.socket(fileno=os.dup(self._stream))
        self._events, self._watched = select.epoll(1), select.EPOLLIN
        self._events.register(self._stream, self._watched)
        self.descriptor = self._events.fileno()  # ready to read, or there is more to do: see _watch

    def send(self, frame: Iterable[Message]) -> None:
        """Send a frame; raise OSError if the other end is closed, TimeoutError if it has read nothing for a lease."""
        body, fits = pack(frame), not self._to_send
        # by the time since bytes were accepted, not since this call: a peer that reads slowly is alive
        if not fits and time.monotonic() - self._took_s > self._lease_s:
            self._to_send = b""
            self._end(NoFrame(f"has read no message for its lease of {self._lease_s:g} s"))
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes up a process that waits for the other end
            raise TimeoutError
        self._to_send += HEADER.pack(len(body), time.monotonic()) + body
        self._write()
        if self._to_send and fits:
            self._took_s = time.monotonic()
        if self._waits:
            self._flush()
        self._watch()

    def _flush(self) -> None:
        """Wait until the socket has accepted all bytes, and read meanwhile; raise OSError if the stream is closed."""
        while self._to_send:
            # an ended stream is always readable, and would keep this loop busy
            listens = () if self._ended else (self._stream,)
            readable, writable, _ = select.select(listens, (self._stream,), ())
            if readable:
                self._read()
            if writable:
                self._write()

    def frames(self) -> list[Frame]:
        """Return the frames that have arrived, perhaps none.

        Raises:
            EOFError: the stream has ended, and all earlier frames were returned. It is a NoFrame if the other end has
                sent invalid bytes, or read nothing for a lease.
        """
        if self._to_send:
            try:
                self._write()
            except OSError:  # the end of the stream is read next
                self._to_send = b""
        if not self._ended:
            self._read()
        frames, self._found = self._found, []
        self._watch()
        # frames that came before the end are returned first
        if self._ended and not frames:
            raise self._ended
        return frames

    def _write(self) -> None:
        length = len(self._to_send)
        try:
            while self._to_send:
                self._to_send = self._to_send[os.writev(self._stream, [self._to_send]) :]
        except BlockingIOError:
            if len(self._to_send) < length:
                self._took_s = time.monotonic()

    def _read(self) -> None:
        try:
            while not self._found:  # these frames must be processed before more are read
                data = os.read(self._stream, READ_BYTES)
                if not data:
                    raise EOFError("has ended its stream" + (" amid a frame" if self._rest else ""))
                self._take(self._rest + data if self._rest else data)
        except BlockingIOError:
            pass
        except (EOFError, OSError) as error:
            self._end(EOFError(str(error)))
        except (FrameError, struct.error) as error:
            self._end(NoFrame(f"has sent bytes that are no frame of this run: {error}"))

    def _end(self, why: EOFError) -> None:
        self._ended, self._rest = why, b""

    def _take(self, data: bytes) -> None:
        at = 0
        while (begin := at + HEADER.size) <= len(data):
            # checked before it is used: a forged length must not make this process wait for gigabytes
            length, sent_s = HEADER.unpack_from(data, at)
            if not 0 < length <= FRAME_BYTES:
                raise FrameError(f"messages of {length} bytes, but a frame may have 1 to {FRAME_BYTES}")
            if begin + length > len(data):
                break
            self.sent_s, at = sent_s, begin + length
            frame: Frame = list(unpack(data[begin:at]))
            for message in frame:
                if type(message) not in self._kinds:
                    raise FrameError(f"a {type(message).__name__} message, which may not come on this stream")
            # only now, when each of its messages is known to be allowed
            self._found.append(frame)
        self._rest = data[at:]

    def _watch(self) -> None:
        """Let `descriptor` also be ready when the socket accepts bytes, if bytes wait to be sent, if frames were read
        and not returned yet, or if the stream has ended. Else it is ready only when bytes arrive or the other end
        closes."""
        more = self._to_send or self._found or self._ended
        watched = select.EPOLLIN | (select.EPOLLOUT if more else 0)
        if watched != self._watched:
            self._events.modify(self._stream, watched)
            self._watched = watched


class Spin:
    """How many seconds a process polls before it sleeps: more while its waits are short, as in adaptive mutexes."""

    def __init__(self) -> None:
        self.s, self._mean_s = SPIN_S, LONG_SPIN_S

    def waited(self, seconds: float) -> None:
        """Update the time from the length of a wait."""
        # a running mean of about eight waits; one long wait must not end polling for many short ones
        self._mean_s += (min(seconds, 2 * LONG_SPIN_S) - self._mean_s) / 8
        self.s = LONG_SPIN_S if self._mean_s < LONG_SPIN_S / 2 else SPIN_S


def ready(sources: Sequence[int], timeout_s: float | None = None, spin: Spin | None = None) -> list[int]:
    """Wait until a descriptor can be read or has ended, at most for `timeout_s`; return all of these, perhaps none."""
    # select waits in microseconds; poll and epoll would round up to milliseconds
    readable = select.select(sources, (), (), timeout_s if spin is None else 0)[0]
    if readable or spin is None or timeout_s == 0:
        return readable
    begin_s = time.monotonic()
    until_s = begin_s + (spin.s if timeout_s is None else min(spin.s, timeout_s))
    while not readable and time.monotonic() < until_s:
        os.sched_yield()
        readable = select.select(sources, (), (), 0)[0]
    if not readable:
        readable = select.select(sources, (), (), None if timeout_s is None else max(0.0, timeout_s - spin.s))[0]
    spin.waited(time.monotonic() - begin_s)
    return readable


def awaited(stream: Stream, since_s: float = math.inf, spin: Spin | None = None) -> tuple[list[Frame], float]:
    """Wait for frames; return at least one, and for how many seconds the last had been there when it was read.

    `since_s` is the instant from which the process waits, if that is before the call.
    """
    begin_s = min(since_s, time.monotonic())
    while True:
        ready((stream.descriptor,), spin=spin)
        if frames := stream.frames():
            return frames, max(0.0, time.monotonic() - max(begin_s, stream.sent_s))
