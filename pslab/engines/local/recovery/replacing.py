"""Replace processes that have ended: the parent's part of `Run.on_death` "restart".

While a new process is spawned for a worker (one to three seconds, mostly for importing torch), the worker remains a
member of the run, and the server processes the messages of the former process. The new process continues with the first
iteration that was not pushed, on the same batch, from the state that the former process stored after its last push. So
at most one iteration is computed twice. Under a barrier the results are the same, to the bit, as without the death.

If a server ends, all processes are replaced, and start again from the newest checkpoint; later progress is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pslab.engines.local.liveness import Liveness, how_of
from pslab.engines.local.recovery.checkpoints import Checkpoint
from pslab.engines.processes.pool import SERVER, Pool
from pslab.errors import RunError, StartFailed

LIVES = 3  # the most new processes for a worker, then the run continues without it; the most restarts of all


class Recovery:
    """Replaces the processes of one run; `servers` are process numbers. `start` gives a worker's new process its role;
    `heed` is called while a process is awaited, and may raise."""

    def __init__(
        self, pool: Pool, liveness: Liveness, start: Callable[[int], None], heed: Callable[[], None],
        servers: Sequence[int] = (SERVER,),
    ) -> None:  # fmt: skip
        self._pool, self._liveness, self._start, self._heed = pool, liveness, start, heed
        self.servers = servers  #: the deciding server first
        #: per ended worker process: worker, iteration, seconds, how; "joined", "kept": iteration and state of the next
        self.lives: list[dict[str, Any]] = []
        self.rewinds: list[dict[str, Any]] = []  #: per restart of all: when, why, from which pushes to which
        self.begun = 0  #: how often all processes were restarted
        self.preparing: set[int] = set()  #: workers whose new process does not have its role yet

    @property
    def replaced(self) -> set[int]:
        """The workers whose process was replaced."""
        return {row["worker"] for row in self.lives}

    def facts(self) -> dict[str, Any]:
        """Return the facts about replaced processes for the manifest."""
        return {name: rows for name, rows in (("lives", self.lives), ("rewinds", self.rewinds)) if rows}

    def lost(self, death: dict[str, Any]) -> None:
        """Replace a lost worker's process, or let the run continue without it after LIVES new processes.

        Raises:
            WorkerFailed, WorkerDied: the run is not over, and cannot continue without the worker.
        """
        worker = death["worker"]
        if death.get("over"):
            self._liveness.lose(death)
            return
        how = how_of(self._pool.end_of(worker))
        # a restart of all gives each worker a new process, which is not counted against the worker
        spent = [row["worker"] for row in self.lives].count(worker) - self.begun
        if spent < LIVES:
            self.lives.append({**death, "how": how, "joined": None, "kept": None})
            try:
                self._pool.replace(worker)
            except StartFailed as error:
                # no memory for another process, perhaps: the run continues without the worker, as after LIVES
                self.lives[-1]["how"] += f"; {error}"
            else:
                self.preparing.add(worker)
                self._start(worker)
                return
        self._pool.order_plain(SERVER, "abandon", worker)
        self._liveness.lose(death)

    def prepared(self, worker: int) -> None:
        """Connect a worker's new process, which has its role, to the server."""
        self.preparing.discard(worker)
        # only now, so that the server need not wait for a process that imports torch
        self._pool.attach(worker)

    def ended(self, worker: int) -> None:
        """Replace a new process that has ended during its preparation, when the server does not know it yet."""
        if worker in self.preparing and worker in self._pool.ended:
            self.preparing.discard(worker)
            row = self._last(worker)
            self.lost({name: row[name] for name in ("worker", "iteration", "seconds")})

    @property
    def able(self) -> bool:
        """Whether all processes may be restarted once more."""
        return len(self.rewinds) < LIVES

    @property
    def fallen(self) -> RunError | None:
        """The error of a server that has ended; None if all run."""
        return next((self._pool.ended[number] for number in self.servers if number in self._pool.ended), None)

    def rewind(self, fallen: RunError, reached: int, checkpoint: Checkpoint) -> None:
        """Spawn new processes for all servers and workers after a server has ended, to continue from a checkpoint.

        Raises:
            StartFailed: the processes could not be spawned.
        """
        facts, how = checkpoint.facts, f"{getattr(fallen, 'who', 'server')} {how_of(fallen)}"
        # on the run's clock, which a dead server cannot tell
        now = facts["seconds"] if checkpoint.paused else (time.monotonic() - facts["zero_s"]) / facts["dilation"]
        self.rewinds.append({"seconds": now, "how": how, "pushes": reached, "to_pushes": facts["pushes"],
                             "to_seconds": facts["seconds"]})  # fmt: skip
        self.preparing.clear()
        self.begin_again(facts, how)
        self._pool.renew(range(len(facts["clocks"]) + len(self.servers) - 1), self._heed)

    def begin_again(self, facts: Mapping[str, Any], how: str) -> None:
        """Note that all workers of a checkpoint with these facts continue in new processes; `how` is the reason."""
        present = {worker for worker, clock in enumerate(facts["clocks"]) if clock is not None}
        self.begun += 1
        self._liveness.rewind(present, facts["seconds"])
        for worker in sorted(present):
            self.lives.append({"worker": worker, "iteration": facts["clocks"][worker], "seconds": facts["seconds"],
                               "how": how, "joined": None, "kept": None})  # fmt: skip

    def joined(self, body: dict[str, Any]) -> None:
        """Record the iteration with which a new process continues, and which state of its predecessor it got."""
        self._last(body["worker"]).update(joined=body["joined"], kept=body["kept"])

    def _last(self, worker: int) -> dict[str, Any]:
        return next(row for row in reversed(self.lives) if row["worker"] == worker)
