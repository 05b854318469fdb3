"""Request orders: the rules that choose which of a worker's ready requests is sent next.

On a full-duplex link an order chooses among pushes or among pulls. On a half-duplex link both compete: if an order has
no rule between the two, the oldest request decides whether a push or a pull is sent.
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
    """First in, first out: send the request that became ready first.

    Source: Tsai (thesis report 2018).
    """

    in_turn: ClassVar[bool] = True  #: it never reorders requests, so `ranges="whole"` is allowed

    def pick(self, ready: Ready, view: View) -> Request:
        return ready[0]


@dataclass(frozen=True)
class FILO:
    """First in, last out: send the newest request; the oldest one starves until the computation waits for it.

    Source: Tsai (thesis report 2018).
    """

    def pick(self, ready: Ready, view: View) -> Request:
        return ready[-1]


@dataclass(frozen=True)
class Stalest:
    """Send first the pull for the worker's stalest weights; pushes first in, first out.

    Source: Tsai (thesis report 2018).
    """

    def pick(self, ready: Ready, view: View) -> Request:
        pulls = [request for request in ready if isinstance(request, Pull)]
        return stalest(pulls, view) if isinstance(ready[0], Pull) else ready[0]


@dataclass(frozen=True)
class Advancing:
    """Send first a push that raises its range's low bound, for which others may wait; pulls first in, first out.

    Source: Tsai (thesis report 2018).
    """

    def pick(self, ready: Ready, view: View) -> Request:
        if isinstance(ready[0], Pull):
            return ready[0]
        return advancing(ready, view) or ready[0]


@dataclass(frozen=True)
class Needed:
    """Send first the request for which a worker waits: the two rules of the thesis, combined.

    The thesis has two rules: pull the stalest layer, and push the layer that raises a low bound. pslab combines them:
    first the pull for which the computation waits, then a push that raises a low bound, then the stalest pull, then the
    oldest push.

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
    """Send the layers nearest to the input first, because they are computed first; of each layer, pulls before pushes.

    `ranges="layers:40000"` cuts the layers into pieces of at most 40,000 parameters, as in P3. The credit limits the
    bytes in transit, which the order can no longer rearrange (ByteScheduler: 16 MB for pieces of 4 MB). Unless the
    order is greedy, no piece may be larger than the credit, because it would never be sent.

    Source: Jayarajan et al. (MLSys 2019), Peng et al. (SOSP 2019).
    """

    credit: Annotated[
        int | None, Bounds(at_least=1), "bytes that may be in transit, sent and not yet received; none: one message"
    ] = None
    greedy: Annotated[bool, "a message of any size is sent while any credit is left"] = False

    def __post_init__(self) -> None:
        check(self)

    def pick(self, ready: Ready, view: View) -> Request:
        return min(ready, key=lambda r: (layer(r.range, view), isinstance(r, Push), r.range))

    def admits(self, under_way_bytes: float, size_bytes: float) -> bool:
        """Whether a message of `size_bytes` may be sent while `under_way_bytes` are in transit."""
        if self.credit is None:
            return under_way_bytes == 0
        return admits(self.credit, under_way_bytes, size_bytes, self.greedy)


@dataclass(frozen=True)
class TIC:
    """Send first the pull whose computation waits for the fewest other pulls; pushes first in, first out.

    This is TicTac's order without measured times. On a chain of layers it starts at the input, as TAC does.

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
    """Send first the pull that allows the most computing during other transfers; pushes first in, first out.

    This is TicTac's order with measured or modelled times of the layers' forward passes and transfers.

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
    """Return the pull of the range whose weights were read at the least low bound; on a tie of the first range."""
    return min(pulls, key=lambda pull: (_of(view.fetched, pull.range, 0), pull.range))


def advancing(ready: Ready, view: View) -> Push | None:
    """Return the push that raises its range's low bound, on a tie of the first range; None if there is none."""
    raising = [r for r in ready if isinstance(r, Push) and _of(view.alone, r.range, False)
               and view.counts[r.range] == view.low[r.range]]  # fmt: skip
    return min(raising, key=lambda push: push.range, default=None)


def layer(index: int, view: View) -> int:
    """Return the layer of a range; the range's own number if the view has no layers."""
    return _of(view.layers, index, index)


def admits(credit: float, in_flight: float, size: float, greedy: bool) -> bool:
    """Whether a message of `size` bytes may be sent while `in_flight` bytes are in transit.

    If `greedy`, the message may be sent while any credit is left (ByteScheduler's core in Python). Otherwise it must
    fit into the remaining credit (BytePS in C++), so that smaller messages may overtake larger ones.

    Source: Peng et al. (SOSP 2019).
    """
    left = credit - in_flight
    return left > 0 if greedy else size <= left


def _chain(places: Mapping[int, int], forward_s: Sequence[float] = ()) -> list[Operation]:
    """Return the forward pass of a chain of layers as operations, each of which waits for all ranges up to its layer.

    `places` has the layer of each outstanding range. An operation covers the layers from one of these up to the next.
    """
    firsts = sorted(set(places.values()))
    ends = [*firsts[1:], max(len(forward_s), firsts[-1] + 1)]
    return [Operation(sum(forward_s[first:end]), frozenset(r for r, layer in places.items() if layer <= first))
            for first, end in zip(firsts, ends, strict=True)]  # fmt: skip


@lru_cache
def _impending(layers: tuple[int, ...]) -> dict[int, float]:
    """Return TIC's measure M+ of each range, given the layer of each range."""
    places = dict(enumerate(layers))
    sums = weights(_chain(places), dict.fromkeys(places, 1.0))
    return {index: weight.impending_s for index, weight in sums.items()}


def _of(values: Sequence[Value], index: int, otherwise: Value) -> Value:
    return values[index] if index < len(values) else otherwise
