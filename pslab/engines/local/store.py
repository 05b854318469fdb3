"""The process of a server that does not decide: it stores weights, and executes the deciding server's orders.

An order comes with the pushes or the request that it executes, and is answered by a report. Payloads are in shared
memory.
"""

from __future__ import annotations

import contextlib

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import Carried, ComputedOn, Frame, Go, Ordered, Stop
from pslab.engines.local.lines.ends import TO_STORE
from pslab.engines.local.lines.stream import Spin, Stream, ready
from pslab.engines.local.recovery.server_state import restored_shard, send_part
from pslab.engines.processes.channel import LifeSigns, report
from pslab.engines.processes.child import ProcessContext
from pslab.engines.server.clock import WallClock
from pslab.engines.server.ledger import copy_held
from pslab.engines.server.shard_modes import shard_of
from pslab.engines.server.store import Details, carry_out
from pslab.protocol.messages import NO_WORKER
from pslab.protocol.server import Reply, Step
from pslab.protocol.store import Forget, Keep, Order, Snapshot

STEP, REPLY, NOTHING = range(3)  # kinds of `Ordered`
PLAIN: dict[int, type[Snapshot | Keep | Forget]] = {3: Snapshot, 4: Keep, 5: Forget}  # orders that consist of a number
KINDS = {order: kind for kind, order in PLAIN.items()}


def frame_of(order: Order, details: Details) -> Frame:
    """Return the messages of an order: the first is an Ordered."""
    if isinstance(order, Step):
        first = Ordered(STEP, order.range, order.version, order.aggregate, details.rate)
        return [first, *order.pushes, *map(ComputedOn, details.computing)]
    if isinstance(order, Reply):
        return [Ordered(REPLY, order.pull.range, order.version, order.empty), order.pull]
    if isinstance(order, Snapshot | Keep | Forget):
        return [Ordered(KINDS[type(order)], order[0])]
    return [Ordered(NOTHING, 0)]


def order_of(frame: Frame) -> tuple[Order | None, Details]:
    """Return the order of these messages, with its details; the order is None if there is nothing to do."""
    # the inverse of `frame_of`: change both
    first, *about = frame
    if first.kind == STEP:
        computing = [message.version for message in about if isinstance(message, ComputedOn)]
        pushes = tuple(about[: len(about) - len(computing)])
        return Step(first.about, pushes, first.flag, first.version), Details(first.rate, computing)
    if first.kind == REPLY:
        return Reply(about[0], first.version, NO_WORKER, empty=first.flag), Details()
    return (PLAIN[first.kind](first.about) if first.kind in PLAIN else None), Details()


class LocalStore:
    """The role of a process of a server that does not decide, for one run; `part` is its part of a checkpoint."""

    iteration = 0  # stores have no iteration

    def __init__(self, context: ProcessContext, job: Job, server: int, part: bytearray | None = None) -> None:
        job = job.on(context.data)
        self._context, self._job, self._server, self._clock = context, job, server, WallClock()
        self._orders = Stream(context.pipes[0], TO_STORE, lease_s=job.run.lease_s)
        self._shard = (shard_of(job, context.arena) if part is None
                       else restored_shard(job, context, server, part))  # fmt: skip
        self._spin = None if job.cluster.emulated else Spin()
        self._over = False  # whether the deciding server has sent a Stop
        self._life = LifeSigns(context.parent, job.run.lease_s)

    def run(self, dilation: float) -> None:
        """Execute the deciding server's orders until it sends a Stop, or has ended."""
        self._clock.dilation, self._over = dilation, False
        try:
            while not self._over:
                self._life.give()  # orders may take less CPU time than the system counts
                if ready([self._orders.descriptor], self._life.period_s, self._spin):
                    self._obey()
            report(self._context.parent, "stored")
            self._tell([Stop(0)])
        except EOFError:
            return
        except BaseException:
            self._context.pipes[0].close()  # so that the deciding server does not wait
            raise

    def _obey(self) -> None:
        for frame in self._orders.frames():
            first = frame[0]
            if isinstance(first, Stop):
                self._over = True
            elif isinstance(first, Go):
                self._clock.start(self._clock.dilation, first.zero_s)
            else:
                self._carry_out(frame)

    def _tell(self, frame: Frame) -> None:
        with contextlib.suppress(OSError):  # if the stream is closed, this is noticed when it is read
            self._orders.send(frame)

    def copy(self, index: int, server: int) -> None:
        """Copy this server's weights into a snapshot, and report it."""
        copy_held(self._job, self._shard.weights, self._context.snapshots, index, server)
        report(self._context.parent, "copied", {"index": index})

    def _carry_out(self, frame: Frame) -> None:
        order, details = order_of(frame)
        if isinstance(order, Keep):
            begin_s = self._clock.now()
            # an order like the others: the part has all earlier steps and no later one
            send_part(self._context, order.number, {}, self._shard.state(self._server))
            took = 0, begin_s, self._clock.now()
        else:
            took = carry_out(order, details, self._server, self._job, self._shard, self._clock, self.copy)
        # in the sequence of the orders: the deciding server's StoreMachine assigns it to the oldest one
        self._tell([Carried(*took)])
