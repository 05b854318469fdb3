"""Memory of one process, of which other processes have copies, and messages that carry the changes.

The bytes of an arena that a process shows are sent to the copies ahead of its next message to them. So a process that
reads a message sees the bytes that it is about, as with shared memory; and bytes that were shown outlive their process.

Processes of one host may map one copy: then one of them, the carrier, is sent the changes, and the others are sent
messages about them once it has confirmed that it has them. What the parent has serves its own host so.
"""

from __future__ import annotations

import os
import struct
import threading
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from multiprocessing import BufferTooShort
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from pslab.engines.experiment.shared_memory import PIECE_BYTES, Arena
from pslab.engines.processes.authentication import TAG_BYTES, payload_tags_of, receive, send
from pslab.errors import FrameError

HOLE_BYTES = 1 << 16  # untouched memory between two written places that is sent with them: fewer patches
HEAD = struct.Struct("<BQQB")  # of a patch: the arena's number, offset, bytes, and whether they follow
NOTHING = memoryview(b"")
LARGE_BYTES = 1 << 18  # a socket takes so much at once on any system


class Patch(NamedTuple):
    """A place whose bytes other processes are to get; or to give back, if it is not `kept`. What `moves` is given back
    here once it is sent."""

    offset: int
    size_bytes: int
    kept: bool = True
    moves: bool = False

    def pieces(self) -> Iterable[Patch]:
        """The patch in pieces of no more than PIECE_BYTES."""
        if not self.kept or self.size_bytes <= PIECE_BYTES:
            return (self,)
        end = self.offset + self.size_bytes
        return (Patch(at, min(PIECE_BYTES, end - at), moves=self.moves) for at in range(self.offset, end, PIECE_BYTES))


class PrivateArena(Arena):
    """An arena that no other process maps.

    Args:
        passes: it holds nothing but bytes for other processes, and gives them back once they are sent.
    """

    shared = False

    def __init__(self, descriptor: int | None = None, *, passes: bool = False) -> None:
        super().__init__(descriptor)
        self.passes = passes
        self._patches: dict[int, list[Patch]] = {}  # for each reader, what it has not been sent
        self._copies: dict[int, tuple[list[Any], int]] = {}  # of readers: where it lies, and its version
        self._version = 0  # how often this arena was changed
        self._changes: Callable[[], Iterable[tuple[int, int]]] = lambda: ()

    def read_by(self, reader: int) -> None:
        """A process has a copy of this arena, still empty."""
        self._patches[reader] = []

    def show(self, offset: int, size_bytes: int, to: int | None = None) -> None:
        self._add(Patch(offset, size_bytes), to)

    def address(self) -> list[Any]:
        """Where other processes of this host find this arena, as long as this process lives: its host, a path, and
        what tells the file there from any other."""
        found = os.fstat(self._descriptor)
        return [_this_host(), f"/proc/{os.getpid()}/fd/{self._descriptor}", found.st_dev, found.st_ino]

    @classmethod
    def at(cls, address: list[Any]) -> PrivateArena | None:
        """The arena of another process at this address, mapped; None if that is on another host, or cannot be had."""
        host, path, *file = address
        if not host or host != _this_host():
            return None
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        found = os.fstat(descriptor)
        if [found.st_dev, found.st_ino] == file:
            return cls(descriptor)
        os.close(descriptor)
        return None

    def addresses(self, host: str) -> list[list[Any]]:
        """Where this arena and its copies lie on a host, as far as that is known."""
        return [each for each in (self.address(), *(at for at, _ in self._copies.values())) if each[0] == host]

    def copied_at(self, reader: int, address: list[Any]) -> None:
        """A process has its copy there, perhaps with others, and is sent nothing unless it is the carrier."""
        self._patches.pop(reader, None)
        self._copies.pop(reader, None)
        versions = [version for other, version in self._copies.values() if _file(other) == _file(address)]
        self._copies[reader] = address, max(versions, default=0)

    def carrier(self, gone: Container[int]) -> int | None:
        own = _file(self.address())
        lacking = [reader for reader, (address, version) in self._copies.items()
                   if reader not in gone and _file(address) != own and version != self._version]  # fmt: skip
        found = min(lacking, key=lambda reader: reader not in self._patches, default=None)
        if found is not None and found not in self._patches:  # what another one was sent may have ended with it
            self.read_by(found)
            self.show_all(found)
        return found

    def confirm(self, reader: int) -> None:
        file = _file(self._copies[reader][0])
        for other, (address, _) in self._copies.items():
            if _file(address) == file:
                self._copies[other] = address, self._version

    def show_all(self, to: int) -> None:
        """A new process is to get all bytes that lie here, and as much room."""
        self.show(self.size_bytes, 0, to)
        self.show_written(0, self.size_bytes, to)

    def show_written(self, offset: int, size_bytes: int, to: int | None = None, *, moves: bool = False) -> None:
        begin = end = offset
        for at, view in self.written(offset, size_bytes):
            if at - end > HOLE_BYTES and end > begin:
                self._add(Patch(begin, end - begin, moves=moves), to)
                begin = at
            begin, end = (at if end == begin else begin), at + len(view)
        if end > begin:
            self._add(Patch(begin, end - begin, moves=moves), to)

    def forget(self, offset: int, size_bytes: int) -> None:
        super().give_back(offset, size_bytes)

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
        """The changes that a process has not been sent."""
        for offset, size_bytes in self._changes():
            self.show(offset, size_bytes)
        if not (found := self._patches.get(reader)):
            return []
        self._patches[reader] = []
        return found

    def sent(self, patch: Patch) -> None:
        """A process has been sent this change."""
        if (self.passes or patch.moves) and patch.kept:
            super().give_back(patch.offset, patch.size_bytes)

    def apply(self, patch: Patch) -> memoryview:
        """Make a change here that was made elsewhere; the place for its bytes."""
        super().reserve(patch.offset + patch.size_bytes)
        if not patch.kept:
            super().give_back(patch.offset, patch.size_bytes)
        return self.bytes(patch.offset, patch.size_bytes) if patch.kept and patch.size_bytes else NOTHING

    def _add(self, patch: Patch, to: int | None) -> None:
        self._version += to is None
        for reader in self._patches if to is None else self._patches.keys() & {to}:
            if not patch.kept:  # changes there before are of no use
                begin, end = patch.offset, patch.offset + patch.size_bytes
                self._patches[reader] = [each for each in self._patches[reader] if not each.size_bytes
                                         or each.offset < begin or each.offset + each.size_bytes > end]  # fmt: skip
            self._patches[reader].append(patch)


def _this_host() -> str:
    """Names the processes that see each other's files below /proc; "" where there are none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _file(address: list[Any]) -> tuple[Any, ...]:
    """What two processes that map the same copy have in common."""
    host, _, device, inode = address
    return host, device, inode


Parcel = tuple[list[tuple[int, Patch]], bytes]  # changes of arenas, by their numbers, and the message behind them


class PatchedPipe:
    """A Connection to a process that has copies of these arenas: the bytes that one end shows go with its next message.

    Args:
        behind: a large message, or one that is about much, is sent in a thread, piece by piece, and those that come
            after it; so a server goes on serving. What they are about must stay as it is while they are `late`.
    """

    def __init__(self, pipe: Connection, arenas: Sequence[PrivateArena], reader: int, *, behind: bool = False) -> None:
        self._pipe, self._arenas, self._reader, self._behind = pipe, arenas, reader, behind
        self._sending = threading.Condition()  # another thread may report that the process lives
        self._late: deque[Parcel] = deque()
        self._sender: threading.Thread | None = None
        self._broken: OSError | None = None
        self._tags = payload_tags_of(pipe)  # of the bytes of patches
        for arena in arenas:
            arena.read_by(reader)

    @property
    def late(self) -> bool:
        """Whether messages are still to be sent."""
        return bool(self._late)

    def flush(self) -> None:
        """Wait until all is sent, or the other end is gone."""
        with self._sending:
            self._sending.wait_for(lambda: not self._late)

    def fileno(self) -> int:
        """The descriptor, to be waited for."""
        return self._pipe.fileno()

    def close(self) -> None:
        """End it."""
        self._pipe.close()

    def send_bytes(self, message: bytes) -> None:
        """Send the changes, then a message."""
        with self._sending:
            if self._broken is not None:
                raise self._broken
            patches = [(number, patch) for number, arena in enumerate(self._arenas)
                       for patch in arena.patches(self._reader)]  # fmt: skip
            size_bytes = len(message) + sum(patch.size_bytes for _, patch in patches if patch.kept)
            if not self._late and not (self._behind and size_bytes > LARGE_BYTES):
                self._send(patches, message)
                return
            self._late.append((patches, message))
            if self._sender is None:
                self._sender = threading.Thread(target=self._send_late, daemon=True)
                self._sender.start()
            self._sending.notify_all()

    def _send(self, patches: list[tuple[int, Patch]], message: bytes) -> None:
        pieces = [(number, piece) for number, patch in patches for piece in patch.pieces()]
        send(self._pipe, b"".join([HEAD.pack(number, *piece[:3]) for number, piece in pieces]))
        for number, piece in pieces:
            if piece.kept and piece.size_bytes:
                place = self._arenas[number].bytes(piece.offset, piece.size_bytes)
                self._pipe.send_bytes(place)
                if self._tags is not None:
                    self._pipe.send_bytes(self._tags.of((place,)))
            self._arenas[number].sent(piece)
        send(self._pipe, message)

    def _send_late(self) -> None:
        while True:
            with self._sending:
                self._sending.wait_for(lambda: self._late)
            try:
                self._send(*self._late[0])
            except OSError as error:
                self._broken = error
            with self._sending:
                self._late.popleft()
                self._sending.notify_all()

    def recv_bytes(self) -> bytes:
        """The next message; the changes before it are made.

        Raises:
            FrameError: it has come from another process than that at the other end, or was altered on the way.
        """
        for number, *patch in HEAD.iter_unpack(receive(self._pipe)):
            if number >= len(self._arenas):
                raise FrameError(f"a patch of arena {number}; there are {len(self._arenas)}")
            place = self._arenas[number].apply(Patch(*patch))
            if len(place):
                try:
                    self._pipe.recv_bytes_into(place)
                except BufferTooShort:
                    raise FrameError(f"more than the {len(place)} bytes of a patch") from None
                if self._tags is not None:
                    self._tags.check(self._pipe.recv_bytes(TAG_BYTES), (place,))
        return receive(self._pipe)
