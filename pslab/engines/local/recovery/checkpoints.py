"""Checkpoints of a server, in memory that outlives its process.

Two generations: the older one is overwritten while the newer stays whole. A generation has a number only while it is
whole, so that wherever the server is killed the newest numbered one is complete; its sum says so again.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pslab.engines.emulation.faults import Faults
from pslab.engines.emulation.link_queue import Waiting
from pslab.engines.job.checkpoint.file import pack, unpack
from pslab.engines.job.checkpoint.flatten import Fixed, flatten
from pslab.engines.job.checkpoint.graph import Graph, externals_of, modules_of
from pslab.engines.job.checkpoint.keeper import SHARE
from pslab.engines.job.checkpoint.rebuild import rebuild
from pslab.engines.job.job import Job
from pslab.engines.job.shared_memory import ALIGNMENT, Arena
from pslab.engines.processes.child import Seat
from pslab.engines.server.books import Books
from pslab.engines.server.clock import WallClock
from pslab.engines.server.driver import ServerDriver, Transport
from pslab.engines.server.ledger import Ledger
from pslab.engines.server.shard import TensorShard
from pslab.engines.server.store import Store
from pslab.engines.worker.kept import Kept
from pslab.errors import CheckpointError
from pslab.protocol.server import Server

HEAD = struct.Struct("<QQ")  # of a generation: its number, 0 while it is not whole, and its length in bytes
PERIOD_S = 1.0  # at least between two of them, unless the run says how often they are made


class Generations:
    """Two places in shared memory for checkpoints."""

    def __init__(self, arenas: Sequence[Arena]) -> None:
        self._arenas = arenas

    def clear(self) -> None:
        """There is no checkpoint."""
        for arena in self._arenas:
            arena.reserve(ALIGNMENT)
            HEAD.pack_into(arena.bytes(0, HEAD.size), 0, 0, 0)

    def write(self, pieces: Sequence[memoryview]) -> None:
        """A checkpoint in place of the older one."""
        numbers = [self._head(arena)[0] for arena in self._arenas]
        arena, end = self._arenas[numbers.index(min(numbers))], ALIGNMENT
        HEAD.pack_into(arena.bytes(0, HEAD.size), 0, 0, 0)
        arena.reserve(ALIGNMENT + sum(map(len, pieces)))
        for piece in pieces:
            arena.bytes(end, len(piece))[:] = piece
            end += len(piece)
        HEAD.pack_into(arena.bytes(0, HEAD.size), 0, max(numbers) + 1, end - ALIGNMENT)

    def newest(self) -> tuple[Mapping[str, Any], Graph] | None:
        """The facts and the graph of the newest whole one."""
        for number, size, arena in sorted(((*self._head(arena), arena) for arena in self._arenas),
                                          key=lambda each: -each[0]):  # fmt: skip
            if number:
                try:
                    return unpack(bytes(arena.bytes(ALIGNMENT, size)))
                except CheckpointError:
                    continue
        return None

    def _head(self, arena: Arena) -> tuple[int, int]:
        number, size = HEAD.unpack_from(arena.bytes(0, HEAD.size))
        return number, size


class State(NamedTuple):
    """What a server is, beside memory that others map: what a new one goes on from."""

    driver: ServerDriver
    waiting: Waiting | None  #: what waits for the links, where an order chooses among it
    faults: Faults
    left: set[int]  #: workers without which the run goes on


def first_state(
    job: Job, seat: Seat, transport: Transport, clock: WallClock, others: Sequence[Store] = ()
) -> State:
    """The state of a server whose run has not started."""
    machine = Server(range(job.run.workers), len(job.parts), job.sync)
    waiting = Waiting(job, machine) if job.layered and not job.cluster.free else None
    shard = TensorShard(job, seat.arena)
    ledger = Ledger(job, shard.weights, seat.snapshots, seat.report_snapshot, seat.ledger)
    driver = ServerDriver(job, machine, Books(job, ledger), shard, clock, transport, waiting, others)
    return State(driver, waiting, Faults(job.cluster, job.run.seed), set())


class Checkpoints:
    """What a server keeps of itself, and when.

    A state that cannot be saved ends checkpoints, and not the run: `problem` says why.
    """

    def __init__(self, job: Job, seat: Seat, transport: Transport, clock: WallClock) -> None:
        self._job, self._arena, self._generations = job, seat.arena, Generations(seat.checkpoints)
        self._externals = externals_of(
            job, arena=seat.arena, transport=transport, clock=clock, snapshots=seat.snapshots, seat=seat,
            on_snapshot=seat.report_snapshot, rows=seat.ledger[0], arrivals=seat.ledger[1],
        )  # fmt: skip
        self._modules, self._constant = modules_of(job), Fixed.of(job)
        self._kept = [Kept.of(job, worker, seat.arena) for worker in range(job.run.workers)]
        layout = job.layout
        self._weights = seat.arena.tensor(layout.server, layout.size, layout.dtype).numpy()
        self._last_s, self._spent_s, self._pushes = time.monotonic(), 0.0, 0  # when, how long, and at how many pushes
        self.problem = "" if job.run.on_death == "restart" else "the run does not replace its processes"

    def due(self, machine: Server) -> bool:
        """Whether one is to be made: every so many pushes, or as often as SHARE of the time allows; while workers'
        buffers have nothing that is still to be applied."""
        if self.problem or not all(part.at_rest for part in machine.ranges):
            return False
        if (every := self._job.run.checkpoint_every) is not None:
            return machine.gradients >= self._pushes + every
        due_s = self._last_s + PERIOD_S + self._spent_s / SHARE
        return machine.gradients > self._pushes and time.monotonic() >= due_s

    def save(self, state: State, clock: WallClock) -> None:
        """Keep a state between two frames, the weights, and what workers have kept after their last pushes; those may
        compute meanwhile."""
        begun_s, machine, ledger = time.monotonic(), state.driver.machine, state.driver.books.ledger
        clocks = [min(part.clocks[worker] for part in machine.ranges) if worker in machine.workers else None
                  for worker in range(self._job.run.workers)]  # fmt: skip
        facts = {"pushes": machine.gradients, "seconds": clock.now(), "zero_s": clock.zero_s, "clocks": clocks,
                 "snapshots": ledger.taken}  # fmt: skip
        kept = [None if own is None or clock is None else own.after(clock - 1)
                for own, clock in zip(self._kept, clocks, strict=True)]  # fmt: skip
        try:
            self._constant.check()
            graph = flatten([*state, self._weights, kept], self._externals, self._arena, self._modules)
            self._generations.write(pack(facts, graph))
        except CheckpointError as error:
            self.problem = str(error)
        self._last_s, self._pushes = time.monotonic(), machine.gradients
        self._spent_s = self._last_s - begun_s

    def restore(self) -> tuple[Mapping[str, Any], State]:
        """The facts and the state of the newest one; the weights, and what workers keep, are in their places again.

        Raises:
            CheckpointError: there is none.
        """
        found = self._generations.newest()
        if found is None:
            raise CheckpointError("there is no whole checkpoint")
        facts, graph = found
        *state, weights, kept = rebuild(graph, self._externals, self._arena, self._modules)
        self._weights[:] = weights
        for clock, own, before in zip(facts["clocks"], self._kept, kept, strict=True):
            if own is not None and clock is not None:
                own.put(before, clock - 1)
        self._pushes = facts["pushes"]
        return facts, State(*state)
