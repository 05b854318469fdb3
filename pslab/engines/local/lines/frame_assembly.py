"""Lines of a run without shared memory that has several servers: numbers go to and from the server of their range.

A worker's frame goes to the server that decides, and what of it is about ranges of another one goes there, too, with
the numbers: that one passes it on once it has read them, and only then the frame has come. So what a step or a reply is
about is there when a server is told to do it, and every frame has come whole or not at all, whoever ends amid it.
Weights go to a worker by way of the server that adds the numbers. It costs a message between two servers each way.
"""

from __future__ import annotations

import contextlib
import select
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from pslab.engines.experiment.wire import Frame, Message, Stop, pack
from pslab.engines.local.lines.framed_pipe import Line, ready
from pslab.engines.local.lines.stream import Stream
from pslab.errors import FrameError
from pslab.protocol.messages import Ack, Pull, Push, Weights

AHEAD = 1 << 12  # frames; a worker has one or two for each range under way
OF_RANGES = (Push, Pull, Weights, Ack)


def server_of(message: Message, servers: Sequence[int]) -> int:
    """By way of which server a message goes; `servers` has that of each range."""
    return servers[message.range] if isinstance(message, OF_RANGES) else 0


def elsewhere(frame: Iterable[Message], servers: Sequence[int]) -> dict[int, Frame]:
    """What of a frame is about ranges of other servers than the one that decides."""
    found: dict[int, Frame] = {}
    for message in frame:
        if server := server_of(message, servers):
            found.setdefault(server, []).append(message)
    return found


class Fan(Line):
    """A worker's end of its lines to all servers, the one that decides first."""

    def __init__(self, lines: Sequence[Stream], servers: Sequence[int]) -> None:
        first = lines[0]
        self._lines, self._servers, self._spin_s = lines, servers, first._spin_s
        self.late_s, self._sent_s = 0.0, 0.0
        self._events = select.epoll(len(lines))
        self._by = {line.descriptor: number for number, line in enumerate(lines)}
        for line in lines:
            self._events.register(line.descriptor, select.EPOLLIN)
        self.descriptor = self._events.fileno()

    def send(self, frame: Iterable[Message]) -> None:
        whole = list(frame)
        last = any(isinstance(message, Stop) for message in whole)
        self._lines[0].send(whole)
        others = range(1, len(self._lines))
        for server, own in (dict.fromkeys(others, whole) if last else elsewhere(whole, self._servers)).items():
            with contextlib.suppress(OSError):  # that another one is gone the one that decides notices
                self._lines[server].send(own)
        if last:
            self._drain()

    def frames(self) -> list[Frame]:
        """What has come from any server; EOFError when the one that decides is gone."""
        found: list[Frame] = []
        for descriptor, _ in self._events.poll(0):
            number = self._by.get(descriptor)
            if number is not None:
                found += self._of(number)
        return found

    def _of(self, number: int) -> list[Frame]:
        line, found = self._lines[number], list[Frame]()
        try:
            found = line.frames()
        except EOFError:
            if not number:
                raise
            self._forget(line)  # the server that decides ends the run
        self._sent_s = max(self._sent_s, line._sent_s)
        if number and any(isinstance(frame[0], Stop) for frame in found):
            self._forget(line)
            found = [frame for frame in found if not isinstance(frame[0], Stop)]
        return found

    def _forget(self, line: Stream) -> None:
        """Nothing more comes from a server in this run."""
        self._events.unregister(line.descriptor)
        del self._by[line.descriptor]

    def _drain(self) -> None:
        """Read what servers have still sent: the next run begins with empty lines."""
        for number, line in list(enumerate(self._lines))[1:]:
            while line.descriptor in self._by:
                ready((line.descriptor,))
                self._of(number)


class Relayed(Line):
    """The deciding server's end of a worker's lines: what is about another server's range goes by way of that one."""

    def __init__(self, line: Stream, servers: Sequence[int], relay: Callable[[int, Frame], None]) -> None:
        self._line, self._servers, self._relay, self.descriptor = line, servers, relay, line.descriptor

    def send(self, frame: Iterable[Message]) -> None:
        own = list(frame)
        server = server_of(own[-1], self._servers)
        if server:
            self._relay(server, own)
        else:
            self._line.send(own)

    def frames(self) -> list[Frame]:
        return self._line.frames()


class FrameAssembly:
    """At the server that decides: frames of which other servers do not have all numbers yet, and what they do have."""

    def __init__(self, workers: int, servers: Sequence[int]) -> None:
        self._servers = servers
        self._frames: list[deque[Frame]] = [deque() for _ in range(workers)]
        self._parts: list[dict[int, deque[Frame]]] = [{} for _ in range(workers)]  # of each worker, by server

    def under_way(self) -> list[int]:
        """Workers with a frame that has not come whole."""
        return [worker for worker, frames in enumerate(self._frames) if frames]

    def frame(self, worker: int, frame: Frame) -> list[Frame]:
        """A worker has sent this: the frames that have come now.

        Raises:
            FrameError: the parts that are here are none of it; or it is one too many.
        """
        return self._added(worker, self._frames[worker], frame)

    def part(self, worker: int, server: int, part: Frame) -> list[Frame]:
        """A server has the numbers of this: the frames that have come now.

        Raises:
            FrameError: it is no part of the frame that the worker has sent, or one too many.
        """
        return self._added(worker, self._parts[worker].setdefault(server, deque()), part)

    def forget(self, worker: int) -> None:
        """Nothing more comes from a worker's process."""
        self._frames[worker].clear()
        self._parts[worker].clear()

    def _added(self, worker: int, waiting: deque[Frame], frame: Frame) -> list[Frame]:
        waiting.append(frame)
        found = self._whole(worker)
        if len(waiting) > AHEAD:
            raise FrameError(f"has sent one server {AHEAD} frames of which another one knows nothing")
        return found

    def _whole(self, worker: int) -> list[Frame]:
        frames, parts, found = self._frames[worker], self._parts[worker], list[Frame]()
        while frames:
            needed = elsewhere(frames[0], self._servers)
            if not all(parts.get(server) for server in needed):
                break
            if any(pack(parts[server].popleft()) != pack(part) for server, part in needed.items()):
                raise FrameError("has sent one server other messages than the one that decides")
            found.append(frames.popleft())
        return found
