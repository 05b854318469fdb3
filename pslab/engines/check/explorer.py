"""Explore every order of events in a small cluster of the real server machine, worker machines and policy.

A state of the cluster consists of the server's state, the state of each worker and its links, and the faults that have
happened. With several servers, one decides, and its state includes the orders to the others. Each server executes its
orders in sequence, each at any later moment.
Each machine is run once for each of its own states and each event, so a transition of the cluster is a few look-ups.
Instants are not explored. A policy that plans by instants has `variants(workers)`, which returns one policy for each
possible plan. All variants have states of the same form. When the policy decides Searched, every variant is tried.

States are visited breadth first, so the first violation is at the end of a shortest path. Every transition uses up a
message, a reading or a computation. Only computations add messages, and their number is bounded, so every path ends.
If every worker has finished at the end of every path, no worker waits forever and there is no livelock. Under a policy
without a bound, a worker may have to wait until a faster worker advances further. So if no other move is possible,
workers that have computed all their iterations continue.

Source of the method: Clarke, Emerson and Sistla (TOPLAS 1986).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pslab.engines.check import invariants
from pslab.engines.check.invariants import Wrong
from pslab.engines.check.result import ALIVE, CUT, STEP, Event, Explored, Move, Next, State, Stepped, Violation, explain
from pslab.engines.check.server import ServerSide
from pslab.engines.check.worker import FAULTS, KILL, LOSE, REJOIN, WorkerSide
from pslab.errors import ConfigError, nearest
from pslab.protocol.traits import traits_of

BEYOND = 8  # workers continue up to this multiple of their iterations; a worker that still waits then waits forever


@dataclass
class Explorer:
    """Explores all states that a small cluster can reach."""

    sync: Any
    workers: int = 2
    ranges: int = 1
    iterations: int = 3  #: per worker
    layered: bool = False  #: whether workers push and wait range by range, in one pass
    servers: int = 1  #: servers that share the ranges; one of them decides
    faults: Sequence[str] = ()  #: faults that may happen, each at most once
    faults_max: int = len(FAULTS)  #: faults in one run
    bound: int | None = None  #: iterations ahead of the slowest; None: the policy's window length - 1
    seen: dict[State, State | None] = field(default_factory=dict, init=False)  #: each state's predecessor
    states: int = field(default=0, init=False)  #: states that were visited
    transitions: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        for fault in self.faults:
            if fault not in FAULTS:
                raise ConfigError("faults", fault, nearest(fault, FAULTS))
        self.traits = traits_of(self.sync)
        self.length = self.traits.window if self.bound is None else self.bound + 1
        self._fewer = [[few for few in range(used) if few & used == few] for used in range(1 << len(FAULTS))]
        every = (1 << len(FAULTS)) - 1
        self._barred = [used if used.bit_count() < self.faults_max else every for used in range(every + 1)]
        bits = sum(1 << FAULTS.index(fault) for fault in set(self.faults))
        if bits & REJOIN and not bits & LOSE:
            bits |= KILL  # a worker must leave before it can rejoin
        self.server = ServerSide(self.sync, self.workers, self.ranges, self.length, self.servers)
        self.local = WorkerSide(self.sync, self.ranges, self.iterations, bits, self.layered, self.servers)

    def explore(self, states_max: int | None = None) -> Explored:
        """Visit every state, or `states_max` of them; stop at the first violation.

        Raises:
            ConfigError: the policy's state has an object that cannot be copied or compared.
        """
        start_s = time.perf_counter()
        violation, complete = self._visit(states_max)
        return Explored(
            invariants.name(self.sync), self.workers, self.ranges, self.iterations, tuple(self.faults),
            min(self.faults_max, len(self.faults)), self.states, self.transitions, time.perf_counter() - start_s,
            violation, complete, self.bound, self.servers,
            unvaried=tuple(sorted(self.server.read - ({"now"} if self.traits.plans else set()))),
        )  # fmt: skip

    def _visit(self, states_max: int | None) -> tuple[Violation | None, bool]:
        start = (self.server.start, 0, *[self.local.start] * self.workers)
        self.seen, self.states, self.transitions = {start: None}, 1, 0
        frontier, violation = list(self.seen), None
        while frontier and violation is None:
            if states_max is not None and self.states >= states_max:
                return None, False
            frontier, violation = self._level(frontier)
            # a state that was reached with fewer faults has all successors of this one
            frontier = [state for state in frontier if not any(
                (state[0], fewer, *state[2:]) in self.seen for fewer in self._fewer[state[1]])]  # fmt: skip
            self.states += len(frontier)
        return violation, True

    def _level(self, frontier: list[State]) -> tuple[list[State], Violation | None]:
        seen = self.seen
        states: list[State] = []
        for state in frontier:
            progress = False
            for successor in self.successors(state):
                self.transitions += 1
                progress = progress or not successor.move.fault
                if successor.wrong:
                    path = [*self._path(state), successor]
                    return states, explain(path, self.ranges, successor.wrong, successor.at)
                if successor.state not in seen:
                    seen[successor.state] = state
                    states.append(successor.state)
            if not progress and (wrong := self._ended(state)):
                return states, explain(self._path(state), self.ranges, wrong)
        return states, None

    def _path(self, last: State) -> list[Next]:
        path: list[Next] = []
        while (before := self.seen[last]) is not None:
            path.append(next(step for step in self.successors(before) if step.state == last and not step.wrong))
            last = before
        return path[::-1]

    # --- transitions ----------------------------------------------------------------------------------------------

    def successors(self, state: State) -> list[Next]:
        """Return every transition that can happen next."""
        number, used, locals_ = state[0], state[1], state[2:]
        barred = self._barred[used]
        following = []
        for worker, local in enumerate(locals_):
            for move in self.local.moves(local):
                if move.fault & barred or (move.kind == "leave" and any(self.local.locals[n].reading for n in locals_)):
                    continue
                if move.event is None:
                    following.append(self._next(state, worker, move, None))
                    continue
                for stepped in self.server.step(number, worker, move.event):
                    following.append(self._next(state, worker, move, stepped))
        for store in self.server.views[number].ordered:
            event = Event("store", store)
            move = Move(0, "store", store, locals_[0], event)
            following += [self._next(state, 0, move, stepped) for stepped in self.server.step(number, 0, event)]
        if self.traits.window is None and all(other.move.fault for other in following) and self._ended(state):
            following += [self._next(state, worker, move, None) for worker, other in enumerate(locals_)
                          for move in self.local.beyond(other, BEYOND * self.iterations)]  # fmt: skip
        return following

    def _next(self, state: State, worker: int, move: Move, stepped: Stepped | None) -> Next:
        number, used, *after = state
        after[worker] = move.after
        wrong, at = move.wrong, worker
        if stepped is not None:
            number = stepped.state
            wrong, at = self._take(stepped, after)
        elif move.computes >= 0 and not wrong:
            length = self.length and (self.length - 1) * self.traits.rotation.fragments + 1  # in iterations
            wrong = invariants.bound(move.computes, self.server.views[number].low, length, "computes")
        if wrong:
            return Next(state, worker, move, stepped, wrong, at)
        return Next((number, used | move.fault, *after), worker, move, stepped)

    def _take(self, stepped: Stepped, after: list[int]) -> tuple[Wrong, int]:
        """Apply the server's operations to `after`, in order; return the broken rule, or None, and its worker."""
        if stepped.wrong:
            return stepped.wrong, stepped.at
        for worker, op in stepped.ops:
            if op.kind == STEP and (wrong := self._disturbs(op.range, after)):
                return wrong, worker
            after[worker], wrong = self.local.outcome(after[worker], op)
            if wrong:
                return wrong, worker
        view, complete = self.server.views[stepped.state], 0
        for worker, number in enumerate(after):
            true = self.local.applied[number]
            reported = view.applied[worker]
            if reported is not None and reported != true:
                return invariants.clocks(reported, true), worker
            waiting = view.waiting[worker] if view.waiting is not None else None
            turns = true if waiting is None else tuple(map(int.__add__, true, waiting))
            complete += self.traits.rotation.complete(turns)
            complete -= self.local.locals[number].missed
        return None if view.drops else invariants.budget(view.accepted, complete), 0  # a drop may be half done

    def _disturbs(self, index: int, after: list[int]) -> Wrong:
        locals_ = [self.local.locals[number] for number in after]
        readers = [w for w, local in enumerate(locals_) if any(reading[0] == index for reading in local.reading)]
        busy = [w for w, local in enumerate(locals_) if self.traits.barrier and local.computes_on(index)]
        return invariants.unread(readers, index) or invariants.unused(busy, index)

    def _ended(self, state: State) -> Wrong:
        """Return the rule that is broken if only faults can happen in this state; None if none is."""
        finished, locals_ = self.local.finished, self.local.locals
        present = {worker: finished[n] for worker, n in enumerate(state[2:]) if locals_[n].mode in (ALIVE, CUT)}
        return invariants.ended(present, self.server.held(state[0]), self.server.waits_for(state[0]))


def explore(sync: Any, *, states_max: int | None = None, **cluster: Any) -> Explored:
    """Explore a policy in a small cluster; `cluster` gives fields of Explorer, such as `workers` and `faults`."""
    return Explorer(sync, **cluster).explore(states_max)
