"""A worker's state between two gradients (residual, momentum, squares), stored for a process that replaces it.

A process that is killed while it changes its state leaves it incomplete. So shared memory contains the state and copies
of it after the last iterations: the state after iteration t is copied before t + 1 first changes it, and the copy gets
its number only when it is complete. So the state after the last push that the server has counted is always available: a
worker is no more iterations ahead than there are copies (a non-eager worker computes t + 1 once push t is counted).
"""

from __future__ import annotations

import numpy as np

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.layout import HEAD_BYTES
from pslab.engines.experiment.shared_memory import Arena

TORN = 0  # the number of a state that is being changed or copied, or was never written
BEGUN = 2  # the number of the state after iteration 0; the initial state is the state after iteration -1


class WorkerState:
    """The present state of one worker, and copies of its earlier states, each with the number of its iteration."""

    def __init__(self, job: Job, worker: int, arena: Arena) -> None:
        layout = job.layout
        begin, size = layout.states[worker], layout.kept_bytes
        self._numbers = np.frombuffer(arena.bytes(begin, HEAD_BYTES), dtype="<i8")[: 1 + layout.copies]
        # a row for the present state, and one for each copy
        places = [layout.kept_at(worker), *(begin + HEAD_BYTES + copy * size for copy in range(layout.copies))]
        self._states = [np.frombuffer(arena.bytes(offset, size), dtype=np.uint8) for offset in places]

    def clear(self) -> None:
        """Set the state to zero at the start of a run."""
        self._numbers[:] = TORN
        self._states[0][:] = 0
        self._numbers[0] = BEGUN - 1  # after iteration -1

    def begin(self, iteration: int) -> None:
        """Copy the present state before this iteration changes it; do nothing if the iteration has begun already."""
        if self._numbers[0] == TORN:
            return
        self._put(1 + (iteration - 1) % (len(self._numbers) - 1), self._states[0], iteration - 1)
        self._numbers[0] = TORN  # only now: the copy is complete

    def end(self, iteration: int) -> None:
        """Mark the present state as the state after this iteration."""
        self._numbers[0] = BEGUN + iteration

    def resume(self, iteration: int) -> bool:
        """Restore the last complete state before this iteration, or zeros if there is none; return whether there is."""
        whole = [number for number in self._numbers.tolist() if TORN < number < BEGUN + iteration]
        state = self.after(max(whole) - BEGUN) if whole else None
        self._put(0, np.zeros_like(self._states[0]) if state is None else state, iteration - 1)
        self._numbers[1:] = TORN  # the new process will compute these iterations itself
        return state is not None

    def after(self, iteration: int) -> np.ndarray | None:
        """Return a copy of the state after an iteration: uint8 [bytes]; None if it is not stored.

        The worker may change its present state meanwhile; then the worker's own copy of it is returned.
        """
        for row in (0, 1 + iteration % (len(self._numbers) - 1)):
            if self._numbers[row] == BEGUN + iteration:
                state = self._states[row].copy()
                # once more, after the copy: the worker may have begun to change the state meanwhile
                if self._numbers[row] == BEGUN + iteration:
                    return state
        return None

    def put(self, state: np.ndarray | None, iteration: int) -> None:
        """Store the state after an iteration, and no other state, for a new process; store none if `state` is None."""
        self._numbers[:] = TORN
        if state is not None:
            self._put(0, state, iteration)

    def _put(self, row: int, state: np.ndarray, iteration: int) -> None:
        self._numbers[row] = TORN
        self._states[row][:] = state
        # the number last: a copy that was cut off stays TORN
        self._numbers[row] = BEGUN + iteration
