"""What the server's driver hands to the stores of its ranges, and the store in its own process, which does it at once.

A store elsewhere keeps a machine of pslab.protocol.store at the driver; what that says is passed on by `pass_on`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import WHOLE
from pslab.engines.server.clock import APPLY, FIND, SERVE, Clock
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
        """A worker has left."""

    @property
    def converged(self) -> bool:
        """Whether the policy's method ends the run."""

    def facts(self) -> dict[str, Any]:
        """For the manifest, of the policy's method."""


class StoreListener(Protocol):
    """Who hears of what is done, and when: the driver."""

    def applied(self, step: Step, work: Work, done_s: float) -> None: ...

    def free(self, pushes: Sequence[Push], work: Work, now: float) -> None: ...

    def laid(self, reply: Reply, work: Work, size_bytes: int, begin_s: float, done_s: float) -> None: ...

    def copied(self, index: int, done_s: float) -> None: ...


class Store(Protocol):
    """The weights of some ranges, at one server."""

    def hand(self, order: Order, work: Work, hearer: StoreListener) -> None:
        """Let this be done behind all that was handed before."""

    def finish(self, hearer: StoreListener) -> None:
        """The run is over: all that was handed is to be done now."""


class Copies(Protocol):
    """Where snapshots go: the ledger, where that is."""

    def copy(self, index: int, server: int) -> None:
        """Copy the weights of a server into a snapshot."""


def carry_out(
    order: Order | None, work: Work, server: int, job: Job, shard: Shard, clock: Clock, copies: Copies
) -> tuple[int, float, float]:
    """Let a server do it: the size of what was laid ready, when it began and when it was done."""
    begin_s, size_bytes = clock.now(), 0
    if isinstance(order, Step):
        shard.apply(order, work.rate, work.computing)
        held = sum([push.payload.size_bytes != 0 for push in order.pushes])
        clock.spend(APPLY, begin_s, held, job.shares[order.range])
    elif isinstance(order, Reply):
        size_bytes = shard.lay(order)
        on = FIND if size_bytes != WHOLE and job.run.pull == "changed" else SERVE
        clock.spend(on, begin_s, int(not order.empty), job.shares[order.pull.range])
    elif isinstance(order, Forget):
        shard.leave(order.worker)
    elif isinstance(order, Snapshot):
        copies.copy(order.number, server)
    return size_bytes, begin_s, clock.now()


class OwnStore:
    """The store beside the driver: what it is handed is done when that returns."""

    def __init__(self, job: Job, shard: Shard, clock: Clock, copies: Copies) -> None:
        self._job, self._shard, self._clock, self._copies = job, shard, clock, copies

    def hand(self, order: Order, work: Work, hearer: StoreListener) -> None:
        size_bytes, begin_s, done_s = carry_out(order, work, 0, self._job, self._shard, self._clock, self._copies)
        if isinstance(order, Step):
            hearer.applied(order, work, done_s)
            hearer.free(order.pushes, work, done_s)
        elif isinstance(order, Reply):
            hearer.laid(order, work, size_bytes, begin_s, done_s)
        elif isinstance(order, Discard):
            hearer.free((order.push,), work, done_s)
        elif isinstance(order, Snapshot):
            hearer.copied(order.number, done_s)

    def finish(self, hearer: StoreListener) -> None:
        """It is done."""


def pass_on(done: Done, hearer: StoreListener, size_bytes: int, begin_s: float, done_s: float) -> None:
    """A store elsewhere has done something."""
    order, work = done.order, done.about
    if isinstance(order, Step):
        hearer.applied(order, work, done_s)
    if done.free:
        hearer.free(done.free, work, done_s)
    if isinstance(order, Reply) and done.sends:
        hearer.laid(order, work, size_bytes, begin_s, done_s)
    elif isinstance(order, Snapshot):
        hearer.copied(order.number, done_s)
