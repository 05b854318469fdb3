"""Servers that do not decide, each a process of its own: the role of that process, and the decider's end of its line.

Messages and emulated links stay with the decider. Over this line go orders, with the messages that they are about, and
back what came of each; payloads lie in shared memory.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from pslab.engines.job.job import Job
from pslab.engines.job.wire import Carried, ComputedOn, Frame, Go, Ordered, Stop
from pslab.engines.local.lines.ends import number_of, order_line, store_lines
from pslab.engines.local.lines.framed_pipe import SPIN_S, Line, NoFrame, ready
from pslab.engines.local.recovery.generations import Keeping
from pslab.engines.processes.channel import report
from pslab.engines.processes.child import Seat
from pslab.engines.server.clock import WallClock
from pslab.engines.server.ledger import copy_held, show_held
from pslab.engines.server.shard import TensorShard
from pslab.engines.server.store import Hearer, Work, carry_out, pass_on
from pslab.errors import CheckpointError
from pslab.protocol.messages import NO_WORKER
from pslab.protocol.server import Reply, Step
from pslab.protocol.store import Forget, Keep, Order, Snapshot, Store

STEP, REPLY, NOTHING = range(3)
PLAIN: dict[int, type[Snapshot | Keep | Forget]] = {3: Snapshot, 4: Keep, 5: Forget}  # orders of a number alone
KINDS = {order: kind for kind, order in PLAIN.items()}
HURRY_S = 0.3  # of the parent's INTERRUPT_LIMIT_S


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
    """The role of a process, for one run; what is given to it beside the job may be a checkpoint's number."""

    server: int
    servers: int

    @property
    def called(self) -> str:
        return f"server {self.server} of {self.servers}"

    def __call__(self, seat: Seat, job: Job, checkpoint: int = 0) -> LocalStore:
        return LocalStore(seat, job, self, checkpoint)


class LocalStore:
    """A server's weights, and what is done to them."""

    iteration = 0  # it has none

    def __init__(self, seat: Seat, job: Job, role: StoreRole, checkpoint: int = 0) -> None:
        self._seat, self._job, self._role, self._clock = seat, job, role, WallClock()
        self._line = order_line(job, seat, 0, decides=False)
        self._keeping = Keeping(job, role.server, seat.arena, seat.checkpoints)
        self._shard = self._keeping.restored(checkpoint)[1][0] if checkpoint else TensorShard(job, seat.arena)
        self._spin_s = 0.0 if job.cluster.emulated else SPIN_S
        self._workers: dict[int, Line] = {}  # which bring and get the numbers, where memory is not shared
        self._over = False  # whether the decider has said so

    def run(self, dilation: float) -> None:
        """Do what the decider orders until it says stop, or is gone."""
        self._clock.dilation, self._over = dilation, False
        try:
            self._workers = store_lines(self._job, self._seat, self._role.server)
            whose = {line.descriptor: worker for worker, line in self._workers.items()}
            while self._workers or not self._over:
                for source in ready([self._line.descriptor, *whose], spin_s=self._spin_s):
                    if (worker := whose.get(source)) is None:
                        self._obey()
                    elif self._hear(worker):
                        del whose[source], self._workers[worker]
            with contextlib.suppress(OSError):
                self._line.send([Stop(0)])
        except EOFError:
            return
        except BaseException:
            self._seat.pipes[0].close()  # the decider is not to wait for it
            raise
        show_held(self._job, self._seat.arena, self._job.layout.server, self._role.server)
        report(self._seat.parent, "stored")

    def _obey(self) -> None:
        """Do what the decider says, or pass weights on to a worker."""
        for frame in self._line.frames():
            first = frame[0]
            if isinstance(first, Stop):
                self._over = True
                for worker in self._workers:
                    self._send(worker, frame)
            elif isinstance(first, Go):
                self._clock.start(self._clock.dilation, first.zero_s - self._seat.apart[0])
            elif isinstance(first, Ordered):
                self._carry_out(frame)
            else:
                self._send(frame[-1].worker, frame)

    def _hear(self, worker: int) -> bool:
        """Pass on what a worker has sent, as its numbers are here; whether it was the last."""
        try:
            frames = self._workers[worker].frames()
        except NoFrame:
            raise
        except EOFError:
            return True
        for frame in frames:
            if isinstance(frame[0], Stop):
                return True
            if not self._over:
                self._line.send(frame)
        return False

    def _send(self, worker: int, frame: Frame) -> None:
        if worker in self._workers:
            with contextlib.suppress(OSError):  # its end is noticed where its line is read
                self._workers[worker].send(frame)

    def copy(self, index: int, server: int) -> None:
        """Copy what is held here into a snapshot."""
        copy_held(self._job, self._shard.weights, self._seat.snapshots, index, server)
        report(self._seat.parent, "copied", {"index": index})

    def _carry_out(self, frame: Frame) -> None:
        order, work = order_of(frame)
        if isinstance(order, Keep):
            begin_s = self._clock.now()
            took = int(self._keep(order.number)), begin_s, self._clock.now()
        else:
            took = carry_out(order, work, self._role.server, self._job, self._shard, self._clock, self)
        with contextlib.suppress(OSError):  # the decider may be gone
            self._line.send([Carried(*took)])

    def _keep(self, number: int) -> bool:
        """Keep its part of a checkpoint; whether that could be saved: if not, the checkpoint never is whole."""
        try:
            self._keeping.generations.write(number, self._keeping.saved({}, [self._shard]))
        except CheckpointError as error:
            report(self._seat.parent, "checkpoint", {"pushes": 0, "problem": f"{self._role.called}: {error}"})
            return False
        return True


class StoreLine:
    """The decider's end: orders leave a latency after they were decided, as over the cluster's links."""

    def __init__(self, job: Job, seat: Seat, server: int, clock: WallClock) -> None:
        self.number = number_of(job.run.workers, server)
        self._line = order_line(job, seat, self.number, decides=True)
        self.machine, self._clock, self._latency_s = Store(), clock, job.cluster.latency_s
        self._held: deque[tuple[float, Frame]] = deque()  # orders, and when they leave
        self.descriptor = self._line.descriptor
        self.kept = 0  #: the last checkpoint of which it has its part
        self.gone = False  #: whether its process is, or does not answer
        self.over = False  #: whether it has sent its last message
        self.patience_s = job.run.lease_s  #: at the end of the run, for each answer

    @property
    def owes(self) -> bool:
        """Whether it has something to do."""
        return bool(self.machine.orders)

    def answers(self, worker: int) -> bool:
        """Whether it is still to lay weights ready for a worker."""
        return any(isinstance(order, Reply) and order.pull.worker == worker for order, *_ in self.machine.orders)

    def hand(self, order: Order, work: Work, hearer: Hearer) -> None:
        now = self._clock.now()
        self.machine.order(order, work._replace(computing=()))  # which goes on to change
        self._held.append((now + self._latency_s, frame_of(order, work)))
        self.send_due(now)

    def settle(self, machine: Store, hearer: Hearer, now: float) -> None:
        """It goes on from a checkpoint: all that it was ordered before is done, and who waited for it begins again."""
        self.machine = machine
        while machine.orders:
            done = machine.done()
            if isinstance(done.order, Step):
                hearer.applied(done.order, done.about, now)
            elif isinstance(done.order, Snapshot):
                hearer.copied(done.order.number, now)

    def finish(self, hearer: Hearer) -> None:
        self.send_due(math.inf)
        while self.owes and not self.gone:
            if ready((self.descriptor,), self.patience_s):
                self.hear(hearer)  # what comes from workers comes too late
            else:
                self.gone = True

    def dismiss(self, hearer: Hearer) -> None:
        """Read its line to its last message: the next run begins with an empty one."""
        while not self.over and not self.gone:
            if ready((self.descriptor,), self.patience_s):
                self.hear(hearer)
            else:
                self.gone = True

    def tell(self, message: Go | Stop) -> None:
        """Send it something that is no order."""
        with contextlib.suppress(OSError):  # its end is noticed where its line is read
            self._line.send([message])

    def next_s(self) -> float:
        """When the next order leaves; infinity if none is to."""
        return self._held[0][0] if self._held else math.inf

    def send_due(self, now: float) -> None:
        """Let the orders leave that are to leave by now."""
        while self._held and self._held[0][0] <= now:
            with contextlib.suppress(OSError):
                self._line.send(self._held[0][1])
            self._held.popleft()

    def relay(self, frame: Frame) -> None:
        """Let it pass a frame on to a worker, with the numbers."""
        self._line.send(frame)

    def hear(self, hearer: Hearer) -> list[Frame]:
        """Read what it has done, or that it is gone; what workers have sent by way of it."""
        passed = []
        try:
            for frame in self._line.frames():
                if isinstance(frame[0], Carried):
                    self._carried(frame[0], hearer)
                elif isinstance(frame[0], Stop):
                    self.over = True
                else:
                    passed.append(frame)
        except (EOFError, OSError):
            self.gone = True
        return passed

    def _carried(self, carried: Carried, hearer: Hearer) -> None:
        done = self.machine.done()
        if isinstance(done.order, Keep) and carried.size_bytes:
            self.kept = done.order.number
        pass_on(done, hearer, *carried)


class StoreLines:
    """All of a run's, by their descriptors."""

    def __init__(self, job: Job, seat: Seat, clock: WallClock) -> None:
        self.each = [StoreLine(job, seat, server, clock) for server in range(1, job.run.servers)]
        self.sources = {store.descriptor: store for store in self.each}  #: those that may be heard

    def gone(self) -> list[int]:
        """The numbers of those whose processes are."""
        return [store.number for store in self.each if store.gone]

    def answers(self, worker: int) -> bool:
        """Whether one of them is still to lay weights ready for a worker."""
        return any(store.answers(worker) for store in self.each)

    def settle(self, machines: Iterable[Store], hearer: Hearer, now: float) -> None:
        """They go on from a checkpoint, in which these are their machines."""
        for store, machine in zip(self.each, machines, strict=True):
            store.settle(machine, hearer, now)

    def tell(self, message: Go | Stop) -> None:
        """Send all of them something that is no order."""
        for store in self.each:
            store.tell(message)

    def hear(self, source: int, hearer: Hearer) -> list[Frame]:
        """Read one's line: what workers have sent by way of it."""
        store = self.sources[source]
        passed = store.hear(hearer)
        if store.gone:
            del self.sources[source]
        return passed

    def relay(self, server: int, frame: Frame) -> None:
        """Let a server pass a frame on to a worker."""
        self.each[server - 1].relay(frame)

    def dismiss(self, hearer: Hearer) -> None:
        """Read every line to its last message."""
        for store in self.each:
            store.dismiss(hearer)

    def next_s(self) -> float:
        """When there is something to be sent; infinity if nothing is."""
        return min((store.next_s() for store in self.each), default=math.inf)

    def serve(self, now: float) -> bool:
        """Let orders leave that are to leave by now; whether all processes are there."""
        for store in self.each:
            store.send_due(now)
        return not self.gone()

    def hurry(self) -> None:
        """The run is to end: who does not answer soon is not waited for."""
        for store in self.each:
            store.patience_s = min(store.patience_s, HURRY_S)

    def owing(self) -> list[int]:
        """The numbers of those that have something to do."""
        return [store.number for store in self.each if store.owes]
