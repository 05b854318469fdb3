"""The store: a server that holds weights of its own, and does what another server decides.

Theory of operation. One server decides for all ranges. Its machine, in `server`, takes a step for applied as soon as it
is ordered, and a reply for read. That is right because each store does what it is ordered one thing after another:

    order      the store                            when that is done
    Step       applies pushes to a range            their payloads are free, and not before
    Reply      lays the weights of a range ready    they are sent, unless their worker has left since
    Snapshot   copies all that it holds             if every store has: a cut between the same two steps
    Keep       keeps all that it is                 if every store has: one to which all of them can go back
    Forget     drops what it keeps of a worker      nothing
    Discard    does nothing                         its payload is free: earlier pushes of its worker are, too

So the weights of a reply contain every step that was ordered before it and none that was ordered later, whenever the
store comes to it; orders to several stores need no order among them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pslab.errors import ProtocolError
from pslab.protocol.messages import Push
from pslab.protocol.server import Discard, Reply, Step


class Snapshot(NamedTuple):
    """Order: copy the weights that are held here, as the snapshot of this number."""

    number: int


class Keep(NamedTuple):
    """An order to store the held tensors and the state that describes them, as a part of a checkpoint."""

    number: int


class Forget(NamedTuple):
    """Order: this worker has left; weights that were to be sent to it are not sent."""

    worker: int


Order = Step | Reply | Snapshot | Keep | Forget | Discard


class Done(NamedTuple):
    """An order that is done, and what came with it; the pushes whose payloads are free; whether weights are sent."""

    order: Order
    about: Any
    free: tuple[Push, ...] = ()
    sends: bool = False


class StoreMachine:
    """The machine of a store: call `order` for each decision, and `done` when the oldest order is carried out."""

    def __init__(self) -> None:
        self.orders: list[tuple[Order, Any, bool]] = []  # the oldest first; what came with it; whether it is in vain
        self.versions: dict[int, int] = {}  # of ranges with a step

    def order(self, order: Order, about: Any = None) -> None:
        """Queue an order behind all earlier ones."""
        if isinstance(order, Forget):
            self.orders = [(queued, more, vain or (isinstance(queued, Reply) and queued.pull.worker == order.worker))
                           for queued, more, vain in self.orders]  # fmt: skip
        self.orders.append((order, about, False))

    def done(self) -> Done:
        """The oldest order is done.

        Raises:
            ProtocolError: it is about another version of its range than the one that is here.
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
            raise ProtocolError(f"a {what} on version {version} of range {index} is done where version {here} is")
