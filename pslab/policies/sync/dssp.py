"""Dynamic stale synchronous parallel: beyond a bound, the fastest worker gets additional iterations by a forecast."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from pslab.config.parameters import Bounds, OneOf, check
from pslab.protocol.messages import Apply, Asked, Decisions, Left, Pushed, Searched, Start, SyncEvent
from pslab.protocol.window import Window


class TableRow(NamedTuple):
    """A worker's row in the table by which the server decides."""

    worker: int
    clock: int = 0  #: its next iteration
    started: int = -1  #: the last iteration that it started
    credit: int = 0  #: iterations that it may still start, however far it leads
    waits: bool = False
    pushed_s: float | None = None  #: instant of its last push
    started_s: float | None = None  #: instant of its last start, if intervals are measured from starts
    interval_s: float | None = None  #: seconds that its last iteration took


Table = frozenset[TableRow]  # a set, because decisions must not depend on an order of the workers


def forecast(pushed_s: float, interval_s: float, slow_s: float, slow_interval_s: float, extra: int) -> int:
    """Return the iterations to grant, 0 to `extra`, so that a worker ends nearest to an end of the slowest worker.

    On a tie the smallest number is returned. Both workers are assumed to continue from their last pushes, at `pushed_s`
    and `slow_s`, with the intervals of their last iterations. O(extra).

    Source: Zhao et al. (ICDCS 2019), algorithm 2.
    """
    best, least_s, ahead = 0, math.inf, 0
    for granted in range(extra + 1):
        end_s = pushed_s + granted * interval_s
        while ahead < extra and slow_s + (ahead + 1) * slow_interval_s < end_s:
            ahead += 1  # the slowest worker's first end that is not before end_s
        ends = (slow_s + count * slow_interval_s for count in (ahead, ahead + 1) if count)
        distance_s = min(abs(end - end_s) for end in ends)
        if distance_s < least_s:
            best, least_s = granted, distance_s
    return best


@dataclass(frozen=True)
class DSSP:
    """Dynamic SSP: the fastest worker, `low` iterations ahead, continues if it is forecast to wait less afterwards.

    Theorem 2 and the text of the paper imply a bound of low + extra: a grant of r starts r iterations, and none beyond
    the bound (grant=text). Algorithm 1 as printed starts r + 1 iterations, and grants again when these are used up
    (grant=literal). The lead is then unbounded, and only then are the published times possible.

    Source: Zhao et al. (ICDCS 2019).
    """

    low: Annotated[int, Bounds(at_least=0), "iterations ahead of the slowest worker that are always allowed"] = 3
    extra: Annotated[int, Bounds(at_least=0), "the most iterations that a grant gives"] = 12
    grant: Annotated[str, OneOf("text", "literal"), "r iterations, or one more as Algorithm 1 is printed"] = "text"
    cap: Annotated[bool | None, "whether low + extra bounds the lead; none: on for text, off for literal"] = None
    interval: Annotated[
        str,
        OneOf("push", "release"),
        "how an iteration is measured: push to push as published, or without the wait before its start",
    ] = "push"

    whole: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self)

    @property
    def capped(self) -> bool:
        """Whether low + extra bounds the lead."""
        return self.grant == "text" if self.cap is None else self.cap

    @property
    def window(self) -> int | None:
        return self.low + self.extra + 1 if self.capped else None

    def variants(self, workers: int) -> tuple[DSSP, ...]:
        """Return a variant of this policy for each grant that a forecast can give."""
        same = self.low, self.extra, self.grant, self.cap, self.interval
        return tuple(Granting(*same, granted) for granted in range(self.extra + 1))

    def initial(self, workers: tuple[int, ...]) -> Table:
        return frozenset(self._started(TableRow(worker), 0.0, 0) for worker in workers)

    def step(self, state: Table, event: SyncEvent, clocks: Window) -> tuple[Table, Decisions]:
        row = next((row for row in state if row.worker == event.worker), TableRow(event.worker))
        others = state - {row}
        match event:
            case Asked(_, iteration, now):
                row, decisions = self._asked(row._replace(clock=iteration), others, now, clocks)
                return others | {row}, decisions
            case Pushed(worker, iteration, now):
                state, starts = self._released(others | {self._pushed(row, iteration, now)}, now, clocks)
                return state, (Apply(worker, iteration), *starts)
            case Left(_, now):
                return self._released(others, now, clocks)

    def _asked(self, row: TableRow, others: Table, now: float, clocks: Window) -> tuple[TableRow, Decisions]:
        """Return the worker's new row and the decisions on its request, by Algorithm 1."""
        start, lead = Start(row.worker, row.clock), row.clock - clocks.base
        if row.clock == row.started:  # a duplicate
            return row, (start,)
        if row.credit or lead <= self.low:
            return self._started(row, now, max(row.credit - 1, 0)), (start,)
        slowest = _slowest(others, clocks.base)
        if slowest is None or row.interval_s is None or any(other.clock > row.clock for other in others):
            return row._replace(waits=True), ()
        granted, searched = self._granted(row, slowest), Searched(2 * (self.extra + 1))
        starts = granted + 1 if granted and self.grant == "literal" else granted
        if self.capped:
            starts = min(starts, self.low + self.extra + 1 - lead)
        if starts <= 0:
            return row._replace(waits=True), (searched,)
        return self._started(row, now, starts - 1), (searched, start)

    def _released(self, state: Table, now: float, clocks: Window) -> tuple[Table, Decisions]:
        """Return the new table, and a Start for each waiting worker that is no longer too far ahead, by worker."""
        free = sorted(row for row in state if row.waits and row.clock - clocks.base <= self.low)
        state = state - set(free) | {self._started(row, now, 0) for row in free}
        return state, tuple(Start(row.worker, row.clock) for row in free)

    def _started(self, row: TableRow, now: float, credit: int) -> TableRow:
        started_s = now if self.interval == "release" else None
        return row._replace(started=row.clock, credit=credit, waits=False, started_s=started_s)

    def _pushed(self, row: TableRow, iteration: int, now: float) -> TableRow:
        since_s = row.started_s if self.interval == "release" else row.pushed_s
        interval_s = None if since_s is None else now - since_s
        return row._replace(clock=iteration + 1, pushed_s=now, interval_s=interval_s)

    def _granted(self, row: TableRow, slowest: TableRow) -> int:
        """Return the number of iterations granted by Algorithm 2."""
        assert row.pushed_s is not None and row.interval_s is not None  # noqa: PT018
        assert slowest.pushed_s is not None and slowest.interval_s is not None  # noqa: PT018
        return forecast(row.pushed_s, row.interval_s, slowest.pushed_s, slowest.interval_s, self.extra)


@dataclass(frozen=True)
class Granting(DSSP):
    """DSSP whose forecasts all return the same grant: one of its variants."""

    granted: int = 0

    def _granted(self, row: TableRow, slowest: TableRow) -> int:
        return self.granted


def _slowest(rows: Table, base: int) -> TableRow | None:
    """Return the slowest worker; None if the interval of a worker at the low bound `base` is unknown."""
    last = [row for row in rows if row.clock == base]  # empty if a worker has joined but not asked yet
    if not last or any(row.interval_s is None for row in last):
        return None
    return min(last, key=lambda row: (row.pushed_s, row.worker))
