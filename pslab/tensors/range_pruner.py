"""What a worker pushes of one range of keys, and what gathers of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pslab.tensors.keyspace import Keyspace
from pslab.tensors.prune import NonFinite, Pruner, is_finite
from pslab.tensors.ranges import Ranges


class RangePruner:
    """Beside Pruner: the same calls for a rule that says which keys are sent, and not which entries are large.

    `residual` (size) is the sum of what was computed and not yet sent; None for a rule without. `keys` is the range of
    the iteration, set before it is pruned.
    """

    def __init__(
        self, rule: Ranges, keyspace: Keyspace, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        self.rule, self._keyspace, self.keys = rule, keyspace, keyspace.whole
        self.residual = torch.zeros(keyspace.size, dtype=dtype, device=device) if rule.residual else None

    def prune(self, gradient: torch.Tensor, iteration: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """The flat indices (sorted int64) and values of what has gathered in the range, this gradient (size) included.

        Raises:
            NonFinite: the gradient holds NaN or infinity; the residual is as before.
        """
        gradient = gradient.detach()
        if not is_finite(gradient):
            raise NonFinite("the gradient holds NaN or infinite entries: nothing was sent")
        v = gradient if self.residual is None else self.residual.add_(gradient)
        slices = self._keyspace.slices(self.keys)
        indices = torch.cat([torch.arange(s.start, s.stop, device=v.device) for s in slices])
        values = torch.cat([v[s] for s in slices])
        for s in slices if self.residual is not None else ():
            v[s].zero_()
        return indices, values


def pruner_of(
    rule: Any, keyspace: Keyspace, layers: Sequence[slice], dtype: torch.dtype, device: torch.device | str
) -> Pruner | RangePruner:
    """What applies a rule to one worker's gradients."""
    if isinstance(rule, Ranges):
        return RangePruner(rule, keyspace, dtype, device)
    return Pruner(rule, layers, keyspace.size, dtype, device)
