"""The store: a server's shard, which carries out the orders of the server that decides.

Theory of operation. One server decides for all ranges. Its machine, in `server`, treats a step as applied, and a reply
as read, as soon as it is ordered. That is correct because each store carries out its orders one after another:

    order      the store                                when the order is done
    Step       applies pushes to a range                their payloads are free, and not before
    Reply      prepares the weights of a range          they are sent, unless their worker has left since
    Snapshot   copies its weights                       the copies of all stores lie between the same two steps
    Keep       stores its tensors and their state       the parts of all stores are one checkpoint
    Forget     cancels the queued replies to a worker   nothing
    Discard    does nothing                             its payload is free, like all earlier payloads of its worker

So, whenever the store carries out a reply, its weights contain every step that was ordered before it and no later step.
Different stores need not carry out their orders in the same sequence.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pslab.errors import ProtocolError
from pslab.protocol.messages import Push
from pslab.protocol.server import Discard, Reply, Step


class Snapshot(NamedTuple):
    """Order: copy the store's weights as part of the snapshot with this number."""

    number: int


class Keep(NamedTuple):
    """Order: save the store's tensors and their state as part of the checkpoint with this number."""

    number: int


class Forget(NamedTuple):
    """Order: this worker has left; do not send it the weights of earlier orders."""

    worker: int


Order = Step | Reply | Snapshot | Keep | Forget | Discard


class Done(NamedTuple):
    """A completed order with its caller's `about`, the pushes whose payloads are free, and whether weights are sent."""

    order: Order
    about: Any
    free: tuple[Push, ...] = ()
    sends: bool = False


class StoreMachine:
    """The machine of a store: call `order` for each decision, and `done` when the oldest order is carried out."""

    def __init__(self) -> None:
        self.orders: list[tuple[Order, Any, bool]] = []  # oldest first: (order, caller's `about`, whether cancelled)
        self.versions: dict[int, int] = {}  # range: version; without an entry, the version is 0

    def order(self, order: Order, about: Any = None) -> None:
        """Queue an order behind all earlier ones."""
        if isinstance(order, Forget):
            self.orders = [(queued, more, vain or (isinstance(queued, Reply) and queued.pull.worker == order.worker))
                           for queued, more, vain in self.orders]  # fmt: skip
        self.orders.append((order, about, False))

    def done(self) -> Done:
        """Remove the oldest order, which has been carried out; return its outcome.

        Raises:
            ProtocolError: the order needs a version of its range that the store does not have.
        """
        order, about, vain = self.orders.pop(0)
        if isinstance(order, Step):
            self._expect("step", order.range, order.version - 1)
            self.versions[order.range] = order.version
            return Done(order, about, free=order.pushes)
        if isinstance(order, Reply):
            if not order.empty:
                self._expect("reply", order.pull.range, order.version)
            return Done(order, about, sends=not vain)
        return Done(order, about, free=(order.push,) if isinstance(order, Discard) else ())

    def _expect(self, what: str, index: int, version: int) -> None:
        if (here := self.versions.get(index, 0)) != version:
            raise ProtocolError(f"a {what} needs version {version} of range {index}; this store has version {here}")
