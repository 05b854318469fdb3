"""Request orders: which of a worker's ready requests goes next?

Over full duplex an order chooses among pushes or among pulls. Over half duplex both compete for the link: an order
without a rule between the two leaves it to the oldest request whether a push or a pull goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, TypeVar

from pslab.config.parameters import Bounds, check
from pslab.policies.planning.tictac import Operation, least, weights
from pslab.protocol.messages import Pull, Push
from pslab.protocol.requests import Request, View

Ready = tuple[Request, ...]
Value = TypeVar("Value")


@dataclass(frozen=True)
class FIFO:
    """First in, first out: the request that became ready first.

    Source: Tsai (thesis report 2018).
    """

    in_turn: ClassVar[bool] = True  #: it chooses nothing, and so suits a worker with one push and one pull

    def pick(self, ready: Ready, view: View) -> Request:
        return ready[0]


@dataclass(frozen=True)
class FILO:
    """First in, last out: the request that became ready last; the oldest starves until the computation waits for it.

    Source: Tsai (thesis report 2018).
    """

    def pick(self, ready: Ready, view: View) -> Request:
        return ready[-1]


@dataclass(frozen=True)
class Stalest:
    """The pull for the worker's stalest weights goes first; pushes first in, first out.

    Source: Tsai (thesis report 2018).
    """

    def pick(self, ready: Ready, view: View) -> Request:
        pulls = [request for request in ready if isinstance(request, Pull)]
        return stalest(pulls, view) if isinstance(ready[0], Pull) else ready[0]


@dataclass(frozen=True)
class Advancing:
    """A push that raises its range's low bound goes first, as others may wait for it; pulls first in, first out.

    Source: Tsai (thesis report 2018).
    """

    def pick(self, ready: Ready, view: View) -> Request:
        if isinstance(ready[0], Pull):
            return ready[0]
        return advancing(ready, view) or ready[0]


@dataclass(frozen=True)
class Needed:
    """The request that a worker waits for goes first: the thesis's optimal order, completed.

    The thesis has two rules: pull the stalest layer, and push the layer that raises a low bound. Their combination is
    this project's own: first the pull for which the computation waits, then a push that raises a low bound, then the
    stalest pull, then the oldest push.

    Source: Tsai (thesis report 2018).
    """

    def pick(self, ready: Ready, view: View) -> Request:
        pulls = [request for request in ready if isinstance(request, Pull)]
        for pull in pulls:
            if pull.range == view.blocked:
                return pull
        if (push := advancing(ready, view)) is not None:
            return push
        return stalest(pulls, view) if pulls else ready[0]


@dataclass(frozen=True)
class Front:
    """The layers nearest to the input first, because they are computed first. Of a layer its pulls, then its pushes.

    Layers are cut by `ranges="layers:40000"` (P3's size, in parameters). The credit limits the bytes under way
    (ByteScheduler: 16 MB for pieces of 4 MB), which the order cannot rearrange. Unless the order is greedy, no piece
    may be larger than the credit: it would never go.

    Source: Jayarajan et al. (MLSys 2019), Peng et al. (SOSP 2019).
    """

    credit: Annotated[
        int | None, Bounds(at_least=1), "bytes that may be under way, sent and not yet received; none: one message"
    ] = None
    greedy: Annotated[bool, "a message of any size goes while any credit is left"] = False

    def __post_init__(self) -> None:
        check(self)

    def pick(self, ready: Ready, view: View) -> Request:
        return min(ready, key=lambda r: (layer(r.range, view), isinstance(r, Push), r.range))

    def admits(self, under_way_bytes: float, size_bytes: float) -> bool:
        """Whether a message may go while others are under way."""
        if self.credit is None:
            return under_way_bytes == 0
        return admits(self.credit, under_way_bytes, size_bytes, self.greedy)


@dataclass(frozen=True)
class TIC:
    """The pull whose computation waits for the fewest others goes first; pushes first in, first out.

    TicTac's order without measured times. On a chain of layers it starts at the input, as TAC does.

    Source: Hashemi et al. (MLSys 2019).
    """

    def pick(self, ready: Ready, view: View) -> Request:
        if isinstance(ready[0], Push):
            return ready[0]
        pulls = [request for request in ready if isinstance(request, Pull)]
        load = _impending(tuple(view.layers) or tuple(range(1 + max(pull.range for pull in pulls))))
        return min(pulls, key=lambda pull: (load[pull.range], pull.range))


@dataclass(frozen=True)
class TAC:
    """The pull that allows the most computing during other transfers goes first; pushes first in, first out.

    TicTac's order by the times of the layers' forward passes and transfers.

    Source: Hashemi et al. (MLSys 2019).
    """

    def pick(self, ready: Ready, view: View) -> Request:
        if isinstance(ready[0], Push):
            return ready[0]
        pulls = {request.range: request for request in ready if isinstance(request, Pull)}
        places = {index: layer(index, view) for index in sorted(pulls)}
        transfer_s = {index: _of(view.sizes, index, 1) / view.byte_s for index in places}
        return pulls[least(_chain(places, view.forward_s), transfer_s)]


def stalest(pulls: list[Pull], view: View) -> Pull:
    """The pull of the range whose weights the worker read at the least low bound; of equals the smallest range."""
    return min(pulls, key=lambda pull: (_of(view.held, pull.range, 0), pull.range))


def advancing(ready: Ready, view: View) -> Push | None:
    """The push that raises its range's low bound, where its worker is alone; of several the smallest range."""
    raising = [r for r in ready if isinstance(r, Push) and _of(view.alone, r.range, False)
               and view.counts[r.range] == view.low[r.range]]  # fmt: skip
    return min(raising, key=lambda push: push.range, default=None)


def layer(index: int, view: View) -> int:
    """The layer of a range; if it is not known, each range counts as a layer."""
    return _of(view.layers, index, index)


def admits(credit: float, in_flight: float, size: float, greedy: bool) -> bool:
    """Whether a message may go while others are under way; all in bytes.

    Greedy: while any credit is left, which this may overdraw (ByteScheduler's core in Python); else only if the message
    fits into the rest (BytePS in C++), so that smaller messages may overtake larger ones.

    Source: Peng et al. (SOSP 2019).
    """
    left = credit - in_flight
    return left > 0 if greedy else size <= left


def _chain(places: Mapping[int, int], forward_s: Sequence[float] = ()) -> list[Operation]:
    """The forward passes of a chain of layers as operations that wait for the outstanding ranges, here by their layers.

    All layers from one of these to the next are one operation.
    """
    firsts = sorted(set(places.values()))
    ends = [*firsts[1:], max(len(forward_s), firsts[-1] + 1)]
    return [Operation(sum(forward_s[first:end]), frozenset(r for r, place in places.items() if place <= first))
            for first, end in zip(firsts, ends, strict=True)]  # fmt: skip


@lru_cache
def _impending(layers: tuple[int, ...]) -> dict[int, float]:
    """TIC's measure of each range of a model with these layers of its ranges."""
    places = dict(enumerate(layers))
    sums = weights(_chain(places), dict.fromkeys(places, 1.0))
    return {index: weight.impending_s for index, weight in sums.items()}


def _of(values: Sequence[Value], index: int, otherwise: Value) -> Value:
    return values[index] if index < len(values) else otherwise
