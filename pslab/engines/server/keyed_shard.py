"""The weights at a server, for runs whose workers pull and push only the keys of their batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from pslab.engines.experiment.layout import in_turn
from pslab.engines.server.framed_shard import FramedShard, refusing
from pslab.protocol.messages import Pull, Push
from pslab.protocol.server import Step
from pslab.tensors.compression import frame
from pslab.tensors.compression.bits import indices_of
from pslab.tensors.entries import Entries
from pslab.tensors.update import changes
from pslab.tensors.update.part import Gradient

_NOTHING = np.empty(0, np.int64)


class KeyedShard(FramedShard):
    """Weights whose pushes and pulls name keys."""

    def _read(self, step: Step, pushes: Sequence[Push]) -> Sequence[Gradient]:
        gradients = super()._read(step, pushes)
        if self._consensus is not None:  # the method sums over the users of a key itself
            return gradients
        return changes.over_users(self._job.sync, self._job.parts[step.range], gradients)

    def _gradient(self, push: Push) -> Gradient:
        size = self._job.parts[push.range].size
        if not push.payload.size_bytes:  # the batch has no key of this range
            return Entries(size, _NOTHING, self._store.weights.numpy()[:0])
        pieces = self._pieces(push)
        with refusing(push, "frame"):
            return frame.entries_of(pieces[0], size, self._job.layout.dtype)

    def _answer(self, pull: Pull, version: int) -> int:
        """Write the weights of the keys that a pull names, in the pull's order; return the bytes, 0 without keys."""
        size_bytes, layout = pull.payload.size_bytes, self._job.layout
        if not size_bytes:
            return 0
        (offset, _), part = layout.frames[pull.range], self._job.parts[pull.range]
        asked = self._arena.bytes(in_turn(layout.asked[pull.worker], pull.iteration) + offset, size_bytes)
        with refusing(pull, "request"):
            numbers = indices_of(frame.read(asked)[0][0], part.size).numpy()
        where = part.flat_indices(Entries(part.size, numbers, numbers)).numpy()
        # values only: the worker knows the keys, which it has named in this order
        return frame.write(self._room(pull), [[torch.from_numpy(self._store.weights.numpy()[where])]])
