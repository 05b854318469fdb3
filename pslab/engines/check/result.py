"""What an exploration visits and finds: plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pslab.engines.check.invariants import Wrong
from pslab.engines.check.server import Stepped
from pslab.engines.check.worker import Move

State = tuple[int, ...]  # the server's number, the bits of the faults that have happened, each worker's number


class Next(NamedTuple):
    """A transition: who moves how, and the state that follows, whose worker i was order[i] before."""

    state: State
    order: tuple[int, ...]
    who: int
    move: Move
    stepped: Stepped | None
    wrong: Wrong = None
    at: int = 0  #: the worker that `<self>` is in `wrong`


@dataclass(frozen=True)
class Violation:
    """A rule that was broken, and the shortest way to it in words."""

    what: str
    path: tuple[str, ...]

    def __str__(self) -> str:
        width = len(str(len(self.path)))
        return "\n".join([*(f"  {n:{width}}. {words}" for n, words in enumerate(self.path, 1)), f"  => {self.what}"])


@dataclass(frozen=True)
class Explored:
    """What one exploration has found."""

    policy: str
    workers: int
    ranges: int
    iterations: int  #: per worker
    faults: tuple[str, ...]
    faults_max: int  #: in one run
    states: int
    transitions: int
    seconds: float
    violation: Violation | None = None
    whole: bool = True  #: False if it ended at its limit of states
    symmetric: bool = True  #: False if workers were told apart
    bound: int | None = None  #: iterations ahead, where it was not the policy's own that was held

    @property
    def verdict(self) -> str:
        """clean, violated, or unfinished."""
        return "violated" if self.violation else "clean" if self.whole else "unfinished"
