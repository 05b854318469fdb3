"""What a worker does now, as the server knows it, for the progress of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pslab.protocol.server import Server

SHOWN = 8  # workers in a message


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


def told(workers: Sequence[dict[str, Any]], since_s: Sequence[float], only: Sequence[int] | None = None) -> str:
    """Who waits for whom: of each worker, or of `only` these, what it has been doing for so many seconds, on which
    clock."""
    words = []
    for worker, (does, spent_s) in enumerate(zip(workers, since_s, strict=True)):
        if only is not None and worker not in only:
            continue
        awaited = f" for {_listed(does['for'])}" if does["for"] else " for no one" if does["doing"] == "waiting" else ""
        clock = "" if does["iteration"] is None else f" on clock {does['iteration']}"
        words.append(f"worker {worker} has been {does['doing']}{awaited}{clock} for {spent_s:.1f} s")
    left = len(words) - SHOWN
    return "; ".join(words[:SHOWN] + ([f"and {left} more"] if left > 0 else []))


def _listed(workers: Sequence[int]) -> str:
    shown = ", ".join(map(str, workers[:SHOWN])) + (", …" if len(workers) > SHOWN else "")
    return f"worker {shown}" if len(workers) == 1 else f"workers {shown}"
