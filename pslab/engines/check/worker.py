"""The checker's workers and links: the real state machine, and the messages between a worker and the server.

Like pipes, links keep the order of their messages and lose none; with several servers a worker has a link to each.
The exceptions are these faults, each at most once in a run:

    duplicate   a message that has arrived arrives again, at any later moment
    lose        a message never arrives and is not sent again. Some time later the worker's lease runs out, and the
                server learns that the worker has left
    kill        a worker stops at any moment; its messages arrive before or after the server learns that it has left
    rejoin      a worker joins again, on a new link, after the server has learned that it left
    reorder     a message overtakes all earlier messages on its link

The server learns that a worker has left only while no weights are being read, as with every driver. Versions are
checked in the server's replies. Messages to workers have the turn (the number of the exchange of a range) in place of
the version: no worker decides by a version, and there are far more versions than turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pslab.engines.check import invariants, result
from pslab.engines.check.canonical_state import copied, frozen
from pslab.engines.check.invariants import Wrong
from pslab.engines.check.result import ALIVE, CUT, DEAD, DOWN, LEFT, UP, Event, LocalState, Move, Op
from pslab.errors import ProtocolError
from pslab.protocol.messages import Ack, Push, Weights
from pslab.protocol.traits import traits_of
from pslab.protocol.worker import Compute, Send, worker_of

FAULTS = ("duplicate", "lose", "kill", "rejoin", "reorder")
DUPLICATE, LOSE, KILL, REJOIN, REORDER = (1 << bit for bit in range(len(FAULTS)))


class WorkerSide:
    """The states of a worker and its links, as numbers."""

    def __init__(self, sync: Any, ranges: int, iterations: int, faults: int, layered: bool,
                 servers: int = 1) -> None:  # fmt: skip
        self._sync, self._ranges, self._layered = sync, ranges, layered
        traits = traits_of(sync)
        self._eager, self._rotation, self._buffers = traits.eager, traits.rotation, traits.buffers
        self._iterations, self._faults = iterations, faults
        self._server_of = [index * servers // ranges for index in range(ranges)]
        self._numbers: dict[Any, int] = {}  # of the items in the next three lists
        self._machines: list[Any] = []
        self._messages: list[Any] = []
        self.locals: list[LocalState] = []
        self.finished: list[bool] = []  #: by number of the state: whether all iterations were started
        self.applied: list[tuple[int, ...]] = []  #: by number of the state: per range, the applied pushes
        self._moves: list[list[Move] | None] = []
        self._outcomes: dict[tuple[int, Op], tuple[int, Wrong]] = {}
        self._none = ((0, 0),) * ranges if self._eager else ()
        self._forgetting: dict[int, Wrong] = {}  # by machine: the broken rule if `join` does not reset all state
        machine, none = self._fresh(), (0,) * ranges
        local = LocalState(-1, got=none, acked=(-1,) * ranges, applied=none, own_pushes=self._none)
        self.start = self._moved(local, machine, 0, "start", None, machine.start).after

    def moves(self, number: int) -> list[Move]:
        """Return all possible next moves in the state with this number, faults last."""
        moves = self._moves[number]
        if moves is None:
            possible = (move for move in self._find(self.locals[number]) if not move.fault & ~self._faults)
            moves = self._moves[number] = sorted(possible, key=lambda move: move.fault)
        return moves

    def beyond(self, number: int, limit: int) -> list[Move]:
        """Return the moves with which a worker that has computed all its iterations continues, below `limit`."""
        local = self.locals[number]
        finished = local.mode in (ALIVE, CUT) and self._iterations <= local.computing < limit
        return [self._computed(local, index) for index in self._computable(local)] if finished else []

    def _computable(self, local: LocalState) -> tuple[int, ...]:
        """Return the ranges whose gradient may be ready next; for a layered worker, none until all weights arrived."""
        ready = not self._layered or self._ready(self._machines[local.machine]) >= local.computing
        return local.todo if ready else ()

    def _ready(self, machine: Any) -> int:
        """Return the iteration that a layered worker computes, or -1 before all its weights have arrived."""
        has = self._layered and machine.computing and all(map(machine.holds, range(self._ranges)))
        return machine.iteration if has else -1

    def outcome(self, number: int, op: Op) -> tuple[int, Wrong]:
        """Return the number of the state after an operation of the server, and the rule that it breaks, or None."""
        key = (number, op)
        if key not in self._outcomes:
            self._outcomes[key] = self._outcome(self.locals[number], op)
        return self._outcomes[key]

    def message(self, number: int) -> Any:
        """Return the message with this number."""
        return self._messages[number]

    # --- what can happen ------------------------------------------------------------------------------------------

    def _find(self, local: LocalState) -> Iterator[Move]:
        silent = LocalState(-1, local.up, past_up=local.past_up, reading=local.reading,
                       applied=local.applied, owed=local.owed, missed=local.missed)  # fmt: skip
        if local.mode in (ALIVE, CUT):
            if local.computing < self._iterations:
                yield from (self._computed(local, index) for index in self._computable(local))
            yield from self._deliveries(local, DOWN)
            yield Move(KILL, "kill", None, self._number(silent._replace(mode=DEAD)), wrong=self._kept(local.machine))
        if local.mode in (CUT, DEAD):
            yield Move(0, "leave", None, self._number(silent._replace(mode=LEFT)), Event("leave"))
        if local.mode == LEFT:
            fresh = local._replace(up=(), past_up=())
            yield Move(REJOIN, "rejoin", None, self._number(fresh), Event("join"))
        yield from self._deliveries(local, UP)
        for reading in local.reading:
            yield self._read(local, reading)

    def _kept(self, number: int) -> Wrong:
        """Return the broken rule if a machine that rejoins differs from a new machine that joins; else None."""
        if not self._faults & REJOIN:
            return None
        if number not in self._forgetting:
            back, new = self._machine(number), self._fresh()
            iteration = back.iteration + 1
            sent = [machine.join(iteration) for machine in (back, new)]
            self._forgetting[number] = invariants.forgotten(sent[0] == sent[1] and frozen(back) == frozen(new))
        return self._forgetting[number]

    def _fresh(self) -> Any:
        return worker_of(0, self._ranges, self._sync, layered=self._layered)

    def _deliveries(self, local: LocalState, link: str) -> Iterator[Move]:
        under_way = local.up if link == UP else local.down
        servers = list(map(self._server, under_way))
        firsts = [position for position, server in enumerate(servers) if server not in servers[:position]]
        for position, message in enumerate(under_way):
            if position not in firsts and not self._faults & REORDER:
                continue
            left = local.linked(link, without(under_way, position))
            if position in firsts and self._faults & LOSE and local.mode == ALIVE:
                yield Move(LOSE, "lose", self._messages[message], self._number(left._replace(mode=CUT)))
            if self._faults & DUPLICATE:
                left = left.noted(link, message)
            yield self._deliver(left, link, message, *((0, "deliver") if position in firsts else (REORDER, "overtake")))
        for message in local.past_up if link == UP else local.past_down:
            yield self._deliver(local, link, message, DUPLICATE, "again")

    def _deliver(self, left: LocalState, link: str, number: int, fault: int, kind: str) -> Move:
        message = self._messages[number]
        if link == UP:
            return Move(fault, kind, message, self._number(left), Event("message", message.range, message))
        machine = self._machine(left.machine)
        if isinstance(message, Weights):
            turn = self._rotation.turn(message.range, message.iteration)
            if turn > left.got[message.range]:
                left = left._replace(got=with_(left.got, message.range, turn))
                if self._eager:
                    used, _ = left.own_pushes[message.range]
                    left = left._replace(own_pushes=with_(left.own_pushes, message.range, (used, message.own_pushes)))
            return self._moved(left, machine, fault, kind, message, lambda: machine.weights(message))
        acked = max(left.acked[message.range], message.iteration)
        left = left._replace(acked=with_(left.acked, message.range, acked))
        return self._moved(left, machine, fault, kind, message, lambda: machine.ack(message))

    def _computed(self, local: LocalState, index: int) -> Move:
        machine = self._machine(local.machine)
        left = local._replace(todo=tuple(range_index for range_index in local.todo if range_index != index))
        move = self._moved(left, machine, 0, "compute", index, lambda: machine.computed(index))
        needed = [self._rotation.turn(range_index, local.computing) for range_index in range(self._ranges)]
        return move._replace(wrong=move.wrong or invariants.weighted(local.computing, local.got, needed))

    def _read(self, local: LocalState, reading: tuple[int, int, int]) -> Move:
        index, iteration, contained = reading
        left = local._replace(reading=without(local.reading, local.reading.index(reading)))
        left = self._sent_down(left, Weights, index, iteration, self._rotation.turn(index, iteration), None, contained)
        return Move(0, "read", reading, self._number(left), Event("answered", index))

    def _sent_down(self, local: LocalState, kind: Any, *about: Any) -> LocalState:
        return self._sent(local, DOWN, [kind(0, *about)]) if local.mode in (ALIVE, CUT) else local

    def _moved(self, left: LocalState, machine: Any, fault: int, kind: str, about: Any, drive: Any) -> Move:
        """Call `drive`, which runs the worker's machine; put its requests on the link, and check its effects."""
        ready = self._ready(machine)
        try:
            effects = drive()
        except ProtocolError as error:
            return Move(fault, kind, about, -1, wrong=f"worker <self> cannot go on: {error}")
        except Exception as error:
            return Move(fault, kind, about, -1, wrong=f"worker <self> raises {type(error).__name__}: {error}")
        wrong, started = None, -1
        for effect in effects:
            if isinstance(effect, Send):
                request = effect.request
                if isinstance(request, Push):
                    # an eager worker has the next weights already
                    version = left.computing if self._eager else left.got[request.range]
                    wrong = wrong or invariants.labelled(request.version, version, request.iteration)
                    if self._eager:  # versions are numbered by iterations: see `observed`
                        used, newest = left.own_pushes[request.range]
                        others = left.got[request.range] - left.computing - (newest - used)
                        wrong = wrong or invariants.observed(request.seen, others, request.iteration)
                else:
                    version = 0 if kind == "join" else left.got[request.range]
                    wrong = wrong or invariants.held(request.version, version, request.iteration)
                left = self._sent(left, UP, [effect.request])
            elif isinstance(effect, Compute):
                started = effect.iteration
                acked = [left.acked[index] for index in self._rotation.ranges(started - self._buffers, self._ranges)]
                wrong = wrong or invariants.computes(started, left.computing, left.todo, acked, self._buffers)
                left = left._replace(computing=started, todo=tuple(self._rotation.ranges(started, self._ranges)),
                                     own_pushes=tuple((newest, newest) for _, newest in left.own_pushes))  # fmt: skip
                if self._eager:
                    lacks = {(push.range, push.iteration) for push in machine.missing()}
                    wrong = wrong or invariants.lacking(lacks, [used for used, _ in left.own_pushes], started,
                                                        some=bool(self._faults & REJOIN))  # fmt: skip
        if self._layered:  # such a worker counts as computing once the weights of its last range have arrived
            now = self._ready(machine)
            started = now if now > ready else -1
        after = self._number(left._replace(machine=self._interned(machine, self._machines)))
        return Move(fault, kind, about, after, None, started, wrong)

    def _outcome(self, local: LocalState, op: Op) -> tuple[int, Wrong]:
        if op.kind == result.JOIN:
            return self._joined(local, op)
        index, iteration, done = op.range, op.iteration, local.applied[op.range]
        turn = self._rotation.turn(index, iteration)
        if op.kind in (result.STEP, result.DROP):
            if any(local.owed) and local.owed[index]:
                wrong = invariants.applied(turn, local.owed[index][0])
                local = local._replace(owed=with_(local.owed, index, local.owed[index][1:]))
            else:
                wrong = invariants.applied(turn, done)
                local = local._replace(applied=with_(local.applied, index, done + 1))
            # count a drop once, at range 0; a push that is dropped because its worker left was not complete
            missed = op.kind == result.DROP and index == 0 and local.mode != LEFT
            local = local._replace(missed=local.missed + missed)
            if op.frees:
                local = self._sent_down(local, Ack, index, iteration)
        elif op.kind == result.FREE:
            owed = any(local.owed) and turn in local.owed[index]
            wrong = invariants.freed(iteration, applied=turn < done and not owed)
            local = self._sent_down(local, Ack, index, iteration)
        else:
            contained = done - len(local.owed[index]) if local.owed else done
            wrong = invariants.replied(turn, contained, self._buffers if self._eager else 0, left=local.mode == LEFT)
            if self._eager and not wrong:
                wrong = invariants.contained(op.own_pushes, contained)
            if not wrong and not self._faults & DUPLICATE:
                wrong = invariants.once(turn, self._promised(local, index))
            if op.kind == result.SEND:
                local = self._sent_down(local, Weights, index, iteration, turn, None, op.own_pushes)
            else:
                local = local._replace(reading=(*local.reading, (index, iteration, op.own_pushes)))
        return self._number(local), wrong

    def _joined(self, local: LocalState, op: Op) -> tuple[int, Wrong]:
        """Replace the machine by a new one, which requests the weights of the iteration that the server assigned."""
        pushed = tuple(map(int.__add__, local.applied, op.waiting))
        if wrong := invariants.joined(op.iteration, [self._rotation.joined(*pair) for pair in enumerate(pushed)]):
            return self._number(local), wrong
        machine, new = self._fresh(), local.joined(op.iteration, pushed, self._none, self._rotation)
        move = self._moved(new, machine, 0, "join", None, lambda: machine.join(op.iteration))
        return move.after, move.wrong

    def _promised(self, local: LocalState, index: int) -> int:
        """Return the last turn of a range with which the worker was started; -1 if there is none."""
        iterations = [iteration for other, iteration, _ in local.reading if other == index]
        iterations += [message.iteration for message in map(self.message, local.down)
                       if isinstance(message, Weights) and message.range == index]  # fmt: skip
        if not iterations:
            return local.got[index] if local.got else -1
        return self._rotation.turn(index, max(iterations))

    # --- states as numbers ----------------------------------------------------------------------------------------

    def _sent(self, local: LocalState, link: str, messages: Iterable[Any]) -> LocalState:
        numbers = tuple(self._interned(message, self._messages) for message in messages)
        under_way = (local.up if link == UP else local.down) + numbers
        if self._server_of[-1]:  # messages on links to different servers have no order
            under_way = tuple(sorted(under_way, key=self._server))
        return local.linked(link, under_way)

    def _server(self, number: int) -> int:
        return self._server_of[int(self._messages[number].range)]

    def _machine(self, number: int) -> Any:
        return copied(self._machines[number])

    def _interned(self, value: Any, values: list[Any]) -> int:
        key = frozen(value)
        if key not in self._numbers:
            self._numbers[key] = len(values)
            values.append(value)
        return self._numbers[key]

    def _number(self, local: LocalState) -> int:
        number = self._numbers.get(local)
        if number is None:
            number = self._numbers[local] = len(self.locals)
            self.locals.append(local)
            self._moves.append(None)
            self.finished.append(local.computing >= self._iterations)
            self.applied.append(tuple(map(int.__sub__, local.applied, map(len, local.owed))) if local.owed
                                else local.applied)  # fmt: skip
        return number


def without(items: tuple[Any, ...], position: int) -> tuple[Any, ...]:
    return items[:position] + items[position + 1 :]


def with_(items: tuple[Any, ...], position: int, value: Any) -> tuple[Any, ...]:
    return (*items[:position], value, *items[position + 1 :])
