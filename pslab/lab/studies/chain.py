"""A chain of layers and one link, without tensors: what an iteration takes under a request order, and at least.

The forward pass goes from the input on, the backward pass back. A layer's gradient is pushed when its backward pass has
ended; its weights are pulled when the push has arrived, and are there before its next forward pass. This is one worker,
or any number of equal ones under BSP whose links do not share anything.

When the last layer's forward pass begins all weights have been pulled, and nothing is on the link until its backward
pass has ended: every iteration is like the first, and one says it all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from pslab.errors import ConfigError, nearest
from pslab.protocol.messages import Pull, Push
from pslab.protocol.requests import Order, Request, View

UP, DOWN = "up", "down"


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Layers, the input's first, and the link. What is pushed of a layer is as large as what is pulled.

    Raises:
        ConfigError: no layers, or times and sizes that cannot be.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    sizes: tuple[int, ...]  #: bytes of each layer
    byte_s: float = 1.0  #: of the link; per direction if its duplex is full
    duplex: str = "full"
    piece_bytes: int | None = None  #: the largest message; a layer's last one may be smaller
    overhead_s: float = 0.0  #: how much longer each message keeps the link busy
    latency_s: float = 0.0  #: from the end of a message to its arrival; the link is free meanwhile
    workers: int = 1

    def __post_init__(self) -> None:
        if not 0 < len(self.forward_s) == len(self.backward_s) == len(self.sizes):
            raise ConfigError("sizes", self.sizes, "forward_s, backward_s and sizes need an entry for each layer")
        if min(*self.forward_s, *self.backward_s, self.overhead_s, self.latency_s) < 0 or min(self.sizes) < 1:
            raise ConfigError("sizes", self.sizes, "times must not be negative, and sizes at least 1")
        if not self.byte_s > 0 or (self.piece_bytes is not None and self.piece_bytes < 1) or self.workers < 1:
            raise ConfigError("piece_bytes", self.piece_bytes, "byte_s, piece_bytes and workers must be above 0")
        if self.duplex not in ("full", "half"):
            raise ConfigError("duplex", self.duplex, nearest(self.duplex, ("full", "half")))

    @cached_property
    def pieces(self) -> tuple[tuple[int, int], ...]:
        """Per range its layer and its bytes: whole pieces, then the rest."""
        most = self.piece_bytes or max(self.sizes)
        return tuple((layer, min(most, size - done)) for layer, size in enumerate(self.sizes)
                     for done in range(0, size, most))  # fmt: skip

    @cached_property
    def message_s(self) -> tuple[float, ...]:
        """Per range: how long its push, or its pull, keeps the link busy."""
        return tuple(size / self.byte_s + self.overhead_s for _, size in self.pieces)

    @cached_property
    def ready_s(self) -> tuple[float, ...]:
        """Per layer: when its gradient is ready, after the last layer's backward pass has begun."""
        return tuple(accumulate(reversed(self.backward_s)))[::-1]

    @cached_property
    def tail_s(self) -> tuple[float, ...]:
        """Per layer: from the begin of its forward pass to the last layer's end, if nothing is waited for."""
        return tuple(accumulate(reversed(self.forward_s)))[::-1]

    @property
    def compute_s(self) -> float:
        """Forward and backward pass."""
        return self.ready_s[0] + self.tail_s[0]

    @property
    def load_s(self) -> float:
        """How long the busier direction of the link is busy in an iteration; both together if its duplex is half."""
        return sum(self.message_s) * (2 if self.duplex == "half" else 1)


def lower_bound_s(chain: Chain) -> float:
    """What an iteration takes at least, whatever the order, also one that waits on purpose.

    Of some neighbouring layers nothing can be pushed before the last one's gradient is ready, and after the last of
    their pulls has arrived at least the layers from there on are still to be computed forward; in between all their
    messages share the link. With full duplex the first pull waits for a push, and a pull follows the last push. The
    input's layer alone is the critical path of computing. Never below the computation, and never below the load.
    """
    by_layer: list[list[float]] = [[] for _ in chain.sizes]
    for (layer, _), seconds in zip(chain.pieces, chain.message_s, strict=True):
        by_layer[layer].append(seconds)
    least_s, loads_s = [min(messages) for messages in by_layer], [sum(messages) for messages in by_layer]
    found = 0.0
    for first in range(len(by_layer)):
        load_s, first_s, last_s = 0.0, math.inf, math.inf
        for last in range(first, len(by_layer)):
            ready_s, tail_s = chain.ready_s[last], chain.tail_s[last]
            load_s += loads_s[last]
            first_s = min(first_s, ready_s + least_s[last])  # a push has been sent
            last_s = min(last_s, least_s[last] + tail_s)  # from the last pull's begin
            if chain.duplex == "half":
                found = max(found, ready_s + 2 * load_s + chain.latency_s + tail_s)
            else:
                found = max(found, 2 * chain.latency_s + load_s + max(ready_s + last_s, first_s + tail_s))
    return found


class Span(NamedTuple):
    """Something that took time: a layer's forward or backward pass, the push or pull of a range of it."""

    what: str
    layer: int
    range: int  #: -1 for computing
    begin_s: float
    end_s: float


class Trace(NamedTuple):
    """A backward pass, an exchange, a forward pass: from one begin of the last layer's backward pass to the next."""

    iteration_s: float
    spans: tuple[Span, ...]

    def of(self, what: str) -> dict[int, tuple[float, float]]:
        """Begin and end: by layer of computing, by range of messages."""
        computing = what in ("forward", "backward")
        return {s.layer if computing else s.range: (s.begin_s, s.end_s) for s in self.spans if s.what == what}


def trace(chain: Chain, order: Order) -> Trace:
    """One iteration under a request order; with a credit, if the order has one, in each direction of the link.

    At an instant what has ended comes first; then what is thereby ready; then idle links pick.

    Raises:
        ConfigError: a piece is larger than the order's credit, and would never go.
    """
    credit = getattr(order, "credit", None)
    largest = max(size for _, size in chain.pieces)
    if credit is not None and not order.admits(0, largest):  # type: ignore[attr-defined]
        raise ConfigError("piece_bytes", chain.piece_bytes,
                          f"a message of {largest} bytes never goes on a credit of {credit}: cut layers smaller")
    return _Iteration(chain, order).run()


class _Channel:
    """One direction of the link, or both: what waits, what was handed to it, what is on its way."""

    def __init__(self) -> None:
        self.ready: list[Request] = []
        self.handed: list[Request] = []  # with a credit the link has more than one; what is in it keeps its order
        self.sending: tuple[float, Request] | None = None  # until when
        self.in_flight_bytes = 0


class _Iteration:
    """The machine behind `trace`."""

    def __init__(self, chain: Chain, order: Order) -> None:
        self.chain, self.order = chain, order
        self.credit: bool = getattr(order, "credit", None) is not None
        up = _Channel()
        self.channels = {UP: up, DOWN: up if chain.duplex == "half" else _Channel()}
        self.links = list(dict.fromkeys(self.channels.values()))
        ranges, last = len(chain.pieces), len(chain.sizes) - 1
        self.layers = tuple(layer for layer, _ in chain.pieces)
        self.sizes = tuple(size for _, size in chain.pieces)
        self.counts, self.held = [0] * ranges, [0] * ranges  # iterations whose push the server has, and is in weights
        self.missing = [self.layers.count(layer) for layer in range(last + 1)]  # pulls, by layer
        self.computing: tuple[float, str, int] | None = (chain.backward_s[last], "backward", last)
        self.forward = 0  # the layer whose forward pass is next
        self.flying: list[tuple[float, Request]] = []  # sent whole, arriving at an instant
        self.heard: list[tuple[float, _Channel, int]] = []  # when a sender hears of so many bytes' arrival
        self.spans: list[Span] = [Span("backward", last, -1, 0.0, chain.backward_s[last])]
        self.now = 0.0

    def run(self) -> Trace:
        while self.forward < len(self.chain.sizes) or self.computing:
            self.now = min(self._instants())
            self._end_computing()
            self._end_messages()
            for link in self.links:
                self._pick(link)
            self._compute()
        return Trace(self.now, tuple(self.spans))

    def _instants(self) -> Iterator[float]:
        yield from (link.sending[0] for link in self.links if link.sending)
        yield from (at for at, _ in self.flying)
        yield from (at for at, _, _ in self.heard)
        if self.computing:
            yield self.computing[0]

    def _end_computing(self) -> None:
        if self.computing is None or self.computing[0] > self.now:
            return
        _, what, layer = self.computing
        self.computing = None
        if what == "backward":
            mine = (Push(0, index, 0, 0) for index, place in enumerate(self.layers) if place == layer)
            self.channels[UP].ready += mine
            if layer:
                self._begin("backward", layer - 1, self.chain.backward_s[layer - 1])

    def _end_messages(self) -> None:
        for link in self.links:
            if link.sending and link.sending[0] <= self.now:
                request, latency_s = link.sending[1], self.chain.latency_s
                self.flying.append((self.now + latency_s, request))
                if self.credit:
                    self.heard.append((self.now + 2 * latency_s, link, self.sizes[request.range]))
                link.sending = None
        for known in [each for each in self.heard if each[0] <= self.now]:
            self.heard.remove(known)
            known[1].in_flight_bytes -= known[2]
        for arrival in [each for each in self.flying if each[0] <= self.now]:
            self.flying.remove(arrival)
            self._arrive(arrival[1])

    def _arrive(self, request: Request) -> None:
        index = request.range
        if isinstance(request, Push):
            self.counts[index] = 1
            self.channels[DOWN].ready.append(Pull(0, index, 1, 0))
        else:
            self.held[index] = 1
            self.missing[self.layers[index]] -= 1

    def _pick(self, link: _Channel) -> None:
        while candidates := self._admitted(link):
            request = candidates[0]
            if len(candidates) > 1:
                request = self.order.pick(tuple(candidates), self._view())
            link.ready.remove(request)
            link.handed.append(request)
            link.in_flight_bytes += self.sizes[request.range]
        if link.handed and link.sending is None:
            request = link.handed.pop(0)
            end_s = self.now + self.chain.message_s[request.range]
            link.sending = end_s, request
            what = "push" if isinstance(request, Push) else "pull"
            self.spans.append(Span(what, self.layers[request.range], request.range, self.now, end_s))

    def _admitted(self, link: _Channel) -> list[Request]:
        if not self.credit:
            return [] if link.sending or link.handed else link.ready
        admits: Callable[[int, int], bool] = self.order.admits  # type: ignore[attr-defined]
        return [r for r in link.ready if admits(link.in_flight_bytes, self.sizes[r.range])]

    def _view(self) -> View:
        chain, waiting = self.chain, self.computing is None and self.forward < len(self.chain.sizes)
        blocked = next((index for index, layer in enumerate(self.layers) if layer == self.forward
                        and not self.held[index]), None) if waiting else None  # fmt: skip
        return View(0, blocked, self.held, self.counts, self.counts, (chain.workers == 1,) * len(self.counts),
                    self.layers, self.sizes, chain.forward_s, chain.byte_s)  # fmt: skip

    def _compute(self) -> None:
        if self.computing is None and self.forward < len(self.missing) and not self.missing[self.forward]:
            self._begin("forward", self.forward, self.chain.forward_s[self.forward])
            self.forward += 1

    def _begin(self, what: str, layer: int, seconds: float) -> None:
        self.computing = self.now + seconds, what, layer
        self.spans.append(Span(what, layer, -1, self.now, self.now + seconds))
