"""The request pool of a worker: pushes and pulls that are ready, and the rule that picks the next one."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from pslab.errors import ProtocolError
from pslab.protocol.messages import Pull, Push

Request = Push | Pull


class View(NamedTuple):
    """What a worker knows when it picks a request."""

    worker: int
    iteration: int  #: the iteration that it computes, or waits to start
    versions: tuple[int, ...]  #: per range, the version of the weights that it holds


class Order(Protocol):
    """A request order: a repeated choice among the ready requests, oldest first; never a sort."""

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
