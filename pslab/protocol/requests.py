"""Requests that wait for a worker's link: the facts about them, and the order that picks the next request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pslab.protocol.messages import Pull, Push

Request = Push | Pull


class View(NamedTuple):
    """The facts about a worker that a request order may use. Layers and ranges are numbered from the input.

    Fields that the driver does not know keep their defaults.
    """

    worker: int
    blocked: int | None = None  #: the range whose weights the computation waits for; None if it does not wait
    fetched: Sequence[int] = ()  #: per range: the low bound when the server last read its weights for this worker
    counts: Sequence[int] = ()  #: per range: the number of this worker's pushes that the server has
    low: Sequence[int] = ()  #: per range: the low bound, which is the least of `counts` over all workers
    alone: Sequence[bool] = ()  #: per range: whether this worker is the only one at the low bound
    layers: Sequence[int] = ()  #: per range: its layer; a layer may be cut into several ranges
    sizes: Sequence[int] = ()  #: per range: bytes of its weights
    forward_s: Sequence[float] = ()  #: per layer: modelled seconds of its forward pass
    byte_s: float = math.inf  #: bytes per second of the worker's link


class Order(Protocol):
    """A request order: for each transfer, it picks one of the ready requests, which are given oldest first.

    A push is ready when the worker has computed it, a pull when the server may answer it. Over full duplex the order
    picks a request for each direction, over half duplex one for both. An order with a `credit` allows several requests
    under way at a time, as its method `admits(under_way_bytes, size_bytes)` decides; other orders allow one.
    """

    def pick(self, ready: tuple[Request, ...], view: View) -> Request:
        """Return the request to send next: one of `ready`, which is not empty."""
