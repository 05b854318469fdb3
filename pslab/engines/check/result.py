"""States, transitions and results of an exploration, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from pslab.engines.check.invariants import Wrong
from pslab.engines.check.server import Event, Stepped

State = tuple[int, ...]  # the server's number, the bits of the faults that have happened, each worker's number
ALIVE, CUT, DEAD, LEFT = range(4)  # CUT: a message of it is lost; DEAD: the server does not know yet that it stopped
UP, DOWN = "up", "down"


class Local(NamedTuple):
    """A worker and its links. In it the worker's own number is always 0; messages and machines are numbers."""

    machine: int
    up: tuple[int, ...] = ()
    down: tuple[int, ...] = ()
    past_up: tuple[int, ...] = ()  #: messages that have arrived and may arrive again
    past_down: tuple[int, ...] = ()
    reading: tuple[tuple[int, int, int], ...] = ()  #: replies: (range, iteration, own pushes that they contain)
    computing: int = -1  #: the last iteration that it started to compute
    todo: tuple[int, ...] = ()  #: ranges of this iteration that are not computed yet
    got: tuple[int, ...] = ()  #: per range, the iteration that the newest weights here are for
    own: tuple[tuple[int, int], ...] = ()  #: eager, per range: own pushes in the weights in use, and in the newest
    acked: tuple[int, ...] = ()  #: per range, the last iteration acknowledged
    applied: tuple[int, ...] = ()  #: per range, the iteration that the server applies next
    owed: tuple[tuple[int, ...], ...] = ()  #: per range, iterations pushed before it left that are not applied yet
    missed: int = 0  #: iterations that were not complete when it left, or were dropped
    mode: int = ALIVE

    def computes_on(self, index: int) -> bool:
        """Whether the weights of a range are being computed on: they have arrived, and its gradient is not ready."""
        return index in self.todo and self.got[index] >= self.computing


class Move(NamedTuple):
    """Something that can happen next at one worker or on its links."""

    fault: int  #: its bit; 0 if the move is no fault
    kind: str
    about: Any  #: a message, a range, or (range, iteration, own) of weights that were read
    after: int  #: the worker and its links afterwards
    event: Event | None = None  #: at the server
    computes: int = -1  #: the iteration that the worker starts to compute
    wrong: Wrong = None


class Next(NamedTuple):
    """A transition: which worker makes which move, and the next state, whose worker i was order[i] before."""

    state: State
    order: tuple[int, ...]
    worker: int
    move: Move
    stepped: Stepped | None
    wrong: Wrong = None
    at: int = 0  #: the worker that `<self>` is in `wrong`


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
    seconds: float
    violation: Violation | None = None
    complete: bool = True  #: False if it ended at its limit of states
    symmetric: bool = True  #: False if the policy distinguishes workers, so that each was explored by itself
    bound: int | None = None  #: iterations ahead of the slowest, if not the policy's own bound was checked
    reached: bool = True  #: False if no exploration of this policy has the iterations that break its bound

    @property
    def verdict(self) -> str:
        """clean, violated, unfinished, or bound not reached."""
        if self.violation or not self.complete:
            return "violated" if self.violation else "unfinished"
        return "clean" if self.reached else "bound not reached"


def linked(local: Local, link: str, under_way: tuple[int, ...]) -> Local:
    return local._replace(up=under_way) if link == UP else local._replace(down=under_way)


def noted(local: Local, link: str, message: int) -> Local:
    if link == UP:
        return local._replace(past_up=tuple(sorted({*local.past_up, message})))
    return local._replace(past_down=tuple(sorted({*local.past_down, message})))


def without(items: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    return items[:place] + items[place + 1 :]


def with_(items: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    return (*items[:place], value, *items[place + 1 :])
