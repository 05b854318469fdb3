"""Range push and pull: the rule, and which keys an iteration's range has.

    keys 0 .. N - 1, r of them an iteration, K = ceil(N / r) iterations a sweep
    iteration i of a sweep:  R = [r * i, min(N, r * (i + 1)));  pushed: what has gathered in R;  pulled: R
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pslab.tensors.workload.keyspace import KeyRange

FIT = "fit"


@dataclass(frozen=True)
class Ranges:
    """One range of keys an iteration, in turn: its entries are pushed, its weights pulled; the rest gathers.

    Every entry of every gradient is sent once, at most K - 1 iterations late, K ranges making a sweep over the keys:
    bounded delay. That it is each in turn is a reading of the slides, whose picture is lost; Li et al. choose ranges at
    random. `fit`: each worker measures how long exchanging and computing take, and takes for its next sweep as many
    keys as are exchanged while it computes. Workers need not agree: the server applies entries, whatever their range.
    Needs pull="range". Overlap it with computing: sync="eager".

    Source: Tsai (slides 2017); Li et al. (OSDI 2014)
    Example: range:300

    Args:
        size (from 1, or fit): keys in a range; as many as there are, or more: everything, as without ranges
        residual: whether what is not sent is added to the next gradient; without: cyclic block-coordinate SGD
        local_apply: whether a worker computes on weights to which it has applied what it has not yet sent; plain SGD
        quantile (0 to 1): what fit takes for the computing time: a quantile of the last ones; none: their moving mean
    """

    size: int | str
    residual: bool = True
    local_apply: bool = True
    quantile: float | None = None
    pull: ClassVar[str] = "range"

    def __post_init__(self) -> None:
        whole = isinstance(self.size, int) and not isinstance(self.size, bool) and self.size >= 1
        if not whole and self.size != FIT:
            raise ValueError(f"range: size={self.size!r} must be a whole number of keys from 1, as in 300, or fit")
        for name in ("residual", "local_apply"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"range: {name}={getattr(self, name)!r} must be on (True) or off (False)")
        if self.quantile is not None and not 0 <= self.quantile <= 1:
            raise ValueError(f"range: quantile={self.quantile} must be from 0 to 1, as in 0.25, or none")

    @property
    def fitted(self) -> bool:
        """Whether the size is found while the run goes on."""
        return self.size == FIT

    @property
    def applies(self) -> bool:
        """Whether a worker applies to its own weights what it has not yet sent."""
        return self.residual and self.local_apply


def ranges_in(size: int, keys: int) -> int:
    """K: the ranges of a sweep."""
    return -(-keys // size)


def keys_of(size: int, keys: int, place: int) -> KeyRange:
    """The range at a place of a sweep; sweeps follow each other."""
    start = size * (place % ranges_in(size, keys))
    return KeyRange(start, min(keys, start + size))
