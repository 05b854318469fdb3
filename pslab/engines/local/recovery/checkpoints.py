"""A run's checkpoints, in the parent: the parts that its servers send, and the newest one of which all parts are here.

The parent alone writes to the disk. A part outlives its server's process, and one that is torn never arrives: wherever
a server is killed, the checkpoint before is whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Checkpoint(NamedTuple):
    """A checkpoint of which every server's part is here."""

    facts: Mapping[str, Any]  #: of the server that decides
    parts: list[bytearray]  #: of each server, that one's first
    paused: bool = False  #: whether the run's clock is to go on from there, or has gone on since


class CheckpointParts:
    """The parts that have come; `servers` are the numbers of their processes, the one that decides first."""

    def __init__(self, servers: Sequence[int]) -> None:
        self._servers = servers
        # of checkpoints that are not whole: by the process's number
        self._parts: dict[int, dict[int, tuple[Mapping[str, Any], bytearray]]] = {}
        self.newest: Checkpoint | None = None  #: the newest whole one

    def take(self, process: int, body: Mapping[str, Any], content: memoryview) -> Checkpoint | None:
        """Take a server's part; return its checkpoint, if that is whole now."""
        number = body["number"]
        parts = self._parts.setdefault(number, {})
        parts[process] = body["facts"], bytearray(content)
        if len(parts) < len(self._servers):
            return None
        self.newest = Checkpoint(parts[self._servers[0]][0], [parts[each][1] for each in self._servers])
        self._parts = {other: parts for other, parts in self._parts.items() if other > number}
        return self.newest

    def forget_torn(self) -> None:
        """Forget all checkpoints behind the newest whole one."""
        self._parts.clear()
