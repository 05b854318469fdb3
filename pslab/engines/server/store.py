"""Orders of the server's driver to the stores of its ranges, and the store in its own process.

A store elsewhere keeps a machine of pslab.protocol.store at the driver.
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

Dealt = list[float]  # of a push: when it was taken, and when the last step was applied that it led to


class Work(NamedTuple):
    """What comes with an order: of a step its rate and, if the run's rate joins them, the versions that workers compute
    on; when the pushes that it is about were dealt with (of a reply, its worker's last one), and that of the push that
    led to it."""

    rate: float = 0.0
    computing: Collection[int] = ()
    dealt: Sequence[Dealt | None] = ()
    led_by: Dealt | None = None


NO_WORK = Work()


class Shard(Protocol):
    """The weights at a server: tensors, or nothing but their sizes."""

    def apply(self, step: Step, rate: float, computing: Collection[int]) -> None:
        """Apply the pushes of a step, while workers compute on these versions, of which there are none unless the run's
        rate joins them; WorkerFailed if a frame is bad."""

    def lay(self, reply: Reply) -> int:
        """Lay the weights of a range ready for a worker: the bytes of the frame, or WHOLE if they lie there as such."""

    def leave(self, worker: int) -> None:
        """Forget a worker that has left."""

    @property
    def converged(self) -> bool:
        """Whether the policy's method ends the run."""

    def facts(self) -> dict[str, Any]:
        """For the manifest, of the policy's method."""


class Finished(NamedTuple):
    """What a store has done, and what follows: the pushes whose payloads no store needs any more; whether the weights
    of a reply, which lie ready in so many bytes, are to be sent; when it was begun and done."""

    order: Order
    work: Work
    free: Sequence[Push]
    sends: bool
    size_bytes: int
    begin_s: float
    done_s: float

    @classmethod
    def of(cls, done: Done, size_bytes: int, begin_s: float, done_s: float) -> Finished:
        """What a store elsewhere has done, by its machine at the driver."""
        return cls(done.order, done.about, done.free, done.sends, size_bytes, begin_s, done_s)


class Store(Protocol):
    """The weights of some ranges, at one server."""

    def hand(self, order: Order, work: Work) -> Finished | None:
        """Let this be done behind all that was handed before. What is done later goes to `ServerDriver.finished`."""

    def finish(self) -> Iterable[Finished]:
        """The run is over: all that was handed is to be done now."""


def carry_out(
    order: Order | None, work: Work, server: int, job: Job, shard: Shard, clock: Clock,
    copy: Callable[[int, int], None],
) -> tuple[int, float, float]:  # fmt: skip
    """Let a server do it: the size of what was laid ready, when it began and when it was done. `copy` copies the
    weights of a server into a snapshot."""
    begin_s, size_bytes = clock.now(), 0
    if isinstance(order, Step):
        shard.apply(order, work.rate, work.computing)
        held = sum([push.payload.size_bytes != 0 for push in order.pushes])
        clock.spend(APPLY, begin_s, held, job.shares[order.range])
    elif isinstance(order, Reply):
        size_bytes = shard.lay(order)
        on = FIND if size_bytes != WHOLE and (job.run.pull == "changed" or job.downlink) else SERVE
        clock.spend(on, begin_s, int(not order.empty), job.shares[order.pull.range])
    elif isinstance(order, Forget):
        shard.leave(order.worker)
    elif isinstance(order, Snapshot):
        copy(order.number, server)
    return size_bytes, begin_s, clock.now()


class OwnStore:
    """The store beside the driver: what it is handed is done when that returns."""

    def __init__(self, job: Job, shard: Shard, clock: Clock, ledger: Ledger) -> None:
        self._job, self._shard, self._clock, self._ledger = job, shard, clock, ledger

    def hand(self, order: Order, work: Work) -> Finished:
        took = carry_out(order, work, 0, self._job, self._shard, self._clock, self._ledger.copy)
        free = order.pushes if isinstance(order, Step) else (order.push,) if isinstance(order, Discard) else ()
        return Finished(order, work, free, isinstance(order, Reply), *took)

    def finish(self) -> Iterable[Finished]:
        return ()
