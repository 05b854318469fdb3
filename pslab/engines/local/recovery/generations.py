"""Checkpoints in memory that outlives its processes: each of a run's servers keeps its part of them there.

Two generations: the older one is overwritten while the newer stays whole. A part has its number only while it is
whole, so that wherever its process is killed the newest numbered one is complete; its sum says so again. The server
that decides numbers its own part last, once all others have theirs, and only then begins the next checkpoint: of the
newest that it has numbered every part is there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from pslab.engines.experiment.checkpoint.file import pack, unpack
from pslab.engines.experiment.checkpoint.flatten import Fixed, flatten
from pslab.engines.experiment.checkpoint.graph import externals_of, modules_of
from pslab.engines.experiment.checkpoint.rebuild import rebuild
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.shared_memory import ALIGNMENT, Arena
from pslab.errors import CheckpointError

HEAD = struct.Struct("<QQ")  # of a part: the checkpoint's number, 0 while it is not whole, and its length in bytes


class Generations:
    """The places of one process in shared memory, which take turns."""

    def __init__(self, arenas: Sequence[Arena]) -> None:
        self._arenas = arenas

    def clear(self) -> None:
        """There is no checkpoint, and what one has taken is free."""
        for arena in self._arenas:
            arena.give_back()
            arena.reserve(ALIGNMENT)
            HEAD.pack_into(arena.bytes(0, HEAD.size), 0, 0, 0)

    def lay(self, number: int, pieces: Sequence[memoryview]) -> None:
        """Lay a part ready, in place of the one before the last."""
        arena, end = self._arenas[number % len(self._arenas)], ALIGNMENT
        HEAD.pack_into(arena.bytes(0, HEAD.size), 0, 0, 0)
        arena.reserve(ALIGNMENT + sum(map(len, pieces)))
        for piece in pieces:
            arena.bytes(end, len(piece))[:] = piece
            end += len(piece)
        HEAD.pack_into(arena.bytes(0, HEAD.size), 0, 0, end - ALIGNMENT)
        arena.show(0, end)

    def complete(self, number: int) -> None:
        """The part that was laid ready counts from now on."""
        arena = self._arenas[number % len(self._arenas)]
        head = arena.bytes(0, HEAD.size)
        HEAD.pack_into(head, 0, number, HEAD.unpack_from(head)[1])
        arena.show(0, HEAD.size)

    def write(self, number: int, pieces: Sequence[memoryview]) -> None:
        """A part that counts at once."""
        self.lay(number, pieces)
        self.complete(number)

    def numbers(self) -> list[int]:
        """Those of the whole parts, the newest first."""
        found = [HEAD.unpack_from(arena.bytes(0, HEAD.size))[0] for arena in self._arenas]
        return sorted(filter(None, found), reverse=True)

    def read(self, number: int) -> bytes | None:
        """The part of a checkpoint; None if it is not here. It may be another one by now if its process goes on."""
        arena = self._arenas[number % len(self._arenas)]
        here, size = HEAD.unpack_from(arena.bytes(0, HEAD.size))
        return bytes(arena.bytes(ALIGNMENT, size)) if here == number else None


class Checkpoint(NamedTuple):
    """One that is whole."""

    number: int
    facts: Mapping[str, Any]  #: those of the server that decides
    parts: list[bytes]  #: of each server, that one's first


def newest(
    each: Sequence[Generations], known: Callable[[Mapping[str, Any]], bool] = lambda facts: True
) -> Checkpoint | None:
    """The newest checkpoint of which every server's part is whole, and the facts are `known`; they are given in their
    order."""
    for number in each[0].numbers():
        parts = [part for own in each if (part := own.read(number)) is not None]
        if len(parts) == len(each):
            try:
                facts, *_ = [unpack(part)[0] for part in parts]
            except CheckpointError:
                continue
            if known(facts):
                return Checkpoint(number, facts, parts)
    return None


class Keeping:
    """What one of a run's servers does to keep its part: the weights that it holds, and a state of objects.

    `externals` are objects that a state holds and a new process is given anew, by name.
    """

    def __init__(self, job: Job, server: int, arena: Arena, arenas: Sequence[Arena], **externals: Any) -> None:
        self._arena, self.generations = arena, Generations(arenas)
        self._externals, self._modules = externals_of(job, arena=arena, **externals), modules_of(job)
        self._constant, layout = Fixed.of(job), job.layout
        weights = arena.tensor(layout.server, layout.size, layout.dtype).numpy()
        self._held = [weights[piece] for piece in job.held[server]]

    def saved(self, facts: Mapping[str, Any], state: Collection[Any]) -> list[memoryview]:
        """A part in pieces, of which some are what is saved itself.

        Raises:
            CheckpointError: the state cannot be saved.
        """
        self._constant.check()
        return pack(facts, flatten([*state, self._held], self._externals, self._arena, self._modules))

    def restored(self, number: int) -> tuple[Mapping[str, Any], list[Any]]:
        """The facts and the state of a checkpoint's part; the weights are in their places again.

        Raises:
            CheckpointError: it is not here.
        """
        part = self.generations.read(number)
        if part is None:
            raise CheckpointError(f"there is no part of checkpoint {number}")
        facts, graph = unpack(part)
        *state, held = rebuild(graph, self._externals, self._arena, self._modules)
        for there, here in zip(self._held, held, strict=True):
            there[:] = here
        return facts, state
