"""The server's driver: it hands messages to the protocol's machine, and what comes back to the stores of the ranges.

An engine adds a clock, by which work takes time, and a transport, on which frames leave; with several servers it adds
their stores, which do what they are handed in a time of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from pslab.engines.emulation.link_queue import Waiting
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import Answer, Diverged, Frame, Gone, Taken, Wanted
from pslab.engines.server.clock import SEARCH, Clock
from pslab.engines.server.ledger import NOTHING
from pslab.engines.server.push_accounts import PushAccounts
from pslab.engines.server.store import NO_WORK, Dealt, Finished, OwnStore, Shard, Store, Work
from pslab.protocol.messages import Ack, Pull, Push, Searched, Weights
from pslab.protocol.server import Discard, Effect, Refuse, Reply, Server, Step
from pslab.protocol.store import Forget, Order, Snapshot
from pslab.tensors.update import rate_state
from pslab.tensors.workload.data import rounds


class Transport(Protocol):
    """How a server's frames reach its workers. Without methods of its own a class has nothing to do
    between its frames."""

    def send(self, worker: int, frame: Frame, now: float) -> None:
        """Let these messages of one server travel as one from this instant on; the last one is the weights of a range,
        or all are acknowledgements."""

    def attend(self) -> None:
        """Deliver messages that have fallen due meanwhile."""
        return


class ServerDriver:
    """One run at its server, until there is an `outcome`."""

    def __init__(
        self, job: Job, machine: Server, accounts: PushAccounts, shard: Shard, clock: Clock, transport: Transport,
        waiting: Waiting | None = None, others: Sequence[Store] = (),
    ) -> None:  # fmt: skip
        self._job, self.machine, self.accounts, self._shard = job, machine, accounts, shard
        self._ledger, self._budget, self._server_of = accounts.ledger, job.run.pushes, job.server_of
        self._listed = not (job.keyed or job.cluster.colocated)  # whether its bytes are what crosses the network
        self._joined = rate_state.joins(job.rate)  # whether a store needs the versions that workers compute on
        self._stores: list[Store] = [OwnStore(job, shard, clock, accounts.ledger), *others]
        self._clock, self._transport, self._waiting = clock, transport, waiting
        self._buffers = job.traits.buffers
        # of (worker, server) what goes with the next weights
        self._outbox: dict[tuple[int, int], Frame] = {}
        self._dealt: dict[tuple[int, int], Dealt] = {}  # of (worker, range) the last push: taken, done
        self._asked_s: dict[tuple[int, int], float] = {}  # of (worker, range) when its last request was taken
        self._answered: dict[tuple[int, int], int] = {}  # of (worker, range) the last iteration with weights
        self._steps: dict[tuple[int, int], int] = {}  # of (worker, iteration) the gradients, if the policy assigns them
        self._applied_s = 0.0  # when the last step was
        self._copies: dict[int, tuple[int, int, float]] = {}  # of a snapshot: servers to come, pushes, latest instant
        self.outcome = ""  #: why the run ended
        self.ended_s = 0.0
        self.refused = 0  #: messages that changed nothing
        self.requested_bytes = 0  #: of the frames that name keys
        self._network_bytes = 0  # of what has come, and been sent, between different machines
        self.diverged: dict[str, int] | None = None  #: the worker and iteration whose gradient was not finite

    def start(self) -> None:
        """Start the run, and have the initial weights evaluated."""
        self._ledger.snapshot_if_due(0, 0.0)
        self._end_if_spent()

    def end(self, outcome: str, now: float) -> None:
        """End the run, when all decisions are carried out."""
        self.outcome, self.ended_s = outcome, now
        for store in self._stores:
            self._finish(store)

    def keep_last(self, now: float) -> None:
        """Keep the last weights for evaluation; a single server's ledger keeps them."""
        ledger, applied = self.accounts.ledger, self.accounts.applied
        if len(self._stores) > 1 and ledger.lacks(applied):
            self._open_snapshot(now)
            for store in self._stores:
                self._finish(store)

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
        """Lose a worker; workers that waited for it may go on."""
        if worker in self.machine.workers:
            now = self._clock.now()
            self._ledger.left(worker, now)
            self.accounts.leave(worker)
            for server, store in enumerate(self._stores):
                self._hand(store, Forget(worker), NO_WORK)
                self._outbox.pop((worker, server), None)
            for index in range(len(self._job.parts)):
                self._dealt.pop((worker, index), None)
                self._answered.pop((worker, index), None)
            self._perform(self.machine.leave(worker, now))
            self._end_if_spent()

    def join(self, worker: int, now: float) -> int:
        """A worker joins, new or back: the iteration that it may ask for."""
        iteration = self.machine.join(worker)
        self._ledger.joined(worker, iteration, now)
        return iteration

    def succeed(self, worker: int) -> tuple[int, Frame]:
        """Another process takes a worker's place, once all that the one before has sent is dealt with: the iteration
        that it goes on with, and what is to be received in its name when it has heard that.

        The policy sees the same worker, which asks again for weights that its former process may have had. Only where
        that one asked ahead, or has pushed a part of an iteration, the worker leaves and joins.
        """
        now, ranges, turn = self._clock.now(), self.machine.ranges, self.machine.traits.rotation.turn
        iteration = self.machine.clock(worker)
        for index in range(len(ranges)):
            self._answered.pop((worker, index), None)  # that was the process before
        asked = [part.asked[worker].iteration for part in ranges if worker in part.asked]  # some overtook their pushes
        torn = [index for index, part in enumerate(ranges) if part.clocks[worker] != turn(index, iteration)]
        if self.machine.traits.eager or torn or {*asked} - {iteration}:
            self.leave(worker)
            iteration = self.join(worker, now)
        wanted = Wanted(0, self._job.keyspace.keys, now)
        return iteration, [Pull(worker, index, iteration, 0, wanted) for index, part in enumerate(ranges)
                           if worker not in part.asked]  # fmt: skip

    @contextmanager
    def replaying(self, recorded: Any) -> Iterator[None]:
        """Let one object be clock, transport and store of all ranges, and take no snapshot, meanwhile."""
        given, snapshots = (self._clock, self._transport, self._stores), self._ledger.snapshots
        self._clock = self._transport = recorded
        self._stores = [recorded] * len(self._stores)
        self._ledger.set_snapshots(*snapshots[:2], math.inf)
        yield
        self._clock, self._transport, self._stores = given
        self._ledger.set_snapshots(*snapshots)

    def repeat(self, message: Push | Pull) -> None:
        """Handle a message again, also a request that another process made before."""
        if isinstance(message, Push):
            self._push(message)
        else:
            self._take_pull(message)

    def numbers(self) -> dict[str, Any]:
        """Return the numbers for a checkpoint that no replay of arrivals makes: they depend on sizes and instants."""
        copies = [[index, *copy] for index, copy in self._copies.items()]
        return {"counts": [self.refused, self.requested_bytes, self._network_bytes], "applied_s": self._applied_s,
                "copies": copies, "snapshots": self._ledger.snapshots}  # fmt: skip

    def set_numbers(self, numbers: Mapping[str, Any]) -> None:
        """Go on with the numbers of a checkpoint. The snapshots that were being copied are whole: their orders came
        before those that made the checkpoint."""
        self.refused, self.requested_bytes, self._network_bytes = map(int, numbers["counts"])
        self._applied_s = float(numbers["applied_s"])
        self._ledger.set_snapshots(*numbers["snapshots"])
        for index, _, pushes, latest_s in numbers["copies"]:
            self._ledger.kept(index, pushes, latest_s, len(self._stores) - 1)

    def facts(self) -> dict[str, Any]:
        """Return facts for the manifest: those of the policy's method, the batches in a worker's pass over the data,
        the number of ranges; the bytes that have crossed the network, where the table of pushes adds up to another
        number; and the gradients of each iteration, where the policy assigns them.
        """
        job = self._job
        passed = rounds(job.examples, job.run.workers, job.run.batch_size)
        crossed = {} if self._listed else {"network_bytes": self._network_bytes}
        steps = {"steps": [[*name, count] for name, count in sorted(self._steps.items())]} if job.traits.assigns else {}
        return {"pass_iterations": passed, "ranges": len(job.parts), **crossed, **steps, **self._shard.facts()}

    def diverge(self, message: Diverged, now: float) -> None:
        """End the run because a gradient is not finite."""
        self.refused += 1
        self.diverged = message._asdict()
        self.end("diverged", now)

    def _push(self, push: Push) -> None:
        """Handle a push: it is done when the last step that it led to is applied, or at once if it led to none."""
        now, key = self._clock.now(), (push.worker, push.range)
        self._ledger.arrived(push, now)
        if not self._listed:
            self._crossed(push.worker, push.range, push.payload.size_bytes)
        effects = self.machine.handle(push, now)
        if not (effects and type(effects[0]) is Refuse):
            self._dealt[key] = [now, now]
        self._perform(effects, key)
        self._end_if_spent()
        if self._shard.converged and not self.outcome:
            self.end("converged", self._clock.now())

    def _end_if_spent(self) -> None:
        if self.machine.spent(self._budget) and not self.outcome:
            self.end("budget", self._clock.now())

    def _pull(self, pull: Pull) -> None:
        """Handle a pull, once: the worker computes on its buffer by now."""
        key = pull.worker, pull.range
        if pull.iteration <= self._answered.get(key, NOTHING):
            self.refused += 1
            return
        self._take_pull(pull)

    def _take_pull(self, pull: Pull) -> None:
        now, key = self._clock.now(), (pull.worker, pull.range)
        self._ledger.arrived(pull, now)
        effects = self.machine.handle(pull, now)
        if not (effects and type(effects[0]) is Refuse):
            self._asked_s[key] = now
            if self._job.keyed:
                self.requested_bytes += pull.payload.size_bytes
                self._crossed(*key, pull.payload.size_bytes)
        self._perform(effects)

    def _crossed(self, worker: int, index: int, size_bytes: int) -> None:
        if not self._job.beside(worker, index):
            self._network_bytes += self._job.payload_bytes(index, size_bytes)

    def _perform(self, effects: Iterable[Effect], led_by: tuple[int, int] | None = None) -> None:
        """Perform effects, and those that follow from them; a push of this (worker, range) led to them."""
        pending = list(effects)
        for effect in pending:  # to which more are added meanwhile
            if isinstance(effect, Step):
                self._step(effect, led_by)
            elif isinstance(effect, Reply):
                self._reply(effect)
                pending.extend(self.machine.answered(effect.pull.range))
            elif isinstance(effect, Discard):
                self.accounts.discard(effect)
                self._hand(self._store_of(effect.range), effect, Work(dealt=self._dealt_with((effect.push,))))
            elif isinstance(effect, Searched):
                self._clock.spend(SEARCH, self._clock.now(), effect.points)
            elif isinstance(effect, Refuse):
                self.refused += 1
            self._transport.attend()  # that may have taken milliseconds, for which other workers need not wait

    def _step(self, step: Step, led_by: tuple[int, int] | None) -> None:
        accounts, index = self.accounts, step.range
        rate, store = accounts.start_step(step), self._store_of(index)
        own = self._dealt.get(led_by) if led_by is not None and self._store_of(led_by[1]) is store else None
        computing = accounts.computing(index) if self._joined else ()
        self._hand(store, step, Work(rate, computing, self._dealt_with(step.pushes), own))
        if accounts.count(step):
            self._snapshot_if_due()

    def _reply(self, reply: Reply) -> None:
        pull = reply.pull
        key = pull.worker, pull.range
        self.accounts.replied(reply)
        if reply.steps:
            self._steps[pull.worker, pull.iteration] = reply.steps
        self._answered[key] = pull.iteration
        if self._waiting is not None:
            self._waiting.answered(reply)
        self._hand(self._store_of(pull.range), reply, Work(0.0, (), (self._dealt.get(key),)))

    def _store_of(self, index: int) -> Store:
        return self._stores[self._server_of[index]]

    def _dealt_with(self, pushes: Iterable[Push]) -> list[Dealt | None]:
        return [self._dealt.get((push.worker, push.range)) for push in pushes]

    def _snapshot_if_due(self) -> None:
        """Keep the weights for evaluation if a period has passed, between the same two steps at each server."""
        ledger, applied = self._ledger, self.accounts.applied
        if len(self._stores) == 1:
            ledger.snapshot_if_due(applied, self._applied_s)
        elif ledger.take_due(applied, self._clock.now()):
            self._open_snapshot(0.0)

    def _open_snapshot(self, since_s: float) -> None:
        """Have each server copy its weights behind its earlier orders."""
        applied = self.accounts.applied
        index = self.accounts.ledger.open(applied)
        self._copies[index] = len(self._stores), applied, since_s
        for store in self._stores:
            self._hand(store, Snapshot(index), NO_WORK)

    # --- what the stores have done --------------------------------------------------------------------------------

    def _hand(self, store: Store, order: Order, work: Work) -> None:
        if (found := store.hand(order, work)) is not None:
            self.finished(found)

    def _finish(self, store: Store) -> None:
        for found in store.finish():
            self.finished(found)

    def finished(self, found: Finished) -> None:
        """Take an order that a store has carried out."""
        order, work, done_s = found.order, found.work, found.done_s
        if isinstance(order, Step):
            self._applied(order, work, done_s)
        for push, dealt in zip(found.free, work.dealt if found.free else (), strict=True):
            self._acknowledge(push, dealt or [0.0, 0.0], done_s)
        if isinstance(order, Reply) and found.sends:
            self._laid(order, work, found.size_bytes, found.begin_s, done_s)
        elif isinstance(order, Snapshot):
            self._copied(order.number, done_s)

    def _applied(self, step: Step, work: Work, done_s: float) -> None:
        """Record that the pushes of a step are in the weights since `done_s`."""
        self.accounts.applied_at(step, done_s)
        self._applied_s = done_s
        if work.led_by is not None:
            work.led_by[1] = done_s
        self._ended_at(done_s)

    def _acknowledge(self, push: Push, dealt: Dealt, now: float) -> None:
        """Acknowledge a push whose payload no store needs any more."""
        worker, index, iteration = push[:3]
        place = worker, self._server_of[index]
        self._outbox.setdefault(place, []).append(Ack(worker, index, iteration, Taken(*dealt)))
        # a worker that has its next weights and lacks a free buffer asks for none: no weights would bring this
        late = iteration + self._buffers <= self._answered.get((worker, index), NOTHING)
        if late and worker in self.machine.workers:
            self._transport.send(worker, self._outbox.pop(place), now)

    def _laid(self, reply: Reply, work: Work, size_bytes: int, begin_s: float, done_s: float) -> None:
        """Send the weights of a range, read from `begin_s` to `done_s`, to a worker."""
        pull, (dealt,) = reply.pull, work.dealt
        worker, index = key = pull.worker, pull.range
        pushed_s, applied_s = dealt or (begin_s, begin_s)
        asked_s = self._asked_s.get(key, begin_s)
        answer = Answer(size_bytes, reply.released_by, pushed_s, applied_s, asked_s, begin_s, done_s)
        weights = Weights(worker, index, pull.iteration, reply.version, answer, reply.own, reply.gradients, reply.begin,
                          reply.steps)  # fmt: skip
        place = worker, self._server_of[index]
        frame = [*self._outbox.pop(place, ()), weights]
        self._ledger.answered(weights)
        if not self._listed:
            self._crossed(worker, index, size_bytes)
        if self.outcome:
            self._ended_at(done_s)
        else:
            self._transport.send(worker, frame, done_s)

    def _copied(self, index: int, done_s: float) -> None:
        """Count a server's copy of its weights in a snapshot."""
        to_come, pushes, latest_s = self._copies.pop(index)
        latest_s = max(latest_s, done_s)
        if to_come == 1:
            self._ledger.kept(index, pushes, latest_s, len(self._stores) - 1)
        else:
            self._copies[index] = to_come - 1, pushes, latest_s
        self._ended_at(done_s)

    def _ended_at(self, done_s: float) -> None:
        """Set the end of the run behind all decisions before it."""
        if self.outcome:
            self.ended_s = max(self.ended_s, done_s)
