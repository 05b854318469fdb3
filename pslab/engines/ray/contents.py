"""The numbers that messages name: read from an actor's memory to be sent, and written into that of the receiver."""

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

INLINE_BYTES = 100_000  # from which on Ray puts an argument into its object store
Content = list[Any]  # of a message: arrays, or references to them


class ObjectArena(Arena):
    """Bytes that lie in Ray's object store, once on each node, and are only read."""

    def __init__(self, content: np.ndarray) -> None:
        self._content = content

    def tensor(self, offset: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that these bytes must not be written
            return torch.frombuffer(self._content, dtype=dtype, count=count, offset=offset)


class Contents:
    """The numbers of one actor's messages."""

    def __init__(self, job: Job, arena: Arena) -> None:
        self._job, self._arena = job, arena

    def read(self, message: Any) -> Content:
        """Return the arrays that a message names, as they are now; INLINE_BYTES and more as a reference."""
        import ray

        return [ray.put(view) if view.nbytes >= INLINE_BYTES else view.copy() for view in self.views(message)]

    def write(self, message: Any, content: Content) -> None:
        """Write the arrays of a message that has come."""
        for view, array in zip(self.views(message), fetched(content), strict=True):
            view[:] = array

    def views(self, message: Any) -> list[np.ndarray]:
        """Return the places of the arrays that a message names; none for most messages."""
        layout, kind = self._job.layout, type(message)
        stated = [] if layout.told is None else [(layout.told, NUMBER.itemsize)]
        if kind is Go:
            return self._bytes(stated)
        if kind not in (Push, Pull, Weights) or not (size_bytes := message.payload.size_bytes):
            return []
        if kind is Push:
            buffers = layout.gradients if size_bytes == WHOLE else layout.up
            stated, memory = [], layout.memories.get(STATED)
            if memory is not None and STATED in layout.kept[message.worker]:
                stated = [(layout.kept[message.worker][STATED], memory.entries * memory.dtype.itemsize)]
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
        return [np.frombuffer(self._arena.bytes(*place), np.uint8) for place in places]


def fetched(content: Content) -> list[np.ndarray]:
    """Return the arrays of a content, from whichever node they are on."""
    import ray

    return [ray.get(each) if isinstance(each, ray.ObjectRef) else each for each in content]
