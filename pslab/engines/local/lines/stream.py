"""A stream of frames between two processes of a run: the messages of each, and behind them the bytes that they name.

Where memory is shared messages name nothing that travels. Elsewhere the bytes are sent from where they lie (writev)
and read to where they belong (readv). Sending does not wait for the other end unless it is asked to, and then it reads
meanwhile: two ends that only wrote would wait for each other for ever. What the socket does not take is sent as soon
as it does; a `descriptor` that is ready may be ready for that alone. No more waits to be sent than a lease allows: a
peer that reads nothing for so long is dead, even if it computes.

On a line to another host messages have tags (pslab.engines.processes.authentication), which are checked before a
message is read; what they are about has one if the fleet asks for it, and its frame is not delivered before it was
checked.

A payload wakes its reader once for each LOW_BYTES and not for each packet, which gains 10 to 35 %.

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
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any, Protocol

from pslab.engines.experiment.wire import Frame, Message, pack, unpack
from pslab.engines.local.lines.message_buffers import MessageBuffers, Places
from pslab.engines.processes.authentication import TAG_BYTES, payload_tags_of, tagged, tags_of
from pslab.errors import FrameError

HEADER = struct.Struct("<Id")  # of a frame: the length of its messages, and when it was sent, on the monotonic clock
SPIN_S, LONG_SPIN_S = 50e-6, 500e-6  # the second where half of it was enough lately
READ_BYTES = 1 << 16  # at a time, of messages
LOW_BYTES = 1 << 18
PIECES = 256  # of memory in one system call; the system's limit is 1,024
FRAME_BYTES = 1 << 22  # of the messages in one frame, without the bytes that they name
PROBES = 3  # without an answer in the last quarter of a lease


class NoFrame(EOFError):
    """The other end is there, and has sent what is no frame of this run, or reads nothing: its stream has ended."""


class Readable(Protocol):
    """A stream, or several that are read as one."""

    descriptor: int
    sent_s: float  #: when the last frame that was read had been sent

    def frames(self) -> list[Frame]:
        """The frames that are here."""


class Stream:
    """One end. Frames arrive whole and in their order.

    Args:
        kinds: of messages that the other end may send; no other is read.
        buffers: where the bytes lie that messages name; None if they name none.
        waits: whether `send` returns only when everything is on its way.
        lease_s: after so long without an answer of the other end's machine the stream has ended.
        offset_s: what the other end's clock shows more than this one's.
    """

    def __init__(
        self, pipe: Connection, kinds: tuple[type, ...], buffers: MessageBuffers | None = None, *, lease_s: float,
        waits: bool = False, offset_s: float = 0.0,
    ) -> None:  # fmt: skip
        self._pipe, self._kinds, self._buffers, self._waits = pipe, kinds, buffers, waits  # which keeps it open
        self._tags, self._payload_tags = tags_of(pipe), payload_tags_of(pipe)
        self._tag_bytes = 0 if self._tags is None else TAG_BYTES
        self._lease_s, self._took_s = lease_s, 0.0  # when the socket last took something of what did not fit at once
        self.sent_s, self._offset_s = 0.0, offset_s
        self._to_send: deque[memoryview] = deque()
        self._lent = False  # whether some of them may be places that others write to
        self._rest = b""  # of a frame whose messages are not all here
        self._to_read: deque[memoryview] = deque()  # the places of what is still to come of a frame
        self._frame: Frame | None = None  # the frame of these places
        self._unchecked: list[memoryview] = []  # the places, and behind them their tag
        self._found: list[Frame] = []
        self._ended: EOFError | None = None  # why nothing more comes
        self._stream = pipe.fileno()
        os.set_blocking(self._stream, False)
        self._socket = socket.socket(fileno=os.dup(self._stream))
        self._low = 1
        _keep_alive(self._socket, lease_s)
        self._events, self._watched = select.epoll(1), select.EPOLLIN
        self._events.register(self._stream, self._watched)
        self.descriptor = self._events.fileno()  # ready, too, while something can be sent, was found, or has ended

    def send(self, frame: Iterable[Message]) -> None:
        """Send one frame; OSError if the other end is gone, TimeoutError if it has read nothing for a lease."""
        body, to_send = pack(frame), self._to_send
        if to_send and time.monotonic() - self._took_s > self._lease_s:
            self._give_up()
            raise TimeoutError
        fits = not to_send
        message, places = HEADER.pack(len(body), time.monotonic()) + body, list[memoryview]()
        if self._buffers is not None:
            for each in frame:
                places.extend(self._buffers.places(each))
            self._lent = True
        to_send.append(memoryview(tagged(self._tags, message)))
        to_send.extend(places)
        if places and self._payload_tags is not None:
            to_send.append(memoryview(self._payload_tags.of(places)))
        self._write()
        if to_send and fits:
            self._took_s = time.monotonic()
        if self._waits:
            self.flush()
        self._watch()

    def flush(self) -> None:
        """Wait until everything is on its way, and read meanwhile; OSError if the other end is gone."""
        while self._to_send:
            listens = () if self._ended else (self._stream,)
            readable, writable, _ = select.select(listens, (self._stream,), ())
            if readable:
                self._read()
            if writable:
                self._write()

    def keep(self) -> None:
        """Let what is still to be sent arrive as it is now, whatever becomes of the place where it lies."""
        if self._lent and self._to_send:
            self._to_send = deque(memoryview(bytes(piece)) for piece in self._to_send)
        self._lent = False

    def frames(self) -> list[Frame]:
        """The frames that are here.

        Raises:
            EOFError: the other end is gone, or has sent what is no frame (NoFrame), and everything before that has been
                read; its words say why.
        """
        if self._to_send:
            try:
                self._write()
            except OSError:  # its end is read next
                self._to_send.clear()
        if not self._ended:
            self._read()
        found, self._found = self._found, []
        self._watch()
        if self._ended and not found:
            raise self._ended
        return found

    def _write(self) -> None:
        """Hand the socket what it takes."""
        to_send, took = self._to_send, False
        while to_send:
            pieces = list(islice(to_send, PIECES))
            try:
                sent = os.writev(self._stream, pieces)
            except BlockingIOError:
                self._took_s = time.monotonic() if took else self._took_s
                return
            took = True
            for piece in pieces:
                if sent < len(piece):
                    to_send[0] = piece[sent:]
                    break
                sent -= len(piece)
                to_send.popleft()

    def _give_up(self) -> None:
        """The other end reads nothing: this stream has ended, and a process that waits for it is woken."""
        self._to_send.clear()
        self._end(NoFrame(f"has read nothing that was sent to it for its lease of {self._lease_s:g} s"))
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        """Read what is here, until a frame is whole or nothing more is."""
        try:
            while True:
                places = self._to_read
                if places:
                    _advance(places, self._some(os.readv(self._stream, list(islice(places, PIECES)))))
                    self._take(b"")
                else:
                    data = os.read(self._stream, READ_BYTES)
                    self._some(len(data))
                    self._take(self._rest + data if self._rest else data)
                if self._found and not self._to_read:
                    break  # to be dealt with before there is more
        except BlockingIOError:
            pass
        except TimeoutError:  # the system has found out (TCP_USER_TIMEOUT)
            self._give_up()
        except (EOFError, OSError) as error:
            self._end(EOFError(str(error)))
        except (FrameError, struct.error) as error:
            self._end(NoFrame(f"has sent what is no frame of this run: {error}"))
        if self._to_read or self._low > 1:
            self._await(sum(map(len, self._to_read)))

    def _some(self, count: int) -> int:
        if not count:
            raise EOFError("has ended its stream" + (" amid a frame" if self._rest or self._to_read else ""))
        return count

    def _end(self, why: EOFError) -> None:
        self._ended, self._rest, self._frame = why, b"", None
        self._to_read.clear()

    def _take(self, data: bytes) -> None:
        """Take frames from what has come, and lay what they are about in its places."""
        view, at = memoryview(data), 0
        while True:
            while self._to_read and at < len(data):
                count = min(len(self._to_read[0]), len(data) - at)
                self._to_read[0][:count] = view[at : at + count]
                _advance(self._to_read, count)
                at += count
            if self._to_read:
                break
            if self._frame is not None:
                if self._unchecked and self._payload_tags is not None:
                    *places, tag = self._unchecked
                    self._payload_tags.check(tag, places)
                    self._unchecked = []
                self._found.append(self._frame)
                self._frame = None
            begin = at + HEADER.size
            if begin > len(data):
                break
            length, sent_s = HEADER.unpack_from(data, at)
            if not 0 < length <= FRAME_BYTES:
                raise FrameError(f"messages of {length} bytes; a frame has 1 to {FRAME_BYTES}")
            end = begin + length
            if end + self._tag_bytes > len(data):
                break
            if self._tags is not None:
                self._tags.check(view[end : end + TAG_BYTES], (view[at:end],))
            self.sent_s, at = sent_s - self._offset_s, end + self._tag_bytes
            frame: Frame = list(unpack(data[begin:end]))
            places = [place for message in frame for place in self._places(message)]
            if places and self._payload_tags is not None:
                self._unchecked = places = [*places, memoryview(bytearray(TAG_BYTES))]
            self._to_read.extend(places)
            self._frame = frame
        self._rest = data[at:]

    def _places(self, message: Any) -> Places:
        if self._buffers is not None:
            return self._buffers.checked(message, self._kinds)
        if type(message) not in self._kinds:
            raise FrameError(f"a {type(message).__name__}, which is not sent here")
        return ()

    def _await(self, left: int) -> None:
        """Let the reader sleep until so many bytes are here, or LOW_BYTES."""
        low = min(max(left, 1), LOW_BYTES)
        if low != self._low:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low)
            self._low = low

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
        """A wait took so long."""
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


def awaited(stream: Readable, since_s: float = math.inf, spin: Spin | None = None) -> tuple[list[Frame], float]:
    """The next frames, at least one, and for how many seconds the last one had been here when it was read.

    A process that has waited since an instant before this one says so: it may have been stopped between the two.
    """
    begin_s = min(since_s, time.monotonic())
    while True:
        ready((stream.descriptor,), spin=spin)
        if found := stream.frames():
            return found, max(0.0, time.monotonic() - max(begin_s, stream.sent_s))


def _advance(places: deque[memoryview], count: int) -> None:
    """So many bytes more have been read."""
    while count:
        if count < len(places[0]):
            places[0] = places[0][count:]
            return
        count -= len(places.popleft())


def _keep_alive(stream: socket.socket, lease_s: float) -> None:
    """Send at once, and notice the end of the other machine, or of the way to it, within a lease."""
    seconds, tcp = max(1, round(lease_s * 3 / 4)), socket.IPPROTO_TCP
    options = [(socket.SOL_SOCKET, "SO_KEEPALIVE", 1), (tcp, "TCP_NODELAY", 1), (tcp, "TCP_KEEPIDLE", seconds),
               (tcp, "TCP_KEEPINTVL", max(1, round(lease_s / 4 / PROBES))), (tcp, "TCP_KEEPCNT", PROBES),
               (tcp, "TCP_USER_TIMEOUT", round(1000 * lease_s))]  # fmt: skip
    for level, name, value in options:
        with contextlib.suppress(OSError, AttributeError):  # no TCP, or a system without it
            stream.setsockopt(level, getattr(socket, name), value)
