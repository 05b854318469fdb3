"""The process of a server that does not decide: it holds weights, and does what it is ordered.

Orders come with the messages that they are about, and what came of each goes back. Payloads lie in shared memory.
"""

from __future__ import annotations

import contextlib

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import Carried, ComputedOn, Frame, Go, Ordered, Stop
from pslab.engines.local.lines.ends import order_stream
from pslab.engines.local.lines.stream import Spin, ready
from pslab.engines.local.recovery.server_state import restored_shard, send_part
from pslab.engines.processes.channel import LifeSigns, report
from pslab.engines.processes.child import ProcessContext
from pslab.engines.server.clock import WallClock
from pslab.engines.server.ledger import copy_held
from pslab.engines.server.shard import TensorShard
from pslab.engines.server.store import Work, carry_out
from pslab.protocol.messages import NO_WORKER
from pslab.protocol.server import Reply, Step
from pslab.protocol.store import Forget, Keep, Order, Snapshot

STEP, REPLY, NOTHING = range(3)  # kinds of `Ordered`
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


class LocalStore:
    """The role of another server's process, for one run: its weights, and the operations on them. A new process is
    given its part of a checkpoint."""

    iteration = 0  # it has none

    def __init__(self, context: ProcessContext, job: Job, server: int, part: bytearray | None = None) -> None:
        job = job.on(context.data)
        self._context, self._job, self._server, self._clock = context, job, server, WallClock()
        self._orders = order_stream(job, context.pipes[0], decides=False)
        self._shard = (TensorShard(job, context.arena) if part is None
                       else restored_shard(job, context, server, part))  # fmt: skip
        self._spin = None if job.cluster.emulated else Spin()
        self._over = False  # whether the decider has said so
        self._life = LifeSigns(context.parent, job.run.lease_s)

    def run(self, dilation: float) -> None:
        """Do what the decider orders until it says stop, or is gone."""
        self._clock.dilation, self._over = dilation, False
        try:
            while not self._over:
                self._turn()
            report(self._context.parent, "stored")
            self._tell([Stop(0)])
        except EOFError:
            return
        except BaseException:
            self._context.pipes[0].close()  # the decider is not to wait for it
            raise

    def _turn(self) -> None:
        """Wait for something to do, and do it. What is done may take less CPU time than the system counts."""
        self._life.give()
        if ready([self._orders.descriptor], self._life.period_s, self._spin):
            self._obey()

    def _obey(self) -> None:
        """Do what the decider says."""
        for frame in self._orders.frames():
            first = frame[0]
            if isinstance(first, Stop):
                self._over = True
            elif isinstance(first, Go):
                self._clock.start(self._clock.dilation, first.zero_s)
            else:
                self._carry_out(frame)

    def _tell(self, frame: Frame) -> None:
        with contextlib.suppress(OSError):  # the decider may be gone, which is noticed where its stream is read
            self._orders.send(frame)

    def copy(self, index: int, server: int) -> None:
        """Copy what is held here into a snapshot."""
        copy_held(self._job, self._shard.weights, self._context.snapshots, index, server)
        report(self._context.parent, "copied", {"index": index})

    def _carry_out(self, frame: Frame) -> None:
        order, work = order_of(frame)
        if isinstance(order, Keep):
            begin_s = self._clock.now()
            send_part(self._context, order.number, {}, self._shard.state(self._server))
            took = 0, begin_s, self._clock.now()
        else:
            took = carry_out(order, work, self._server, self._job, self._shard, self._clock, self.copy)
        self._tell([Carried(*took)])
