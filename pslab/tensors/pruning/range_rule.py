"""Range push and pull: the rule, and which keys an iteration's range has.

    keys 0 .. N - 1, r of them an iteration, K = ceil(N / r) iterations a sweep
    iteration i of a sweep:  R = [r * i, min(N, r * (i + 1)));  pushed: what has gathered in R;  pulled: R
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pslab.config.parameters import Bounds, OneOf, check
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
    """

    size: Annotated[int | str, Bounds(at_least=1), OneOf(FIT), "keys in a range; more than there are: all of them"]
    residual: Annotated[
        bool, "whether what is not sent is added to the next gradient; without: cyclic block-coordinate SGD"
    ] = True
    local_apply: Annotated[
        bool, "whether a worker computes on weights to which it has applied what it has not yet sent; plain SGD"
    ] = True
    quantile: Annotated[
        float | None, Bounds(at_least=0, at_most=1),
        "what fit takes for the computing time: a quantile of the last ones; none: their moving mean",
    ] = None
    pull: ClassVar[str] = "range"

    def __post_init__(self) -> None:
        check(self)

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
