"""Where the numbers lie that a message names, so that they can travel with it between processes without shared memory.

Both ends have the same Layout: what is sent is read into the same place. The rules by which a buffer is free again are
those of shared memory: a worker's with its Ack or its weights, a reply's with the worker's next request.
"""

from __future__ import annotations

from typing import Any

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.layout import NUMBER, in_turn
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.experiment.wire import WHOLE, Blocked, Diverged, Go, Stop
from pslab.errors import FrameError
from pslab.protocol.messages import Ack, Pull, Push, Weights
from pslab.tensors.update.methods import STATED

Places = tuple[memoryview, ...]

TO_SERVER = (Push, Pull, Stop, Diverged, Blocked)
TO_WORKER = (Weights, Ack, Go, Stop)


class MessageBuffers:
    """The places of one worker's messages, to or from one server, in the arena of the worker's process, or of the
    server's, if it `serves`."""

    def __init__(self, job: Job, arena: Arena, worker: int, server: int = 0, *, serves: bool = False) -> None:
        self._job, self._arena, self._worker, self._server = job, arena, worker, server
        self._in_place = job.layout.in_place or (serves and job.straight)
        stated = job.layout.memories.get(STATED)
        self._stated_bytes = 0 if stated is None else stated.entries * stated.dtype.itemsize
        self._whole: dict[tuple[int, int], Places] = {}  # of (a buffer's offset, range)

    def places(self, message: Any) -> Places:
        """The bytes that a message is about, none for most."""
        kind = type(message)
        if kind is Weights or ((kind is Push or kind is Pull) and not self._elsewhere(message)):
            return self._numbers(kind, message)
        return self._told if kind is Go else ()

    def _elsewhere(self, message: Any) -> bool:
        """Whether what a worker tells the server that decides is about another one, to which it sends the numbers."""
        return self._server == 0 and self._job.server_of[message.range] != 0

    def _numbers(self, kind: type, message: Any) -> Places:
        layout = self._job.layout
        if kind is Push:
            _, index, iteration, _, (size_bytes, *_), *_ = message
            if not size_bytes:
                return ()
            buffers = layout.gradients if size_bytes == WHOLE else layout.up
            own = layout.kept[self._worker].get(STATED)
            stated = () if own is None else (self._arena.bytes(own, self._stated_bytes),)
            return self._of(index, in_turn(buffers[self._worker], iteration), size_bytes) + stated
        if kind is Pull:
            _, index, iteration, _, wanted = message
            if not self._job.keyed or not wanted.size_bytes:
                return ()
            return self._of(index, in_turn(layout.asked[self._worker], iteration), wanted.size_bytes)
        _, index, iteration, _, (size_bytes, *_), *_ = message
        if not size_bytes:
            return ()
        if size_bytes == WHOLE:
            begin = layout.server if self._in_place else in_turn(layout.arrivals[self._worker], iteration)
        else:
            begin = in_turn(layout.down[self._worker], iteration)
        return self._of(index, begin, size_bytes) + self._told

    def checked(self, message: Any, kinds: tuple[type, ...]) -> Places:
        """The places of a message that has come from the other end, and may be anything.

        Raises:
            FrameError: no message of these kinds that a run like this has.
        """
        kind = type(message)
        if kind not in kinds:
            raise FrameError(f"a {kind.__name__} came where only {', '.join(each.__name__ for each in kinds)} may")
        if kind is Go:
            return self.places(message)
        if message.worker != self._worker:
            raise FrameError(f"a {kind.__name__} names worker {message.worker} on the line of worker {self._worker}")
        if kind in (Stop, Diverged):
            return ()
        ranges = len(self._job.parts)
        if message.range >= ranges:
            raise FrameError(f"a {kind.__name__} names range {message.range}; there are {ranges}")
        if kind is Blocked:
            return ()
        if (server := self._job.server_of[message.range]) != self._server and (self._server or kind in (Weights, Ack)):
            raise FrameError(f"a {kind.__name__} names range {message.range} of server {server} to server "
                             f"{self._server}")  # fmt: skip
        if message.iteration < 0:
            raise FrameError(f"a {kind.__name__} names iteration {message.iteration}; they begin with 0")
        if kind is not Ack:
            self._check_size(kind, message)
        return self.places(message)

    def _check_size(self, kind: type, message: Any) -> None:
        size_bytes, room = message.payload.size_bytes, self._job.layout.frames[message.range][1]
        if kind is Pull:
            start, stop, keys = message.payload.start, message.payload.stop, self._job.keyspace.keys
            if not 0 <= start <= stop <= keys:
                raise FrameError(f"a Pull asks for keys {start} to {stop}; there are {keys}")
            if not self._job.keyed:
                return
        if not (0 if kind is Pull else WHOLE) <= size_bytes <= room:
            raise FrameError(f"a {kind.__name__} of range {message.range} brings {size_bytes} bytes; there is room "
                             f"for {room}")  # fmt: skip
        if kind is Weights:
            self._check_gradients(message)
        if size_bytes == WHOLE and kind is Push and self._job.sparse:
            raise FrameError(f"a Push of range {message.range} brings a dense gradient; this run's are frames")

    def _check_gradients(self, reply: Weights) -> None:
        """A successor takes as many draws and batches as a reply names."""
        traits, begin, steps = self._job.traits, reply.begin, reply.steps
        before, most = 0, 0
        if traits.assigns:
            before, most = traits.gradients_before(reply.iteration), traits.gradients(reply.iteration)
        if reply.gradients < 0 or not 0 <= begin <= before or not 0 <= steps <= most:
            raise FrameError(f"a reply names {reply.gradients} gradients that the server has, and {steps} to be "
                             f"computed after {begin}; in iteration {reply.iteration} these are {most} after {before} "
                             "at most")  # fmt: skip

    @property
    def _told(self) -> Places:
        at = self._job.layout.told
        return () if at is None else (self._arena.bytes(at, NUMBER.itemsize),)

    def _of(self, index: int, begin: int, size_bytes: int) -> Places:
        """The slices of a range in a flat buffer, or its frame of so many bytes among those of all ranges."""
        if size_bytes != WHOLE:
            return (self._arena.bytes(begin + self._job.layout.frames[index][0], size_bytes),)
        found = self._whole.get((begin, index))
        if found is None:
            itemsize = self._job.layout.dtype.itemsize
            found = tuple(self._arena.bytes(begin + piece.start * itemsize, (piece.stop - piece.start) * itemsize)
                          for piece in self._job.parts[index].slices)  # fmt: skip
            self._whole[begin, index] = found
        return found
