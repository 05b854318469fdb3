"""New processes in the places of those that have ended: the parent's part of `Run.on_death` "restart".

The server keeps a worker's place while a process is spawned and prepared for it (torch's import is most of that: one to
three seconds), takes what the former one has sent, and answers the new one. It goes on with the iteration that the
server has not yet a push of, on the same batch, with what its predecessor kept after the one before: at most one
iteration is computed twice. Under a barrier the run ends with the bits of an undisturbed one.

Where a server ends, all begin again at the newest checkpoint, in new processes: what came since is forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.local.liveness import Liveness, how_of
from pslab.engines.local.recovery.checkpoints import Checkpoint
from pslab.engines.processes.pool import SERVER, Pool
from pslab.engines.server.rows import Rows, rows_in
from pslab.engines.worker.phases import PHASE_COLUMNS
from pslab.errors import RunError, StartFailed

COLUMNS, END = len(PHASE_COLUMNS), PHASE_COLUMNS.index("end_s")
LIVES = 3  # new processes in a worker's place, after which the run goes on without it; times that all begin again


class Recovery:
    """The processes of one run that are replaced; `servers` are numbers. `start` gives a worker's new one its role;
    `heed` is called while one is waited for, and may raise."""

    def __init__(
        self, pool: Pool, liveness: Liveness, on_death: str, start: Callable[[int], None],
        heed: Callable[[], None], servers: Sequence[int] = (SERVER,),
    ) -> None:  # fmt: skip
        self._pool, self._liveness, self._start, self._on_death = pool, liveness, start, on_death
        self._heed = heed
        self.servers = servers  #: the one that decides first
        #: that ended: worker, iteration, how and when; with which iteration the next one goes on, and what was kept
        self.lives: list[dict[str, Any]] = []
        self.rewinds: list[dict[str, Any]] = []  #: when and how a server ended; from which pushes back to which
        self.begun = 0  #: how often all began again
        self.preparing: set[int] = set()  #: new processes that do not have their role yet

    @property
    def replaced(self) -> set[int]:
        """Workers that have had more than one process."""
        return {life["worker"] for life in self.lives}

    def facts(self, lost: set[int]) -> dict[str, Any]:
        """What a manifest says; of the `lost` workers the last iteration's phases are not whole."""
        found = {"phases_lost": sorted(lost | self.replaced), "lives": self.lives, "rewinds": self.rewinds}
        return {name: value for name, value in found.items() if value}

    def lost(self, death: dict[str, Any]) -> None:
        """Take a worker as lost, in an iteration, or after the run's end.

        Raises:
            WorkerFailed, WorkerDied: a run that is not `over` cannot go on without it.
        """
        worker = death["worker"]
        if self._on_death != "restart" or death.get("over"):
            self._liveness.lose(death)
            return
        how = how_of(self._pool.end_of(worker))
        spent = [life["worker"] for life in self.lives].count(worker) - self.begun
        if spent < LIVES:
            self.lives.append({**death, "how": how, "joined": None, "kept": None})
            try:
                self._pool.replace(worker)
            except StartFailed as error:
                self.lives[-1]["how"] += f"; {error}"
            else:
                self.preparing.add(worker)
                self._start(worker)
                return
        self._pool.order_plain(SERVER, "abandon", worker)
        self._liveness.lose(death)

    def prepared(self, worker: int) -> None:
        """Hand a new process, which has its role, to the server."""
        self.preparing.discard(worker)
        self._pool.attach(worker)

    def ended(self, worker: int) -> None:
        """Take a process as ended. While it prepared, no server knows of it; the report may be its predecessor's."""
        if worker in self.preparing and worker in self._pool.ended:
            self.preparing.discard(worker)
            life = self._last(worker)
            self.lost({name: life[name] for name in ("worker", "iteration", "seconds")})

    @property
    def able(self) -> bool:
        """Whether the run may lose a server."""
        return self._on_death == "restart" and len(self.rewinds) < LIVES

    @property
    def fallen(self) -> RunError | None:
        """Why a server has ended, if one has."""
        return next((self._pool.ended[number] for number in self.servers if number in self._pool.ended), None)

    def rewind(self, fallen: RunError, reached: int, found: Checkpoint) -> None:
        """Start new processes for all servers and workers, which go on from a checkpoint.

        Raises:
            StartFailed: they could not be spawned.
        """
        facts, how = found.facts, f"{getattr(fallen, 'who', 'server')} {how_of(fallen)}"
        now = facts["seconds"] if found.paused else (time.monotonic() - facts["zero_s"]) / facts["dilation"]
        self.rewinds.append({"seconds": now, "how": how, "pushes": reached, "to_pushes": facts["pushes"],
                             "to_seconds": facts["seconds"]})  # fmt: skip
        self.preparing.clear()
        self.begin_again(facts, how)
        self._pool.renew(range(len(facts["clocks"]) + len(self.servers) - 1), self._heed)

    def begin_again(self, facts: Mapping[str, Any], how: str) -> None:
        """Go on from a checkpoint with these facts, in new processes."""
        present = {worker for worker, clock in enumerate(facts["clocks"]) if clock is not None}
        self.begun += 1
        self._liveness.rewind(present, facts["seconds"])
        for worker in sorted(present):
            self.lives.append({"worker": worker, "iteration": facts["clocks"][worker], "seconds": facts["seconds"],
                               "how": how, "joined": None, "kept": None})  # fmt: skip

    def joined(self, body: dict[str, Any]) -> None:
        """Record the iteration with which a new process goes on, and the state that it has of its predecessor."""
        self._last(body["worker"]).update(joined=body["joined"], kept=body["kept"])

    def _last(self, worker: int) -> dict[str, Any]:
        return next(life for life in reversed(self.lives) if life["worker"] == worker)


class PhaseTables:
    """The phases that workers have noted, in memory that outlives their processes: a table of each worker."""

    def __init__(self, arenas: Sequence[Arena]) -> None:
        self._arenas, self._taken = arenas, [np.empty((0, COLUMNS))]
        for arena in arenas:
            Rows(COLUMNS, arena)  # nothing of another run

    def take(self, worker: int) -> None:
        """Take the phases that a worker's process has noted; its successor begins an empty table."""
        self._taken.append(rows_in(self._arenas[worker], COLUMNS))
        Rows(COLUMNS, self._arenas[worker])

    def rewind(self, seconds: float) -> None:
        """Go back to this instant, when all processes have ended."""
        rows = self.table()
        self._taken = [rows[rows[:, END] <= seconds]]

    def table(self) -> np.ndarray:
        """All phases: float64 [rows, columns]. The tables of the processes are empty then."""
        for worker in range(len(self._arenas)):
            self.take(worker)
        return np.concatenate(self._taken)
