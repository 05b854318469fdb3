"""States, transitions and results of an exploration as plain values, and the description of a violation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pslab.engines.check.invariants import Wrong
from pslab.protocol.rotation import Rotation

State = tuple[int, ...]  # the server's number, the bits of the faults that have happened, each worker's number
ALIVE, CUT, DEAD, LEFT = range(4)  # CUT: a message was lost; DEAD: killed; LEFT: the server knows that it has left
UP, DOWN = "up", "down"
# a server's operations: apply or drop a push, free its payload, read weights for a worker, send them, join a worker
STEP, DROP, FREE, REPLY, SEND, JOIN = "step", "drop", "free", "reply", "send", "join"


class Op(NamedTuple):
    """An operation of the server on one worker's push, request or membership."""

    kind: str  #: one of the operations above
    range: int
    iteration: int
    waiting: tuple[int, ...] = ()  #: of a JOIN: per range, how many of the worker's pushes are not yet applied
    own_pushes: int = 0  #: of a REPLY or SEND: how many of the worker's pushes it reports to be in the weights
    frees: bool = True  #: of a STEP or DROP: whether it also frees the payload


Ops = tuple[tuple[int, Op], ...]  # (worker, operation)


class Event(NamedTuple):
    """An event at the server: a message arrives, weights have been read, a worker leaves or joins, or a server executes
    its oldest order."""

    kind: str  #: "message", "answered", "leave", "join" or "store"
    range: int = 0  #: the range, or for "store" the server
    message: Any = None


class ServerView(NamedTuple):
    """The part of a server's state that the invariants compare."""

    applied: tuple[tuple[int, ...] | None, ...]  #: per worker and range: pushes applied; None for a worker that left
    waiting: tuple[tuple[int, ...], ...] | None  #: per worker and range: pushes not yet applied; None: all are
    low: int  #: the least clock of all ranges, as an iteration
    accepted: int  #: iterations that the budget counts
    ordered: tuple[int, ...] = ()  #: servers with orders that are not yet executed
    drops: bool = False  #: whether an order to drop a push is not yet executed


@dataclass
class Stepped:
    """The effect of one event on one state of the server."""

    state: int
    effects: list[Any]
    ops: Ops  #: what the effects do for each worker
    wrong: Wrong = None
    at: int = 0  #: the worker that `<self>` in `wrong` stands for


class LocalState(NamedTuple):
    """A worker and its links; messages and machines are given by numbers, and in them every worker has number 0."""

    machine: int
    up: tuple[int, ...] = ()
    down: tuple[int, ...] = ()
    past_up: tuple[int, ...] = ()  #: messages that have arrived and may arrive again
    past_down: tuple[int, ...] = ()
    reading: tuple[tuple[int, int, int], ...] = ()  #: weights under way: (range, iteration, own pushes)
    computing: int = -1  #: the last iteration that it started to compute
    todo: tuple[int, ...] = ()  #: ranges of this iteration that are not computed yet
    got: tuple[int, ...] = ()  #: per range, the turn for which the newest weights that arrived were sent
    own_pushes: tuple[tuple[int, int], ...] = ()  #: eager, per range: own pushes in the weights used, in the newest
    acked: tuple[int, ...] = ()  #: per range, the last iteration acknowledged
    applied: tuple[int, ...] = ()  #: per range, the turn that the server applies next
    owed: tuple[tuple[int, ...], ...] = ()  #: per range, turns pushed before it left that are not applied yet
    missed: int = 0  #: iterations that were not complete when it left, or were dropped
    mode: int = ALIVE

    def computes_on(self, index: int) -> bool:
        """Whether the worker computes on a range: its weights have arrived, and its gradient is not ready."""
        return index in self.todo and self.got[index] >= self.computing

    def joined(
        self, iteration: int, pushed: tuple[int, ...], own_pushes: tuple[tuple[int, int], ...], rotation: Rotation
    ) -> LocalState:
        """Return the state after a rejoin on new links; `pushed` has the worker's pushes so far, by range."""
        turns = tuple(rotation.turn(index, iteration) for index in range(len(pushed)))
        return LocalState(
            -1, reading=self.reading, computing=iteration - 1, got=tuple(turn - 1 for turn in turns),
            acked=(iteration - 1,) * len(pushed), own_pushes=own_pushes, applied=turns,
            missed=self.missed + iteration - rotation.complete(pushed),
            owed=tuple(tuple(range(done, end)) for done, end in zip(self.applied, pushed, strict=True)),
        )  # fmt: skip

    def linked(self, link: str, under_way: tuple[int, ...]) -> LocalState:
        """Return the state with these messages on a link."""
        return self._replace(up=under_way) if link == UP else self._replace(down=under_way)

    def noted(self, link: str, message: int) -> LocalState:
        """Return the state in which this message may arrive again."""
        if link == UP:
            return self._replace(past_up=tuple(sorted({*self.past_up, message})))
        return self._replace(past_down=tuple(sorted({*self.past_down, message})))


class Move(NamedTuple):
    """A possible next move of a worker, or of a message on its links."""

    fault: int  #: the bit of the fault; 0 if the move is no fault
    kind: str
    about: Any  #: a message, a range, or (range, iteration, own pushes) of weights that were read
    after: int  #: the worker and its links afterwards
    event: Event | None = None  #: the event at the server
    computes: int = -1  #: the iteration that the worker starts to compute
    wrong: Wrong = None


class Next(NamedTuple):
    """A transition: the worker, its move, and the next state."""

    state: State
    worker: int
    move: Move
    stepped: Stepped | None
    wrong: Wrong = None
    at: int = 0  #: the worker that `<self>` in `wrong` stands for


@dataclass(frozen=True)
class Violation:
    """A broken rule, and a shortest path to it in words."""

    what: str
    path: tuple[str, ...]

    def __str__(self) -> str:
        width = len(str(len(self.path)))
        return "\n".join([*(f"  {n:{width}}. {words}" for n, words in enumerate(self.path, 1)), f"  => {self.what}"])


@dataclass(frozen=True)
class Explored:
    """The result of one exploration."""

    policy: str
    workers: int
    ranges: int
    iterations: int  #: per worker
    faults: tuple[str, ...]
    faults_max: int  #: faults in one run
    states: int
    transitions: int
    seconds: float  #: that the exploration took
    violation: Violation | None = None
    complete: bool = True  #: False if it ended at its limit of states
    bound: int | None = None  #: iterations ahead of the slowest, if another bound than the policy's was checked
    servers: int = 1
    reached: bool = True  #: False if no exploration of this policy has enough iterations to break its bound
    unvaried: tuple[str, ...] = ()  #: fields of events that the policy read, and that had only one value

    @property
    def verdict(self) -> str:
        """Return "clean", "violated", "unfinished", "bound not reached", or for example "loss not varied"."""
        if self.violation or not self.complete:
            return "violated" if self.violation else "unfinished"
        if self.unvaried:
            return f"{' and '.join(self.unvaried)} not varied"
        return "clean" if self.reached else "bound not reached"


# --- a path in words ------------------------------------------------------------------------------------------------


def explain(path: Sequence[Next], ranges: int, wrong: str, at: int = 0) -> Violation:
    """Describe a violation: the broken rule `wrong`, and the transitions of `path` in order.

    In `wrong`, `<i>` stands for worker i, and `<self>` for worker `at`. The cluster has `ranges` ranges.
    """
    words = tuple(_event(taken, several=ranges > 1) for taken in path)
    return Violation(re.sub(r"<(\d+)>", r"\1", wrong.replace("<self>", str(at))), words)


def _event(taken: Next, *, several: bool) -> str:
    worker, move = f"worker {taken.worker}", taken.move
    words = _happens(worker, move.kind, move.about, several=several)
    if move.computes >= 0:
        words += f"; it computes iteration {move.computes}"
    if taken.stepped is None:
        return words
    effects = [_effect(effect, several=several) for effect in taken.stepped.effects]
    if not effects and move.event is not None and move.event.kind == "message" and not taken.stepped.wrong:
        effects = ["the server holds it"]
    return "; ".join([words, *effects])


def _happens(worker: str, kind: str, about: Any, *, several: bool) -> str:
    if kind == "compute":
        return f"{worker} has computed its gradient{f' of range {about}' * several}, pushes it and pulls"
    if kind == "read":
        index, iteration, _ = about
        return f"the weights{f' of range {index}' * several} for iteration {iteration} of {worker} have been sent"
    if kind == "store":
        return f"server {about} carries out its oldest order"
    if kind == "kill":
        return f"{worker} is killed"
    if kind == "leave":
        return f"the server learns that {worker} has left"
    if kind == "rejoin":
        return f"{worker} rejoins"
    message = _message(worker, about, several=several)
    return {
        "deliver": f"{message} arrives",
        "overtake": f"{message} arrives before a message that was sent earlier",
        "again": f"{message} arrives a second time",
        "lose": f"{message} is lost: the lease of {worker} will run out",
    }[kind]


def _message(worker: str, message: Any, *, several: bool) -> str:
    where = f" on range {message.range}" * several
    return {
        "Push": f"{worker}'s push of iteration {message.iteration}{where}",
        "Pull": f"{worker}'s pull for iteration {message.iteration}{where}",
        "Weights": f"the reply to {worker} for iteration {message.iteration}{where}",
        "Ack": f"the acknowledgement to {worker} of iteration {message.iteration}{where}",
    }[type(message).__name__]


def _effect(effect: Any, *, several: bool) -> str:
    kind = type(effect).__name__
    if kind == "Step":
        pushes = ", ".join(f"worker {push.worker}'s of iteration {push.iteration}" for push in effect.pushes)
        where = f" of range {effect.range}" * several
        what = f"the mean of {pushes}" if effect.aggregate else f"it: {pushes}"
        return f"the server applies {what}, as version {effect.version}{where}"
    if kind == "Reply":
        pull = effect.pull
        where = f" on range {pull.range}" * several
        return f"the server starts worker {pull.worker} with iteration {pull.iteration}{where}"
    if kind == "Forget":
        return f"it forgets worker {effect.worker}"
    if kind == "Discard":
        return f"the server drops worker {effect.push.worker}'s push of iteration {effect.push.iteration}"
    if kind == "Searched":
        return f"the policy plans over {effect.points} point{'s' * (effect.points != 1)}"
    return f"the server refuses it: {effect.reason}"
