"""Steps of a worker's optimizer on weights of its own, which go on from one exchange to the next."""

from __future__ import annotations

from typing import Any

import torch

from pslab.tensors.entries import KeptVector
from pslab.tensors.update.inner import InnerSteps
from pslab.tensors.update.steps import Course

OWN, BEFORE = "own", "before"  # the memories: the weights after an iteration; before which one, 0 for none


def own_weights(sync: Any, size: int, dtype: torch.dtype) -> dict[str, KeptVector]:
    """The vectors that a worker keeps for its own weights, if they are not the server's."""
    own = {OWN: KeptVector(size, dtype), BEFORE: KeptVector(1, torch.float64, scalars=True)}
    return own if getattr(sync, "keeps_own", False) else {}


class OwnSteps(InnerSteps):
    """A worker's steps on weights of its own.

    Without weights of the iteration before, as after it has joined, new or back, a worker begins with the server's, and
    a new optimizer.
    """

    _own: torch.Tensor | None = None  # its weights after the course that was run

    def commit(self, course: Course) -> None:
        super().commit(course)
        assert self._own is not None
        self._kept[OWN].copy_(self._own)
        self._kept[BEFORE].fill_(course.iteration + 1)

    def _goes_on(self, course: Course) -> bool:
        """Whether the worker still has its own weights of the iteration before."""
        return bool(course.iteration and self._kept[BEFORE] == course.iteration)
