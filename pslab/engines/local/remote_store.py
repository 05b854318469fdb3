"""The other servers as the one that decides sees them: its streams to them, and what comes on these.

Messages and emulated links stay with the server that decides. To another one it sends orders, with the messages that
they are about, and hears when each is done; the numbers lie in shared memory.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import Frame, Go, Stop
from pslab.engines.local.lines.ends import order_stream
from pslab.engines.local.lines.stream import ready
from pslab.engines.local.store import frame_of
from pslab.engines.processes.child import ProcessContext, number_of
from pslab.engines.server.clock import WallClock
from pslab.engines.server.store import Finished, Work
from pslab.protocol.server import Reply
from pslab.protocol.store import Order, StoreMachine

HURRY_S = 0.3  # of the parent's INTERRUPT_LIMIT_S


class RemoteStore:
    """Another server: orders leave a latency after they were decided, as over the cluster's links."""

    def __init__(self, job: Job, context: ProcessContext, server: int, clock: WallClock) -> None:
        self.number = number_of(job.run.workers, server)
        self._stream = order_stream(job, context.pipes[self.number], decides=True)
        self.machine, self._clock, self._latency_s = StoreMachine(), clock, job.cluster.latency_s
        self._held: deque[tuple[float, Frame]] = deque()  # orders, and when they leave
        self.descriptor = self._stream.descriptor
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

    def hand(self, order: Order, work: Work) -> None:
        now = self._clock.now()
        self.machine.order(order, work._replace(computing=()))  # which goes on to change
        self._held.append((now + self._latency_s, frame_of(order, work)))
        self.send_due(now)

    def finish(self) -> Iterator[Finished]:
        self.send_due(math.inf)
        return self._hear_while(lambda: self.owes)

    def dismiss(self) -> Iterator[Finished]:
        """Read its stream to its last message: the next run begins with an empty one."""
        return self._hear_while(lambda: not self.over)

    def _hear_while(self, condition: Callable[[], bool]) -> Iterator[Finished]:
        while condition() and not self.gone:
            if ready((self.descriptor,), self.patience_s):
                yield from self.hear()
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

    def hear(self) -> list[Finished]:
        """Read what it has done, or that it is gone."""
        finished = list[Finished]()
        try:
            for frame in self._stream.frames():
                if isinstance(frame[0], Stop):
                    self.over = True
                else:
                    finished.append(Finished.of(self.machine.done(), *frame[0]))
        except (EOFError, OSError):
            self.gone = True
        return finished


class RemoteStores:
    """All other servers of a run."""

    def __init__(self, job: Job, context: ProcessContext, clock: WallClock) -> None:
        self.each = [RemoteStore(job, context, server, clock) for server in range(1, job.run.servers)]
        self.sources = {store.descriptor: store for store in self.each}  #: the servers that may be heard

    def hear(self, source: int) -> list[Finished]:
        """Read one's stream: what it has done."""
        store = self.sources[source]
        finished = store.hear()
        if store.gone:
            del self.sources[source]
        return finished

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
        """Limit the wait for this server, because the run is to end."""
        for store in self.each:
            store.patience_s = min(store.patience_s, HURRY_S)
