"""The server: a state machine of two states per key range (Tsai, slides 2017).

Theory of operation. A range takes pushes, or answers pulls:

    state   event                      next    action
    PUSH    push                       PUSH    counted in the window, handed to the policy, perhaps applied
    PUSH    pull                       PUSH    parked until the policy starts the worker
    PUSH    the policy starts workers  PULL    their pulls are answered
    PULL    push                       PULL    deferred: weights that are being read do not change
    PULL    answered, more to answer   PULL
    PULL    answered, the last one     PUSH    deferred pushes are taken

Duplicate and late messages change nothing: a push is counted only if it has the worker's next iteration, and a pull
that was answered before is answered again. The driver performs the effects in order and calls `answered` once the
weights of a Reply have been read.

Each range is a scope with its own policy state, unless the policy decides for the whole model. Then all ranges are one
scope and in the same state: if two ranges decided separately, each could hold a worker that the other waits for.

Messages carry iterations. If an iteration exchanges only some ranges, clocks, windows and policies count the turns of
a range (see `rotation`); below, "iteration" stands for both.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

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
from pslab.protocol.scope import Range, Scope, scopes_of
from pslab.protocol.traits import Sync, traits_of

FIRST = 10_000  # the number of iterations in which `least_budget` looks for a first step


class Step(NamedTuple):
    """Effect: apply these pushes to the range as one step, which makes `version`; then free their payloads."""

    range: int
    pushes: tuple[Push, ...]
    aggregate: bool
    version: int


class Discard(NamedTuple):
    """Effect: free the payload of this push without applying it."""

    range: int
    push: Push


class Reply(NamedTuple):
    """Effect: send the weights of a range to the worker of this pull; the fields fill in a `Weights`.

    `released_by` is the worker whose push or departure ended the wait, or NO_WORKER if the worker did not wait.
    `empty`: send no weights, since the worker continues with its present ones.
    """

    pull: Pull
    version: int
    released_by: int
    own_pushes: int = 0
    empty: bool = False
    gradients: int = 0
    begin: int = 0
    steps: int = 0


class Refuse(NamedTuple):
    """Effect: count this message as refused; it changes nothing."""

    message: Push | Pull
    reason: str


Effect = Step | Discard | Reply | Refuse | Searched


class Server:
    """The server's state machine: call `handle` for a message, `answered` after each reply, `leave` and `join`."""

    def __init__(self, workers: Iterable[int], ranges: int, sync: Sync) -> None:
        self.workers = tuple(workers)
        self.sync, self.traits = sync, traits_of(sync)
        self.ranges = [Range(self.workers, self.traits.window) for _ in range(ranges)]
        self.scopes = scopes_of(self.workers, ranges, sync, self.traits)
        self.scope_of = tuple(number for number, scope in enumerate(self.scopes) for _ in scope.indices)  #: per range
        self.accepted = 0  #: pushes of all workers that arrived on all ranges and were not dropped
        self.gradients = 0  #: the number of gradients in these pushes, which the budget counts
        self._partial: dict[tuple[int, int], int] = {}  # (worker, iteration): how many ranges have the push, if not all
        # worker: (the iteration that it started last, gradients before it, gradients in it), if the policy assigns
        self._assigned: dict[int, tuple[int, int, int]] = {}
        self._new: set[tuple[int, int]] = set()  # (worker, range) without weights yet: the worker has just joined
        self._find_base()

    def handle(self, message: Push | Pull, now: float) -> list[Effect]:
        """Handle a message that arrived at the instant `now`; return the effects.

        Raises:
            ProtocolError: the range does not exist, or a decision of the policy cannot be performed.
        """
        index = message.range
        if not 0 <= index < len(self.ranges):
            raise ProtocolError(f"a message names range {index}; the ranges are 0 to {len(self.ranges) - 1}")
        part, scope = self.ranges[index], self.scopes[self.scope_of[index]]
        if message.worker not in part.clocks:
            return [Refuse(message, "unknown worker")]
        if isinstance(message, Pull):
            return self._pull(scope, part, message, now)
        if scope.reading:
            part.deferred.append((message, now))
            return []
        return self._push(scope, part, message, now)

    def answered(self, index: int) -> list[Effect]:
        """Note that the weights of a reply on this range have been read; return the effects of deferred pushes."""
        scope = self.scopes[self.scope_of[index]]
        if index not in scope.reading:
            raise ProtocolError(f"range {index} has no reply under way; call `answered` once for each Reply")
        if scope.reading[index] == 1:
            del scope.reading[index]
        else:
            scope.reading[index] -= 1
        if scope.reading:
            return []
        effects: list[Effect] = []
        for number in scope.indices:
            part = self.ranges[number]
            taken = 0
            while taken < len(part.deferred) and not scope.reading:
                effects += self._push(scope, part, *part.deferred[taken])
                taken += 1
            del part.deferred[:taken]
        return effects

    def leave(self, worker: int, now: float) -> list[Effect]:
        """Remove a worker: its pushes stay, its clock leaves every window.

        Messages that it sent before it left must not be handled after it rejoins: give a rejoined worker new links.

        Raises:
            ProtocolError: weights are being read, so a round that ends because the worker left could not be applied.
        """
        if any(scope.reading for scope in self.scopes):
            raise ProtocolError(f"worker {worker} leaves while weights are being read; call `answered` for them first")
        self.workers = tuple(w for w in self.workers if w != worker)
        for name in [name for name in self._partial if name[0] == worker]:
            del self._partial[name]  # incomplete for good
        effects: list[Effect] = []
        for scope in self.scopes:
            complete, moved = min(self.ranges[index].clocks[worker] for index in scope.indices), False
            for index in scope.indices:
                part = self.ranges[index]
                part.asked.pop(worker, None)
                part.deferred = [(m, t) for m, t in part.deferred if m.worker != worker]
                part.left[worker] = part.clocks.pop(worker)
                moved = part.window.leave(part.left[worker])
                if part.left[worker] > complete:  # other ranges lack this push: the policy never learns of it
                    effects.append(Discard(index, part.held.pop((worker, complete))))
            if scope.complete is not None:
                moved = scope.complete.leave(complete)
                scope.asked.pop(worker, None)
            effects += self._decide(scope, Left(worker, now, moved))
        self._find_base()
        return effects

    def join(self, worker: int) -> int:
        """Add a new or returning worker; return its first iteration, the lowest that every range accepts.

        A returning worker does not repeat its earlier pushes: they stay counted, even those not applied yet.

        Raises:
            ProtocolError: the worker has not left.
        """
        if worker in self.workers:
            raise ProtocolError(f"worker {worker} cannot join because it is present already; call `leave` first")
        self.workers = tuple(sorted((*self.workers, worker)))
        rotation = self.traits.rotation
        iteration = max(rotation.joined(index, max(part.window.base, part.left.get(worker, 0)))
                        for index, part in enumerate(self.ranges))  # fmt: skip
        for index, part in enumerate(self.ranges):
            part.clocks[worker] = turn = rotation.turn(index, iteration)
            part.window.join(turn)
        self._find_base()
        if not self.traits.fetches(iteration):
            self._new |= {(worker, index) for index in range(len(self.ranges))}
        for scope in self.scopes:
            if scope.complete is not None:
                scope.complete.join(iteration)
        return iteration

    def clock(self, worker: int) -> int:
        """Return the iteration that a worker pushes next: its lowest iteration whose push some range lacks."""
        iteration = self.traits.rotation.iteration
        return min([iteration(index, part.clocks[worker]) for index, part in enumerate(self.ranges)])

    def waits_for(self, index: int) -> tuple[int, ...]:
        """Return the workers whose clocks are at the low bound of a range; waiting workers wait for these."""
        part = self.ranges[index]
        return tuple(w for w, clock in part.clocks.items() if clock == part.window.base)

    def spent(self, budget: int | None) -> bool:
        """Whether a run with this budget of gradients is over; False without a budget (None).

        With one scope, the run is over once it has counted the budget; pushes of an incomplete round are not applied.
        With several scopes, ranges would then stop in different rounds, depending on the order of messages. So, if each
        step is a round, the run is over as soon as the budget does not cover the last push of the next round.
        """
        if budget is None or not self.traits.rounds or len(self.scopes) == 1:
            return budget is not None and self.gradients >= budget
        others = self._count_others() if self.traits.assigns else self._others
        return self.gradients + others >= budget and all(part.at_rest for part in self.ranges)

    def _find_base(self) -> None:
        """Recompute the lowest iteration that some range lacks from some worker, and the number of such ranges."""
        iteration = self.traits.rotation.iteration
        lacking = [iteration(index, part.window.base) for index, part in enumerate(self.ranges)]
        self.base = min(lacking)
        self._lacking = lacking.count(self.base)
        self._others = self._count_others()

    def _count_others(self) -> int:
        """Return the sum of the workers' numbers of gradients in iteration `base`, without the largest number."""
        counts = [self._steps(worker, self.base) for worker in self.workers]
        return sum(counts) - max(counts, default=0)

    def _pull(self, scope: Scope, part: Range, pull: Pull, now: float) -> list[Effect]:
        turn = self.traits.rotation.turn(pull.range, pull.iteration)
        if turn < part.clocks[pull.worker]:
            return [Refuse(pull, "late pull")]
        parked = part.asked.get(pull.worker)
        # the parked pull may duplicate, on some ranges only, an answered pull: the worker does not wait for it
        stale = scope.complete is not None and parked is not None and parked.iteration < pull.iteration
        if parked is not None and not stale:
            return [Refuse(pull, "duplicate pull")]
        part.asked[pull.worker] = pull
        if scope.complete is not None and parked is None:
            scope.asked[pull.worker] = scope.asked.get(pull.worker, 0) + 1
        return self._ask(scope, pull.worker, turn, now)

    def _ask(self, scope: Scope, worker: int, iteration: int, now: float) -> list[Effect]:
        """Pass a worker's request to the policy once all ranges of the scope have its pull."""
        turn = self.traits.rotation.turn
        if scope.complete is not None and scope.asked.get(worker, 0) < len(scope.indices):
            return []
        for index in scope.indices:
            part = self.ranges[index]
            asked = part.asked.get(worker)
            if asked is None or turn(index, asked.iteration) != iteration:
                return []
            # a pull that overtook its own worker's push waits for it: its answer contains what the worker has pushed
            if iteration > part.clocks[worker] and not self.traits.eager:
                return []
        return self._decide(scope, Asked(worker, iteration, now))

    def _push(self, scope: Scope, part: Range, push: Push, now: float) -> list[Effect]:
        worker, iteration, rotation = push.worker, push.iteration, self.traits.rotation
        clock = part.clocks.get(worker)
        if clock is None or iteration < (due := rotation.iteration(push.range, clock)):
            return [Refuse(push, "duplicate push")]
        if iteration > due or not part.window.valid(clock):
            return [Refuse(push, "push of an iteration that is not valid")]
        if (steps := self._steps(worker, iteration)) != push.steps:
            push = push._replace(steps=steps)
        moved = part.window.push(clock)
        if moved and iteration == self.base:
            self._lacking -= 1
            if not self._lacking:
                self._find_base()
        part.clocks[worker] = clock + 1
        part.held[worker, clock] = push
        complete = self._count(push)
        if scope.complete is not None:
            if not complete:
                return []
            moved = scope.complete.push(clock)
        loss = float(getattr(push.payload, "loss", 0.0))
        effects = self._decide(scope, Pushed(worker, clock, now, moved, loss))
        pull = part.asked.get(worker)
        if pull is not None and rotation.turn(push.range, pull.iteration) == clock + 1 and not self.traits.eager:
            effects += self._ask(scope, worker, clock + 1, now)
        return effects

    def _count(self, push: Push) -> bool:
        """Count a push of one range; return whether all ranges that its iteration exchanges have it now."""
        if len(self.ranges) > 1:
            name = push.worker, push.iteration
            arrived = self._partial.pop(name, 0) + 1
            if arrived < len(self.traits.rotation.ranges(push.iteration, len(self.ranges))):
                self._partial[name] = arrived
                return False
        self.accepted += 1
        self.gradients += push.steps
        return True

    def _steps(self, worker: int, iteration: int) -> int:
        return self._assigned[worker][2] if worker in self._assigned else self.traits.unassigned(worker, iteration)

    def _assign(self, start: Start) -> None:
        """Record that a worker starts an iteration, perhaps the same one again after it rejoined or was replaced."""
        iteration, begin, steps = self._assigned.get(start.worker, (0, 0, self.traits.unassigned(start.worker, 0)))
        begin += steps * (start.iteration > iteration)
        self._assigned[start.worker] = start.iteration, begin, start.steps

    def _decide(self, scope: Scope, event: SyncEvent) -> list[Effect]:
        clocks = self.ranges[scope.indices[0]].window if scope.complete is None else scope.complete
        scope.state, decisions = self.sync.step(scope.state, event, clocks)
        effects: list[Effect] = []
        for decision in decisions:
            if isinstance(decision, Searched):
                effects.append(decision)
                continue
            if isinstance(decision, Drop):
                self.accepted -= 1
                self.gradients -= self._steps(decision.worker, decision.iteration)
            elif isinstance(decision, Start):
                scope.asked.pop(decision.worker, None)
                if self.traits.assigns:
                    self._assign(decision)
            for index in scope.indices:
                effects.append(self._perform(scope, index, event, decision))
        return effects

    def _perform(
        self, scope: Scope, index: int, event: SyncEvent, decision: Start | Apply | Aggregate | Drop
    ) -> Effect:
        part = self.ranges[index]
        if isinstance(decision, Start):
            scope.reading[index] = scope.reading.get(index, 0) + 1
            return self._reply(part, index, event, decision)
        if scope.reading:
            raise ProtocolError(f"{self.sync}: {decision} while weights are being read: return it before every Start")
        if isinstance(decision, Drop):
            if not self.traits.whole:
                raise ProtocolError(f"{self.sync}: {decision}: only a policy with `whole = True` may drop a push")
            (push,) = self._release(part, ((decision.worker, decision.iteration),))
            return Discard(index, push)
        return self._step(part, index, decision)

    def _reply(self, part: Range, index: int, event: SyncEvent, start: Start) -> Reply:
        pull = part.asked.pop(start.worker, None)
        if pull is None or self.traits.rotation.turn(index, pull.iteration) != start.iteration:
            raise ProtocolError(f"{self.sync}: {start}, but the worker has not asked for it: return Start after Asked")
        released_by, own_pushes = NO_WORKER if event.worker == start.worker else event.worker, 0
        if self.traits.eager:
            own_pushes = part.clocks[start.worker] - sum([worker == start.worker for worker, _ in part.held])
        new = self._new and (pull.worker, index) in self._new
        if new:
            self._new.remove((pull.worker, index))
        goes_on = not (new or self.traits.fetches(pull.iteration))
        version, gradients = pull.version if goes_on else part.version, self.gradients if self.traits.counted else 0
        _, begin, steps = self._assigned.get(start.worker, (0, 0, 0))
        return Reply(pull, version, released_by, own_pushes, goes_on, gradients, begin, steps)

    def _step(self, part: Range, index: int, decision: Apply | Aggregate) -> Step:
        aggregate = isinstance(decision, Aggregate)
        names = decision.pushes if isinstance(decision, Aggregate) else ((decision.worker, decision.iteration),)
        pushes = self._release(part, names)
        part.version += 1
        return Step(index, pushes, aggregate, part.version)

    def _release(self, part: Range, names: tuple[tuple[int, int], ...]) -> tuple[Push, ...]:
        waiting = part.held
        missing = [name for name in names if name not in waiting]
        if missing or not names:
            raise ProtocolError(f"{self.sync} names {missing or 'no push'}, which is not held: name held pushes only")
        return tuple([waiting.pop(name) for name in names])


def first_step(sync: Sync, workers: int) -> Step | None:
    """Return the first step that a policy makes when each worker pushes once; None if it makes no step."""
    server = Server(range(workers), 1, sync)
    for worker in range(workers):
        for message in (Push(worker, 0, 0, 0), Pull(worker, 0, 1, 0)):
            effects = server.handle(message, 0.0)
            for effect in effects:  # the loop appends to this list
                if isinstance(effect, Step):
                    return effect
                if isinstance(effect, Reply):
                    effects += server.answered(effect.pull.range)
    return None


def least_budget(sync: Sync, workers: int) -> int | None:
    """Return the number of gradients, of equally fast workers, after which the first step is applied; None if the first
    FIRST iterations make no step."""
    traits = traits_of(sync)
    rotation, ranges = traits.rotation, traits.rotation.fragments
    server = Server(range(workers), ranges, sync)
    for iteration in range(FIRST):
        for worker, index in product(range(workers), rotation.ranges(iteration, ranges)):
            effects = server.handle(Push(worker, index, iteration, 0), 0.0)
            if traits.pushes(iteration) and any(isinstance(effect, Step) for effect in effects):
                return server.gradients
        for worker, index in product(range(workers), rotation.ranges(iteration + 1, ranges)):
            pending = server.handle(Pull(worker, index, iteration + 1, 0), 0.0)
            for effect in pending:  # the loop appends to this list
                pending += server.answered(effect.pull.range) if isinstance(effect, Reply) else []
    return None
