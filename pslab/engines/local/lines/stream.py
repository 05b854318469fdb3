"""A stream of frames between two processes of a run: the messages of each. What they name lies in shared memory.

Sending does not wait for the other end unless it is asked to, and then it reads meanwhile: two ends that only wrote
would wait for each other for ever. What the socket does not take is sent as soon as it does; a `descriptor` that is
ready may be ready for that alone. No more waits to be sent than a lease allows: a peer that reads nothing for so long
is dead, even if it computes.

Waking a sleeping process costs 20 to 50 microseconds, and what it does next twice its time, so a wait first looks for
a moment (`Spin`), yielding the core each time, and then sleeps; a wait without bound would starve the others where
processes outnumber cores. Where time is emulated there is no such moment: a process that has yielded the core gets it
back late, and waits last milliseconds anyway.
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

HEADER = struct.Struct("<Id")  # of a frame: the length of its messages, and when it was sent, on the monotonic clock
SPIN_S, LONG_SPIN_S = 50e-6, 500e-6  # the second where half of it was enough lately
READ_BYTES = 1 << 16  # at a time
FRAME_BYTES = 1 << 22  # of the messages in one frame


class NoFrame(EOFError):
    """The stream has ended because the other end sent bytes that are no frame of this run, or reads nothing."""


class Stream:
    """An end of a stream. Frames arrive whole and in their order.

    Args:
        kinds: of messages that the other end may send; no other is read.
        waits: whether `send` returns only when everything is on its way.
        lease_s: after so long in which the other end has read nothing the stream has ended.
    """

    def __init__(self, pipe: Connection, kinds: tuple[type, ...], *, lease_s: float, waits: bool = False) -> None:
        self._pipe, self._kinds, self._waits = pipe, kinds, waits  # the pipe stays open
        self._lease_s, self._took_s = lease_s, 0.0  # when the socket last took something of what did not fit at once
        self.sent_s = 0.0  #: when the last frame that was read had been sent
        self._to_send = b""
        self._rest = b""  # of a frame that is not all here
        self._found: list[Frame] = []
        self._ended: EOFError | None = None  # why nothing more comes
        self._stream = pipe.fileno()
        os.set_blocking(self._stream, False)
        self._socket = socket.socket(fileno=os.dup(self._stream))
        self._events, self._watched = select.epoll(1), select.EPOLLIN
        self._events.register(self._stream, self._watched)
        self.descriptor = self._events.fileno()  # ready, too, while something can be sent, was found, or has ended

    def send(self, frame: Iterable[Message]) -> None:
        """Send one frame; OSError if the other end is gone, TimeoutError if it has read nothing for a lease."""
        body, fits = pack(frame), not self._to_send
        if not fits and time.monotonic() - self._took_s > self._lease_s:
            self._give_up()
            raise TimeoutError
        self._to_send += HEADER.pack(len(body), time.monotonic()) + body
        self._write()
        if self._to_send and fits:
            self._took_s = time.monotonic()
        if self._waits:
            self._flush()
        self._watch()

    def _flush(self) -> None:
        """Wait until everything is on its way, and read meanwhile; OSError if the other end is gone."""
        while self._to_send:
            listens = () if self._ended else (self._stream,)
            readable, writable, _ = select.select(listens, (self._stream,), ())
            if readable:
                self._read()
            if writable:
                self._write()

    def frames(self) -> list[Frame]:
        """Return the frames that have arrived.

        Raises:
            EOFError: the other end is gone, or has sent what is no frame (NoFrame), and everything before that has been
                read; its words say why.
        """
        if self._to_send:
            try:
                self._write()
            except OSError:  # its end is read next
                self._to_send = b""
        if not self._ended:
            self._read()
        found, self._found = self._found, []
        self._watch()
        if self._ended and not found:
            raise self._ended
        return found

    def _write(self) -> None:
        """Hand the socket what it takes."""
        length = len(self._to_send)
        try:
            while self._to_send:
                self._to_send = self._to_send[os.writev(self._stream, [self._to_send]) :]
        except BlockingIOError:
            if len(self._to_send) < length:
                self._took_s = time.monotonic()

    def _give_up(self) -> None:
        """End a stream whose other end reads nothing, and wake a process that waits for it."""
        self._to_send = b""
        self._end(NoFrame(f"has read nothing that was sent to it for its lease of {self._lease_s:g} s"))
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        """Read the bytes that have arrived."""
        try:
            while not self._found:  # what was found is to be dealt with before there is more
                data = os.read(self._stream, READ_BYTES)
                if not data:
                    raise EOFError("has ended its stream" + (" amid a frame" if self._rest else ""))
                self._take(self._rest + data if self._rest else data)
        except BlockingIOError:
            pass
        except (EOFError, OSError) as error:
            self._end(EOFError(str(error)))
        except (FrameError, struct.error) as error:
            self._end(NoFrame(f"has sent what is no frame of this run: {error}"))

    def _end(self, why: EOFError) -> None:
        self._ended, self._rest = why, b""

    def _take(self, data: bytes) -> None:
        """Take frames from what has come."""
        at = 0
        while (begin := at + HEADER.size) <= len(data):
            length, sent_s = HEADER.unpack_from(data, at)
            if not 0 < length <= FRAME_BYTES:
                raise FrameError(f"messages of {length} bytes; a frame has 1 to {FRAME_BYTES}")
            if begin + length > len(data):
                break
            self.sent_s, at = sent_s, begin + length
            frame: Frame = list(unpack(data[begin:at]))
            for message in frame:
                if type(message) not in self._kinds:
                    raise FrameError(f"a {type(message).__name__}, which is not sent here")
            self._found.append(frame)
        self._rest = data[at:]

    def _watch(self) -> None:
        """Let the descriptor be ready when there is something to do."""
        more = self._to_send or self._found or self._ended
        watched = select.EPOLLIN | (select.EPOLLOUT if more else 0)
        if watched != self._watched:
            self._events.modify(self._stream, watched)
            self._watched = watched


class Spin:
    """For how long a process looks before it sleeps: longer while its waits are short, as adaptive mutexes do."""

    def __init__(self) -> None:
        self.s, self._mean_s = SPIN_S, LONG_SPIN_S

    def waited(self, seconds: float) -> None:
        """Count a wait."""
        self._mean_s += (min(seconds, 2 * LONG_SPIN_S) - self._mean_s) / 8
        self.s = LONG_SPIN_S if self._mean_s < LONG_SPIN_S / 2 else SPIN_S


def ready(sources: Sequence[int], timeout_s: float | None = None, spin: Spin | None = None) -> list[int]:
    """The descriptors that can be read, or have ended, in their order; waits until there is one, or for `timeout_s`."""
    # select waits in microseconds; poll and epoll would round up to milliseconds
    found = select.select(sources, (), (), timeout_s if spin is None else 0)[0]
    if found or spin is None or timeout_s == 0:
        return found
    begin_s = time.monotonic()
    until_s = begin_s + (spin.s if timeout_s is None else min(spin.s, timeout_s))
    while not found and time.monotonic() < until_s:
        os.sched_yield()
        found = select.select(sources, (), (), 0)[0]
    if not found:
        found = select.select(sources, (), (), None if timeout_s is None else max(0.0, timeout_s - spin.s))[0]
    spin.waited(time.monotonic() - begin_s)
    return found


def awaited(stream: Stream, since_s: float = math.inf, spin: Spin | None = None) -> tuple[list[Frame], float]:
    """The next frames, at least one, and for how many seconds the last one had been here when it was read.

    A process that has waited since an instant before this one says so: it may have been stopped between the two.
    """
    begin_s = min(since_s, time.monotonic())
    while True:
        ready((stream.descriptor,), spin=spin)
        if found := stream.frames():
            return found, max(0.0, time.monotonic() - max(begin_s, stream.sent_s))
