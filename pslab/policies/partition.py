"""Partitions of the model into ranges: the whole model, layers, or slices of layers. Each range has its own clocks and
belongs to one server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Annotated, ClassVar, NamedTuple

from pslab.config.parameters import Bounds, check


class Cut(NamedTuple):
    """A range: elements [start, stop) of the flat vector, and its first layer (0 if ranges are not cut by layers)."""

    layer: int
    start: int
    stop: int


@dataclass(frozen=True)
class Whole:
    """The whole model is one range: one push and one pull per iteration."""

    layered: ClassVar[bool] = False

    def cut(self, layers: Sequence[slice]) -> tuple[Cut, ...]:
        """Return the one range that covers these consecutive layers."""
        return (Cut(0, layers[0].start, layers[-1].stop),)


@dataclass(frozen=True)
class Layers:
    """Each layer is a range: its push is ready after its backward pass, and only its forward pass waits for its pull.

    Communication thus overlaps with the computation of other layers, in the order that the run's `order` chooses.
    Layers may be cut into slices, so that a large layer does not delay a more urgent one.

    Source: Zhang et al. (ATC 2017); in slices Jayarajan et al. (MLSys 2019), Peng et al. (SOSP 2019)
    """

    most: Annotated[
        int | None, Bounds(at_least=1), "parameters in a slice: 40,000 in P3, 1,000,000 in ByteScheduler; none: uncut"
    ] = None
    layered: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self)

    def cut(self, layers: Sequence[slice]) -> tuple[Cut, ...]:
        """Return the slices of the layers; the last slice of a layer may be shorter."""
        cuts = []
        for number, layer in enumerate(layers):
            most = self.most or layer.stop - layer.start
            cuts += [Cut(number, at, min(at + most, layer.stop)) for at in range(layer.start, layer.stop, most)]
        return tuple(cuts)


@dataclass(frozen=True)
class Buckets:
    """Consecutive layers are sent together in buckets, as in PyTorch's data parallel module.

    Starting from the last layer, layers are added to the first bucket until it has `first` parameters, and to each
    further bucket until it has `least`. A bucket is pushed once all its gradients are computed. In PyTorch all buckets
    are exchanged before the next forward pass begins; here a layer waits for its own bucket only.

    Source: Li et al. (PVLDB 2020)
    """

    least: Annotated[int, Bounds(at_least=1), "parameters that fill a bucket: 25 MiB of float32"] = 6_553_600
    first: Annotated[int, Bounds(at_least=1), "parameters that fill the first bucket: 1 MiB of float32"] = 262_144
    layered: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self)

    def cut(self, layers: Sequence[slice]) -> tuple[Cut, ...]:
        """Return the buckets in the order of the model, from the first layer."""
        cuts, stop, least = list[Cut](), layers[-1].stop, self.first
        for number, layer in reversed(list(enumerate(layers))):
            if stop - layer.start >= least or not number:
                cuts.insert(0, Cut(number, layer.start, stop))
                stop, least = layer.start, self.least
        return tuple(cuts)


def evenly(cuts: Sequence[Cut], servers: int) -> tuple[Cut, ...]:
    """Return parts of nearly equal length, one for each server, if the model is one range; else the ranges as given."""
    if len(cuts) > 1 or servers == 1:
        return tuple(cuts)
    (whole,) = cuts
    size = whole.stop - whole.start
    least, more = divmod(size, servers)  # the first parts are longer by one
    return in_parts(whole, [least + (number < more) for number in range(min(servers, size))])


def in_parts(whole: Cut, sizes: Sequence[int]) -> tuple[Cut, ...]:
    """Return consecutive parts of a range with these sizes."""
    return tuple(Cut(whole.layer, *ends) for ends in pairwise(accumulate(sizes, initial=whole.start)))


def servers_of(sizes: Sequence[int], servers: int) -> tuple[int, ...]:
    """Return the server of each range: from the largest range on, the server with the fewest elements so far.

    Source: Graham (SIAM J. Appl. Math. 1969), largest processing time first
    """
    owners, load = [0] * len(sizes), [0] * servers
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]) if servers > 1 else ():
        owners[index] = least = load.index(min(load))
        load[least] += sizes[index]
    return tuple(owners)
