"""The requests that wait for a worker's link: the facts that are known of them, and the order that picks the next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pslab.protocol.messages import Pull, Push

Request = Push | Pull


class View(NamedTuple):
    """The facts about a worker when one of its requests is picked. Layers and ranges are numbered from the input.

    A driver leaves empty what it does not know.
    """

    worker: int
    blocked: int | None = None  #: the range whose weights its computation waits for
    held: Sequence[int] = ()  #: per range: the low bound of the clocks when its weights were read
    counts: Sequence[int] = ()  #: per range: the number of its pushes that the server has
    low: Sequence[int] = ()  #: per range: the least such number of all workers
    alone: Sequence[bool] = ()  #: per range: whether no other worker is at that low bound
    layers: Sequence[int] = ()  #: per range: its layer; a layer may be cut into several ranges
    sizes: Sequence[int] = ()  #: per range: bytes of its weights
    forward_s: Sequence[float] = ()  #: per layer: modelled seconds of its forward pass
    byte_s: float = math.inf  #: of the worker's link


class Order(Protocol):
    """A request order: a choice among the ready requests, oldest first, made anew for each transfer; never a sort.

    A push is ready when the worker has it, a pull when the server may answer it. Over full duplex the order chooses
    for each direction among its own requests, over half duplex among all. An order with a `credit` allows several
    requests under way at a time, as its method `admits(under_way_bytes, size_bytes)` decides; any other order one.
    """

    def pick(self, ready: tuple[Request, ...], view: View) -> Request:
        """The request to send next, one of `ready`, which is not empty."""
