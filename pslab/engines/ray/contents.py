"""The arrays of a message: copied from the sender's memory, and written into the receiver's memory."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.layout import NUMBER, in_turn
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.experiment.wire import WHOLE, Go
from pslab.protocol.messages import Pull, Push, Weights
from pslab.tensors.update.methods import STATED

INLINE_BYTES = 100_000  # Ray puts an argument of this size or more into its object store
Content = list[Any]  # the arrays of a message, or references to them in the object store


class ObjectArena(Arena):
    """A read-only arena on bytes in Ray's object store, which has one copy on each node."""

    def __init__(self, content: np.ndarray) -> None:
        self._content = content

    def tensor(self, offset: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that these bytes must not be written
            return torch.frombuffer(self._content, dtype=dtype, count=count, offset=offset)


class Contents:
    """Reads and writes the arrays of one actor's messages."""

    def __init__(self, job: Job, arena: Arena) -> None:
        self._job, self._arena = job, arena

    def read(self, message: Any) -> Content:
        """Return copies of a message's arrays; an array of INLINE_BYTES or more as a reference."""
        import ray

        return [ray.put(view) if view.nbytes >= INLINE_BYTES else view.copy() for view in self.views(message)]

    def write(self, message: Any, content: Content) -> None:
        """Write the arrays of a received message into this actor's memory."""
        for view, array in zip(self.views(message), fetched(content), strict=True):
            view[:] = array

    def views(self, message: Any) -> list[np.ndarray]:
        """Return views of a message's arrays in this actor's memory; empty for a kind of message without arrays."""
        layout, kind = self._job.layout, type(message)
        stated = [] if layout.rho is None else [(layout.rho, NUMBER.itemsize)]
        if kind is Go:
            return self._bytes(stated)
        if kind not in (Push, Pull, Weights) or not (size_bytes := message.payload.size_bytes):
            return []
        if kind is Push:
            buffers = layout.gradients if size_bytes == WHOLE else layout.up
            stated, memory = [], layout.memories.get(STATED)
            if memory is not None and STATED in layout.memory_offsets[message.worker]:
                stated = [(layout.memory_offsets[message.worker][STATED], memory.entries * memory.dtype.itemsize)]
        elif kind is Pull:
            if not self._job.keyed:
                return []
            buffers, stated = layout.asked, []
        else:
            buffers = layout.arrivals if size_bytes == WHOLE else layout.down
        begin, itemsize = in_turn(buffers[message.worker], message.iteration), layout.dtype.itemsize
        if size_bytes != WHOLE:
            return self._bytes([(begin + layout.frames[message.range][0], size_bytes), *stated])
        slices = self._job.parts[message.range].slices
        return self._bytes([(begin + piece.start * itemsize, (piece.stop - piece.start) * itemsize)
                            for piece in slices] + stated)  # fmt: skip

    def _bytes(self, places: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        return [np.frombuffer(self._arena.bytes(*span), np.uint8) for span in places]


def fetched(content: Content) -> list[np.ndarray]:
    """Return the arrays of a message; fetch references from the object store."""
    import ray

    return [ray.get(array) if isinstance(array, ray.ObjectRef) else array for array in content]
