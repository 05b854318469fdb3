"""Range push and pull: the rule, the range of keys of each iteration, and the pruner that accumulates the others.

    keys 0 .. N - 1, r of them an iteration, K = ceil(N / r) iterations a sweep
    iteration i of a sweep:  R = [r * i, min(N, r * (i + 1)));  pushed: the residual in R;  pulled: the weights in R
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch

from pslab.config.parameters import Bounds, OneOf, check
from pslab.tensors.finite import checked_finite
from pslab.tensors.pruning.pruner import Pruner, Setting, allocated, memories
from pslab.tensors.workload.keyspace import KeyRange, Keyspace

FIT = "fit"


@dataclass(frozen=True)
class Ranges:
    """One range of keys an iteration, in turn: its entries are pushed, its weights pulled; the rest accumulates.

    Every entry of every gradient is sent once, at most K - 1 iterations late, where K ranges are a sweep over the keys:
    the delay is bounded. Taking the ranges in turn is a reading of the slides, whose figure is lost; Li et al. choose
    them at random. With `fit`, each worker measures how long exchanging and computing take, and gives the ranges of its
    next sweep as many keys as it can exchange while it computes. Workers may use different sizes, since the server
    applies entries whatever their range. Needs pull="range". To overlap it with computing, use sync="eager".

    Source: Tsai (slides 2017); Li et al. (OSDI 2014)
    """

    size: Annotated[int | str, Bounds(at_least=1), OneOf(FIT), "keys in a range; all keys, or more: no ranges"]
    residual: Annotated[
        bool, "whether what is not sent is added to the next gradient; without: cyclic block-coordinate SGD"
    ] = True
    local_apply: Annotated[
        bool, "whether a worker computes on weights to which it has applied what it has not yet sent; plain SGD"
    ] = True
    quantile: Annotated[
        float | None, Bounds(at_least=0, at_most=1),
        "the computing time that fit uses: this quantile of the last times; none: their moving mean",
    ] = None
    pull: ClassVar[str] = "range"

    def __post_init__(self) -> None:
        check(self)

    @property
    def fitted(self) -> bool:
        """Whether the size is chosen during the run."""
        return self.size == FIT

    @property
    def applies(self) -> bool:
        """Whether a worker applies its residual to its own weights."""
        return self.residual and self.local_apply


def ranges_in(size: int, keys: int) -> int:
    """K, the number of ranges in a sweep."""
    return -(-keys // size)


def keys_of(size: int, keys: int, place: int) -> KeyRange:
    """The range of keys number `place`, counted over consecutive sweeps."""
    start = size * (place % ranges_in(size, keys))
    return KeyRange(start, min(keys, start + size))


class RangePruner:
    """The pruner of the rule `Ranges`: it sends one range of keys an iteration and accumulates the other gradients.

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
