"""Memory of one process, whose others have the same in their own, and messages that carry what changes in it.

What a process shows of an arena goes to those that have it, too, with the next message to them and before that message
is handed on. So who is told of something sees it, as with shared memory; and what was shown outlives its process.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

from pslab.engines.job.shared_memory import Arena
from pslab.errors import FrameError

HEAD = struct.Struct("<BQQB")  # of a patch: the arena's number, offset, bytes, and whether they follow
NOTHING = memoryview(b"")


class Patch(NamedTuple):
    """A place that others are to see; or to give back, if it is not `kept`."""

    offset: int
    size_bytes: int
    kept: bool = True


class PrivateArena(Arena):
    """An arena that no other process maps.

    Args:
        passes: it holds nothing but what others are to see, and gives that back once they do.
    """

    shared = False

    def __init__(self, *, passes: bool = False) -> None:
        super().__init__()
        self.passes = passes
        self._patches: dict[int, list[Patch]] = {}  # for each reader, what it has not been sent
        self._changes: Callable[[], Iterable[tuple[int, int]]] = lambda: ()

    def read_by(self, reader: int) -> None:
        """A process has this arena, too: one that has seen nothing of it."""
        self._patches[reader] = []

    def show(self, offset: int, size_bytes: int, to: int | None = None) -> None:
        self._add(Patch(offset, size_bytes), to)

    def show_all(self, to: int) -> None:
        """A new process is to see all that lies here, and to have as much room."""
        self.show(self.size_bytes, 0, to)
        for offset, view in self.written(0, self.size_bytes):
            self.show(offset, len(view), to)

    def follow(self, changes: Callable[[], Iterable[tuple[int, int]]]) -> None:
        self._changes = changes

    def reserve(self, size_bytes: int) -> None:
        if self.size_bytes < size_bytes:
            super().reserve(size_bytes)
            self.show(size_bytes, 0)

    def give_back(self, offset: int = 0, size_bytes: int | None = None) -> None:
        super().give_back(offset, size_bytes)
        self._add(Patch(offset, self.size_bytes - offset if size_bytes is None else size_bytes, kept=False), None)

    def patches(self, reader: int) -> list[Patch]:
        """What a process has not been sent."""
        for offset, size_bytes in self._changes():
            self.show(offset, size_bytes)
        found, self._patches[reader] = self._patches[reader], []
        return found

    def sent(self, patch: Patch) -> None:
        """A process has been sent this."""
        if self.passes and patch.kept:
            super().give_back(patch.offset, patch.size_bytes)

    def apply(self, patch: Patch) -> memoryview:
        """Do here what was done elsewhere; where the bytes of the patch go."""
        super().reserve(patch.offset + patch.size_bytes)
        if not patch.kept:
            super().give_back(patch.offset, patch.size_bytes)
        return self.bytes(patch.offset, patch.size_bytes) if patch.kept and patch.size_bytes else NOTHING

    def _add(self, patch: Patch, to: int | None) -> None:
        for reader in self._patches if to is None else (to,):
            if not patch.kept:  # what was there is of no use
                begin, end = patch.offset, patch.offset + patch.size_bytes
                self._patches[reader] = [each for each in self._patches[reader] if not each.size_bytes
                                         or each.offset < begin or each.offset + each.size_bytes > end]  # fmt: skip
            self._patches[reader].append(patch)


class PatchedPipe:
    """A Connection to a process that has arenas like these: what one end shows the other sees with its next message."""

    def __init__(self, pipe: Connection, arenas: Sequence[PrivateArena], reader: int) -> None:
        self._pipe, self._arenas, self._reader = pipe, arenas, reader
        self._sending = threading.Lock()  # beside a process's own thread one may say that it lives
        for arena in arenas:
            arena.read_by(reader)

    def fileno(self) -> int:
        """The descriptor, to be waited for."""
        return self._pipe.fileno()

    def close(self) -> None:
        """End it."""
        self._pipe.close()

    def send_bytes(self, message: bytes) -> None:
        """A message, behind what it is about."""
        with self._sending:
            self._send(message)

    def _send(self, message: bytes) -> None:
        found = [(number, arena, patch) for number, arena in enumerate(self._arenas)
                 for patch in arena.patches(self._reader)]  # fmt: skip
        self._pipe.send_bytes(b"".join([HEAD.pack(number, *patch) for number, _, patch in found]))
        for _, arena, patch in found:
            if patch.kept and patch.size_bytes:
                self._pipe.send_bytes(arena.bytes(patch.offset, patch.size_bytes))
            arena.sent(patch)
        self._pipe.send_bytes(message)

    def recv_bytes(self) -> bytes:
        """The next message; what it is about is here."""
        for number, *patch in HEAD.iter_unpack(self._pipe.recv_bytes()):
            if number >= len(self._arenas):
                raise FrameError(f"a patch of arena {number}; there are {len(self._arenas)}")
            place = self._arenas[number].apply(Patch(*patch))
            if len(place):
                self._pipe.recv_bytes_into(place)
        return self._pipe.recv_bytes()
