"""Checkpoints of a server, in memory that outlives its process.

Two generations: the older one is overwritten while the newer stays whole. A generation has a number only while it is
whole, so that wherever the server is killed the newest numbered one is complete; its sum says so again.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pslab.engines.job.checkpoint.file import pack, unpack
from pslab.engines.job.checkpoint.flatten import flatten
from pslab.engines.job.checkpoint.graph import Graph, externals_of, modules_of
from pslab.engines.job.checkpoint.rebuild import rebuild
from pslab.engines.job.job import Job
from pslab.engines.job.shared_memory import ALIGNMENT, Arena
from pslab.engines.worker.kept import Kept
from pslab.errors import CheckpointError

HEAD = struct.Struct("<QQ")  # of a generation: its number, 0 while it is not whole, and its length in bytes
SHARE = 0.02  # of a run's time that checkpoints may take, unless the run says how often they are made
PERIOD_S = 1.0  # ... and at least between two of them
State = dict[str, Any]


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


class Checkpoints:
    """What a server keeps of itself, and when.

    `externals` are what a new server is given anew; see pslab.engines.job.checkpoint.graph. A state that cannot be
    saved ends checkpoints, and not the run: `problem` says why.
    """

    def __init__(self, job: Job, arena: Arena, generations: Generations, **externals: Any) -> None:
        self._job, self._arena, self._generations = job, arena, generations
        self._externals, self._modules = externals_of(job, arena=arena, **externals), modules_of(job)
        self._kept = [Kept.of(job, worker, arena) for worker in range(job.run.workers)]
        self._weights = arena.tensor(job.layout.server, job.layout.size, job.layout.dtype).numpy()
        self._last_s, self._spent_s, self._pushes = time.monotonic(), 0.0, 0  # when, how long, and at how many pushes
        self.problem = "" if job.run.on_death == "restart" else "the run does not replace its processes"

    def due(self, pushes: int) -> bool:
        """Whether one is to be made after so many pushes: every so many, or as often as SHARE of the time allows."""
        if self.problem:
            return False
        if (every := self._job.run.checkpoint_every) is not None:
            return pushes >= self._pushes + every
        now = time.monotonic()
        return pushes > self._pushes and now >= self._last_s + PERIOD_S + self._spent_s / SHARE

    def save(self, pushes: int, facts: Mapping[str, Any], state: State) -> None:
        """Keep a state between two frames, the weights, and what workers have kept after their last pushes.

        The facts have the worker's "clocks", None where there is no worker. Those may compute meanwhile.
        """
        begun_s = time.monotonic()
        kept = [None if own is None or clock is None else own.after(clock - 1)
                for own, clock in zip(self._kept, facts["clocks"], strict=True)]  # fmt: skip
        try:
            graph = flatten([state, self._weights, kept], self._externals, self._arena, self._modules)
            self._generations.write(pack({"pushes": pushes, **facts}, graph))
        except CheckpointError as error:
            self.problem = str(error)
        self._last_s, self._pushes = time.monotonic(), pushes
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
        state, weights, kept = rebuild(graph, self._externals, self._arena, self._modules)
        self._weights[:] = weights
        for clock, own, before in zip(facts["clocks"], self._kept, kept, strict=True):
            if own is not None and clock is not None:
                own.put(before, clock - 1)
        self._pushes = facts["pushes"]
        return facts, state
