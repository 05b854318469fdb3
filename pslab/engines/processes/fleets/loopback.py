"""Processes of this machine without shared memory, which reach each other by TCP: what many machines do, on one."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

from pslab.engines.job.shared_memory import Arena
from pslab.engines.processes import child
from pslab.engines.processes.child import SERVER, name
from pslab.engines.processes.fleets.local import Started
from pslab.engines.processes.fleets.private_memory import PatchedPipe, PrivateArena
from pslab.engines.processes.spawn import context, spawning
from pslab.errors import StartFailed

HOST = "127.0.0.1"
HELLO = struct.Struct("<q")  # the number of the process that dials
HELLO_LIMIT_S = 1.0
START_LIMIT_S = 60.0  # in which a process dials its parent

Address = tuple[str, int]


class Listener:
    """Where others dial; each says which process it is."""

    def __init__(self) -> None:
        self._socket = socket.create_server((HOST, 0), backlog=1024)
        self.address: Address = self._socket.getsockname()[:2]
        self._here: dict[int, Connection] = {}

    def accept(self, number: int, limit_s: float = START_LIMIT_S) -> Connection:
        """The line of this process.

        Raises:
            TimeoutError: it has not dialled within so many seconds.
        """
        until_s = time.monotonic() + limit_s
        while number not in self._here:
            self._socket.settimeout(max(1e-3, until_s - time.monotonic()))
            line, _ = self._socket.accept()
            with contextlib.suppress(OSError):
                line.settimeout(HELLO_LIMIT_S)
                hello = line.recv(HELLO.size, socket.MSG_WAITALL)
                if len(hello) == HELLO.size:
                    self._here[HELLO.unpack(hello)[0]] = _connection(line)
                    continue
            line.close()
        return self._here.pop(number)

    def close(self) -> None:
        """Nobody dials any more."""
        self._socket.close()
        for line in self._here.values():
            line.close()


def dial(address: Address, number: int) -> Connection:
    """A line to who listens there, as the process of this number."""
    line = socket.create_connection(address, START_LIMIT_S)
    line.sendall(HELLO.pack(number))
    return _connection(line)


def _connection(line: socket.socket) -> Connection:
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.settimeout(None)
    return Connection(line.detach())


class LoopbackFleet:
    """Every process dials its parent, and all others the server."""

    def __init__(self, children: int) -> None:
        self._context, self._listener = context(children), Listener()
        self._server: Address | None = None

    def arena(self) -> Arena:
        """Memory of this process alone."""
        return PrivateArena()

    def start(self, memory: Mapping[int, child.Memory]) -> Iterator[Started]:
        """New processes with these numbers, whose memory is to be like this; the server hears of those beside it."""
        numbers = sorted(memory, key=lambda number: number != SERVER)
        with spawning():
            processes = {}
            for number in numbers:
                processes[number] = self._context.Process(
                    target=_begin, args=(number, self._listener.address), name=f"pslab-{name(number)}", daemon=True)
                processes[number].start()
        for number in numbers:
            try:
                pipe = self._listener.accept(number)
            except TimeoutError:
                raise StartFailed(f"{name(number)} has not dialled for {START_LIMIT_S:g} s") from None
            if number == SERVER:
                self._server = tuple(json.loads(pipe.recv_bytes()))
            others = [other for other in numbers if other != SERVER]
            pipe.send_bytes(json.dumps(others if number == SERVER else self._server).encode())
            yield number, processes[number], _patched(pipe, number, memory[number])

    def hand(self, number: int, server: Connection, process: int) -> None:
        """A new process dials the server itself."""

    def forget(self, number: int) -> None:
        """A process is gone; its line ends with it."""

    def close(self) -> None:
        """Nobody dials any more."""
        self._listener.close()


def _patched(pipe: Connection, number: int, memory: child.Memory) -> PatchedPipe:
    """The pipe to a process, which is to see what it needs of what is here."""
    arenas: list[Any] = _flat(memory)
    found = PatchedPipe(pipe, arenas, number)
    seen = (memory.arena, memory.data, *memory.checkpoints, *(memory.ledger if number == SERVER else ()))
    for arena in seen:
        assert isinstance(arena, PrivateArena)
        arena.show_all(number)
    return found


def _flat(memory: child.Memory) -> list[Arena]:
    first = [memory.arena, memory.data, memory.snapshots, *memory.ledger, *memory.checkpoints]
    return first if memory.phases is None else [*first, memory.phases]


def _begin(number: int, parent: Address) -> None:
    """A spawned process: find the others, then serve."""
    pipe = dial(parent, number)
    listener = None
    if number == SERVER:
        listener = Listener()
        pipe.send_bytes(json.dumps(listener.address).encode())
    told = json.loads(pipe.recv_bytes())
    lines = [dial(tuple(told), number)] if listener is None else [listener.accept(other) for other in told]
    one, *others = (PrivateArena(passes=number == 2) for number in range(7))
    ledger, checkpoints = (others[2], others[3]), (others[4], others[5])
    phases = None if number == SERVER else PrivateArena()
    memory = child.Memory(one, others[0], others[1], ledger, checkpoints, phases)
    upward: Any = PatchedPipe(pipe, _flat(memory), SERVER)  # type: ignore[arg-type]
    child.main(child.Seat(number, upward, lines, *memory, listener))
