"""States, transitions and results of an exploration, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pslab.engines.check.invariants import Wrong
from pslab.engines.check.server import Stepped
from pslab.engines.check.worker import Move

State = tuple[int, ...]  # the server's number, the bits of the faults that have happened, each worker's number


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
