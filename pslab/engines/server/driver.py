"""The server's driver: it hands messages to the protocol's machine and performs what comes back.

An engine adds a clock, by which work takes time, and a transport, on which frames leave.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Protocol

from pslab.engines.emulation.link_queue import Waiting
from pslab.engines.job.job import Job
from pslab.engines.job.wire import WHOLE, Answer, Diverged, Frame, Gone, Taken, Wanted
from pslab.engines.server.books import Books
from pslab.engines.server.clock import APPLY, FIND, SEARCH, SERVE, Clock
from pslab.engines.server.ledger import NOTHING
from pslab.protocol.messages import Ack, Pull, Push, Searched, Weights
from pslab.protocol.server import Discard, Effect, Refuse, Reply, Server, Step
from pslab.protocol.worker import buffers_of
from pslab.tensors.workload.data import rounds


class Transport(Protocol):
    """How a server's frames reach its workers."""

    def send(self, worker: int, frame: Frame) -> None:
        """Let these messages travel as one; the last one is the weights of a range, or all are acknowledgements."""

    def attend(self) -> None:
        """Time has passed: deliver what is due meanwhile."""


class Shard(Protocol):
    """The weights at a server: tensors, or nothing but their sizes."""

    def apply(self, step: Step, rate: float, computing: Collection[int]) -> None:
        """Apply the pushes of a step, while workers compute on these versions; WorkerFailed if a frame is bad."""

    def lay(self, reply: Reply) -> int:
        """Lay the weights of a range ready for a worker: the bytes of the frame, or WHOLE if they lie there as such."""

    def leave(self, worker: int) -> None:
        """A worker has left."""

    @property
    def converged(self) -> bool:
        """Whether the policy's method ends the run."""

    def facts(self) -> dict[str, Any]:
        """For the manifest, of the policy's method."""


class ServerDriver:
    """One run at its server, until there is an `outcome`."""

    def __init__(
        self, job: Job, machine: Server, books: Books, shard: Shard, clock: Clock, transport: Transport,
        waiting: Waiting | None = None,
    ) -> None:  # fmt: skip
        self._job, self.machine, self.books, self._shard = job, machine, books, shard
        self._clock, self._transport, self._waiting = clock, transport, waiting
        self._buffers = buffers_of(job.traits.eager)
        self._outbox: dict[int, Frame] = {worker: [] for worker in range(job.run.workers)}  # goes with the next weights
        self._taken: dict[tuple[int, int], tuple[float, float]] = {}  # of (worker, range) the last push: taken, done
        self._asked_s: dict[tuple[int, int], float] = {}  # ... when its last request was taken
        self._answered: dict[tuple[int, int], int] = {}  # ... the last iteration that it was given weights for
        self.outcome = ""  #: why the run ended
        self.ended_s = 0.0
        self.refused = 0  #: messages that changed nothing
        self.requested_bytes = 0  #: of the frames that name keys
        self.diverged: dict[str, int] | None = None  #: the worker and iteration whose gradient was not finite

    def start(self) -> None:
        """The run starts: the initial weights are to be evaluated, too."""
        self.books.ledger.snapshot_if_due(0, 0.0)

    def end(self, outcome: str, now: float) -> None:
        """The run is over."""
        self.outcome, self.ended_s = outcome, now

    def receive(self, frame: Frame) -> None:
        """Deal with the messages of a frame, unless the run is over."""
        for message in frame:
            if self.outcome:
                return
            if isinstance(message, Push):
                self._push(message)
            elif isinstance(message, Pull):
                self._pull(message)
            elif isinstance(message, Gone):
                self.leave(message.worker)
            elif isinstance(message, Diverged):
                self.diverge(message, self._clock.now())

    def leave(self, worker: int) -> None:
        """A worker has left; those who waited for it may go on."""
        if worker in self.machine.workers:
            now = self._clock.now()
            self.books.ledger.left(worker, now)
            self.books.leave(worker)
            self._shard.leave(worker)
            self._outbox[worker] = []
            for index in range(len(self._job.parts)):
                self._taken.pop((worker, index), None)
                self._answered.pop((worker, index), None)
            self._perform(self.machine.leave(worker, now))

    def join(self, worker: int, now: float) -> int:
        """A worker joins, new or back: the iteration that it may ask for."""
        iteration = self.machine.join(worker)
        self.books.ledger.joined(worker, iteration, now)
        return iteration

    def succeed(self, worker: int) -> tuple[int, Frame]:
        """Another process takes a worker's place, once all that the one before has sent is dealt with: the iteration
        that it goes on with, and what is to be received in its name when it has heard that.

        The policy sees the same worker, which asks again for weights that its former process may have had. Only where
        that one asked ahead, or has pushed a part of an iteration, the worker leaves and joins.
        """
        now, ranges = self._clock.now(), self.machine.ranges
        iteration = ranges[0].clocks[worker]
        for index in range(len(ranges)):
            self._answered.pop((worker, index), None)  # that was the process before
        if self.machine.traits.eager or any(part.clocks[worker] != iteration for part in ranges):
            self.leave(worker)
            iteration = self.join(worker, now)
        wanted = Wanted(0, self._job.keyspace.keys, now)
        return iteration, [Pull(worker, index, iteration, 0, wanted) for index, part in enumerate(ranges)
                           if worker not in part.asked]  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """What the manifest says of the policy's method, and of how many batches a worker's pass over the data has."""
        passed = rounds(self._job.examples, self._job.run.workers, self._job.run.batch_size)
        return {"pass_iterations": passed, **self._shard.facts()}

    def diverge(self, message: Diverged, now: float) -> None:
        """A gradient is not finite: the run ends."""
        self.refused += 1
        self.diverged = message._asdict()
        self.end("diverged", now)

    def _push(self, push: Push) -> None:
        """A push is dealt with when the last step that it led to is applied; at once if it led to none."""
        now, key, budget = self._clock.now(), (push.worker, push.range), self._job.run.pushes
        self.books.ledger.arrived(push, now)
        effects = self.machine.handle(push, now)
        if not _refused(effects):
            self._taken[key] = now, now
        self._perform(effects, key)
        if budget is not None and self.machine.gradients >= budget:
            self.end("budget", self._clock.now())
        elif self._shard.converged:
            self.end("converged", self._clock.now())

    def _pull(self, pull: Pull) -> None:
        """A request is answered once: the place where its weights lie is one that the worker computes on by now."""
        now, key = self._clock.now(), (pull.worker, pull.range)
        if pull.iteration <= self._answered.get(key, NOTHING):
            self.refused += 1
            return
        self.books.ledger.arrived(pull, now)
        effects = self.machine.handle(pull, now)
        if not _refused(effects):
            self._asked_s[key] = now
            self.requested_bytes += pull.payload.size_bytes if self._job.keyed else 0
        self._perform(effects)

    def _perform(self, effects: Iterable[Effect], led_by: tuple[int, int] | None = None) -> None:
        """Perform effects, and those that follow from them; a push of this (worker, range) led to them."""
        pending = deque(effects)
        while pending:
            effect = pending.popleft()
            if isinstance(effect, Step):
                self._step(effect, led_by)
            elif isinstance(effect, Reply):
                self._reply(effect)
                pending += self.machine.answered(effect.pull.range)
            elif isinstance(effect, Discard):
                self.books.discard(effect)
                self._acknowledge(effect.push)
            elif isinstance(effect, Searched):
                self._clock.spend(SEARCH, self._clock.now(), effect.points)
            elif isinstance(effect, Refuse):
                self.refused += 1
            self._transport.attend()  # that may have taken milliseconds, for which other workers need not wait

    def _step(self, step: Step, led_by: tuple[int, int] | None) -> None:
        clock, books, begin_s = self._clock, self.books, self._clock.now()
        rate = books.rate(step)
        self._shard.apply(step, rate, books.computing(step.range))
        held = sum([push.payload.size_bytes != 0 for push in step.pushes])
        clock.spend(APPLY, begin_s, held, self._job.shares[step.range])
        done_s = clock.now()
        books.applied_at(step, done_s)
        if led_by is not None:
            self._taken[led_by] = self._taken[led_by][0], done_s
        for push in step.pushes:
            self._acknowledge(push)

    def _acknowledge(self, push: Push) -> None:
        worker, key = push.worker, (push.worker, push.range)
        taken = Taken(*self._taken.get(key, (0.0, 0.0)))
        self._outbox[worker].append(Ack(worker, push.range, push.iteration, taken))
        # a worker that has its next weights and lacks a free buffer asks for none: no weights would bring this
        if push.iteration <= self._answered.get(key, NOTHING) - self._buffers and worker in self.machine.workers:
            frame, self._outbox[worker] = self._outbox[worker], []
            self._transport.send(worker, frame)

    def _reply(self, reply: Reply) -> None:
        job, pull, released_s = self._job, reply.pull, self._clock.now()
        worker, index = key = pull.worker, pull.range
        self.books.replied(reply)
        self._answered[key] = pull.iteration
        size_bytes = self._shard.lay(reply)
        on = FIND if size_bytes != WHOLE and job.run.pull == "changed" else SERVE
        self._clock.spend(on, released_s, int(not reply.empty), job.shares[index])
        taken_s, done_s = self._taken.get(key, (released_s, released_s))
        answer = Answer(size_bytes, reply.released_by, taken_s, done_s, self._asked_s.get(key, released_s), released_s,
                        self._clock.now())  # fmt: skip
        weights = Weights(worker, index, pull.iteration, reply.version, answer, reply.own)
        frame, self._outbox[worker] = [*self._outbox[worker], weights], []
        self.books.ledger.answered(weights)
        if self._waiting is not None:
            self._waiting.answered(reply)
        self._transport.send(worker, frame)


def _refused(effects: Sequence[Effect]) -> bool:
    return bool(effects) and isinstance(effects[0], Refuse)
