"""What a synchronization policy makes of one round of pushes: asked of the policy itself, as a server asks it."""

from __future__ import annotations

from pslab.protocol.messages import Push, Sync
from pslab.protocol.server import Server, Step


def first_step(sync: Sync, workers: int) -> Step | None:
    """The first step that a round of pushes, one of each worker, makes; None if it makes none."""
    server = Server(range(workers), 1, sync)
    effects = (effect for worker in range(workers) for effect in server.handle(Push(worker, 0, 0, 0), 0.0))
    return next((effect for effect in effects if isinstance(effect, Step)), None)
