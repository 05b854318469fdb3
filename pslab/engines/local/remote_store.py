"""The other servers as the one that decides sees them: its streams to them, and what comes on these.

Messages and emulated links stay with the server that decides. To another one it sends orders, with the messages that
they are about, and hears when each is done; the numbers lie in shared memory, or travel between that server and the
workers.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import Carried, Ended, Frame, Go, Joined, Stop
from pslab.engines.local.lines.ends import number_of, order_stream
from pslab.engines.local.lines.frame_assembly import FrameAssembly, server_of
from pslab.engines.local.lines.stream import ready
from pslab.engines.local.store import frame_of
from pslab.engines.processes.child import ProcessContext
from pslab.engines.server.clock import WallClock
from pslab.engines.server.store import Finished, Work
from pslab.errors import FrameError
from pslab.protocol.server import Reply
from pslab.protocol.store import Order, StoreMachine

HURRY_S = 0.3  # of the parent's INTERRUPT_LIMIT_S


class RemoteStore:
    """Another server: orders leave a latency after they were decided, as over the cluster's links."""

    def __init__(self, job: Job, context: ProcessContext, server: int, clock: WallClock) -> None:
        self.number = number_of(job.run.workers, server)
        self._stream = order_stream(job, context, self.number, decides=True)
        self.machine, self._clock, self._latency_s = StoreMachine(), clock, job.cluster.latency_s
        self._held: deque[tuple[float, Frame]] = deque()  # orders, and when they leave
        self.descriptor = self._stream.descriptor
        self.gone = False  #: whether its process is, or does not answer
        self.over = False  #: whether it has sent its last message
        self.ended: set[int] = set()  #: workers from whose last processes nothing more comes to it
        self.patience_s = job.run.lease_s  #: at the end of the run, for each answer

    @property
    def owes(self) -> bool:
        """Whether it has something to do."""
        return bool(self.machine.orders)

    def answers(self, worker: int) -> bool:
        """Whether it is still to lay weights ready for a worker."""
        return any(isinstance(order, Reply) and order.pull.worker == worker for order, *_ in self.machine.orders)

    def hand(self, order: Order, work: Work) -> None:
        now = self._clock.now()
        self.machine.order(order, work._replace(computing=()))  # which goes on to change
        self._held.append((now + self._latency_s, frame_of(order, work)))
        self.send_due(now)

    def finish(self) -> Iterator[Finished]:
        self.send_due(math.inf)
        return self._hear_while(lambda: self.owes)  # messages from workers come too late

    def dismiss(self) -> Iterator[Finished]:
        """Read its stream to its last message: the next run begins with an empty one."""
        return self._hear_while(lambda: not self.over)

    def _hear_while(self, condition: Callable[[], bool]) -> Iterator[Finished]:
        while condition() and not self.gone:
            if ready((self.descriptor,), self.patience_s):
                yield from self.hear()[0]
            else:
                self.gone = True

    def send(self, frame: Frame) -> None:
        """Send it messages that are no order."""
        with contextlib.suppress(OSError):  # its end is noticed where its stream is read
            self._stream.send(frame)

    def next_s(self) -> float:
        """When the next order leaves; infinity if none is to."""
        return self._held[0][0] if self._held else math.inf

    def send_due(self, now: float) -> None:
        """Let the orders leave that are to leave by now."""
        while self._held and self._held[0][0] <= now:
            self.send(self._held.popleft()[1])

    def hear(self) -> tuple[list[Finished], list[Frame]]:
        """Read what it has done, or that it is gone; what workers have sent by way of it, and that streams have ended.
        """
        finished, passed = list[Finished](), list[Frame]()
        try:
            for frame in self._stream.frames():
                if isinstance(frame[0], Carried):
                    finished.append(Finished.of(self.machine.done(), *frame[0]))
                elif isinstance(frame[0], Stop):
                    self.over = True
                else:
                    passed.append(frame)
        except (EOFError, OSError):
            self.gone = True
        return finished, passed


class RemoteStores:
    """All other servers of a run; and where memory is not shared, the frames that workers send by way of them."""

    def __init__(self, job: Job, context: ProcessContext, clock: WallClock) -> None:
        self.each = [RemoteStore(job, context, server, clock) for server in range(1, job.run.servers)]
        self.sources = {store.descriptor: store for store in self.each}  #: the servers that may be heard
        self._by_way = self.each if not context.arena.shared else []  # of which workers send
        self._servers, self._assembly = job.server_of, FrameAssembly(job.run.workers, job.server_of)
        self.wrong: dict[int, str] = {}  #: why nothing more is read of a worker's process that is there

    # --- workers' frames, where memory is not shared ----------------------------------------------------------------

    def whole(self, worker: int, frames: list[Frame]) -> list[Frame]:
        """A worker has sent these to the server that decides: those that have come whole."""
        return [whole for frame in frames for whole in self._add(worker, 0, frame)] if self._by_way else frames

    def sending(self) -> list[int]:
        """Workers with a frame that has not come whole."""
        return self._assembly.under_way()

    def end(self, worker: int) -> None:
        """Nothing more counts that comes from a worker's process: all are to say that they have dealt with the rest."""
        for store in self._by_way:
            if worker not in store.ended:
                store.send([Ended(worker)])

    def ended(self, worker: int) -> bool:
        """Whether nothing more comes."""
        if not all(store.gone or worker in store.ended for store in self._by_way):
            return False
        self._assembly.forget(worker)
        return True

    def join(self, worker: int) -> None:
        """Another process takes a worker's place, and has dialled all of them."""
        for store in self._by_way:
            store.ended.discard(worker)
            store.send([Joined(worker)])

    def hear(self, source: int) -> tuple[list[Finished], list[tuple[int, Frame]], list[int]]:
        """Read one's stream: what it has done, frames that have come whole now, and workers from which nothing more
        comes to it."""
        store, whole, ended = self.sources[source], list[tuple[int, Frame]](), list[int]()
        finished, passed = store.hear()
        for frame in passed:
            last = frame[-1]
            if isinstance(last, Ended):
                store.ended.add(last.worker)
                if last.how:
                    self.wrong.setdefault(last.worker, last.how.decode(errors="replace"))
                ended.append(last.worker)
                continue
            whole += [(last.worker, each) for each in self._add(last.worker, self.each.index(store) + 1, frame)]
            if last.worker in self.wrong:
                ended.append(last.worker)
        if store.gone:
            del self.sources[source]
        return finished, whole, ended

    def _add(self, worker: int, server: int, frame: Frame) -> list[Frame]:
        if worker in self.wrong:
            return []
        try:
            return self._assembly.add(worker, server, frame)
        except FrameError as error:
            self.wrong[worker] = str(error)
            return []

    def relayed(self, frame: Frame) -> bool:
        """Whether a frame to a worker goes by way of another server, which adds the numbers; then it is sent there."""
        server = server_of(frame[-1], self._servers) if self._by_way else 0
        if server:
            self.each[server - 1].send(frame)
        return server > 0

    # --- what is done ---------------------------------------------------------------------------------------------

    def gone(self) -> list[int]:
        """The numbers of the servers whose processes are gone."""
        return [store.number for store in self.each if store.gone]

    def owing(self) -> list[int]:
        """The numbers of the servers that have something to do."""
        return [store.number for store in self.each if store.owes]

    def answers(self, worker: int) -> bool:
        """Whether one of them is still to lay weights ready for a worker."""
        return any(store.answers(worker) for store in self.each)

    def send(self, message: Go | Stop) -> None:
        """Send all of them something that is no order."""
        for store in self.each:
            store.send([message])

    def dismiss(self) -> Iterator[Finished]:
        """Read every stream to its last message."""
        for store in self.each:
            yield from store.dismiss()

    def next_s(self) -> float:
        """When there is something to be sent; infinity if nothing is."""
        return min((store.next_s() for store in self.each), default=math.inf)

    def serve(self, now: float) -> bool:
        """Let orders leave that are to leave by now; whether all processes are there."""
        for store in self.each:
            store.send_due(now)
        return not self.gone()

    def hurry(self) -> None:
        """The run is to end: a server that does not answer soon is not waited for."""
        for store in self.each:
            store.patience_s = min(store.patience_s, HURRY_S)
