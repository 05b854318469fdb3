"""The messages of one worker of a tiny run, and where in a process's arena the numbers lie that they name."""

from __future__ import annotations

import socket
from multiprocessing.connection import Connection
from typing import Any

import torch
from tiny import tiny

from pslab.engines.experiment.job import Job, SharedDataset
from pslab.engines.experiment.layout import Layout
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.experiment.wire import Answer, Frame, Gradient, Wanted
from pslab.engines.local.lines.message_buffers import MessageBuffers
from pslab.engines.local.lines.stream import Readable, ready
from pslab.lab.runs.resolve import resolve
from pslab.protocol.messages import Pull, Push, Weights

SIZE = 1930
LIMIT_S = 60.0
JOBS: dict[str, Job] = {}


class Buffers:
    """Worker 1's messages in a process, to or from one server."""

    def __init__(self, server: int = 0, serves: bool = False, **fields: Any) -> None:
        if str(fields) not in JOBS:
            experiment = resolve(tiny(workers=2, **fields))
            shelf = SharedDataset.store(Arena(), experiment.dataset)
            JOBS[str(fields)] = Job.of(experiment, Layout.of(experiment), shelf)
        self.job = JOBS[str(fields)]
        self.layout, self.arena = self.job.layout, Arena()
        self.arena.reserve(self.layout.end)
        self.messages = MessageBuffers(self.job, self.arena, 1, server, serves=serves)

    def offsets(self, message: Any) -> list[tuple[int, int]]:
        """(offset, bytes) of each place."""
        places = [torch.frombuffer(place, dtype=torch.uint8) for place in self.messages.places(message)]
        begin = self.arena.tensor(0, 1, torch.uint8).data_ptr()
        return [(place.data_ptr() - begin, len(place)) for place in places]

    def flat(self, offset: int) -> torch.Tensor:
        """The numbers of the whole model that lie there."""
        return self.arena.tensor(offset, SIZE, torch.float32)

    @property
    def gradient(self) -> torch.Tensor:
        """Where the gradients of iterations with an odd number lie."""
        return self.flat(self.layout.gradients[1][1])


def push(size_bytes: int, index: int = 0, iteration: int = 3) -> Push:
    return Push(1, index, iteration, 2, Gradient(size_bytes, 7, 0.5, 0.1))


def weights(size_bytes: int, index: int = 0, iteration: int = 3) -> Weights:
    return Weights(1, index, iteration, 2, Answer(size_bytes, 0, *[0.0] * 5))


def pull(size_bytes: int, stop: int = 0) -> Pull:
    return Pull(1, 0, 3, 2, Wanted(0, stop, 0.1, size_bytes))


def pair() -> tuple[Connection, Connection]:
    """Both ends of a TCP stream on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = socket.create_connection(listener.getsockname())
        there, _ = listener.accept()
    return Connection(here.detach()), Connection(there.detach())


def heard(stream: Readable, count: int = 1) -> list[Frame]:
    """So many frames that come, at least."""
    found: list[Frame] = []
    while len(found) < count:
        assert ready((stream.descriptor,), LIMIT_S), "nothing comes"
        found += stream.frames()
    return found
