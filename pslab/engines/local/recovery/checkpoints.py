"""A run's checkpoints in the parent: the parts that its servers send, and the newest checkpoint with all parts.

Only the parent writes to the disk. A part outlives its server's process, and an incomplete part never arrives: whenever
a server is killed, the checkpoint before is complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Checkpoint(NamedTuple):
    """A checkpoint with the parts of all servers."""

    facts: Mapping[str, Any]  #: of the deciding server
    parts: list[bytearray]  #: one for each server, the deciding server's first
    paused: bool = False  #: whether the run's clock has stood still since the checkpoint


class CheckpointParts:
    """The received parts; `servers` are the numbers of the servers' processes, the deciding one first."""

    def __init__(self, servers: Sequence[int]) -> None:
        self._servers = servers
        # parts of incomplete checkpoints: by number of the checkpoint, then of the process
        self._parts: dict[int, dict[int, tuple[Mapping[str, Any], bytearray]]] = {}
        self.newest: Checkpoint | None = None  #: the newest complete checkpoint

    def take(self, process: int, body: Mapping[str, Any], content: memoryview) -> Checkpoint | None:
        """Store a server's part; return its checkpoint if all parts are there now, else None."""
        number = body["number"]
        parts = self._parts.setdefault(number, {})
        # copied: the content lies in the buffer of the report
        parts[process] = body["facts"], bytearray(content)
        if len(parts) < len(self._servers):
            return None
        self.newest = Checkpoint(parts[self._servers[0]][0], [parts[server][1] for server in self._servers])
        self._parts = {other: parts for other, parts in self._parts.items() if other > number}
        return self.newest

    def forget_torn(self) -> None:
        """Drop all incomplete checkpoints."""
        self._parts.clear()
