"""A run's checkpoints, in the parent: the parts that its servers send, and the newest one of which all parts are here.

The parent alone writes to the disk. A part outlives its server's process, and one that is torn never arrives: wherever
a server is killed, the checkpoint before is whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pslab.engines.experiment.checkpoint.file import unpack


class Checkpoint(NamedTuple):
    """One of which every server's part is here."""

    number: int
    facts: Mapping[str, Any]  #: those of the server that decides
    parts: list[bytes]  #: of each server, that one's first
    paused: bool  #: whether the run's clock is to go on from there, or has gone on since

    @classmethod
    def of(cls, parts: list[bytes], *, paused: bool = False) -> Checkpoint:
        """That of these parts, in the order of the servers."""
        facts, _ = unpack(parts[0])
        return cls(facts["number"], facts, parts, paused)


class CheckpointParts:
    """The parts that have come; `servers` are the numbers of their processes, the one that decides first."""

    def __init__(self, servers: Sequence[int]) -> None:
        self._servers = servers
        self._parts: dict[int, dict[int, bytes]] = {}  # of checkpoints that are not whole, by the process's number
        self.newest: Checkpoint | None = None  #: the newest whole one

    def take(self, process: int, number: int, content: memoryview) -> Checkpoint | None:
        """A part of the checkpoint of this number has come; that checkpoint, if it is whole now."""
        parts = self._parts.setdefault(number, {})
        parts[process] = bytes(content)
        if len(parts) < len(self._servers):
            return None
        self.newest = Checkpoint.of([parts[each] for each in self._servers])
        self._parts = {other: parts for other, parts in self._parts.items() if other > number}
        return self.newest

    def forget_torn(self) -> None:
        """All servers go back to the newest whole one: of those behind it nothing counts."""
        self._parts.clear()
