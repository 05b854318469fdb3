"""Processes of this machine without shared memory, which reach each other by TCP: what many machines do, on one."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from pslab.config.fleet import Fleet
from pslab.config.free_memory import free_memory_bytes
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.processes import child
from pslab.engines.processes.authentication import receive, send
from pslab.engines.processes.channel import ALIVE, limit_waits, report
from pslab.engines.processes.child import SERVER, name
from pslab.engines.processes.fleets.encryption import new_certificate
from pslab.engines.processes.fleets.handshake import (
    CLOCK,
    PLAIN,
    SAME,
    START_LIMIT_S,
    Address,
    Listener,
    Offset,
    Peer,
    Protection,
    dial,
    new_key,
)
from pslab.engines.processes.fleets.local import Started
from pslab.engines.processes.fleets.private_memory import PatchedPipe, PrivateArena
from pslab.engines.processes.spawn import context, spawning
from pslab.errors import FrameError, PslabError, StartFailed, ended

KNOCK_LIMIT_S = 3.0  # in which a listener answers
CLOCK_LIMIT_S = 1.0  # in which a process that is asked for the time answers
PULSE_S, BUSY = 0.25, 0.05  # a process that used so large a share of a core since computes


class Rendezvous(NamedTuple):
    """How a new process finds its parent, and where it listens itself."""

    parent: Address
    key: bytes
    network: str
    ports: tuple[int, int]
    protection: Protection = PLAIN


class Reach:
    """How a process finds the others, by the addresses in its book."""

    def __init__(self, number: int, way: Rendezvous, listener: Listener, book: Mapping[int, Address]) -> None:
        self._number, self._way, self._listener, self._book = number, way, listener, book
        self._to: dict[int, Peer] = {}
        self._of: dict[int, Connection] = {}
        self.port = listener.address[1]

    def accept(self, number: int) -> Connection:
        """The line of a process that dials this one."""
        return self._listener.accept(number)

    def met(self, number: int) -> Peer:
        """A line to a process, and how its clock differs.

        Raises:
            StartFailed: it cannot be reached, or is refused.
        """
        host, port = self._book[number]
        try:
            return dial((host, port), self._number, self._way.key, protection=self._way.protection)
        except OSError as error:
            words = f"{name(number)} cannot be reached at {host}:{port} ({error})"
            raise StartFailed(f"{words}: is there a firewall between their hosts?") from error

    def of(self, number: int, *, anew: bool = False) -> Connection:
        """The line of a process that has dialled this one in this run or another."""
        if anew or number not in self._of:
            self._of[number] = self.accept(number)
        return self._of[number]

    def offset(self, number: int) -> Offset | None:
        """How much more a process's clock shows now; None if it does not answer."""
        try:
            line, clock = dial(self._book[number], CLOCK, self._way.key, CLOCK_LIMIT_S)
        except (PslabError, OSError):
            return None
        line.close()
        return clock

    def to(self, number: int) -> tuple[Connection, float]:
        """A line to a process, dialled in this run or another, and how much more its clock shows."""
        if number not in self._to:
            self._to[number] = self.met(number)
        line, clock = self._to[number]
        if clock != SAME and (now := self.offset(number)) is not None:
            clock = now
        return line, clock.seconds


class LoopbackFleet:
    """Every process dials its parent, and all others the server."""

    def __init__(self, kinds: Sequence[str], fleet: Fleet) -> None:
        key, network, ports = new_key(), fleet.network, fleet.port_range
        certificate = new_certificate() if fleet.payload == "encrypted" else b""
        protection = Protection(fleet.payload == "authenticated", certificate)
        self._kinds, self._listener = kinds, Listener(key, network, ports, protection=protection)
        self._way = Rendezvous(self._listener.address, key, network, ports, protection)
        self._book: dict[int, Address] = {}  # where each process listens
        self.free: dict[int, tuple[str, int | None]] = {}  #: of each: its host, and the memory free there

    def arena(self) -> Arena:
        """Memory of this process alone."""
        return PrivateArena()

    def start(self, memory: Mapping[int, child.Memory], heed: Callable[[], None]) -> Iterator[Started]:
        """New processes with these numbers, whose memory is to be like this; the server is sent the numbers of the
        others. `heed` is called a few times a second until they are there."""
        numbers, pipes = sorted(memory), dict[int, Connection]()
        processes = self._launched(numbers, heed)
        data: Any = next(iter(memory.values())).data
        known, there = dict[str, Any](), dict[int, list[Any]]()
        try:
            for number in numbers:
                heeding = partial(_heed, number, processes[number], heed)
                pipes[number] = self._accepted(number, heeding)
                self._book[number], address, free_bytes = _listening(pipes[number], number)
                self.free[number] = self._book[number][0], free_bytes
                there[number] = data.addresses(address[0])  # of those before it
                data.copied_at(number, address)
            known = {"book": list(self._book.items()), "others": [number for number in numbers if number != SERVER]}
            for number, pipe in pipes.items():
                send(pipe, json.dumps(known | {"data": there[number]}).encode())
            for number, pipe in pipes.items():
                yield number, processes[number], _patched(pipe, number, memory[number])
        except BaseException:
            for process in processes.values():
                with contextlib.suppress(ValueError):  # its receiver has closed it
                    process.kill()
            raise

    def _accepted(self, number: int, heed: Callable[[], None]) -> Connection:
        try:
            return self._listener.accept(number, START_LIMIT_S, heed)
        except TimeoutError as error:
            raise StartFailed(f"{name(number)} has not come: {error}") from None

    def _launched(self, numbers: Sequence[int], heed: Callable[[], None]) -> dict[int, Any]:
        """New processes, which are going to dial, by their numbers."""
        with spawning():
            found = {}
            for number in numbers:
                found[number] = context(len(self._kinds)).Process(target=begin, args=(number, self._way),
                                                                name=f"pslab-{name(number)}", daemon=True)  # fmt: skip
                found[number].start()
        return found

    def hand(self, number: int, server: Connection, process: int) -> None:
        """A new process dials the server itself."""

    def forget(self, number: int) -> None:
        """A process is gone; its line ends with it."""

    def close(self) -> None:
        """Stop accepting connections."""
        self._listener.close()


def _heed(number: int, process: Any, heed: Callable[[], None]) -> None:
    """While a process is waited for: StartFailed, with its own words, if it has ended."""
    heed()
    if not process.is_alive():
        words = getattr(process, "problem", "")
        raise StartFailed(f"{name(number)} has ended before it came ({words or ended(process.exitcode)})")


def knock(address: str) -> None:
    """Raise ConnectionError if no process listens at this host:port; any other text is not looked at."""
    host, colon, port = address.rpartition(":")
    try:
        if colon and port.isdigit():
            socket.create_connection((host, int(port)), KNOCK_LIMIT_S).close()
    except OSError as error:
        raise ConnectionError(f"nobody listens at {address}: {error.strerror or error}") from None


def _listening(pipe: Connection, number: int) -> tuple[Address, list[Any], int | None]:
    """Where a new process listens, where others may map its data, and the memory that is free there; StartFailed with
    its own words if it cannot listen."""
    limit_waits(pipe, START_LIMIT_S)
    try:
        found = json.loads(receive(pipe))
    except (EOFError, OSError, FrameError) as error:
        raise StartFailed(f"{name(number)} has come, and is gone again before it said where it listens") from error
    if isinstance(found, str):
        raise StartFailed(f"{name(number)} cannot listen: {found}")
    return (str(found[0]), int(found[1])), found[2], found[3]


def _patched(pipe: Connection, number: int, memory: child.Memory) -> PatchedPipe:
    """The pipe to a process, which is to see what it needs of what is here; see Pool.share_data for the data."""
    arenas: list[Any] = _flat(memory)
    found, data = PatchedPipe(pipe, arenas, number), arenas[1]
    with contextlib.suppress(EOFError, OSError, FrameError, ValueError):  # it is gone, which is noticed as its end
        data.copied_at(number, json.loads(receive(pipe)))
    for arena in (arenas[0], *(memory.ledger if number == SERVER else ())):
        arena.show_all(number)
    return found


def _flat(memory: child.Memory) -> list[Arena]:
    first = [memory.arena, memory.data, memory.snapshots, *memory.ledger]
    return first if memory.phases is None else [*first, memory.phases]


def begin(number: int, way: Rendezvous, *, pulse: bool = False) -> None:
    """A new process: find the others, then serve; with a `pulse` where the parent cannot see whether it computes."""
    try:
        pipe = dial(way.parent, number, way.key, protection=way.protection).line
    except ConnectionRefusedError:  # the parent has given up: another one could not
        return
    try:
        listener = Listener(way.key, way.network, way.ports, protection=way.protection)
    except (PslabError, OSError) as error:
        send(pipe, json.dumps(str(error)).encode())
        return
    own = PrivateArena()
    send(pipe, json.dumps([*listener.address, own.address(), free_memory_bytes()]).encode())
    try:
        known = json.loads(receive(pipe))
    except (EOFError, OSError, FrameError):  # the parent gives up now
        return
    reach = Reach(number, way, listener, {other: tuple(address) for other, address in known["book"]})
    data = next(filter(None, map(PrivateArena.at, known["data"])), own)  # that of another process of this host, if any
    if data is not own:
        own.close()
    send(pipe, json.dumps(data.address()).encode())
    phases = None if number == SERVER else PrivateArena()
    memory = child.Memory(PrivateArena(), data, PrivateArena(passes=True), (PrivateArena(), PrivateArena()), phases)
    upward: Any = PatchedPipe(pipe, _flat(memory), SERVER, behind=True)  # type: ignore[arg-type]
    try:
        lines, offset = _met(reach, number, known["others"])
    except (PslabError, OSError) as error:
        report(upward, "gone", {"how": f"has not met the others: {error}"})
        upward.flush()
        return
    if pulse:
        threading.Thread(target=_pulse, args=(upward,), daemon=True).start()
    child.main(child.ProcessContext(number, upward, lines, *memory, reach, offset))


def _met(reach: Reach, number: int, others: Sequence[int]) -> tuple[list[Connection], Offset]:
    """The lines of a new process: the server's to all others, theirs to it; and how far its clock is from theirs."""
    if number == SERVER:
        return [reach.accept(other) for other in others], SAME
    line, offset = reach.met(SERVER)
    return [line], offset


def _pulse(pipe: Any) -> None:
    """Report now and then that this process lives, as long as it computes: see pslab.engines.processes.watch."""
    before_s = 0.0
    with contextlib.suppress(OSError):  # the parent is gone
        while True:
            time.sleep(PULSE_S)
            used_s = time.process_time()
            if used_s - before_s > PULSE_S * BUSY:
                report(pipe, ALIVE)
            before_s = used_s
