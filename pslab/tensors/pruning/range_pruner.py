"""What a worker pushes of one range of keys, and what gathers of the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pslab.tensors.pruning.pruner import NonFinite, Pruner, Setting, is_finite, memories, zeros
from pslab.tensors.pruning.range_rule import Ranges
from pslab.tensors.workload.keyspace import Keyspace


class RangePruner:
    """Beside Pruner: the same calls for a rule that says which keys are sent, and not which entries are large.

    `kept` holds what lasts, by `memories`: `residual` (size) is the sum of what was computed and not yet sent; None for
    a rule without. `keys` is the range of the iteration, set before it is pruned.
    """

    def __init__(
        self, rule: Ranges, keyspace: Keyspace, dtype: torch.dtype, device: torch.device | str = "cpu",
        kept: Mapping[str, torch.Tensor] | None = None,
    ) -> None:  # fmt: skip
        self.rule, self._keyspace, self.keys = rule, keyspace, keyspace.whole
        lasting = memories(rule, len(keyspace.layers), keyspace.size, dtype)
        self.kept = dict(kept) if kept is not None else {name: zeros(m, device) for name, m in lasting.items()}
        self.residual = self.kept.get("residual")

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
    rule: Any, keyspace: Keyspace, dtype: torch.dtype, device: torch.device | str = "cpu",
    setting: Setting | None = None, kept: Mapping[str, torch.Tensor] | None = None,
) -> Pruner | RangePruner:  # fmt: skip
    """What applies a rule to one worker's gradients, a model's."""
    if isinstance(rule, Ranges):
        return RangePruner(rule, keyspace, dtype, device, kept)
    return Pruner.of(rule, keyspace, dtype, device, setting, kept)
