"""The server's driver: it passes messages to the protocol's machine, and the machine's effects to the stores.

An engine provides a clock, which counts the time of operations, and a transport, which sends frames. With several
servers it also provides the stores of the other servers, which carry out orders at their own speed.
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
from pslab.engines.server.store import NO_DETAILS, Details, Finished, OwnStore, PushTimes, Shard, Store
from pslab.protocol.messages import Ack, Pull, Push, Searched, Weights
from pslab.protocol.server import Discard, Effect, Refuse, Reply, Server, Step
from pslab.protocol.store import Forget, Order, Snapshot
from pslab.tensors.update import rate_state
from pslab.tensors.workload.data import rounds


class Transport(Protocol):
    """Sends a server's frames to its workers."""

    def send(self, worker: int, frame: Frame, now: float) -> None:
        """Send messages of one server as one frame at the instant `now`: Acks, which may be followed by a Weights."""

    def attend(self) -> None:
        """Deliver messages that are due by now; the default does nothing."""
        return


class ServerDriver:
    """Drives a run at its server until `outcome` is set."""

    def __init__(
        self, job: Job, machine: Server, accounts: PushAccounts, shard: Shard, clock: Clock, transport: Transport,
        waiting: Waiting | None = None, others: Sequence[Store] = (),
    ) -> None:  # fmt: skip
        self._job, self.machine, self.accounts, self._shard = job, machine, accounts, shard
        self._ledger, self._budget, self._server_of = accounts.ledger, job.run.pushes, job.server_of
        self._listed = not (job.keyed or job.cluster.colocated)  # whether the table of pushes has all network bytes
        self._joined = rate_state.joins(job.rate)  # whether a store needs the versions that workers compute on
        # store 0 is in this process: its orders are done at once, the others' when they report
        self._stores: list[Store] = [OwnStore(job, shard, clock, accounts.ledger), *others]
        self._clock, self._transport, self._waiting = clock, transport, waiting
        self._buffers = job.traits.buffers
        # (worker, server): Acks for the frame of the next weights
        self._outbox: dict[tuple[int, int], Frame] = {}
        # the lists are shared with orders under way: when a step is done, `_applied` sets its push's second instant
        self._push_times: dict[tuple[int, int], PushTimes] = {}  # (worker, range): times of the last push
        self._asked_s: dict[tuple[int, int], float] = {}  # (worker, range): when the last pull was handled
        self._answered: dict[tuple[int, int], int] = {}  # (worker, range): the last iteration with a reply
        self._steps: dict[tuple[int, int], int] = {}  # (worker, iteration): gradients, if the policy assigns them
        self._applied_s = 0.0  # when the last step was applied
        self._copies: dict[int, tuple[int, int, float]] = {}  # snapshot: servers still to copy, pushes, latest instant
        self.outcome = ""  #: why the run ended
        self.ended_s = 0.0
        self.refused = 0  #: messages that changed nothing
        self.requested_bytes = 0  #: the bytes of pulls that name keys
        self._network_bytes = 0  # the bytes of frames between different machines
        self.diverged: dict[str, int] | None = None  #: the worker and iteration whose gradient was not finite

    def start(self) -> None:
        """Start the run with a snapshot of the initial weights, which will be evaluated."""
        self._ledger.snapshot_if_due(0, 0.0)
        # with rounds and several ranges, a budget that covers no round is spent before the first push
        self._end_if_spent()

    def end(self, outcome: str, now: float) -> None:
        """End the run with this outcome, after the stores have carried out all orders."""
        # the outcome first: from here on `_laid` sends no weights, and each step and reply that is done moves `ended_s`
        self.outcome, self.ended_s = outcome, now
        for store in self._stores:
            self._finish(store)

    def keep_last(self, now: float) -> None:
        """Take a snapshot of the last weights if there are several servers; for one server, `Ledger.close` takes it."""
        ledger, applied = self.accounts.ledger, self.accounts.applied
        if len(self._stores) > 1 and ledger.lacks(applied):
            self._open_snapshot(now)
            for store in self._stores:
                self._finish(store)

    def receive(self, frame: Frame) -> None:
        """Handle the messages of a frame, unless the run is over."""
        for message in frame:
            if self.outcome:  # the rest of the frame must not change the last weights
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
        """Remove a worker; workers that waited for it may go on."""
        if worker in self.machine.workers:
            now = self._clock.now()
            # recorded before its effects, like each arrival: a process that is killed leaves no effect without one
            self._ledger.left(worker, now)
            # before the machine's effects: under a barrier `start_step` refuses a step while a gradient is computed
            self.accounts.leave(worker)
            for server, store in enumerate(self._stores):
                # cancels the replies ordered so far; replies after a return are sent again
                self._hand(store, Forget(worker), NO_DETAILS)
                self._outbox.pop((worker, server), None)  # Acks that nobody awaits
            for index in range(len(self._job.parts)):
                # after a return, a pull may have the number of one that was answered before the departure
                self._push_times.pop((worker, index), None)
                self._answered.pop((worker, index), None)
            self._perform(self.machine.leave(worker, now))
            self._end_if_spent()

    def join(self, worker: int, now: float) -> int:
        """Add a new or returning worker; return its first iteration."""
        iteration = self.machine.join(worker)
        self._ledger.joined(worker, iteration, now)
        return iteration

    def succeed(self, worker: int) -> tuple[int, Frame]:
        """Let a new process replace a worker's process, after all messages of the former process have been handled.

        Return the iteration from which the new process continues, and its first pulls, to be passed to `receive` once
        the process knows this iteration. If the former process had pulled ahead, or pushed an iteration on some ranges
        only, the worker leaves and joins. Otherwise the policy sees the same worker pull again.
        """
        now, ranges, turn = self._clock.now(), self.machine.ranges, self.machine.traits.rotation.turn
        iteration = self.machine.clock(worker)
        for index in range(len(ranges)):
            self._answered.pop((worker, index), None)  # the reply went to the former process
        asked = [part.asked[worker].iteration for part in ranges if worker in part.asked]  # pulls may overtake pushes
        torn = [index for index, part in enumerate(ranges) if part.clocks[worker] != turn(index, iteration)]
        # the other ranges of a torn push would come from a second gradient, computed on other weights
        if self.machine.traits.eager or torn or {*asked} - {iteration}:
            self.leave(worker)
            iteration = self.join(worker, now)
        # a parked pull still stands: the machine would refuse a second one as a duplicate
        wanted = Wanted(0, self._job.keyspace.keys, now)
        return iteration, [Pull(worker, index, iteration, 0, wanted) for index, part in enumerate(ranges)
                           if worker not in part.asked]  # fmt: skip

    @contextmanager
    def replaying(self, recorded: Any) -> Iterator[None]:
        """Use `recorded` as clock, transport and store of all ranges inside the `with` block, and take no snapshots."""
        given, snapshots = (self._clock, self._transport, self._stores), self._ledger.snapshots
        self._clock = self._transport = recorded
        self._stores = [recorded] * len(self._stores)
        # never due: these snapshots were taken before the checkpoint
        self._ledger.set_snapshots(*snapshots[:2], math.inf)
        yield
        self._clock, self._transport, self._stores = given
        self._ledger.set_snapshots(*snapshots)

    def repeat(self, message: Push | Pull) -> None:
        """Handle a recorded message in a replay; unlike `receive`, accept a pull that was answered before."""
        if isinstance(message, Push):
            self._push(message)
        else:
            # every recorded pull was taken, even if a new process repeated it; `_pull` would refuse that one
            self._take_pull(message)

    def numbers(self) -> dict[str, Any]:
        """Return the numbers that a checkpoint stores because a replay of the arrivals cannot restore them."""
        copies = [[index, *copy] for index, copy in self._copies.items()]
        return {"counts": [self.refused, self.requested_bytes, self._network_bytes], "applied_s": self._applied_s,
                "copies": copies, "snapshots": self._ledger.snapshots}  # fmt: skip

    def set_numbers(self, numbers: Mapping[str, Any]) -> None:
        """Restore the numbers of a checkpoint. Snapshots under way count as complete: each store has carried out its
        copy before the checkpoint."""
        self.refused, self.requested_bytes, self._network_bytes = map(int, numbers["counts"])
        self._applied_s = float(numbers["applied_s"])
        self._ledger.set_snapshots(*numbers["snapshots"])
        for index, _, pushes, latest_s in numbers["copies"]:
            self._ledger.kept(index, pushes, latest_s, len(self._stores) - 1)

    def facts(self) -> dict[str, Any]:
        """Return the facts that the manifests of all engines have in common.

        `pass_iterations` is the number of batches in a worker's pass over the data. `network_bytes` is given if the
        table of pushes does not have all bytes on the network, and `steps` if the policy assigns numbers of gradients.
        """
        job, accounts = self._job, self.accounts
        steps = [[*name, count] for name, count in sorted(self._steps.items())]
        return {
            "outcome": self.outcome,
            "seconds": self.ended_s,
            "pushes": accounts.applied,
            "accepted": self.machine.gradients,
            "refused": self.refused,
            "dropped": accounts.dropped,
            "dropped_bytes": accounts.dropped_bytes,
            "diverged": self.diverged,
            "pass_iterations": rounds(job.examples, job.run.workers, job.run.batch_size),
            "ranges": len(job.parts),
            **({"requested_bytes": self.requested_bytes} if job.keyed else {}),
            **({} if self._listed else {"network_bytes": self._network_bytes}),
            **({"steps": steps} if job.traits.assigns else {}),
            **self._shard.facts(),
        }

    def diverge(self, message: Diverged, now: float) -> None:
        """End the run because a gradient is not finite."""
        self.refused += 1  # its push never comes
        self.diverged = message._asdict()
        self.end("diverged", now)

    def _push(self, push: Push) -> None:
        """Handle a push; it is done when the last step that it causes is applied, or at once if it causes no step."""
        now, key = self._clock.now(), (push.worker, push.range)
        # recorded even if it is refused: judge and replay handle the same messages in the same order
        self._ledger.arrived(push, now)
        if not self._listed:
            self._crossed(push.worker, push.range, push.payload.size_bytes)
        effects = self.machine.handle(push, now)
        if not (effects and type(effects[0]) is Refuse):
            # before the effects, which read these times; a duplicate must not replace the accepted push's times
            self._push_times[key] = [now, now]
        # the end is checked after the effects, so that the last push of the budget is applied
        self._perform(effects, key)
        self._end_if_spent()
        if self._shard.converged and not self.outcome:
            self.end("converged", self._clock.now())

    def _end_if_spent(self) -> None:
        if self.machine.spent(self._budget) and not self.outcome:
            self.end("budget", self._clock.now())

    def _pull(self, pull: Pull) -> None:
        """Handle a pull, unless it was answered before: the worker may compute on the buffer of that reply by now."""
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
        """Perform effects, and the effects that follow; `led_by` is the (worker, range) of the push that caused them,
        or None."""
        pending = list(effects)
        for effect in pending:  # the loop appends to this list
            if isinstance(effect, Step):
                self._step(effect, led_by)
            elif isinstance(effect, Reply):
                self._reply(effect)
                # ordered is as good as read: a store carries out its orders one after another (pslab.protocol.store)
                pending.extend(self.machine.answered(effect.pull.range))
            elif isinstance(effect, Discard):
                self.accounts.discard(effect)
                self._hand(self._store_of(effect.range), effect, Details(times=self._times_of((effect.push,))))
            elif isinstance(effect, Searched):
                self._clock.spend(SEARCH, self._clock.now(), effect.points)
            elif isinstance(effect, Refuse):
                self.refused += 1
            self._transport.attend()  # an effect may take milliseconds: do not let other workers wait longer

    def _step(self, step: Step, led_by: tuple[int, int] | None) -> None:
        accounts, index = self.accounts, step.range
        # the rate before `count`, which changes the number of applied gradients: a schedule depends on it
        rate, store = accounts.start_step(step), self._store_of(index)
        # a step at another server is done later: the push's Ack does not wait for it
        leading = self._push_times.get(led_by) if led_by is not None and self._store_of(led_by[1]) is store else None
        computing = accounts.computing(index) if self._joined else ()
        self._hand(store, step, Details(rate, computing, self._times_of(step.pushes), leading))
        # a snapshot lies between pushes, never between the ranges of one push
        if accounts.count(step):
            self._snapshot_if_due()

    def _reply(self, reply: Reply) -> None:
        pull = reply.pull
        key = pull.worker, pull.range
        self.accounts.replied(reply)
        if reply.steps:
            self._steps[pull.worker, pull.iteration] = reply.steps
        # set now, not when the weights are sent: a duplicate of the pull may come in between
        self._answered[key] = pull.iteration
        if self._waiting is not None:
            self._waiting.answered(reply)
        self._hand(self._store_of(pull.range), reply, Details(0.0, (), (self._push_times.get(key),)))

    def _store_of(self, index: int) -> Store:
        return self._stores[self._server_of[index]]

    def _times_of(self, pushes: Iterable[Push]) -> list[PushTimes | None]:
        return [self._push_times.get((push.worker, push.range)) for push in pushes]

    def _snapshot_if_due(self) -> None:
        """Take a snapshot if an evaluation period has passed; all servers copy between the same two steps."""
        ledger, applied = self._ledger, self.accounts.applied
        if len(self._stores) == 1:
            # the only store has done all its orders: copy at once, at the instant of the last step
            ledger.snapshot_if_due(applied, self._applied_s)
        elif ledger.take_due(applied, self._clock.now()):
            self._open_snapshot(0.0)

    def _open_snapshot(self, since_s: float) -> None:
        """Order each server to copy its weights into a new snapshot once its earlier orders are done. The instant of
        the snapshot is the end of the last copy, but not before `since_s`."""
        applied = self.accounts.applied
        index = self.accounts.ledger.open(applied)
        self._copies[index] = len(self._stores), applied, since_s
        for store in self._stores:
            self._hand(store, Snapshot(index), NO_DETAILS)

    # --- orders that the stores have carried out ------------------------------------------------------------------

    def _hand(self, store: Store, order: Order, details: Details) -> None:
        if (finished := store.hand(order, details)) is not None:
            self.finished(finished)

    def _finish(self, store: Store) -> None:
        for finished in store.finish():
            self.finished(finished)

    def finished(self, finished: Finished) -> None:
        """Handle an order that a store has carried out."""
        order, details, done_s = finished.order, finished.details, finished.done_s
        if isinstance(order, Step):
            self._applied(order, details, done_s)
        for push, times in zip(finished.free, details.times if finished.free else (), strict=True):
            self._acknowledge(push, times or [0.0, 0.0], done_s)
        if isinstance(order, Reply) and finished.sends:
            self._laid(order, details, finished.size_bytes, finished.begin_s, done_s)
        elif isinstance(order, Snapshot):
            self._copied(order.number, done_s)

    def _applied(self, step: Step, details: Details, done_s: float) -> None:
        self.accounts.applied_at(step, done_s)
        self._applied_s = done_s
        if details.led_by is not None:
            details.led_by[1] = done_s
        self._ended_at(done_s)

    def _acknowledge(self, push: Push, times: PushTimes, now: float) -> None:
        """Notify a worker that its push's payload is free: with its next weights, or at once if none will follow."""
        worker, index, iteration = push[:3]
        key = worker, self._server_of[index]
        self._outbox.setdefault(key, []).append(Ack(worker, index, iteration, Taken(*times)))
        # a worker that has its next weights but no free buffer sends no pull, so no reply would carry this Ack
        late = iteration + self._buffers <= self._answered.get((worker, index), NOTHING)
        if late and worker in self.machine.workers:
            self._transport.send(worker, self._outbox.pop(key), now)

    def _laid(self, reply: Reply, details: Details, size_bytes: int, begin_s: float, done_s: float) -> None:
        """Send a worker the weights of a range, which were prepared from `begin_s` to `done_s`."""
        pull, (times,) = reply.pull, details.times
        worker, index = key = pull.worker, pull.range
        pushed_s, applied_s = times or (begin_s, begin_s)  # no push comes before the first pull
        asked_s = self._asked_s.get(key, begin_s)
        answer = Answer(size_bytes, reply.released_by, pushed_s, applied_s, asked_s, begin_s, done_s)
        weights = Weights(worker, index, pull.iteration, reply.version, answer, reply.own_pushes, reply.gradients,
                          reply.begin, reply.steps)  # fmt: skip
        addressed = worker, self._server_of[index]
        # Acks first: links, and workers that look for repeats, read the kind and range of a frame's last message
        frame = [*self._outbox.pop(addressed, ()), weights]
        self._ledger.answered(weights)
        if not self._listed:
            self._crossed(worker, index, size_bytes)
        if self.outcome:  # no worker may start another iteration
            self._ended_at(done_s)
        else:
            self._transport.send(worker, frame, done_s)

    def _copied(self, index: int, done_s: float) -> None:
        to_come, pushes, latest_s = self._copies.pop(index)
        latest_s = max(latest_s, done_s)
        if to_come == 1:
            # the copy of the last weights trains nothing: it does not make a run longer
            at_s = min(latest_s, self.ended_s) if self.outcome else latest_s
            self._ledger.kept(index, pushes, at_s, len(self._stores) - 1)
        else:
            self._copies[index] = to_come - 1, pushes, latest_s

    def _ended_at(self, done_s: float) -> None:
        """Set the end of an ended run to the instant at which its last order was done."""
        if self.outcome:
            self.ended_s = max(self.ended_s, done_s)
