"""The process of a server that does not decide: it holds weights, and does what it is ordered.

Orders come with the messages that they are about, and what came of each goes back. Payloads lie in shared memory; where
there is none, they come from the workers and go to them on streams of its own, whose messages it passes on.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from multiprocessing.connection import Connection

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import Carried, ComputedOn, Ended, Frame, Go, Joined, Ordered, Stop
from pslab.engines.local.lines.ends import order_stream, server_stream
from pslab.engines.local.lines.stream import NoFrame, Spin, Stream, ready
from pslab.engines.local.recovery.server_state import restored_shard, send_part
from pslab.engines.processes.channel import LifeSigns, report
from pslab.engines.processes.child import ProcessContext
from pslab.engines.server.clock import WallClock
from pslab.engines.server.ledger import copy_held, show_held
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


@dataclass(frozen=True)
class StoreRole:
    """The role of a process, for one run; a new process is given its part of a checkpoint."""

    server: int
    servers: int

    @property
    def called(self) -> str:
        return f"server {self.server} of {self.servers}"

    def __call__(self, context: ProcessContext, job: Job, part: bytearray | None = None) -> LocalStore:
        return LocalStore(context, job, self, part)


class LocalStore:
    """A server's weights, and what is done to them."""

    iteration = 0  # it has none

    def __init__(self, context: ProcessContext, job: Job, role: StoreRole, part: bytearray | None = None) -> None:
        context, job = context.with_offset_now(), job.on(context.data)
        self._context, self._job, self._role, self._clock = context, job, role, WallClock()
        self._orders = order_stream(job, context, 0, decides=False)
        self._shard = (TensorShard(job, context.arena) if part is None
                       else restored_shard(job, context, role.server, part))  # fmt: skip
        self._spin = None if job.cluster.emulated else Spin()
        self._workers: dict[int, Stream] = {}  # which bring and get the numbers, where memory is not shared
        self._whose: dict[int, int] = {}  # of each of these streams
        self._over = False  # whether the decider has said so
        self._life = LifeSigns(context.parent, job.run.lease_s)

    def run(self, dilation: float) -> None:
        """Do what the decider orders until it says stop, or is gone."""
        self._clock.dilation, self._over = dilation, False
        try:
            for worker in range(self._job.run.workers) if not self._context.arena.shared else ():
                self._listen(worker, self._context.line_of(worker))
            while self._workers or not self._over:
                self._turn()
            show_held(self._job, self._context.arena, self._role.server)
            report(self._context.parent, "stored")
            self._context.show_all()  # before the decider may say that the run has ended
            self._tell([Stop(0)])
        except EOFError:
            return
        except BaseException:
            self._context.pipes[0].close()  # the decider is not to wait for it
            raise

    def _turn(self) -> None:
        """Wait for something to do, and do it. What is done may take less CPU time than the system counts."""
        self._life.give()
        for source in ready([self._orders.descriptor, *self._whose], self._life.period_s, self._spin):
            if source == self._orders.descriptor:
                self._obey()
            elif source in self._whose:
                self._hear(self._whose[source])

    def _obey(self) -> None:
        """Do what the decider says, or pass weights on to a worker."""
        for frame in self._orders.frames():
            first = frame[0]
            if isinstance(first, Stop):
                self._over = True
                for worker in self._workers:
                    self._send(worker, frame)
            elif isinstance(first, Go):
                self._clock.start(self._clock.dilation, first.zero_s - self._context.offset[0])
            elif isinstance(first, Ordered):
                self._carry_out(frame)
            elif isinstance(first, Joined):
                self._listen(first.worker, self._context.line_of(first.worker, anew=True))
            elif isinstance(first, Ended):  # messages that came before are dealt with
                while first.worker in self._workers and self._hear(first.worker):
                    pass
                self._end(first.worker, "")
            else:
                self._send(frame[-1].worker, frame)

    def _listen(self, worker: int, pipe: Connection) -> None:
        stream = server_stream(self._job, self._context, pipe, worker, self._role.server)
        self._workers[worker], self._whose[stream.descriptor] = stream, worker

    def _hear(self, worker: int) -> bool:
        """Pass on what a worker has sent, as its numbers are here; whether there was something."""
        try:
            frames = self._workers[worker].frames()
        except EOFError as error:  # its process is there if it has sent what is no frame
            self._end(worker, str(error) if isinstance(error, NoFrame) else "")
            return False
        for frame in frames:
            if isinstance(frame[0], Stop):
                if not self._over:  # the decider's order to end is still on its way
                    self._send(worker, frame)
                with contextlib.suppress(OSError):
                    self._workers[worker].flush()  # it reads until it has the last message
                self._forget(worker)
                return False
            if not self._over:
                self._tell(frame)
        return bool(frames)

    def _end(self, worker: int, how: str) -> None:
        """Nothing more comes from a worker's process on its stream to this server; that is said once."""
        if worker in self._workers:
            self._forget(worker)
            self._tell([Ended(worker, how.encode())])

    def _forget(self, worker: int) -> None:
        del self._whose[self._workers.pop(worker).descriptor]

    def _send(self, worker: int, frame: Frame) -> None:
        if worker in self._workers:
            with contextlib.suppress(OSError):  # its end is noticed where its stream is read
                self._workers[worker].send(frame)

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
            send_part(self._context, order.number, {}, self._shard.state(self._role.server))
            took = 0, begin_s, self._clock.now()
        else:
            took = carry_out(order, work, self._role.server, self._job, self._shard, self._clock, self.copy)
        self._tell([Carried(*took)])
