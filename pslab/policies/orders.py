"""Request orders: which of a worker's ready requests goes next?

Over full duplex a choice is among pushes or among pulls. Over half duplex both want the link: an order that has nothing
to say between the two leaves it to the oldest request whether a push or a pull goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, TypeVar

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

    def pick(self, ready: Ready, view: View) -> Request:
        return ready[0]


@dataclass(frozen=True)
class FILO:
    """First in, last out: the request that became ready last. The oldest one starves until computing waits for it.

    Source: Tsai (thesis report 2018).
    """

    def pick(self, ready: Ready, view: View) -> Request:
        return ready[-1]


@dataclass(frozen=True)
class Stalest:
    """Of the pulls the one whose weights here are the stalest; pushes first in, first out.

    Source: Tsai (thesis report 2018).
    """

    def pick(self, ready: Ready, view: View) -> Request:
        pulls = [request for request in ready if isinstance(request, Pull)]
        return stalest(pulls, view) if isinstance(ready[0], Pull) else ready[0]


@dataclass(frozen=True)
class Advancing:
    """Of the pushes the one that raises its range's low bound, for which others may wait; pulls first in, first out.

    Source: Tsai (thesis report 2018).
    """

    def pick(self, ready: Ready, view: View) -> Request:
        if isinstance(ready[0], Pull):
            return ready[0]
        return advancing(ready, view) or ready[0]


@dataclass(frozen=True)
class Needed:
    """What somebody waits for goes first: the thesis's optimal order, completed.

    Its rules are to pull the stalest layer and to push the one that raises a low bound. How these two, and computing
    that waits, come together is this project's own: first the pull for which computing waits; then a push that raises a
    low bound; then the stalest pull; then the oldest push.

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
    """The layers nearest to the input first: they are computed first. Of a layer its pulls, then its pushes.

    Layers are cut by `ranges="layers:40000"` (P3's size, in parameters). A credit is how much may be on its way
    (ByteScheduler: 16 MB for pieces of 4 MB): the order has no say in what is. No piece may be larger than the credit,
    unless the order is greedy: it would never go.

    Source: Jayarajan et al. (MLSys 2019), Peng et al. (SOSP 2019).
    """

    credit: Annotated[
        int | None, Bounds(at_least=1), "bytes that may be on their way until their receipt; none: one message"
    ] = None
    greedy: Annotated[bool, "a message goes while any credit is left, however large it is"] = False

    def __post_init__(self) -> None:
        check(self)

    def pick(self, ready: Ready, view: View) -> Request:
        return min(ready, key=lambda r: (layer(r.range, view), isinstance(r, Push), r.range))

    def admits(self, under_way_bytes: float, size_bytes: float) -> bool:
        """Whether a message may go while others are on their way."""
        if self.credit is None:
            return under_way_bytes == 0
        return admits(self.credit, under_way_bytes, size_bytes, self.greedy)


@dataclass(frozen=True)
class TIC:
    """Of the pulls the one with the fewest others that its computation also waits for; pushes first in, first out.

    TicTac's order without measured times. On a chain of layers it is the input's first, as TAC's is.

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
    """Of the pulls the one that lets most computing begin while others travel; pushes first in, first out.

    TicTac's order by the times of layers' forward passes and transfers.

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
    """The pull whose weights here were read at the least low bound; of equals the smallest range."""
    return min(pulls, key=lambda pull: (_of(view.held, pull.range, 0), pull.range))


def advancing(ready: Ready, view: View) -> Push | None:
    """The push that raises its range's low bound: nobody else is there. Of several the smallest range."""
    raising = [r for r in ready if isinstance(r, Push) and _of(view.alone, r.range, False)
               and view.counts[r.range] == view.low[r.range]]  # fmt: skip
    return min(raising, key=lambda push: push.range, default=None)


def layer(index: int, view: View) -> int:
    """The layer of a range; a range is a layer where nothing else is known."""
    return _of(view.layers, index, index)


def admits(credit: float, in_flight: float, size: float, greedy: bool) -> bool:
    """Whether a message may go while others are on their way; all in bytes.

    Greedy: as long as any credit is left, which may thereby be overdrawn (ByteScheduler's core in Python); else only if
    it fits into what is left (BytePS in C++), where what fits may overtake what does not.

    Source: Peng et al. (SOSP 2019).
    """
    left = credit - in_flight
    return left > 0 if greedy else size <= left


def _chain(places: Mapping[int, int], forward_s: Sequence[float] = ()) -> list[Operation]:
    """Forward passes of layers one after another, by the layers of the ranges that are outstanding.

    What can be computed until the next of these layers is one operation.
    """
    begins = sorted(set(places.values()))
    ends = [*begins[1:], max(len(forward_s), begins[-1] + 1)]
    return [Operation(sum(forward_s[begin:end]), frozenset(r for r, place in places.items() if place <= begin))
            for begin, end in zip(begins, ends, strict=True)]  # fmt: skip


@lru_cache
def _impending(layers: tuple[int, ...]) -> dict[int, float]:
    """TIC's measure of each range of a model, by the ranges' layers."""
    places = dict(enumerate(layers))
    found = weights(_chain(places), dict.fromkeys(places, 1.0))
    return {index: weight.impending_s for index, weight in found.items()}


def _of(values: Sequence[Value], index: int, otherwise: Value) -> Value:
    return values[index] if index < len(values) else otherwise
