"""The server's process: it delivers frames when the cluster's links would, and gives them to the server's driver."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import Blocked, Diverged, Frame, Go, Stop
from pslab.engines.local.lines.emulated_links import EmulatedLinks
from pslab.engines.local.lines.ends import TO_SERVER
from pslab.engines.local.lines.stream import NoFrame, Spin, Stream, ready
from pslab.engines.local.recovery.server_state import ServerCheckpoints
from pslab.engines.local.remote_store import RemoteStore
from pslab.engines.processes.channel import await_order, report
from pslab.engines.processes.child import ProcessContext
from pslab.engines.processes.watch import LOOKS
from pslab.engines.server.clock import MESSAGE, WallClock
from pslab.engines.server.ledger import reached
from pslab.engines.server.store import NO_DETAILS, Finished
from pslab.engines.server.worker_status import doings
from pslab.protocol.messages import Weights
from pslab.protocol.store import Keep

PROGRESS_PERIOD_S = 0.2  # in real seconds


class LocalServer:
    """The role of the deciding server's process, for one run; it is also the transport of the server's driver."""

    def __init__(self, context: ProcessContext, job: Job, part: bytearray | None = None) -> None:
        self.job = job = job.on(context.data)
        self.run_config, self.context, self.parent = job.run, context, context.parent
        self.spin = None if job.cluster.emulated else Spin()
        self.clock = WallClock()
        self.stores = [RemoteStore(job, context, server, self.clock) for server in range(1, job.run.servers)]
        self.store_of = {store.descriptor: store for store in self.stores}  # until a store has ended
        self.streams: list[Stream | None] = list(map(self._stream, range(job.run.workers)))
        self.coming: dict[int, Stream] = {}  # streams of new processes that cannot start yet
        self.whose: dict[int, int | None] = {self.parent.fileno(): None}  # read descriptors: worker; None: the parent
        self.whose |= {stream.descriptor: worker for worker, stream in enumerate(self.streams) if stream}
        machines = [store.machine for store in self.stores]
        self.checkpoints = ServerCheckpoints(job, context, self, self.clock, self.stores, machines)
        self.resumed: Mapping[str, Any] | None = None  # the facts of the checkpoint from which it continues
        if part is None:
            self.state = self.checkpoints.first()
        else:
            self.resumed, self.state = self.checkpoints.restored(part)
        self.driver, _, self.waiting, self.faults, self.left = self.state
        self.machine = self.driver.machine
        self.stalled_s = 0.0  # seconds in which it processed a frame, but was not scheduled
        self.links = EmulatedLinks(job, self.clock.now, self.waiting, self.faults)
        self.wrong: dict[int, str] = {}  # by worker that still runs: why its stream was closed
        self.heard: set[int] = set()  # workers that sent messages since the last report
        self.reported_s = 0.0

    @property
    def iteration(self) -> int:
        """The iteration of the slowest worker."""
        return self.machine.base

    def run(self, dilation: float, paused: bool = False) -> None:
        """Serve until a stop rule holds, then report the results to the parent.

        If the run continues from a checkpoint, `paused` tells whether its clock stood still since then.
        """
        if self.resumed is None:
            self.clock.start(dilation)
            self._tell_stores(Go(self.clock.zero_s))
            self.driver.start()
            # before the first push, so that a server that dies soon can be replaced, too
            self._checkpoint(self.checkpoints.able)
            for worker in range(self.run_config.workers):
                self._send(worker, [Go(self.clock.zero_s)])
        else:
            before_s = self.resumed["seconds"]
            # a clock that stood still goes on at the checkpoint; otherwise the time since then counts as the run's
            zero_s = time.monotonic() - before_s * dilation if paused else self.resumed["zero_s"]
            self.clock.start(dilation, zero_s)
            self._tell_stores(Go(zero_s))
            # all workers are new processes: each is attached like the successor of a single one
            streams, self.streams, self.whose = self.streams, [None] * len(self.streams), {self.parent.fileno(): None}
            self.coming = {w: stream for w, stream in enumerate(streams) if stream is not None and w not in self.left}
        self._loop()
        # before the workers are dismissed, which is no part of the training
        ended_s = self.clock.now()
        self.driver.keep_last(ended_s)
        self._dismiss()
        self._report(ended_s)

    # --- orders of the parent, which may also come after the run has ended ------------------------------------------

    def stop(self) -> None:
        """End the run."""
        # before `end`, which awaits each store: it must not wait for a whole lease
        for store in self.stores:
            store.hurry()
        self._end("interrupted")

    def attach(self, worker: int) -> None:
        """Take the stream of a worker's new process, which the parent sends after this order."""
        pipe = self.context.attached()
        if not self.driver.outcome:  # else the new process sees the pipe close
            self.context.pipes[worker] = pipe  # also for the next run
            self.coming[worker] = self._stream(worker)

    def abandon(self, worker: int) -> None:
        """Let the run continue without a worker that is not replaced any more."""
        if not self.driver.outcome:
            self._leave(worker)

    def checkpointed(self) -> None:
        """Note that the parent has all parts of the last checkpoint."""
        self.checkpoints.whole()

    # --- the loop -------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        driver = self.driver
        while not driver.outcome:
            for source in ready([*self.whose, *self.store_of], self._patience_s(), self.spin):
                if source in self.store_of:
                    self._hear_store(source)
                elif (worker := self.whose[source]) is None:
                    self._obey()
                elif (frames := self._frames(worker)) is None:
                    self._lose(worker)
                else:
                    self._heard(worker, frames)
            for store in self.stores:
                store.send_due(self.clock.now())
                if store.gone and self.run_config.on_death != "restart":  # else the parent restarts all processes
                    self._end("died")
            self._attach_due()
            # frames that are due leave before another one is handled, which may take milliseconds
            self._deliver()
            # one frame in a turn: streams, deliveries and stop rules are looked after in between
            self._take_one()
            self._checkpoint(not driver.outcome and self.checkpoints.due(self.machine))
            if self.run_config.seconds is not None and self.clock.now() >= self.run_config.seconds:
                self._end("seconds")
            self._progress()

    def _progress(self, awaited: Collection[int] | None = None) -> None:
        """Report the progress to the parent if a report is due, which also shows that the server is alive.

        Beside the fields of `OnProgress`, a report has "heard" (workers that sent messages since the last one) and
        "owing" (processes that must send one: `awaited` workers, by default all that compute, and stores with orders).
        """
        now = self.clock.now()
        if self.clock.real_s(now - self.reported_s) < min(PROGRESS_PERIOD_S, self.run_config.lease_s / LOOKS):
            return
        self.reported_s, links = now, self.links
        travelling = [links.travelling(worker) for worker in range(self.run_config.workers)]
        workers = doings(self.machine, travelling)
        if awaited is None:
            awaited = [worker for worker, does in enumerate(workers) if does["doing"] == "computing"]
        body = {"pushes": self.machine.gradients, "seconds": now, "workers": workers, "heard": sorted(self.heard),
                "owing": [*sorted(awaited), *(store.number for store in self.stores if store.owes)],
                "travelling": not math.isinf(links.next_s())}  # fmt: skip
        self.heard.clear()
        report(self.parent, "progress", body)

    def _checkpoint(self, due: bool) -> None:
        if due:
            self.checkpoints.begin(self.state)
            for store in self.stores:
                store.hand(Keep(self.checkpoints.number), NO_DETAILS)

    def _obey(self) -> None:
        verb, arguments = await_order(self.parent)
        getattr(self, verb)(*arguments)

    def _attach_due(self) -> None:
        """Start the new processes of workers whose earlier messages are all processed and answered."""
        for worker in [w for w in self.coming
                       if self.links.sent_all(w) and not any(store.answers(w) for store in self.stores)]:  # fmt: skip
            stream = self.coming.pop(worker)
            self.streams[worker], self.whose[stream.descriptor] = stream, worker
            # frames to the former process are dropped: the driver answers its pulls again
            self.links.renew(worker)
            iteration, frame = self.driver.succeed(worker)
            # before the pulls are handled: the process must know its iteration when their answers come
            self._send(worker, [Go(self.clock.zero_s, iteration, self.faults.survived(worker))])
            self.driver.receive(frame)

    def _end(self, outcome: str) -> None:
        if not self.driver.outcome:
            self.driver.end(outcome, self.clock.now())

    def _patience_s(self) -> float:
        """Return the real seconds until the next event that does not depend on a new message."""
        orders_s = [store.next_s() for store in self.stores]
        due_s = min(self.links.next_s(), self.run_config.seconds or math.inf, *orders_s)
        # a report is due in each of these periods, even if no message comes
        looks_s, left_s = self.run_config.lease_s / LOOKS, self.clock.real_s(due_s - self.clock.now())
        return max(0.0, min(PROGRESS_PERIOD_S, looks_s, left_s))

    def _hear_store(self, source: int) -> None:
        store = self.store_of[source]
        self._finished(store.hear())
        if store.gone:
            del self.store_of[source]

    def _tell_stores(self, message: Go | Stop) -> None:
        for store in self.stores:
            store.send([message])

    def _finished(self, orders: Iterable[Finished]) -> None:
        for finished in orders:
            self.driver.finished(finished)

    def _heard(self, worker: int, frames: Iterable[Frame]) -> None:
        self.heard.add(worker)
        for frame in frames:
            first = frame[0]
            if isinstance(first, Diverged):  # not a protocol message: it takes no time on a link
                self.driver.receive(frame)
            elif isinstance(first, Blocked):
                if self.waiting is not None:
                    self.waiting.blocked[worker] = first.range
            else:
                self.links.send_up(worker, frame)

    def _stream(self, worker: int) -> Stream:
        return Stream(self.context.pipes[worker], TO_SERVER, lease_s=self.run_config.lease_s)

    def _frames(self, worker: int) -> list[Frame] | None:
        """Return the frames that have arrived on a worker's stream; None if the stream has ended."""
        stream = self.streams[worker]
        assert stream is not None  # its descriptor is in `whose`
        try:
            return stream.frames()
        except (EOFError, OSError) as error:
            if isinstance(error, NoFrame):  # its process still runs, and must be killed
                self.wrong[worker] = str(error)
            # an ended stream is always ready: the loop would never sleep again
            del self.whose[stream.descriptor]
            self.streams[worker] = None
            return None

    def _take_one(self) -> None:
        taken = self.links.take()
        if taken is None:
            return
        worker, frame = taken
        now, used_s = self.clock.now(), time.thread_time()
        if worker not in self.left:
            self.driver.receive(frame)
            self.clock.spend(MESSAGE, now)
        else:
            self.driver.refused += 1  # the worker was declared dead before
        # wall time without CPU time: the server had no core, while the emulated clock ran on
        self.stalled_s += max(0.0, self.clock.now() - now - (time.thread_time() - used_s) / self.clock.dilation)
        self.links.handled()

    # --- the driver's transport -----------------------------------------------------------------------------------

    def send(self, worker: int, frame: Frame, now: float) -> None:
        """Put a frame on the link to a worker."""
        for delivery in self.links.send_down(worker, frame):
            self._send(*delivery)

    def attend(self) -> None:
        """Deliver the frames that are due by now, while the server is busy."""
        self._deliver(busy=True)

    def _deliver(self, *, busy: bool = False) -> None:
        for worker, frame in self.links.collect(busy=busy):
            arrives = isinstance(frame[-1], Weights)
            # the worker computes again: request orders must not prefer this range any longer
            if self.waiting is not None and arrives and self.waiting.blocked[worker] == frame[-1].range:
                self.waiting.blocked[worker] = None
            self._send(worker, frame)

    def _send(self, worker: int, frame: Frame) -> None:
        if (stream := self.streams[worker]) is not None:
            with contextlib.suppress(OSError):  # a dead worker is noticed when its stream is read
                stream.send(frame)

    # --- the end --------------------------------------------------------------------------------------------------

    def _lose(self, worker: int) -> None:
        """Report a lost worker to the parent; with on_death="restart" the parent decides whether it is replaced."""
        iteration = self.machine.clock(worker)
        body = {"worker": worker, "iteration": iteration, "seconds": self.clock.now()}
        report(self.parent, "lost", body | ({"how": self.wrong.pop(worker)} if worker in self.wrong else {}))
        at = next((at for at in (iteration, iteration + 1) if self.faults.kills(worker, at)), None)  # eager: one more
        if at is not None or self.faults.kill_s(worker) <= self.clock.now():
            self.faults.killed(worker, iteration if at is None else at, self.clock.now())
        if self.run_config.on_death != "restart":
            self._leave(worker)

    def _leave(self, worker: int) -> None:
        self.left.add(worker)
        if self.run_config.on_death == "stop" or len(self.machine.workers) == 1:
            self._end("died")
        else:
            self.driver.leave(worker)

    def _dismiss(self) -> None:
        """Stop all workers and stores, and read each stream up to its last message, for the next run."""
        waiting = {worker for worker, stream in enumerate(self.streams) if stream is not None}
        for worker in set(range(self.run_config.workers)) - waiting - self.left:  # no longer replaced
            report(self.parent, "lost", {"worker": worker, "over": True})
        self.coming.clear()
        self._tell_stores(Stop(0))
        for worker in waiting:
            self._send(worker, [Stop(worker)])
        # a Stop is a worker's last message: behind it the stream is empty for the next run
        while waiting and self.driver.outcome != "died":
            # a worker may be amid a long gradient: the parent must see that its Stop is awaited, and the server alive
            self._progress(waiting)
            for source in ready([*self.whose, *self.store_of], PROGRESS_PERIOD_S):
                if source in self.store_of:
                    self._hear_store(source)
                    continue
                if (sender := self.whose[source]) is None:
                    self._obey()
                    continue
                self.heard.add(sender)
                frames = self._frames(sender)
                if frames is None:  # it died after the run was over: nothing is missing
                    report(self.parent, "lost", {"worker": sender, "over": True})
                if frames is None or any(isinstance(message, Stop) for frame in frames for message in frame):
                    waiting.discard(sender)
        for store in self.stores:
            self._finished(store.dismiss())

    def _report(self, ended_s: float) -> None:
        body = self.driver.facts() | {"seconds": ended_s, "refused": self.driver.refused + self.faults.refused}
        rows = self.driver.accounts.ledger.close(body["pushes"], ended_s)  # the parent reads them in shared memory
        if fallen := [store.number for store in self.stores if store.gone]:  # not all decisions were executed
            report(self.parent, "fallen", {"numbers": fallen})
            # the driver has counted decided steps: count the applied ones
            body["pushes"] = reached(rows, len(self.job.parts), self.job.traits)["pushes"]
        body |= {"faulted": self.faults.rows, "stalled_s": self.stalled_s, "costs": self.clock.costs()}
        report(self.parent, "served", {**body, **self.links.facts()})
