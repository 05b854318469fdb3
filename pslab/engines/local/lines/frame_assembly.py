"""Several servers without shared memory: numbers go to and from the server of their range.

A worker sends a whole frame to the server that decides, and to each other server those messages that are about its
ranges, with the numbers. That one passes them on to the server that decides once it has read the numbers, and only when
it has all parts of a frame the frame has come. So the numbers are there when a server is ordered to use them, and every
frame comes whole or not at all, whichever process ends meanwhile. Weights go to a worker by way of the server of their
range, which adds the numbers. This costs a message between two servers in each direction.
"""

from __future__ import annotations

import contextlib
import select
from collections import deque
from collections.abc import Iterable, Sequence

from pslab.engines.experiment.wire import Frame, Message, Stop, pack
from pslab.engines.local.lines.stream import Stream, ready
from pslab.errors import FrameError
from pslab.protocol.messages import Ack, Pull, Push, Weights

AHEAD = 1 << 12  # frames; a worker has one or two for each range under way
OF_RANGES = (Push, Pull, Weights, Ack)


def server_of(message: Message, servers: Sequence[int]) -> int:
    """The server by way of which a message goes; `servers` has that of each range."""
    return servers[message.range] if isinstance(message, OF_RANGES) else 0


def elsewhere(frame: Iterable[Message], servers: Sequence[int]) -> dict[int, Frame]:
    """The messages of a frame that are about ranges of other servers than the one that decides."""
    found: dict[int, Frame] = {}
    for message in frame:
        if server := server_of(message, servers):
            found.setdefault(server, []).append(message)
    return found


class ServerStreams:
    """A worker's streams to all servers, the one that decides first, read as one."""

    def __init__(self, streams: Sequence[Stream], servers: Sequence[int]) -> None:
        self._streams, self._servers, self.sent_s = streams, servers, 0.0
        self._events = select.epoll(len(streams))
        self._listened = {stream.descriptor: server for server, stream in enumerate(streams)}
        for descriptor in self._listened:
            self._events.register(descriptor, select.EPOLLIN)
        self.descriptor = self._events.fileno()

    def send(self, frame: Iterable[Message]) -> None:
        """Send a frame to the server that decides, and its parts to the others; OSError if the first one is gone."""
        whole = list(frame)
        last = any(isinstance(message, Stop) for message in whole)
        self._streams[0].send(whole)
        others = range(1, len(self._streams))
        for server, part in (dict.fromkeys(others, whole) if last else elsewhere(whole, self._servers)).items():
            with contextlib.suppress(OSError):  # the one that decides notices that another one is gone
                self._streams[server].send(part)
        if last:  # read what servers have still sent: the next run begins with empty streams
            while left := self._listened.keys() - {self._streams[0].descriptor}:
                for descriptor in ready(list(left)):
                    self._read(self._listened[descriptor])

    def frames(self) -> list[Frame]:
        """The frames that are here, from any server; EOFError when the one that decides is gone."""
        return [frame for descriptor, _ in self._events.poll(0) if descriptor in self._listened
                for frame in self._read(self._listened[descriptor])]  # fmt: skip

    def _read(self, server: int) -> list[Frame]:
        stream, found = self._streams[server], list[Frame]()
        try:
            found = stream.frames()
        except EOFError:
            if not server:
                raise
            self._forget(stream)  # the server that decides ends the run
        self.sent_s = max(self.sent_s, stream.sent_s)
        if server and any(isinstance(frame[0], Stop) for frame in found):
            self._forget(stream)
            found = [frame for frame in found if not isinstance(frame[0], Stop)]
        return found

    def _forget(self, stream: Stream) -> None:
        """Nothing more comes from a server in this run."""
        self._events.unregister(stream.descriptor)
        del self._listened[stream.descriptor]


class FrameAssembly:
    """The frames of each worker that have not come whole, at the server that decides."""

    def __init__(self, workers: int, servers: Sequence[int]) -> None:
        self._servers = servers
        # of each worker, by server: what that one has read; the one that decides reads all messages of each frame
        self._coming: list[list[deque[Frame]]] = [[deque() for _ in range(1 + max(servers))] for _ in range(workers)]

    def under_way(self) -> list[int]:
        """Workers with a frame that has not come whole."""
        return [worker for worker, (whole, *_) in enumerate(self._coming) if whole]

    def add(self, worker: int, server: int, frame: Frame) -> list[Frame]:
        """A server has read this of a worker, with the numbers: the frames that are whole now.

        Raises:
            FrameError: it is no part of the frame that the worker has sent to the server that decides, or one too many.
        """
        coming, found = self._coming[worker], list[Frame]()
        coming[server].append(frame)
        while coming[0]:
            parts = elsewhere(coming[0][0], self._servers)
            if not all(coming[other] for other in parts):
                break
            if any(pack(coming[other].popleft()) != pack(part) for other, part in parts.items()):
                raise FrameError("has sent one server other messages than the one that decides")
            found.append(coming[0].popleft())
        if len(coming[server]) > AHEAD:
            raise FrameError(f"has sent one server {AHEAD} frames of which another one knows nothing")
        return found

    def forget(self, worker: int) -> None:
        """Nothing more comes from a worker's process."""
        for frames in self._coming[worker]:
            frames.clear()
