"""Steps of a worker's optimizer on its own weights, which are stored from one exchange to the next."""

from __future__ import annotations

from typing import Any

import torch

from pslab.tensors.entries import KeptVector
from pslab.tensors.update.inner import InnerSteps
from pslab.tensors.update.steps import Iteration

OWN, BEFORE = "own", "before"  # the memories: the weights after an iteration; the number of the next one, 0 for none


def own_weights(sync: Any, size: int, dtype: torch.dtype) -> dict[str, KeptVector]:
    """Return the vectors that a worker stores if the policy lets it train its own weights; else none."""
    vectors = {OWN: KeptVector(size, dtype), BEFORE: KeptVector(1, torch.float64, scalars=True)}
    return vectors if getattr(sync, "keeps_own", False) else {}


class OwnSteps(InnerSteps):
    """A worker's steps on its own weights.

    A worker without stored weights of the previous iteration, such as after it has joined, begins with the server's
    weights and a new optimizer.
    """

    _own: torch.Tensor | None = None  # the weights after `run`, stored by `commit`

    def commit(self, iteration: Iteration) -> None:
        super().commit(iteration)
        assert self._own is not None
        self._kept[OWN].copy_(self._own)
        self._kept[BEFORE].fill_(iteration.number + 1)

    def _goes_on(self, iteration: Iteration) -> bool:
        """Whether the stored weights are the worker's own weights after the previous iteration."""
        return bool(iteration.number and self._kept[BEFORE] == iteration.number)
