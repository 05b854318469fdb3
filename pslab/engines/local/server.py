"""The server's process: it lets frames arrive when the cluster's links would, and hands them to the server's driver."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import Blocked, Diverged, Frame, Go, Stop
from pslab.engines.local.lines.emulated_links import EmulatedLinks
from pslab.engines.local.lines.ends import server_stream
from pslab.engines.local.lines.stream import NoFrame, Spin, Stream, ready
from pslab.engines.local.recovery.server_state import ServerCheckpoints
from pslab.engines.local.rehearsal import waking_late_s
from pslab.engines.local.remote_store import RemoteStores
from pslab.engines.processes.channel import await_order, report
from pslab.engines.processes.child import ProcessContext
from pslab.engines.processes.watch import LOOKS
from pslab.engines.server.clock import MESSAGE, WallClock
from pslab.engines.server.ledger import reached
from pslab.engines.server.store import NO_WORK, Finished
from pslab.engines.server.worker_status import doings
from pslab.protocol.messages import Weights
from pslab.protocol.store import Keep

PROGRESS_PERIOD_S = 0.2  # real seconds, as all but instants


class LocalServer:
    """The role of the server's process: one run, and the driver's transport."""

    def __init__(self, context: ProcessContext, job: Job, part: bytearray | None = None) -> None:
        self.job = job = job.on(context.data)
        self.run_config, self.context, self.parent = job.run, context, context.parent
        self.spin = None if job.cluster.emulated else Spin()
        self.clock = WallClock()
        self.stores = RemoteStores(job, context, self.clock)
        self.streams: list[Stream | None] = list(map(self._stream, range(job.run.workers)))
        self.coming: dict[int, Stream] = {}  # of workers whose former process has sent what is still on its way
        self.whose: dict[int, int | None] = {self.parent.fileno(): None}  # the descriptors that are listened to
        self.whose |= {stream.descriptor: worker for worker, stream in enumerate(self.streams) if stream}
        machines = [store.machine for store in self.stores.each]
        self.checkpoints = ServerCheckpoints(job, context, self, self.clock, self.stores.each, machines)
        self.resumed: Mapping[str, Any] | None = None  # the facts of the checkpoint that it goes on from
        if part is None:
            self.state = self.checkpoints.first()
        else:
            self.resumed, self.state = self.checkpoints.restored(part)
        self.driver, _, self.waiting, self.faults, self.left = self.state
        self.machine = self.driver.machine
        self.stalled_s = 0.0  # for which it dealt with a frame and did not run
        self.links = EmulatedLinks(job, self.clock.now, self.waiting, self.faults)
        self.wrong: dict[int, str] = {}  # why nothing more is read of a worker that is there
        self.heard: set[int] = set()  # workers whose messages came since the last report
        self.reported_s = 0.0

    @property
    def iteration(self) -> int:
        """The slowest worker's iteration."""
        return self.machine.base

    def rehearse(self) -> None:
        """Report how late this process wakes while the workers compute."""
        report(self.parent, "rehearsed", {"late_s": waking_late_s(self.parent.fileno(), self.spin)})

    def run(self, dilation: float, paused: bool = False) -> None:
        """Serve until a stop rule holds, then report everything to the parent. A run that goes on from a checkpoint was
        `paused` if its clock is to go on from there, too; if not, that has gone on meanwhile."""
        if self.resumed is None:
            self.clock.start(dilation)
            self.stores.send(Go(self.clock.zero_s))
            self.driver.start()
            self._checkpoint(self.checkpoints.able)
            for worker in range(self.run_config.workers):
                self._send(worker, [Go(self.clock.zero_s)])
        else:
            before_s = self.resumed["seconds"]
            zero_s = time.monotonic() - before_s * dilation if paused else self.resumed["zero_s"]
            self.clock.start(dilation, zero_s)
            self.stores.send(Go(zero_s))
            streams, self.streams, self.whose = self.streams, [None] * len(self.streams), {self.parent.fileno(): None}
            self.coming = {w: stream for w, stream in enumerate(streams) if stream is not None and w not in self.left}
        self._loop()
        ended_s = self.clock.now()
        self.driver.keep_last(ended_s)
        self._dismiss()
        self._report(ended_s)

    # --- orders while it runs, which may come when it has ended by itself ------------------------------------------

    def stop(self) -> None:
        """End the run."""
        self.stores.hurry()
        self._end("interrupted")

    def attach(self, worker: int) -> None:
        """Attach the stream of a worker's new process, which comes behind this order."""
        pipe = self.context.attached()
        if not self.driver.outcome:  # else its end tells it
            self.context.pipes[worker] = pipe  # also of the next run
            self.coming[worker] = self._stream(worker)

    def abandon(self, worker: int) -> None:
        """Give up a worker that no process replaces any more."""
        if not self.driver.outcome:
            self._leave(worker)

    def checkpointed(self) -> None:
        """Take the checkpoint that was begun last as whole."""
        self.checkpoints.whole()

    # --- the loop -------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        driver = self.driver
        while not driver.outcome:
            for source in ready([*self.whose, *self.stores.sources], self._patience_s(), self.spin):
                if source in self.stores.sources:
                    self._finished(self.stores.hear(source))
                elif (worker := self.whose[source]) is None:
                    self._obey()
                else:
                    self._hear(worker)
            # all are to begin again where servers are replaced
            if not self.stores.serve(self.clock.now()) and self.run_config.on_death != "restart":
                self._end("died")
            self._attach_due()
            self._deliver()
            self._take_one()
            self._checkpoint(not driver.outcome and self.checkpoints.due(self.machine))
            if self.run_config.seconds is not None and self.clock.now() >= self.run_config.seconds:
                self._end("seconds")
            self._progress()

    def _progress(self, awaited: Collection[int] | None = None) -> None:
        """Report now and then how far the run is, and that the server serves: see pslab.engines.processes.watch.

        Beside what `OnProgress` gets, the parent is told from which workers messages came since the last report, and
        which owe one: the `awaited`, or those that compute.
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
                "owing": [*sorted(awaited), *self.stores.owing()],
                "travelling": not math.isinf(links.next_s())}  # fmt: skip
        self.heard.clear()
        report(self.parent, "progress", body)

    def _checkpoint(self, due: bool) -> None:
        """Begin a checkpoint if one is due."""
        if due:
            self.checkpoints.begin(self.state)
            for store in self.stores.each:
                store.hand(Keep(self.checkpoints.number), NO_WORK)

    def _obey(self) -> None:
        verb, arguments = await_order(self.parent)
        getattr(self, verb)(*arguments)

    def _attach_due(self) -> None:
        """Let new processes go on, once all messages of their predecessors are dealt with and answered."""
        for worker in [w for w in self.coming if self.links.sent_all(w) and not self.stores.answers(w)]:
            stream = self.coming.pop(worker)
            self.streams[worker], self.whose[stream.descriptor] = stream, worker
            self.links.renew(worker)
            iteration, frame = self.driver.succeed(worker)
            self._send(worker, [Go(self.clock.zero_s, iteration, self.faults.survived(worker))])
            self.driver.receive(frame)

    def _end(self, outcome: str) -> None:
        """End the run, unless it has ended."""
        if not self.driver.outcome:
            self.driver.end(outcome, self.clock.now())

    def _patience_s(self) -> float:
        """For how many real seconds nothing can happen by itself."""
        due_s = min(self.links.next_s(), self.stores.next_s(), self.run_config.seconds or math.inf)
        looks_s, left_s = self.run_config.lease_s / LOOKS, self.clock.real_s(due_s - self.clock.now())
        return max(0.0, min(PROGRESS_PERIOD_S, looks_s, left_s))

    def _hear(self, worker: int) -> None:
        """Read what a worker has sent, or that it is gone."""
        if (frames := self._frames(worker)) is None:
            self._lose(worker)
        else:
            self._heard(worker, frames)

    def _finished(self, each: Iterable[Finished]) -> None:
        """Take orders that other servers have carried out."""
        for found in each:
            self.driver.finished(found)

    def _heard(self, worker: int, frames: Iterable[Frame]) -> None:
        """Let the links carry what a worker has sent."""
        self.heard.add(worker)
        for frame in frames:
            first = frame[0]
            if isinstance(first, Diverged):  # not a message of the protocol: it takes no time on a link
                self.driver.receive(frame)
            elif isinstance(first, Blocked):
                if self.waiting is not None:
                    self.waiting.blocked[worker] = first.range
            else:
                self.links.send_up(worker, frame)

    def _stream(self, worker: int) -> Stream:
        return server_stream(self.job, self.context.pipes[worker])

    def _frames(self, worker: int) -> list[Frame] | None:
        """The frames that have come on a worker's stream; None if its process is gone."""
        stream = self.streams[worker]
        assert stream is not None  # it is listened to
        try:
            return stream.frames()
        except (EOFError, OSError) as error:
            if isinstance(error, NoFrame):  # its process is there, and is to be ended
                self.wrong[worker] = str(error)
            del self.whose[stream.descriptor]
            self.streams[worker] = None
            return None

    def _take_one(self) -> None:
        """Deal with one frame that has arrived; weights may fall due meanwhile."""
        taken = self.links.take()
        if taken is None:
            return
        worker, frame = taken
        now, used_s = self.clock.now(), time.thread_time()
        if worker not in self.left:
            self.driver.receive(frame)
            self.clock.spend(MESSAGE, now)
        else:
            self.driver.refused += 1  # it comes after its worker's lease
        self.stalled_s += max(0.0, self.clock.now() - now - (time.thread_time() - used_s) / self.clock.dilation)
        self.links.handled()

    # --- the driver's transport -----------------------------------------------------------------------------------

    def send(self, worker: int, frame: Frame, now: float) -> None:
        """Hand weights to the worker's link."""
        for delivery in self.links.send_down(worker, frame):
            self._send(*delivery)

    def attend(self) -> None:
        """Send weights that have fallen due while the server was busy."""
        self._deliver(busy=True)

    def _deliver(self, *, busy: bool = False) -> None:
        """Send weights that are due."""
        for worker, frame in self.links.collect(busy=busy):
            arrives = isinstance(frame[-1], Weights)
            if self.waiting is not None and arrives and self.waiting.blocked[worker] == frame[-1].range:
                self.waiting.blocked[worker] = None
            self._send(worker, frame)

    def _send(self, worker: int, frame: Frame) -> None:
        if (stream := self.streams[worker]) is not None:
            with contextlib.suppress(OSError):  # a dead worker is noticed where its stream is read
                stream.send(frame)

    # --- the end --------------------------------------------------------------------------------------------------

    def _lose(self, worker: int) -> None:
        """Lose a worker whose process is gone; where it may be replaced, the parent decides."""
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
        """Stop the workers, and read each one's stream to its last message: the next run begins with empty streams."""
        waiting = {worker for worker, stream in enumerate(self.streams) if stream is not None}
        for worker in set(range(self.run_config.workers)) - waiting - self.left:  # it waits for no process now
            report(self.parent, "lost", {"worker": worker, "over": True})
        self.coming.clear()
        self.stores.send(Stop(0))
        for worker in waiting:
            self._send(worker, [Stop(worker)])
        while waiting and self.driver.outcome != "died":
            self._progress(waiting)
            for source in ready([*self.whose, *self.stores.sources], PROGRESS_PERIOD_S):
                if source in self.stores.sources:
                    self._finished(self.stores.hear(source))
                    continue
                if (sender := self.whose[source]) is None:
                    self._obey()
                    continue
                self.heard.add(sender)
                frames = self._frames(sender)
                if frames is None:  # it died with the run already over: nothing of it is missing
                    report(self.parent, "lost", {"worker": sender, "over": True})
                if frames is None or any(isinstance(message, Stop) for frame in frames for message in frame):
                    waiting.discard(sender)
        self._finished(self.stores.dismiss())

    def _report(self, ended_s: float) -> None:
        accounts, pushes = self.driver.accounts, self.driver.accounts.applied
        rows = accounts.ledger.close(pushes, ended_s)  # the parent sees them, and the weights
        if fallen := self.stores.gone():  # not all that was decided was done
            report(self.parent, "fallen", {"numbers": fallen})
            pushes = reached(rows, len(self.job.parts), self.job.traits)["pushes"]
        body = {
            "outcome": self.driver.outcome,
            "seconds": ended_s,
            "pushes": pushes,
            "accepted": self.machine.gradients,
            "refused": self.driver.refused + self.faults.refused,
            "faulted": self.faults.rows,
            "dropped": accounts.dropped,
            "dropped_bytes": accounts.dropped_bytes,
            "diverged": self.driver.diverged,
            **({"requested_bytes": self.driver.requested_bytes} if self.job.keyed else {}),
            **self.links.facts(),
            **self.driver.facts(),
            "stalled_s": self.stalled_s,
            "costs": self.clock.costs(),
        }
        report(self.parent, "served", body)
