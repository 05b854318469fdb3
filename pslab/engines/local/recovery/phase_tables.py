"""The phases that workers have noted, in memory that outlives their processes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.server.rows import Rows, rows_in
from pslab.engines.worker.phases import PHASE_COLUMNS

COLUMNS, END = len(PHASE_COLUMNS), PHASE_COLUMNS.index("end_s")


class PhaseTables:
    """In the parent: a table of each worker, which its process writes."""

    def __init__(self, arenas: Sequence[Arena]) -> None:
        self._arenas, self._taken = arenas, [np.empty((0, COLUMNS))]
        for arena in arenas:
            Rows(COLUMNS, arena)  # nothing of another run

    def take(self, worker: int) -> None:
        """What a worker's process has noted, whatever has become of it; the next one begins an empty table."""
        self._taken.append(rows_in(self._arenas[worker], COLUMNS))
        Rows(COLUMNS, self._arenas[worker])

    def rewind(self, seconds: float) -> None:
        """The run goes on from this instant, when all processes have ended."""
        rows = self.table()
        self._taken = [rows[rows[:, END] <= seconds]]

    def table(self) -> np.ndarray:
        """All phases: float64 [rows, columns]. The tables of the processes are empty then."""
        for worker in range(len(self._arenas)):
            self.take(worker)
        return np.concatenate(self._taken)
