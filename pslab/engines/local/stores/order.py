"""What a server is ordered, as messages."""

from __future__ import annotations

from pslab.engines.experiment.wire import ComputedOn, Frame, Ordered
from pslab.engines.server.store import Work
from pslab.protocol.messages import NO_WORKER
from pslab.protocol.server import Reply, Step
from pslab.protocol.store import Forget, Keep, Order, Snapshot

STEP, REPLY, NOTHING = range(3)
PLAIN: dict[int, type[Snapshot | Keep | Forget]] = {3: Snapshot, 4: Keep, 5: Forget}  # orders of a number alone
KINDS = {order: kind for kind, order in PLAIN.items()}


def frame_of(order: Order, work: Work) -> Frame:
    """An order as messages."""
    if isinstance(order, Step):
        first = Ordered(STEP, order.range, order.version, order.aggregate, work.rate)
        return [first, *order.pushes, *map(ComputedOn, work.computing)]
    if isinstance(order, Reply):
        return [Ordered(REPLY, order.pull.range, order.version, order.empty), order.pull]
    if isinstance(order, Snapshot | Keep | Forget):
        return [Ordered(KINDS[type(order)], order[0])]
    return [Ordered(NOTHING, 0)]


def order_of(frame: Frame) -> tuple[Order | None, Work]:
    """The order that messages are; None if there is nothing to do, and it is done when its turn comes."""
    first, *about = frame
    if first.kind == STEP:
        computing = [message.version for message in about if isinstance(message, ComputedOn)]
        pushes = tuple(about[: len(about) - len(computing)])
        return Step(first.about, pushes, first.flag, first.version), Work(first.rate, computing)
    if first.kind == REPLY:
        return Reply(about[0], first.version, NO_WORKER, empty=first.flag), Work()
    return (PLAIN[first.kind](first.about) if first.kind in PLAIN else None), Work()
