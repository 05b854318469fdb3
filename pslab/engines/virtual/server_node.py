"""The servers in virtual time. The deciding server handles one frame after another, in the time that its clock says;
the other servers carry out its orders on their ranges."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from pslab.config.cluster import ALLREDUCE
from pslab.engines.emulation.link_queue import Waiting
from pslab.engines.emulation.traffic import Traffic
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import Frame, Gone
from pslab.engines.server.clock import VirtualClock
from pslab.engines.server.driver import ServerDriver, Transport
from pslab.engines.server.ledger import Ledger
from pslab.engines.server.push_accounts import PushAccounts
from pslab.engines.server.store import Details, Finished, Shard, carry_out
from pslab.engines.virtual.scheduler import AT_WORKER, SENT, SERVER, SERVER_FREE, Scheduler
from pslab.engines.virtual.worker_node import WorkerNode
from pslab.protocol.messages import Weights
from pslab.protocol.server import Server
from pslab.protocol.store import Order, StoreMachine


class ServerNode(Transport):
    """The deciding server: the queue of arrived frames, and the driver's transport."""

    def __init__(
        self, job: Job, machine: Server, accounts: PushAccounts, shard: Shard, waiting: Waiting | None,
        scheduler: Scheduler, traffic: Traffic | None, workers: list[WorkerNode],
    ) -> None:  # fmt: skip
        self._scheduler, self._traffic, self._workers = scheduler, traffic, workers
        self._clock = VirtualClock(job)
        # a ring has no server: its sum is complete when the last part arrives
        self._message_s = job.cluster.message_s if job.cluster.aggregate != ALLREDUCE else 0.0
        others = [StoreNode(server, job, shard, accounts.ledger, scheduler, self._clock)
                  for server in range(1, job.run.servers)]  # fmt: skip
        self.driver = ServerDriver(job, machine, accounts, shard, self._clock, self, waiting, others)
        for store in others:
            store.finished = self.driver.finished
        self._inbox: deque[tuple[int, Frame]] = deque()
        self.free_s = 0.0  #: the instant at which it has handled the frame under way
        self.busy_s = 0.0  #: the seconds in which it has handled frames

    def arrive(self, content: tuple[int, Frame], now: float) -> None:
        """Queue a worker's frame that has arrived, and handle it if the server is idle."""
        self._inbox.append(content)
        # with more frames in the queue `_take` is scheduled already
        if self.free_s <= now and len(self._inbox) == 1:
            self._take(None, now)

    def deal(self, frame: Frame, now: float) -> None:
        """Handle a frame at this instant, before all frames in the queue."""
        self._clock.at = now
        self.driver.receive(frame)

    def leave(self, worker: int, now: float) -> None:
        """Remove the frames of a worker that has left from the queue, and queue the message that it is gone."""
        # the machine must not handle a message of the worker after it has left (see Server.leave)
        self._inbox = deque((sender, frame) for sender, frame in self._inbox if sender != worker)
        self.arrive((worker, [Gone(worker)]), now)

    def send(self, worker: int, frame: Frame, now: float) -> None:
        """Send a frame at the instant `now`, when the message that caused it has been handled."""
        at, departed = now, (worker, frame)
        # from now on the weights do not change for this worker: its gradient can be computed while they travel
        if isinstance(frame[-1], Weights):
            self._workers[worker].settled(frame[-1], at)
        # handled ahead of the clock: the frame departs when its handling ends
        if at > self._scheduler.now:
            self._scheduler.at(at, SENT, worker, self._depart, departed)
        else:
            self._depart(departed, at)

    def _take(self, content: None, now: float) -> None:
        """Handle the frames in the queue until one takes time; do nothing if the server is busy."""
        if self.free_s > now:
            return
        while self._inbox and not self.driver.outcome:
            self._clock.at = now + self._message_s  # the driver adds the price of each operation
            self.driver.receive(self._inbox.popleft()[1])
            if (at := self._clock.at) > now:  # else the next frame is handled at this instant
                self.free_s = at
                self.busy_s += at - now
                self._scheduler.at(at, SERVER_FREE, SERVER, self._take)
                return

    def _depart(self, departed: tuple[int, Frame], now: float) -> None:
        worker, frame = departed
        if self._traffic is None:
            self._scheduler.at(now, AT_WORKER, worker, self._workers[worker].arrive, frame)
        else:
            self._traffic.down(worker, frame, now, self._scheduler.sequence)


class StoreNode:
    """Another server, on a node of its own: an order reaches it one latency after its decision, and it carries out one
    order after another, in the time that its clock says."""

    finished: Callable[[Finished], None]  #: `ServerDriver.finished`

    def __init__(
        self, server: int, job: Job, shard: Shard, ledger: Ledger, scheduler: Scheduler, decider: VirtualClock
    ) -> None:
        self._server, self._job, self._shard, self._ledger = server, job, shard, ledger
        self._scheduler, self._decider, self._clock = scheduler, decider, VirtualClock(job)
        self._machine = StoreMachine()
        self._due: deque[float] = deque()  # the instants at which the orders reach this server
        self._free_s = 0.0  # when the order under way is done

    def hand(self, order: Order, details: Details) -> None:
        # a copy: `computing` is a view of the accounts, which go on until the order is carried out
        self._machine.order(order, details._replace(computing=list(details.computing)))
        # the decider's clock, not the scheduler's: the decision falls within the handling of a frame
        self._due.append(self._decider.now() + self._job.cluster.latency_s)
        if len(self._due) == 1:
            self._await()

    def finish(self) -> Iterator[Finished]:
        # each as soon as it has come and the one before is done, as `_await` would schedule it
        while self._due:
            yield self._carry_out(max(self._due[0], self._free_s))

    def _await(self) -> None:
        self._scheduler.at(max(self._due[0], self._free_s), SERVER_FREE, SERVER, self._take)

    def _take(self, content: None, now: float) -> None:
        self.finished(self._carry_out(now))
        if self._due:
            self._await()

    def _carry_out(self, now: float) -> Finished:
        self._due.popleft()
        self._clock.at, (order, details, _) = now, self._machine.orders[0]
        took = carry_out(order, details, self._server, self._job, self._shard, self._clock, self._ledger.copy)
        self._free_s = self._clock.at
        return Finished.of(self._machine.done(), *took)
