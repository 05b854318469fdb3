"""The checker's server: the real machine, run once for each of its states and each event."""

from __future__ import annotations

from typing import Any, NamedTuple

from pslab.engines.check import invariants
from pslab.engines.check.canonical_state import copied, frozen
from pslab.engines.check.invariants import Wrong
from pslab.engines.check.result import DROP, FREE, JOIN, REPLY, SEND, STEP, Event, Op, Ops, ServerView, Stepped
from pslab.errors import ConfigError
from pslab.protocol.messages import Aggregate, Apply, Searched
from pslab.protocol.noting import noting
from pslab.protocol.server import Discard, Reply, Server, Step
from pslab.protocol.store import Forget, StoreMachine
from pslab.protocol.traits import traits_of

NOW = 0.0  # instants are not explored: to a policy that plans by them all events come at the same one


class Driven(NamedTuple):
    """The effect of an event under one policy."""

    server: Any  #: afterwards
    effects: list[Any]
    ops: Ops
    error: Exception | None  #: raised instead
    policy: ObservedPolicy


class ObservedPolicy:
    """A policy in a server that is explored: it is asked twice each time, and its decisions are kept; `read` gets the
    names of fields that it reads and nothing varies."""

    def __init__(self, sync: Any, read: set[str]) -> None:
        self._sync, self._read = sync, read
        self.decisions: list[Any] = []
        self.pure = True  #: whether it has decided the same again

    def __repr__(self) -> str:
        return repr(self._sync)

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        """The policy's answer."""
        before, event = copied(state), noting(event, self._read)
        found = self._sync.step(state, event, clocks)
        self.pure = self.pure and frozen(found) == frozen(self._sync.step(before, event, clocks))
        self.decisions += found[1]
        return found


class ServerSide:
    """States of the server as numbers.

    With several servers, which hold equal parts of the ranges, a state has their stores.
    """

    def __init__(self, sync: Any, workers: int, ranges: int, length: int | None = None, servers: int = 1) -> None:
        self.sync, self._workers, self._indices = sync, tuple(range(workers)), range(ranges)
        self._length = length  # no worker may be started so many iterations ahead of the slowest; None: no bound
        plans = sync.variants(workers) if traits_of(sync).plans else (sync,)
        self._tried = [(each, frozen(each)) for each in plans]
        self._numbers: dict[Any, int] = {}
        self._servers: list[Any] = []
        self.views: list[ServerView] = []
        self._steps: dict[tuple[int, int, Event], tuple[Stepped, ...]] = {}
        self._server_of = [index * servers // ranges for index in self._indices]
        self.read = set[str]()  #: fields of events that the policy has read, of those that are not varied
        start: Any = Server(self._workers, ranges, sync)
        if servers > 1:
            start.stores = [StoreMachine() for _ in range(servers)]  # copied and compared with it
        self._constant = (sync, start.traits)  # what no event changes is neither copied nor compared
        self.start = self._number(start)

    def step(self, state: int, worker: int, event: Event) -> tuple[Stepped, ...]:
        """The possible outcomes of an event of this worker: one, or several where a policy may make different plans."""
        key = (state, worker, event)
        done = self._steps.get(key)
        if done is None:
            done = self._steps[key] = self._step(state, worker, event)
        return done

    def waits_for(self, state: int) -> list[int]:
        """The workers at the low bound of any range."""
        server = self._servers[state]
        return sorted({worker for index in self._indices for worker in server.waits_for(index)})

    def held(self, state: int) -> list[tuple[int, int]]:
        """(worker, iteration) of the pushes that are counted and not applied."""
        return [(worker, iteration) for part in self._servers[state].ranges for worker, iteration in part.held]

    # --- one step -------------------------------------------------------------------------------------------------

    def _step(self, state: int, worker: int, event: Event) -> tuple[Stepped, ...]:
        before = self._servers[state]
        done = self._tries(before, worker, event)
        found: dict[Any, Stepped] = {}
        for driven in done:
            stepped = self._stepped(state, worker, driven, decided=event.kind != "store")
            found.setdefault((stepped.state, stepped.ops, stepped.wrong is None), stepped)
        if len(found) > 1 and not self._searched(done[0]):
            return (Stepped(state, done[0].effects, (), "the policy plans without deciding Searched"),)
        return tuple(found.values())

    def _tries(self, before: Any, worker: int, event: Event) -> list[Driven]:
        """Let the event happen under the policy, and under each of its variants if the policy decides Searched.

        If it does not, two variants must do the same: otherwise a search is unreported.
        """
        syncs = [sync for sync, _ in self._tried]
        first = self._drive(copied(before, self._constant), syncs[0], worker, event)
        others = syncs[1:] if self._searched(first) else syncs[1:][-1:]
        return [first, *(self._drive(copied(before, self._constant), sync, worker, event) for sync in others)]

    def _searched(self, driven: Driven) -> bool:
        return any(isinstance(effect, Searched) for effect in driven.effects)

    def _stepped(self, state: int, worker: int, driven: Driven, *, decided: bool) -> Stepped:
        server, effects, ops, error, policy = driven
        if error is not None:
            return Stepped(state, [], (), invariants.raised(error, self.sync), worker)
        if any(frozen(sync) != before for sync, before in self._tried):
            return Stepped(state, effects, (), "the policy changed itself; step must be a function of its arguments")
        versions = [part.version for part in self._servers[state].ranges]
        wrong, at = self._judge(server, effects if decided else [], versions)
        wrong = wrong or invariants.windows(server, self.sync.window) or invariants.pure(policy.pure)
        wrong = wrong or invariants.combined(*self._combined(server, effects, policy.decisions))
        return Stepped(self._number(server), effects, ops, wrong, at)

    def _drive(self, server: Any, sync: Any, worker: int, event: Event) -> Driven:
        """Let the event happen to a server under this policy."""
        effects, ops = [], list[tuple[int, Op]]()
        server.sync = policy = ObservedPolicy(sync, self.read)
        try:
            if event.kind == "message":
                effects = self._handed(server, server.handle(event.message._replace(worker=worker), NOW), ops)
            elif event.kind == "answered":
                effects = server.answered(event.range)
            elif event.kind == "leave":
                self._forget(server, worker)
                effects = self._handed(server, server.leave(worker, NOW), ops)
            elif event.kind == "store":
                effects = [server.stores[event.range].orders[0][0]]
                ops += self._carried(server.stores[event.range].done())
            else:
                held = tuple(map(sum, zip(self._held(server)[worker], self._dropped(server)[worker], strict=True)))
                ops.append((worker, Op(JOIN, 0, server.join(worker), held)))
        except ConfigError:  # what cannot be copied cannot be explored
            raise
        except Exception as error:
            return Driven(server, [], (), error, policy)
        finally:
            server.sync = self.sync
        if self._server_of[-1] == 0:
            ops += [op for effect in effects for op in self._ops(effect, at_store=False)]
        return Driven(server, effects, tuple(ops), None, policy)

    def _handed(self, server: Any, effects: list[Any], ops: list[tuple[int, Op]]) -> list[Any]:
        """All effects of an event. With several servers, hand them to the stores, as a driver does; the store of server
        0 performs them at once."""
        pending, found = list(effects), list[Any]()
        if self._server_of[-1] == 0:
            return pending
        while pending:
            effect = pending.pop(0)
            found.append(effect)
            if isinstance(effect, (Step, Discard, Reply)):
                index = effect.pull.range if isinstance(effect, Reply) else effect.range
                store = server.stores[self._server_of[index]]
                store.order(effect)
                ops += self._carried(store.done()) if self._server_of[index] == 0 else []
                pending += server.answered(index) if isinstance(effect, Reply) else []
        return found

    def _forget(self, server: Any, worker: int) -> None:
        for number, store in enumerate(getattr(server, "stores", ())):
            store.order(Forget(worker))
            if number == 0:
                store.done()

    def _carried(self, done: Any) -> list[tuple[int, Op]]:
        """Return a store's operations for each worker."""
        vain = isinstance(done.order, Reply) and not done.sends
        freed = [(push.worker, Op(FREE, push.range, push.iteration)) for push in done.free]
        return ([] if vain else self._ops(done.order, at_store=True)) + freed

    def _ops(self, effect: Any, *, at_store: bool) -> list[tuple[int, Op]]:
        """Return the operations of an effect for each worker. A store frees payloads by separate operations."""
        if isinstance(effect, Step):
            return [(push.worker, Op(STEP, effect.range, push.iteration, frees=not at_store))
                    for push in sorted(effect.pushes, key=lambda push: (push.worker, push.iteration))]  # fmt: skip
        if isinstance(effect, Discard):
            return [(int(effect.push.worker), Op(DROP, effect.range, effect.push.iteration, frees=not at_store))]
        if isinstance(effect, Reply):
            worker, index, iteration, *_ = effect.pull
            return [(worker, Op(SEND if at_store else REPLY, index, iteration, own=effect.own))]
        return []

    def _combined(
        self, server: Any, effects: list[Any], decisions: list[Any]
    ) -> tuple[list[invariants.Combined], list[invariants.Combined]]:
        """The steps that were made, and those that the policy decided, on each range of its scope."""
        turn = server.traits.rotation.turn
        steps = [(bool(effect.aggregate),
                  tuple((push.worker, turn(push.range, push.iteration)) for push in effect.pushes))
                 for effect in effects if isinstance(effect, Step)]  # fmt: skip
        decided = [(isinstance(each, Aggregate), each.pushes if isinstance(each, Aggregate) else
                    ((each.worker, each.iteration),))
                   for each in decisions if isinstance(each, (Apply, Aggregate))
                   for _ in server.scopes[0].indices]  # fmt: skip
        return steps, decided

    def _judge(self, server: Any, effects: list[Any], before: list[int]) -> tuple[Wrong, int]:
        """The first effect that breaks a rule, and its worker; `before` are the ranges' versions before the event."""
        current = list(before)
        for effect in effects:
            wrong, at = None, 0
            if isinstance(effect, Step):
                wrong = invariants.stepped(effect.version, current[effect.range])
                current[effect.range] = effect.version
            elif isinstance(effect, Reply):
                pull, low = effect.pull, min(server.ranges[effect.pull.range].clocks.values(), default=0)
                goes_on = pull.version if effect.empty else current[pull.range]
                wrong = invariants.newest(effect.version, goes_on)
                turn = server.traits.rotation.turn(pull.range, pull.iteration)
                wrong, at = wrong or invariants.bound(turn, low, self._length), pull.worker
            if wrong:
                return wrong, at
        return None, 0

    # --- states as numbers ----------------------------------------------------------------------------------------

    def _number(self, server: Any) -> int:
        key = frozen(server, self._constant)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._servers)
            self._servers.append(server)
            self.views.append(self._view(server))
        return number

    def _view(self, server: Any) -> ServerView:
        held, drops, stores = self._held(server), self._dropped(server), getattr(server, "stores", ())
        applied = tuple(
            tuple(part.clocks[w] - held[w][i] - drops[w][i] for i, part in enumerate(server.ranges))
            if all(w in part.clocks for part in server.ranges) else None
            for w in self._workers
        )  # fmt: skip
        iteration = server.traits.rotation.iteration
        lows = [iteration(index, min(part.clocks.values())) for index, part in enumerate(server.ranges) if part.clocks]
        some = any(map(any, held))
        ordered = tuple(number for number, store in enumerate(stores) if store.orders)
        return ServerView(applied, tuple(map(tuple, held)) if some else None, min(lows, default=0), server.accepted,
                          ordered, any(map(any, drops)))  # fmt: skip

    def _held(self, server: Any) -> list[list[int]]:
        """Per worker and range, pushes that are counted and not yet applied: held, or ordered and not done."""
        held = [(worker, index) for index, part in enumerate(server.ranges) for worker, _ in part.held]
        steps = self._ordered(server, Step)
        return self._counted([*held, *((push.worker, push.range) for step in steps for push in step.pushes)])

    def _dropped(self, server: Any) -> list[list[int]]:
        """Per worker and range, pushes that are dropped, as a store does not know yet."""
        drops = self._ordered(server, Discard)
        return self._counted([(drop.push.worker, drop.range) for drop in drops])

    def _ordered(self, server: Any, kind: Any) -> list[Any]:
        orders = [order for store in getattr(server, "stores", ()) for order, *_ in store.orders]
        return [order for order in orders if isinstance(order, kind)]

    def _counted(self, names: list[tuple[int, int]]) -> list[list[int]]:
        found = [[0] * len(self._indices) for _ in self._workers]
        for worker, index in names:
            found[worker][index] += 1
        return found
