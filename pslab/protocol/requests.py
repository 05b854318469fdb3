"""The request pool of a worker: pushes and pulls that wait for its link, and the rule that picks the next one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pslab.protocol.messages import Pull, Push

Request = Push | Pull


class View(NamedTuple):
    """What is known of a worker when one of its requests is picked. Layers and ranges count from the input's on.

    What a driver does not know, it leaves empty.
    """

    worker: int
    blocked: int | None = None  #: the range for which its computing waits now
    held: Sequence[int] = ()  #: per range: the low bound of the clocks when the weights that it holds were read
    counts: Sequence[int] = ()  #: per range: its pushes that the server has
    low: Sequence[int] = ()  #: per range: the least of these over all workers
    alone: Sequence[bool] = ()  #: per range: whether it is the only one at that low bound
    layers: Sequence[int] = ()  #: per range: its layer; a layer may be cut into several ranges
    sizes: Sequence[int] = ()  #: per range: bytes of its weights
    forward_s: Sequence[float] = ()  #: per layer: modelled seconds of its forward pass
    byte_s: float = math.inf  #: of the worker's link


class Order(Protocol):
    """A request order: a repeated choice among the ready requests, oldest first; never a sort.

    Pushes are ready at the worker, pulls at the server, once it may answer them; with full duplex each direction is
    asked for its own, with half duplex one link for both. An order with a `credit` lets so many bytes be on their way
    at a time, as its method `admits(under_way_bytes, size_bytes)` says; one without, one request.
    """

    def pick(self, ready: tuple[Request, ...], view: View) -> Request:
        """The request to send next: one of `ready`, which is not empty."""
