"""The request pool of a worker: pushes and pulls that are ready, and the rule that picks the next one."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from pslab.errors import ProtocolError
from pslab.protocol.messages import Pull, Push

Request = Push | Pull


class View(NamedTuple):
    """What is known where a request is picked. What a driver does not know, it leaves empty."""

    worker: int
    iteration: int  #: that it computes, or waits to compute
    blocked: int | None = None  #: the range for which its computing waits now
    held: tuple[int, ...] = ()  #: per range: the range's low bound when the weights that it holds were read
    counts: tuple[int, ...] = ()  #: per range: its pushes that the server has
    low: tuple[int, ...] = ()  #: per range: the least of these over all workers, the low bound
    alone: tuple[bool, ...] = ()  #: per range: whether nobody else is at the low bound
    layers: tuple[int, ...] = ()  #: per range: its layer, the input's first; a layer may be cut into several ranges
    sizes: tuple[int, ...] = ()  #: per range: bytes of its weights
    forward_s: tuple[float, ...] = ()  #: per layer: modelled seconds of its forward pass
    byte_s: float = math.inf  #: bytes a second of the worker's link


class Order(Protocol):
    """A request order: a repeated choice among the ready requests, oldest first; never a sort.

    Whenever a direction of a worker's link is idle (with half duplex: the link) it is asked what goes next: pushes wait
    at the worker, answered pulls at the server. What has begun is not interrupted. An order may have more attributes:

    credit_bytes  bytes that may be on their way at once; what else is ready is not yet handed to the link
    greedy        True: whatever goes next may go while any credit is left (see `pslab.policies.orders.admits`)
    """

    def pick(self, ready: tuple[Request, ...], view: View) -> Request:
        """The request to send next: one of `ready`, which is not empty."""


class Pool:
    """Ready requests in the order in which they became ready; at most a push and a pull per range and iteration."""

    def __init__(self, ranges: int) -> None:
        self.limit = 4 * ranges  # two iterations' pushes and pulls
        self.ready: tuple[Request, ...] = ()

    def add(self, request: Request) -> None:
        """A request became ready.

        Raises:
            ProtocolError: the pool is full, or holds this request already.
        """
        if len(self.ready) >= self.limit or request in self.ready:
            raise ProtocolError(f"the pool of {len(self.ready)} requests cannot take {request}")
        self.ready += (request,)

    def take(self, order: Order, view: View) -> Request | None:
        """The next request by `order`, no longer in the pool; None if nothing is ready."""
        if not self.ready:
            return None
        if len(self.ready) == 1:
            (picked,) = self.ready
        else:
            picked = order.pick(self.ready, view)
        if picked not in self.ready:
            raise ProtocolError(f"{order} picked {picked}, which is not ready")
        self.ready = tuple(r for r in self.ready if r is not picked)
        return picked
