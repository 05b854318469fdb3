"""Elastic bulk synchronous parallel: barriers whose instants are planned from the durations of the workers' iterations.

A superstep has two phases. First, workers continue without waiting, until each has pushed twice: then the interval of
its iterations is known. For each worker the ends of R further iterations are predicted, ZipLine finds the barrier at
which the workers wait least, and each worker continues until it has pushed as often as the plan says. Then it waits for
the others; when all wait, all start on the same weights. Counts of pushes, not instants, end a superstep, so that every
worker reaches its end even if a prediction was wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Annotated, ClassVar, NamedTuple

from pslab.config.parameters import Bounds, OneOf, check
from pslab.policies.planning.zipline import ZIPLINES
from pslab.protocol.messages import Apply, Asked, Decisions, Left, Pushed, Searched, Start, SyncEvent
from pslab.protocol.window import Window

NEEDED = 2  # pushes of a worker in a superstep after which its interval is known


class WorkerProgress(NamedTuple):
    """The progress of a worker, as known to the policy."""

    worker: int
    clock: int = 0  #: its next iteration
    started: int = -1  #: the last iteration that it started
    pushes: int = 0  #: pushes in this superstep, at most NEEDED
    waits: bool = False
    target: int | None = None  #: the iteration before which it waits at the barrier
    pushed_s: float | None = None  #: instant of its last push in this superstep
    intervals_s: tuple[float, ...] = ()  #: intervals between its pushes, newest last; with ewma their average


class Superstep(NamedTuple):
    """The progress of all workers in a superstep, and whether its barrier is planned."""

    rows: frozenset[WorkerProgress]
    planned: bool = False


@dataclass(frozen=True)
class ElasticBSP:
    """Elastic BSP: each superstep's barrier is where the workers' predicted ends lie closest together (ZipLine).

    Pushes are applied as they arrive. A worker that joins after the plan was made also waits for the planned barrier.

    Source: Zhao et al. (ICDM 2019).
    """

    iterations: Annotated[
        int, Bounds(at_least=1, at_most=100_000), "number of iterations predicted for each worker (R)"
    ] = 15
    search: Annotated[str, OneOf(*ZIPLINES), "the variant of ZipLine; all find the same plan"] = "sweep"
    predict: Annotated[
        str,
        OneOf("last", "median", "ewma"),
        "an interval: the last one, the median of the last k, or an exponentially weighted average",
    ] = "last"
    k: Annotated[int, Bounds(at_least=1), "number of intervals in the median"] = 5
    weight: Annotated[float, Bounds(above=0, at_most=1), "of the newest interval in the average"] = 0.3
    include_last: Annotated[
        bool, "whether the push that arrived last is the first of the predicted ones, as in the authors' program"
    ] = False

    whole: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self)

    @property
    def window(self) -> None:
        return None

    def variants(self, workers: int) -> tuple[ElasticBSP, ...]:
        """Return a variant of this policy for each plan that a search can find."""
        same = self.iterations, self.search, self.predict, self.k, self.weight, self.include_last
        return tuple(Planned(*same, idx) for idx in product(range(1, self.iterations + 1), repeat=workers))

    def initial(self, workers: tuple[int, ...]) -> Superstep:
        return Superstep(frozenset(WorkerProgress(worker, started=0) for worker in workers))

    def step(self, state: Superstep, event: SyncEvent, clocks: Window) -> tuple[Superstep, Decisions]:
        row = next((row for row in state.rows if row.worker == event.worker), WorkerProgress(event.worker))
        others = state.rows - {row}
        match event:
            case Asked(worker, iteration):
                row = row._replace(clock=iteration)
                goes_on = not state.planned or (row.target is not None and iteration < row.target)
                if goes_on or iteration == row.started:  # the latter: a duplicate request
                    return state._replace(rows=others | {row._replace(started=iteration)}), (Start(worker, iteration),)
                return _barrier(state._replace(rows=others | {row._replace(waits=True)}))
            case Pushed(worker, iteration, now):
                state = state._replace(rows=others | {self._pushed(row, iteration, now)})
                state, searched = self._planned(state)
                return state, (Apply(worker, iteration), *searched)
            case Left():
                state, searched = self._planned(state._replace(rows=others))
                state, starts = _barrier(state)
                return state, (*searched, *starts)

    def _pushed(self, row: WorkerProgress, iteration: int, now: float) -> WorkerProgress:
        intervals_s = row.intervals_s if row.pushed_s is None else self._with(row.intervals_s, now - row.pushed_s)
        pushes = min(row.pushes + 1, NEEDED)
        return row._replace(clock=iteration + 1, pushes=pushes, pushed_s=now, intervals_s=intervals_s)

    def _with(self, intervals_s: tuple[float, ...], newest_s: float) -> tuple[float, ...]:
        if self.predict == "ewma" and intervals_s:
            return (self.weight * newest_s + (1 - self.weight) * intervals_s[0],)
        return (*intervals_s, newest_s)[-self.k if self.predict == "median" else -1 :]

    def _planned(self, state: Superstep) -> tuple[Superstep, Decisions]:
        """Return the superstep with a plan, if it has none and every worker's interval is known; else unchanged."""
        if state.planned or not state.rows or any(row.pushes < NEEDED for row in state.rows):
            return state, ()
        rows = sorted(state.rows)
        idx, first = self._idx(rows), 0 if self.include_last else 1
        targets = (row._replace(target=row.clock + index - 1 + first) for row, index in zip(rows, idx, strict=True))
        return Superstep(frozenset(targets), True), (Searched(len(rows) * self.iterations),)

    def _idx(self, rows: list[WorkerProgress]) -> tuple[int, ...]:
        return ZIPLINES[self.search]([self._ends(row) for row in rows]).idx

    def _ends(self, row: WorkerProgress) -> list[float]:
        """Return the instants at which the next iterations of a worker are predicted to end."""
        assert row.pushed_s is not None
        interval_s, first = _median(row.intervals_s), 0 if self.include_last else 1
        return [row.pushed_s + count * interval_s for count in range(first, first + self.iterations)]


@dataclass(frozen=True)
class Planned(ElasticBSP):
    """ElasticBSP whose searches all return the same plan: one of its variants."""

    idx: tuple[int, ...] = ()  #: iterations by worker

    def _idx(self, rows: list[WorkerProgress]) -> tuple[int, ...]:
        return tuple(self.idx[row.worker] for row in rows)


def _median(values: tuple[float, ...]) -> float:
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _barrier(state: Superstep) -> tuple[Superstep, Decisions]:
    """Return the next superstep and a Start for each worker if all workers wait; else the state unchanged."""
    if not all(row.waits for row in state.rows):
        return state, ()
    rows = sorted(state.rows)
    fresh = frozenset(WorkerProgress(row.worker, row.clock, row.clock, intervals_s=row.intervals_s) for row in rows)
    return Superstep(fresh), tuple(Start(row.worker, row.clock) for row in rows)
