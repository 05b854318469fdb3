"""The phases of a run's workers, in shared memory that outlives their processes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.server.rows import Rows, rows_in
from pslab.engines.worker.phases import PHASE_COLUMNS

COLUMNS, END = len(PHASE_COLUMNS), PHASE_COLUMNS.index("end_s")


class PhaseTables:
    """A table of phases for each worker, which its process writes in shared memory."""

    def __init__(self, arenas: Sequence[Arena]) -> None:
        self._arenas, self._taken = arenas, [np.empty((0, COLUMNS))]
        for arena in arenas:
            Rows(COLUMNS, arena)  # empties the table of an earlier run

    def take(self, worker: int) -> None:
        """Copy the phases that a worker's process has written, and empty its table for the next process."""
        # a new process writes its table from the beginning
        self._taken.append(rows_in(self._arenas[worker], COLUMNS))
        Rows(COLUMNS, self._arenas[worker])

    def rewind(self, seconds: float) -> None:
        """Drop the phases that end after an instant; no process may write phases meanwhile."""
        rows = self.table()
        self._taken = [rows[rows[:, END] <= seconds]]

    def table(self) -> np.ndarray:
        """Return all phases (float64 [rows, columns]), and empty the processes' tables."""
        for worker in range(len(self._arenas)):
            self.take(worker)
        return np.concatenate(self._taken)
