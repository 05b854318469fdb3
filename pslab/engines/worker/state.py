"""The vectors that a worker keeps from one gradient to the next (residual, momentum, squares), for its successor.

A process that is killed while it changes them leaves them torn. So they lie in shared memory, and beside them what they
were after the last iterations: the state after iteration t is copied before t + 1 first changes it, and numbered only
once it is whole. The state after the last push that the server has counted is therefore always here, since a worker is
no further ahead than it has copies: non-eager workers compute t + 1 once the server has counted the push of t.
"""

from __future__ import annotations

import numpy as np

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.layout import HEAD_BYTES
from pslab.engines.experiment.shared_memory import Arena

TORN = 0  # the number of a state that is being changed, or copied, and of one that never was
BEGUN = 2  # of the state after iteration 0; the one before it is after iteration -1


class WorkerState:
    """The states of one worker: the one at work, and copies of those before it, each with its iteration's number."""

    def __init__(self, job: Job, worker: int, arena: Arena) -> None:
        layout = job.layout
        begin, size = layout.states[worker], layout.kept_bytes
        self._numbers = np.frombuffer(arena.bytes(begin, HEAD_BYTES), dtype="<i8")[: 1 + layout.copies]
        # a row for the state at work, and one for each copy
        places = [layout.kept_at(worker), *(begin + HEAD_BYTES + copy * size for copy in range(layout.copies))]
        self._states = [np.frombuffer(arena.bytes(place, size), dtype=np.uint8) for place in places]

    def clear(self) -> None:
        """Set all to zero, as the run starts."""
        self._numbers[:] = TORN
        self._states[0][:] = 0
        self._numbers[0] = BEGUN - 1  # after no iteration

    def begin(self, iteration: int) -> None:
        """Mark the state in use as changed by this iteration, perhaps not for the first time."""
        if self._numbers[0] == TORN:
            return
        self._put(1 + (iteration - 1) % (len(self._numbers) - 1), self._states[0], iteration - 1)
        self._numbers[0] = TORN

    def end(self, iteration: int) -> None:
        """Mark the state in use as that after this iteration."""
        self._numbers[0] = BEGUN + iteration

    def resume(self, iteration: int) -> bool:
        """Go on with this iteration: with the last whole state before it, or all zero; whether there was one."""
        whole = [number for number in self._numbers.tolist() if TORN < number < BEGUN + iteration]
        state = self.after(max(whole) - BEGUN) if whole else None
        self._put(0, np.zeros_like(self._states[0]) if state is None else state, iteration - 1)
        self._numbers[1:] = TORN
        return state is not None

    def after(self, iteration: int) -> np.ndarray | None:
        """The state after an iteration, as a copy: uint8 [bytes]; None if it is not here.

        Its worker may go on meanwhile: what was changed while it was copied has been copied by the worker before.
        """
        for place in (0, 1 + iteration % (len(self._numbers) - 1)):
            if self._numbers[place] == BEGUN + iteration:
                state = self._states[place].copy()
                if self._numbers[place] == BEGUN + iteration:
                    return state
        return None

    def put(self, state: np.ndarray | None, iteration: int) -> None:
        """Store the state after an iteration, alone, for the worker's successor; none if it is not known."""
        self._numbers[:] = TORN
        if state is not None:
            self._put(0, state, iteration)

    def _put(self, place: int, state: np.ndarray, iteration: int) -> None:
        self._numbers[place] = TORN
        self._states[place][:] = state
        self._numbers[place] = BEGUN + iteration
