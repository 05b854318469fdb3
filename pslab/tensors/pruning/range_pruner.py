"""Range push: a worker pushes one range of keys an iteration and accumulates the gradients of the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pslab.tensors.pruning.pruner import Pruner, Setting, allocated, checked_finite, memories
from pslab.tensors.pruning.range_rule import Ranges
from pslab.tensors.workload.keyspace import Keyspace


class RangePruner:
    """A Pruner for the rule `Ranges`, which selects keys and not large entries.

    `keys` is the range to push, set before each call of `prune`. `residual` ([size], None for a rule without) is the
    sum of what was computed and not yet sent.
    """

    def __init__(
        self, rule: Ranges, keyspace: Keyspace, dtype: torch.dtype, device: torch.device | str = "cpu",
        kept: Mapping[str, torch.Tensor] | None = None,
    ) -> None:  # fmt: skip
        self.rule, self._keyspace, self.keys = rule, keyspace, keyspace.whole
        self.kept = allocated(memories(rule, len(keyspace.layers), keyspace.size, dtype), device, kept)
        self.residual = self.kept.get("residual")

    def prune(self, gradient: torch.Tensor, iteration: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """The flat indices (sorted int64) and values of the range: the residual and this gradient [size].

        Raises:
            NonFinite: the gradient contains NaN or infinity (the residual is unchanged), or its sum with the residual.
        """
        gradient = checked_finite(gradient)
        v = gradient
        if self.residual is not None:
            v = checked_finite(self.residual.add_(gradient), "the sum with the residual")
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
    """The pruner that applies a rule to one worker's gradients of a model."""
    if isinstance(rule, Ranges):
        return RangePruner(rule, keyspace, dtype, device, kept)
    return Pruner.of(rule, keyspace, dtype, device, setting, kept)
