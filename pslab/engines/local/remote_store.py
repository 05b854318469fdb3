"""The deciding server's view of another server: a stream, and the orders that are under way.

Only the deciding server exchanges messages with workers and emulates their links. It sends orders to another server,
each with the push or request that it executes, and gets a report when an order is done. Gradients and weights are in
shared memory.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import Frame, Stop
from pslab.engines.local.lines.ends import TO_DECIDER
from pslab.engines.local.lines.stream import Stream, ready
from pslab.engines.local.store import frame_of
from pslab.engines.processes.child import ProcessContext, number_of
from pslab.engines.server.clock import WallClock
from pslab.engines.server.store import Details, Finished
from pslab.protocol.server import Reply
from pslab.protocol.store import Order, StoreMachine

HURRY_S = 0.3  # the part of the parent's INTERRUPT_LIMIT_S for each answer


class RemoteStore:
    """Another server, which gets orders a latency after the decision, as over the cluster's links."""

    def __init__(self, job: Job, context: ProcessContext, server: int, clock: WallClock) -> None:
        self.number = number_of(job.run.workers, server)
        self._stream = Stream(context.pipes[self.number], TO_DECIDER, lease_s=job.run.lease_s)
        self.machine, self._clock, self._latency_s = StoreMachine(), clock, job.cluster.latency_s
        self._held: deque[tuple[float, Frame]] = deque()  # orders, and when to send them
        self.descriptor = self._stream.descriptor
        self.gone = False  #: whether the server's process has ended, or does not answer
        self.over = False  #: whether the server has sent its last message
        self.patience_s = job.run.lease_s  #: the timeout for each answer at the end of the run

    @property
    def owes(self) -> bool:
        """Whether the server has orders that are not yet done."""
        return bool(self.machine.orders)

    def answers(self, worker: int) -> bool:
        """Whether a reply to this worker is among the orders that are not yet done."""
        return any(isinstance(order, Reply) and order.pull.worker == worker for order, *_ in self.machine.orders)

    def hurry(self) -> None:
        """Limit the timeout for this server's answers, because the run is ending."""
        self.patience_s = min(self.patience_s, HURRY_S)

    def hand(self, order: Order, details: Details) -> None:
        now = self._clock.now()
        self.machine.order(order, details._replace(computing=()))  # `computing` changes later
        # encoded now: the details are of the moment of the decision
        self._held.append((now + self._latency_s, frame_of(order, details)))
        self.send_due(now)

    def finish(self) -> Iterator[Finished]:
        self.send_due(math.inf)  # the end waits for no latency
        return self._hear_while(lambda: self.owes)

    def dismiss(self) -> Iterator[Finished]:
        """Read the server's stream up to its Stop message, for the next run; yield the orders that it has done."""
        return self._hear_while(lambda: not self.over)

    def _hear_while(self, condition: Callable[[], bool]) -> Iterator[Finished]:
        while condition() and not self.gone:
            if ready((self.descriptor,), self.patience_s):
                yield from self.hear()
            else:
                self.gone = True  # no answer in time

    def send(self, frame: Frame) -> None:
        """Send messages to the server."""
        with contextlib.suppress(OSError):  # a closed stream is noticed when it is read
            self._stream.send(frame)

    def next_s(self) -> float:
        """Return the instant at which the next order must be sent; infinity if there is none."""
        return self._held[0][0] if self._held else math.inf

    def send_due(self, now: float) -> None:
        """Send the orders that are due by `now`."""
        while self._held and self._held[0][0] <= now:
            self.send(self._held.popleft()[1])

    def hear(self) -> list[Finished]:
        """Read the stream; return the orders that the server has done. If the stream has ended, set `gone`."""
        finished = list[Finished]()
        try:
            for frame in self._stream.frames():
                # the last message: the stream is empty for the next run
                if isinstance(frame[0], Stop):
                    self.over = True
                else:
                    finished.append(Finished.of(self.machine.done(), *frame[0]))
        except (EOFError, OSError):
            self.gone = True
        return finished
