"""A worker's process: it computes the iterations that the worker's driver starts, and measures their time."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time

from pslab.engines.emulation.faults import NEVER, Faults
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import FIRST, Diverged, Frame, Stop
from pslab.engines.local.lines.ends import TO_WORKER
from pslab.engines.local.lines.stream import Spin, Stream, awaited, ready
from pslab.engines.processes.channel import LifeSigns, report
from pslab.engines.processes.child import ProcessContext
from pslab.engines.server.clock import WallClock
from pslab.engines.server.evaluate import Evaluating
from pslab.engines.server.rows import Rows
from pslab.engines.worker.driver import WorkerDriver
from pslab.engines.worker.modes import producer_of, requests_of
from pslab.engines.worker.phases import PHASE_COLUMNS
from pslab.engines.worker.real_time import RealTimeWorker
from pslab.tensors.finite import NonFinite


class Stopped(Exception):
    """Raised when the server has ended the run."""


class LocalWorker(RealTimeWorker):
    """The role of a worker's process, for one run."""

    def __init__(self, context: ProcessContext, job: Job, successor: bool = False) -> None:
        self._evaluating = Evaluating(context, job)
        self.context, self.job = context, (job := self._evaluating.job)
        self.worker = context.number
        self.stream = Stream(context.pipes[0], TO_WORKER, lease_s=job.run.lease_s, waits=True)
        self.spin = None if job.cluster.emulated else Spin()
        requests = requests_of(job, context.arena, context.data)
        rows = Rows(len(PHASE_COLUMNS), context.phases)  # stored in memory that outlives this process
        self.driver = WorkerDriver(job, self.worker, lambda frame, now: self.stream.send(frame), rows, requests)
        self.producer = producer_of(job, self.worker, context.arena, context.data, successor=successor,
                                    requests=requests)  # fmt: skip
        # before "prepared" is reported, so that no worker's first gradient compiles while others are timed
        self.producer.warm_up()
        self.faults, self.spared = Faults(job.cluster, job.run.seed), NEVER
        self.layers_s: list[list[float]] = []
        self.selecting = Selecting(job.device.separate)
        self.overrun_s = self.real_s = self.modelled_s = 0.0
        self.pulled = []
        self.clock, self.life = WallClock(), LifeSigns(context.parent, job.run.lease_s)
        # the delay in waking up for weights: a modelled computation begins at their arrival, which hides this delay
        self.hides, self.lag_s, self.late_s = job.cluster.modelled(job.run.workers) and not job.layered, 0.0, 0.0
        self.idle_since_s = math.inf  # since when it waits, also if it was not scheduled since

    def now(self) -> float:
        return self.clock.now() - self.lag_s

    @property
    def iteration(self) -> int:
        """The iteration that is computed or waited for, for error messages."""
        return self.driver.iteration

    def evaluate(self, index: int, device: str) -> None:
        """Evaluate a snapshot and report it."""
        self._evaluating.evaluate(index, device)

    def run(self, dilation: float) -> None:
        """Compute until the server ends the run, then report measurements to the parent."""
        try:
            iteration = self._start(dilation)
            while True:
                while iteration is not None:
                    iteration = self._compute(iteration)
                iteration = self._receive()
        except Stopped:
            self._last_message()
        except NonFinite:
            # the server ends the run; until its Stop comes, other messages are read and ignored
            self.stream.send([Diverged(self.worker, self.iteration)])
            with contextlib.suppress(Stopped):
                while True:
                    self._messages()
            self._last_message()
        kill_after(math.inf)  # a planned kill must not hit the next run
        schedule = self.driver.range_schedule
        body = {"overrun_s": self.overrun_s, "late_s": self.late_s, "real_s": self.real_s,
                "modelled_s": self.modelled_s, "alive_s": self.now(),
                # a device computes a layer later than the process asks for it
                "layers_s": [] if self.job.device.separate else self.layers_s,
                "refused": self.driver.refused, "faulted": self.faults.rows,
                "sweeps": schedule.sweeps if schedule else []}  # fmt: skip
        report(self.context.parent, "worked", body)

    def _start(self, dilation: float) -> int | None:
        """Start with the run, or replace another process; return the iteration to compute now, or None."""
        self.clock.start(dilation)  # until Go tells the run's start
        go, *others = self._messages()
        self.clock.start(dilation, go.zero_s)
        now = self.clock.now()
        # a fault before now killed the former process
        since_s = 0.0 if go.iteration == FIRST else now
        kill_after(self.clock.real_s(self.faults.kill_s(self.worker, since_s) - now))
        if go.iteration == FIRST:
            return self.driver.start(self.now())
        self.spared = go.spared
        self.driver.resume(go.iteration)
        body = {"worker": self.worker, "joined": go.iteration, "kept": self.producer.resume(go.iteration)}
        report(self.context.parent, "joined", body)
        return self._deal_with(others)

    # --- computing ------------------------------------------------------------------------------------------------

    def _compute(self, iteration: int) -> int | None:
        """Compute an iteration and push its gradient; return the next iteration if it can be computed now, else None.

        Raises:
            NonFinite: the gradient, the residual or the momentum is not finite; nothing is pushed.
        """
        if self.pulled:
            self._install_pulled(iteration)
        self.driver.begin(self.now())
        basis = self.driver.take_basis(iteration)
        self.idle_since_s = math.inf
        # `now` is without the lag: the modelled computation began with the weights, the real one begins here
        begin_s, modelled_s, woke_s = self.now(), self.driver.draw_compute_s(iteration), self.clock.now()
        loss = self.producer.gradient(iteration, basis)
        real_s = self.clock.now() - woke_s
        self._hold_until(begin_s + modelled_s)
        self.lag_s = 0.0  # the wait has absorbed it
        computed_s = self.now()
        self.real_s, self.modelled_s = self.real_s + real_s, self.modelled_s + modelled_s
        # a computation that takes longer than modelled is an overrun: the emulated clock cannot wait for it
        if modelled_s:
            self.overrun_s += max(0.0, computed_s - begin_s - modelled_s)
        computed_s = self._paused(iteration, begin_s, computed_s)
        used_s = time.thread_time()
        payloads, selected_s = self.producer.payloads(iteration, loss)
        if modelled_s:  # selection takes its own CPU time, but no time of other processes
            used_s = (time.thread_time() - used_s) / self.clock.dilation
            self.overrun_s += self.selecting.waited_s(self.now() - computed_s, used_s)
        ranges = self.job.exchanged(iteration)
        # the state is complete and the push is not sent: a successor must take the state of one iteration before
        self._die_if_killed(iteration)
        self.idle_since_s = time.monotonic()
        following = self.driver.computed(ranges, payloads, computed_s, self.clock.at(selected_s), self.now())
        return self._follow(iteration) if self.job.traits.overlap else following

    def _follow(self, iteration: int) -> int | None:
        """Compute the steps after a push, while it is under way; return the next iteration if its weights have come."""
        self.idle_since_s = math.inf
        begin_s, modelled_s = self.now(), self.driver.draw_following_s()
        self.producer.follow(iteration)
        self.real_s, self.modelled_s = self.real_s + self.now() - begin_s, self.modelled_s + modelled_s
        following = self._hold_until(begin_s + modelled_s)
        if modelled_s:
            self.overrun_s += max(0.0, self.now() - begin_s - modelled_s)
        ends_s = self.now()
        if paused_s := self.faults.pause_s(self.worker, iteration, begin_s, ends_s):
            following = self._hold_until(ends_s + paused_s) or following
        self.driver.followed(iteration, begin_s, self.now())
        self.idle_since_s = time.monotonic()
        return following

    def _paused(self, iteration: int, begin_s: float, ends_s: float) -> float:
        """Pause a computation between these instants as the faults say; return the instant at which it ends."""
        if not (paused_s := self.faults.pause_s(self.worker, iteration, begin_s, ends_s)):
            return ends_s
        self._hold_until(ends_s + paused_s)
        return self.now()

    def _die_if_killed(self, iteration: int) -> None:
        if iteration > self.spared and self.faults.kills(self.worker, iteration):
            os.kill(os.getpid(), signal.SIGKILL)

    def _hold_until(self, end_s: float) -> int | None:
        """Wait until `end_s`, and process messages meanwhile; return the next iteration if it may begin, else None."""
        following = None
        while (left_s := end_s - self.clock.now()) > 0:
            # a process that sleeps uses no CPU time, and would be taken for dead in a long modelled computation
            self.life.give()
            if ready((self.stream.descriptor,), min(self.life.period_s, self.clock.real_s(left_s))):
                came = self._receive()
                # another message must not hide the iteration that may begin
                following = following if came is None else came
                self.lag_s = 0.0  # the computation was not over, so nothing was delayed
        return following

    # --- receiving ------------------------------------------------------------------------------------------------

    def _receive(self) -> int | None:
        """Wait for messages and process them; return the iteration to compute now, or None."""
        return self._deal_with(self._messages())

    def _messages(self) -> Frame:
        try:
            frames, late_s = awaited(self.stream, self.idle_since_s, self.spin)
            self.idle_since_s = math.inf
            messages = [message for frame in frames if not self.driver.drop_if_repeated(frame) for message in frame]
        except EOFError:
            raise Stopped from None
        late_s /= self.clock.dilation
        if self.hides:
            self.lag_s = late_s
        else:
            self.late_s += late_s
        if any(isinstance(message, Stop) for message in messages):
            raise Stopped
        return messages

    def _last_message(self) -> None:
        with contextlib.suppress(OSError):  # the server may have ended
            self.stream.send([Stop(self.worker)])


class Selecting:
    """Measures how long other processes delayed the selection of entries."""

    def __init__(self, separate: bool) -> None:
        self._separate, self._shortest_s = separate, math.inf

    def waited_s(self, spent_s: float, used_s: float) -> float:
        """Return the delay in a selection that took `spent_s`, of which the thread ran for `used_s`."""
        if self._separate:  # a thread's time says nothing about a device: compare with the shortest selection
            used_s = self._shortest_s = min(self._shortest_s, spent_s)
        return max(0.0, spent_s - used_s)


def kill_after(seconds: float) -> None:
    """Make a timer kill this process after so many seconds, even during a computation; infinity: stop the timer."""
    if seconds == math.inf:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        return
    signal.signal(signal.SIGALRM, lambda number, frame: os.kill(os.getpid(), signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
