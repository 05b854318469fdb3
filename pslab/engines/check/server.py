"""The checker's server: the real state machine, which handles each event in each of its states once."""

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

NOW = 0.0  # the instant of all events, because instants are not explored


class Driven(NamedTuple):
    """The effect of an event on a server with one policy."""

    server: Any  #: the server after the event
    effects: list[Any]
    ops: Ops
    error: Exception | None  #: the exception that server or policy raised
    policy: ObservedPolicy


class ObservedPolicy:
    """A wrapped policy that records decisions, asks the policy twice about each event, and collects in `read` the
    fields of events that the policy reads and no exploration varies."""

    def __init__(self, sync: Any, read: set[str]) -> None:
        self._sync, self._read = sync, read
        self.decisions: list[Any] = []
        self.pure = True  #: whether both answers were equal for every event

    def __repr__(self) -> str:
        return repr(self._sync)

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        """Return the policy's next state and its decisions."""
        before, event = copied(state), noting(event, self._read)
        stepped = self._sync.step(state, event, clocks)
        self.pure = self.pure and frozen(stepped) == frozen(self._sync.step(before, event, clocks))
        self.decisions += stepped[1]
        return stepped


class ServerSide:
    """The server's states, as numbers. With several servers, a state includes the stores of all of them."""

    def __init__(self, sync: Any, workers: int, ranges: int, length: int | None = None, servers: int = 1) -> None:
        self.sync, self._workers, self._indices = sync, tuple(range(workers)), range(ranges)
        self._length = length  # a worker may be started length - 1 iterations ahead of the slowest; None: no bound
        plans = sync.variants(workers) if traits_of(sync).plans else (sync,)
        self._tried = [(plan, frozen(plan)) for plan in plans]
        self._numbers: dict[Any, int] = {}
        self._servers: list[Any] = []
        self.views: list[ServerView] = []
        self._steps: dict[tuple[int, int, Event], tuple[Stepped, ...]] = {}
        self._server_of = [index * servers // ranges for index in self._indices]
        self.read = set[str]()  #: fields of events that the policy has read and no exploration varies
        start: Any = Server(self._workers, ranges, sync)
        if servers > 1:
            start.stores = [StoreMachine() for _ in range(servers)]  # copied and compared with the server
        self._constant = (sync, start.traits)  # no event changes these, so they are neither copied nor compared
        self.start = self._number(start)

    def step(self, state: int, worker: int, event: Event) -> tuple[Stepped, ...]:
        """Return the possible outcomes of an event of this worker: several if the policy can make different plans."""
        key = (state, worker, event)
        done = self._steps.get(key)
        if done is None:
            done = self._steps[key] = self._step(state, worker, event)
        return done

    def waits_for(self, state: int) -> list[int]:
        """Return the workers at the low bound of any range."""
        server = self._servers[state]
        return sorted({worker for index in self._indices for worker in server.waits_for(index)})

    def held(self, state: int) -> list[tuple[int, int]]:
        """Return (worker, iteration) of the pushes that are counted and not yet applied."""
        return [(worker, iteration) for part in self._servers[state].ranges for worker, iteration in part.held]

    # --- one step -------------------------------------------------------------------------------------------------

    def _step(self, state: int, worker: int, event: Event) -> tuple[Stepped, ...]:
        before = self._servers[state]
        # every variant if the policy decides Searched; else one more, to see whether it has planned without Searched
        syncs = [sync for sync, _ in self._tried]
        first = self._drive(copied(before, self._constant), syncs[0], worker, event)
        others = syncs[1:] if self._searched(first) else syncs[1:][-1:]
        done = [first, *(self._drive(copied(before, self._constant), sync, worker, event) for sync in others)]
        by_key: dict[Any, Stepped] = {}
        for driven in done:
            stepped = self._stepped(state, worker, driven, decided=event.kind != "store")
            by_key.setdefault((stepped.state, stepped.ops, stepped.wrong is None), stepped)
        if len(by_key) > 1 and not self._searched(done[0]):
            return (Stepped(state, done[0].effects, (), "the policy plans without deciding Searched"),)
        return tuple(by_key.values())

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
        effects, ops = [], list[tuple[int, Op]]()
        server.sync = policy = ObservedPolicy(sync, self.read)
        try:
            if event.kind == "message":
                effects = self._handed(server, server.handle(event.message._replace(worker=worker), NOW), ops)
            elif event.kind == "answered":
                effects = server.answered(event.range)
            elif event.kind == "leave":
                for number, store in enumerate(getattr(server, "stores", ())):
                    store.order(Forget(worker))
                    if number == 0:
                        store.done()
                effects = self._handed(server, server.leave(worker, NOW), ops)
            elif event.kind == "store":
                effects = [server.stores[event.range].orders[0][0]]
                ops += self._carried(server.stores[event.range].done())
            else:
                waiting = tuple(map(sum, zip(self._held(server)[worker], self._dropped(server)[worker], strict=True)))
                ops.append((worker, Op(JOIN, 0, server.join(worker), waiting)))
        except ConfigError:  # the policy's state cannot be copied: the user's mistake, not a broken rule
            raise
        except Exception as error:
            return Driven(server, [], (), error, policy)
        finally:
            server.sync = self.sync
        if self._server_of[-1] == 0:
            ops += [op for effect in effects for op in self._ops(effect, at_store=False)]
        return Driven(server, effects, tuple(ops), None, policy)

    def _handed(self, server: Any, effects: list[Any], ops: list[tuple[int, Op]]) -> list[Any]:
        """Return all effects of an event. With several servers, also queue them at the stores, as a driver does; the
        store of server 0 executes them at once."""
        pending, handed = list(effects), list[Any]()
        if self._server_of[-1] == 0:
            return pending
        while pending:
            effect = pending.pop(0)
            handed.append(effect)
            if isinstance(effect, (Step, Discard, Reply)):
                index = effect.pull.range if isinstance(effect, Reply) else effect.range
                store = server.stores[self._server_of[index]]
                store.order(effect)
                ops += self._carried(store.done()) if self._server_of[index] == 0 else []
                pending += server.answered(index) if isinstance(effect, Reply) else []
        return handed

    def _carried(self, done: Any) -> list[tuple[int, Op]]:
        vain = isinstance(done.order, Reply) and not done.sends
        freed = [(push.worker, Op(FREE, push.range, push.iteration)) for push in done.free]
        return ([] if vain else self._ops(done.order, at_store=True)) + freed

    def _ops(self, effect: Any, *, at_store: bool) -> list[tuple[int, Op]]:
        """Return (worker, operation) for each operation of an effect; a store frees payloads by separate operations."""
        if isinstance(effect, Step):
            return [(push.worker, Op(STEP, effect.range, push.iteration, frees=not at_store))
                    for push in sorted(effect.pushes, key=lambda push: (push.worker, push.iteration))]  # fmt: skip
        if isinstance(effect, Discard):
            return [(int(effect.push.worker), Op(DROP, effect.range, effect.push.iteration, frees=not at_store))]
        if isinstance(effect, Reply):
            worker, index, iteration, *_ = effect.pull
            return [(worker, Op(SEND if at_store else REPLY, index, iteration, own_pushes=effect.own_pushes))]
        return []

    def _combined(
        self, server: Any, effects: list[Any], decisions: list[Any]
    ) -> tuple[list[invariants.Combined], list[invariants.Combined]]:
        """Return the steps that were made, and the policy's decisions, each repeated for every range of its scope."""
        turn = server.traits.rotation.turn
        steps = [(bool(effect.aggregate),
                  tuple((push.worker, turn(push.range, push.iteration)) for push in effect.pushes))
                 for effect in effects if isinstance(effect, Step)]  # fmt: skip
        decided = [(isinstance(decision, Aggregate), decision.pushes if isinstance(decision, Aggregate) else
                    ((decision.worker, decision.iteration),))
                   for decision in decisions if isinstance(decision, (Apply, Aggregate))
                   for _ in server.scopes[0].indices]  # fmt: skip
        return steps, decided

    def _judge(self, server: Any, effects: list[Any], before: list[int]) -> tuple[Wrong, int]:
        """Return the rule that an effect breaks, or None, and the worker; `before` has the ranges' earlier versions."""
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
        waiting, drops, stores = self._held(server), self._dropped(server), getattr(server, "stores", ())
        applied = tuple(
            tuple(part.clocks[w] - waiting[w][i] - drops[w][i] for i, part in enumerate(server.ranges))
            if all(w in part.clocks for part in server.ranges) else None
            for w in self._workers
        )  # fmt: skip
        iteration = server.traits.rotation.iteration
        lows = [iteration(index, min(part.clocks.values())) for index, part in enumerate(server.ranges) if part.clocks]
        some = any(map(any, waiting))
        ordered = tuple(number for number, store in enumerate(stores) if store.orders)
        return ServerView(applied, tuple(map(tuple, waiting)) if some else None, min(lows, default=0), server.accepted,
                          ordered, any(map(any, drops)))  # fmt: skip

    def _held(self, server: Any) -> list[list[int]]:
        """Count, per worker and range, the pushes that are not yet applied: the server holds them, or a store does."""
        waiting = [(worker, index) for index, part in enumerate(server.ranges) for worker, _ in part.held]
        steps = self._ordered(server, Step)
        return self._counted([*waiting, *((push.worker, push.range) for step in steps for push in step.pushes)])

    def _dropped(self, server: Any) -> list[list[int]]:
        """Count, per worker and range, the dropped pushes that no store has discarded yet."""
        drops = self._ordered(server, Discard)
        return self._counted([(drop.push.worker, drop.range) for drop in drops])

    def _ordered(self, server: Any, kind: Any) -> list[Any]:
        orders = [order for store in getattr(server, "stores", ()) for order, *_ in store.orders]
        return [order for order in orders if isinstance(order, kind)]

    def _counted(self, names: list[tuple[int, int]]) -> list[list[int]]:
        counts = [[0] * len(self._indices) for _ in self._workers]
        for worker, index in names:
            counts[worker][index] += 1
        return counts
