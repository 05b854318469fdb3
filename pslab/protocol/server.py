"""The server: a state machine of two states per key range (Tsai, slides 2017).

Theory of operation. A range takes pushes, or answers pulls:

    state   event                      next    what happens
    PUSH    push                       PUSH    counted in the window, handed to the policy, perhaps applied
    PUSH    pull                       PUSH    parked until the policy starts the worker
    PUSH    the policy starts workers  PULL    their pulls are answered
    PULL    push                       PULL    deferred: weights that are being read do not change
    PULL    answered, more to answer   PULL
    PULL    answered, the last one     PUSH    deferred pushes are taken

Whatever arrives twice or late changes nothing: a push is counted only if it carries the worker's next iteration, a pull
that was answered before is answered again. The driver performs the effects in their order and reports each Reply, once
the weights have been read, with `answered`.

Each range has its own state of the policy, unless the policy decides for the whole model: two ranges that hold two
workers for each other would wait for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from pslab.errors import ProtocolError
from pslab.protocol.messages import (
    NO_WORKER,
    Aggregate,
    Apply,
    Asked,
    Drop,
    Left,
    Pull,
    Push,
    Pushed,
    Searched,
    Start,
    SyncEvent,
)
from pslab.protocol.traits import Sync, traits_of
from pslab.protocol.window import Window


class Step(NamedTuple):
    """Effect: apply these pushes to the range as one step, which makes `version`; then their payloads are free."""

    range: int
    pushes: tuple[Push, ...]
    aggregate: bool
    version: int


class Discard(NamedTuple):
    """Effect: this push is not applied; its payload is free."""

    range: int
    push: Push


class Reply(NamedTuple):
    """Effect: send this worker the weights of the range; `released_by` is the worker that it waited for.

    `own` of its pushes are in these weights.
    """

    pull: Pull
    version: int
    released_by: int
    own: int = 0


class Refuse(NamedTuple):
    """Effect: count this message as refused; it changed nothing."""

    message: Push | Pull
    reason: str


Effect = Step | Discard | Reply | Refuse | Searched


class _Gate:
    """A policy that decides for all ranges: its clocks count iterations that are complete."""

    __slots__ = ("state", "window")

    def __init__(self, workers: tuple[int, ...], sync: Sync) -> None:
        self.window, self.state = Window(len(workers), sync.window), sync.initial(workers)


class _Range:
    """What the server knows of one key range."""

    __slots__ = ("answering", "asked", "clocks", "deferred", "held", "left", "state", "version", "window")

    def __init__(self, workers: tuple[int, ...], sync: Sync, *, whole: bool) -> None:
        self.window = Window(len(workers), sync.window)
        self.clocks = dict.fromkeys(workers, 0)  # the iteration that each worker pushes next
        self.left: dict[int, int] = {}  # the clocks of those who are gone
        self.state: Any = None if whole else sync.initial(workers)
        self.asked: dict[int, Pull] = {}  # pulls not yet answered
        self.held: dict[tuple[int, int], Push] = {}  # pushes counted, not yet applied
        self.deferred: list[tuple[Push, float]] = []
        self.answering = 0  # replies whose weights are being read: above 0 the range is in state PULL
        self.version = 0


class Server:
    """The machine: `handle` a message, `answered` after each reply, `leave` for a worker that is gone."""

    def __init__(self, workers: Iterable[int], ranges: int, sync: Sync) -> None:
        self.workers = tuple(workers)
        self.sync, self.traits = sync, traits_of(sync)
        self.ranges = [_Range(self.workers, sync, whole=self.traits.whole) for _ in range(ranges)]
        self.gate = _Gate(self.workers, sync) if self.traits.whole else None
        self.eager = self.traits.eager
        self.accepted = 0  #: iterations whose push is complete on all ranges, and was not dropped, over all workers
        self.gradients = 0  #: that these pushes are made of: what a budget counts
        self._partial: dict[tuple[int, int], int] = {}

    def handle(self, message: Push | Pull, now: float) -> list[Effect]:
        """A message arrived at the instant `now`.

        Raises:
            ProtocolError: a range that does not exist, or a policy that decided something impossible.
        """
        if not 0 <= message.range < len(self.ranges):
            raise ProtocolError(f"range {message.range} does not exist; there are {len(self.ranges)}")
        part = self.ranges[message.range]
        if message.worker not in part.clocks:
            return [Refuse(message, "unknown worker")]
        if isinstance(message, Pull):
            return self._pull(part, message, now)
        if self._answering(part):
            part.deferred.append((message, now))
            return []
        return self._push(part, message, now)

    def answered(self, index: int) -> list[Effect]:
        """The weights of one reply on this range have been read."""
        part = self.ranges[index]
        if not part.answering:
            raise ProtocolError(f"range {index} is not answering a pull")
        part.answering -= 1
        effects: list[Effect] = []
        for each in self.ranges if self.gate else (part,):
            while each.deferred and not self._answering(each):
                message, now = each.deferred.pop(0)
                effects += self._push(each, message, now)
        return effects

    def leave(self, worker: int, now: float) -> list[Effect]:
        """A worker is gone: what it pushed stays, its clock leaves every window.

        Messages of it that are still under way must not be handed in once it is back: a new life has a new link.

        Raises:
            ProtocolError: weights are being read; a round that ends by its leaving could not be applied.
        """
        if any(part.answering for part in self.ranges):
            raise ProtocolError(f"worker {worker} leaves while weights are being read; report that with answered first")
        self.workers = tuple(w for w in self.workers if w != worker)
        for name in [name for name in self._partial if name[0] == worker]:
            del self._partial[name]  # incomplete for good
        complete = min(part.clocks[worker] for part in self.ranges)
        effects: list[Effect] = []
        for index, part in enumerate(self.ranges):
            part.asked.pop(worker, None)
            part.deferred = [(m, t) for m, t in part.deferred if m.worker != worker]
            part.left[worker] = part.clocks.pop(worker)
            moved = part.window.leave(part.left[worker])
            if self.gate is None:
                effects += self._decide(part, index, Left(worker, now, moved))
            elif part.left[worker] > complete:  # the policy will never hear of it
                effects.append(Discard(index, part.held.pop((worker, complete))))
        if self.gate is not None:
            effects += self._decide(self.ranges[0], 0, Left(worker, now, self.gate.window.leave(complete)))
        return effects

    def join(self, worker: int) -> int:
        """A worker is there, new or back: the iteration that it may ask for, the least that every range takes.

        One that is back does not repeat what it has pushed: that may be held, and counts.

        Raises:
            ProtocolError: it is there already.
        """
        if worker in self.workers:
            raise ProtocolError(f"worker {worker} is there already")
        self.workers = tuple(sorted((*self.workers, worker)))
        iteration = max(max(part.window.base, part.left.get(worker, 0)) for part in self.ranges)
        for part in self.ranges:
            part.window.join(iteration)
            part.clocks[worker] = iteration
        if self.gate is not None:
            self.gate.window.join(iteration)
        return iteration

    def waits_for(self, index: int) -> tuple[int, ...]:
        """The workers whose clock is at the low bound of a range: whoever is held waits for them."""
        part = self.ranges[index]
        return tuple(w for w, clock in part.clocks.items() if clock == part.window.base)

    def _pull(self, part: _Range, pull: Pull, now: float) -> list[Effect]:
        clock = part.clocks[pull.worker]
        if pull.iteration < clock:
            return [Refuse(pull, "late pull")]
        parked = part.asked.get(pull.worker)
        # that it came again on some ranges, answered before: nobody waits for it
        stale = self.gate is not None and parked is not None and parked.iteration < pull.iteration
        if parked is not None and not stale:
            return [Refuse(pull, "duplicate pull")]
        part.asked[pull.worker] = pull
        return self._asks(part, pull, now)

    def _asks(self, part: _Range, pull: Pull, now: float) -> list[Effect]:
        """The policy hears of a request, if it is its turn."""
        worker, iteration = pull.worker, pull.iteration
        # a pull that overtook its own worker's push waits for it: who pulls sees what it has pushed
        if iteration > part.clocks[worker] and not self.eager:
            return []
        if self.gate is not None:
            pulls = [each.asked.get(worker) for each in self.ranges]
            if any(each is None or each.iteration != iteration for each in pulls):
                return []
            if any(iteration > each.clocks[worker] for each in self.ranges) and not self.eager:
                return []
        return self._decide(part, pull.range, Asked(worker, iteration, now))

    def _push(self, part: _Range, push: Push, now: float) -> list[Effect]:
        worker, iteration = push.worker, push.iteration
        clock = part.clocks.get(worker)
        if clock is None or iteration < clock:
            return [Refuse(push, "duplicate push")]
        if iteration > clock or not part.window.valid(iteration):
            return [Refuse(push, "push of an iteration that is not valid")]
        moved = part.window.push(iteration)
        part.clocks[worker] = clock + 1
        part.held[worker, iteration] = push
        complete = self._count(worker, iteration)
        if self.gate is not None:
            if not complete:
                return []
            moved = self.gate.window.push(iteration)
        effects = self._decide(part, push.range, Pushed(worker, iteration, now, moved))
        pull = part.asked.get(worker)
        if pull is not None and pull.iteration == clock + 1 and not self.eager:
            effects += self._asks(part, pull, now)
        return effects

    def _count(self, worker: int, iteration: int) -> bool:
        """A push of one range was counted; whether all ranges have it now."""
        arrived = self._partial.pop((worker, iteration), 0) + 1
        if arrived < len(self.ranges):
            self._partial[worker, iteration] = arrived
            return False
        self._accept(iteration, 1)
        return True

    def _accept(self, iteration: int, count: int) -> None:
        self.accepted += count
        self.gradients += count * self.traits.gradients(iteration)

    def _answering(self, part: _Range) -> bool:
        return any(each.answering for each in self.ranges) if self.gate else part.answering > 0

    def _decide(self, part: _Range, index: int, event: SyncEvent) -> list[Effect]:
        gate = self.gate or part
        gate.state, decisions = self.sync.step(gate.state, event, gate.window)
        effects: list[Effect] = []
        for decision in decisions:
            if isinstance(decision, Searched):
                effects.append(decision)
                continue
            if isinstance(decision, Drop):
                self._accept(decision.iteration, -1)
            for at, each in enumerate(self.ranges) if self.gate else ((index, part),):
                effects.append(self._perform(each, at, event, decision))
        return effects

    def _perform(
        self, part: _Range, index: int, event: SyncEvent, decision: Start | Apply | Aggregate | Drop
    ) -> Effect:
        if isinstance(decision, Start):
            return self._reply(part, event, decision)
        if part.answering:
            raise ProtocolError(f"{self.sync}: {decision} while weights are being read; apply before starting")
        if isinstance(decision, Drop):
            if self.gate is None:
                raise ProtocolError(f"{self.sync}: {decision}: only a policy that decides for all ranges may drop")
            (push,) = self._release(part, ((decision.worker, decision.iteration),))
            return Discard(index, push)
        return self._step(part, index, decision)

    def _reply(self, part: _Range, event: SyncEvent, start: Start) -> Reply:
        pull = part.asked.pop(start.worker, None)
        if pull is None or pull.iteration != start.iteration:
            raise ProtocolError(f"{self.sync} starts {start}, which nobody asked for")
        part.answering += 1
        released_by = NO_WORKER if event.worker == start.worker else event.worker
        own = part.clocks[start.worker] - sum(worker == start.worker for worker, _ in part.held) if self.eager else 0
        return Reply(pull, part.version, released_by, own)

    def _step(self, part: _Range, index: int, decision: Apply | Aggregate) -> Step:
        whole = isinstance(decision, Aggregate)
        names = decision.pushes if isinstance(decision, Aggregate) else ((decision.worker, decision.iteration),)
        pushes = self._release(part, names)
        part.version += 1
        return Step(index, pushes, whole, part.version)

    def _release(self, part: _Range, names: tuple[tuple[int, int], ...]) -> tuple[Push, ...]:
        """The pushes of these names (worker, iteration), no longer held."""
        missing = [name for name in names if name not in part.held]
        if missing or not names:
            raise ProtocolError(f"{self.sync} applies {missing or 'nothing'}, which is not held")
        return tuple(part.held.pop(name) for name in names)


def first_step(sync: Sync, workers: int) -> Step | None:
    """The first step that a round of pushes, one of each worker, makes; None if it makes none."""
    server = Server(range(workers), 1, sync)
    effects = (effect for worker in range(workers) for effect in server.handle(Push(worker, 0, 0, 0), 0.0))
    return next((effect for effect in effects if isinstance(effect, Step)), None)
