"""The stores of ranges, which carry out the orders of the server's driver, and the store in the driver's process.

A store in another process has a StoreMachine (pslab.protocol.store) in the driver's process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import WHOLE
from pslab.engines.server.clock import APPLY, FIND, SERVE, Clock
from pslab.engines.server.ledger import Ledger
from pslab.protocol.messages import Push
from pslab.protocol.server import Discard, Reply, Step
from pslab.protocol.store import Done, Forget, Order, Snapshot

PushTimes = list[float]  # of a push: when it was taken, and when the last step that it led to was applied


class Details(NamedTuple):
    """Numbers that a store needs beside an order."""

    rate: float = 0.0  #: the learning rate of a step
    computing: Collection[int] = ()  #: the versions on which workers compute, if the run's rate needs them
    times: Sequence[PushTimes | None] = ()  #: times of the order's pushes; of a reply, times of the worker's last push
    led_by: PushTimes | None = None  #: times of the push that led to a step


NO_DETAILS = Details()


class Shard(Protocol):
    """The weights at a server: tensors, or only their sizes in a run without tensors."""

    def apply(self, step: Step, rate: float, computing: Collection[int]) -> None:
        """Apply the pushes of a step at a learning rate; raise WorkerFailed if a frame is bad. `computing`: versions on
        which workers compute meanwhile, if the run's rate needs them."""

    def lay(self, reply: Reply) -> int:
        """Prepare the weights of a range for a worker; return the bytes of the frame, or WHOLE for a plain array."""

    def leave(self, worker: int) -> None:
        """Forget the state for a worker that has left."""

    @property
    def converged(self) -> bool:
        """Whether the policy's method ends the run."""

    def facts(self) -> dict[str, Any]:
        """Return the facts about the policy's method for the manifest."""


class Finished(NamedTuple):
    """An order that a store has carried out."""

    order: Order
    details: Details
    free: Sequence[Push]  #: pushes whose payloads are free
    sends: bool  #: whether the weights of a reply are to be sent
    size_bytes: int  #: the bytes of a reply's weights; 0 for other orders
    begin_s: float
    done_s: float

    @classmethod
    def of(cls, done: Done, size_bytes: int, begin_s: float, done_s: float) -> Finished:
        """Return an order that a store in another process has carried out, from its StoreMachine's outcome."""
        return cls(done.order, done.about, done.free, done.sends, size_bytes, begin_s, done_s)


class Store(Protocol):
    """Carries out orders on the weights of one server's ranges."""

    def hand(self, order: Order, details: Details) -> Finished | None:
        """Carry out an order after all earlier orders. Return it if it is done; else return None, and pass it to
        `ServerDriver.finished` later."""

    def finish(self) -> Iterable[Finished]:
        """Carry out the remaining orders at the end of the run, and return them."""


def carry_out(
    order: Order | None, details: Details, server: int, job: Job, shard: Shard, clock: Clock,
    copy: Callable[[int, int], None],
) -> tuple[int, float, float]:  # fmt: skip
    """Carry out an order at a server; return the bytes of a reply (else 0), and when the order was begun and done.
    `copy(snapshot, server)` copies a server's weights into a snapshot."""
    begin_s, size_bytes = clock.now(), 0
    if isinstance(order, Step):
        shard.apply(order, details.rate, details.computing)
        # a push without entries costs nothing
        count = sum([push.payload.size_bytes != 0 for push in order.pushes])
        clock.spend(APPLY, begin_s, count, job.shares[order.range])
    elif isinstance(order, Reply):
        size_bytes = shard.lay(order)
        # differences are found and encoded first, which costs more than a copy
        on = FIND if size_bytes != WHOLE and (job.run.pull == "changed" or job.downlink) else SERVE
        clock.spend(on, begin_s, int(not order.empty), job.shares[order.pull.range])
    # in its turn: earlier steps still contain pushes of the worker, and may need its state
    elif isinstance(order, Forget):
        shard.leave(order.worker)
    elif isinstance(order, Snapshot):
        copy(order.number, server)
    return size_bytes, begin_s, clock.now()


class OwnStore:
    """The store in the driver's process: an order is done when `hand` returns."""

    def __init__(self, job: Job, shard: Shard, clock: Clock, ledger: Ledger) -> None:
        self._job, self._shard, self._clock, self._ledger = job, shard, clock, ledger

    def hand(self, order: Order, details: Details) -> Finished:
        took = carry_out(order, details, 0, self._job, self._shard, self._clock, self._ledger.copy)
        free = order.pushes if isinstance(order, Step) else (order.push,) if isinstance(order, Discard) else ()
        return Finished(order, details, free, isinstance(order, Reply), *took)

    def finish(self) -> Iterable[Finished]:
        return ()
