"""What a worker does now, as the server knows it, for the progress of a run."""

from __future__ import annotations

from typing import Any

from pslab.protocol.server import Server


def doing(server: Server, worker: int, *, travelling: bool) -> dict[str, Any]:
    """{"doing": computing, waiting, transferring or dead, "for": [workers], "iteration": its clock}."""
    if worker not in server.workers:
        return {"doing": "dead", "for": [], "iteration": None}
    clock = min(part.clocks[worker] for part in server.ranges)
    held = [index for index, part in enumerate(server.ranges) if worker in part.asked]
    if held:
        awaited = sorted({other for index in held for other in server.waits_for(index)} - {worker})
        return {"doing": "waiting", "for": awaited, "iteration": clock}
    return {"doing": "transferring" if travelling else "computing", "for": [], "iteration": clock}
