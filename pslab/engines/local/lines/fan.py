"""Lines of a run without shared memory that has several servers: each message goes by way of the server of its range.

A worker's push goes to the store that holds its range, which reads the numbers and passes the message on to the server
that decides; weights come the same way back, and the store adds the numbers. So what a step or a reply is about is
there when the store is told to do it, whoever ends amid a payload, and every frame arrives whole. It costs a message
between two servers each way. One server decides, and every other message goes to it or comes from it directly.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable, Sequence

from pslab.engines.job.wire import Frame, Message, Stop
from pslab.engines.local.lines.framed_pipe import Line, ready
from pslab.engines.local.lines.stream import Stream
from pslab.protocol.messages import Ack, Pull, Push, Weights

OF_RANGES = (Push, Pull, Weights, Ack)


def server_of(message: Message, servers: Sequence[int]) -> int:
    """By way of which server a message goes; `servers` has that of each range."""
    return servers[message.range] if isinstance(message, OF_RANGES) else 0


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
        apart: dict[int, Frame] = {}
        for message in frame:
            ends = isinstance(message, Stop)
            for server in range(len(self._lines)) if ends else (server_of(message, self._servers),):
                apart.setdefault(server, []).append(message)
        for server, own in apart.items():
            try:
                self._lines[server].send(own)
            except OSError:
                if not server:  # that another one is gone the one that decides notices
                    raise
        if any(isinstance(message, Stop) for own in apart.values() for message in own):
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
