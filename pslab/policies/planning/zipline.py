"""ZipLine: the best barrier over the instants at which the workers' next iterations are predicted to end.

For each of n workers, R instants (points) are predicted. A plan has one point of each worker. Its spread, last point
minus first, is the time that the first worker waits at a barrier at the last point. The goal is the plan with the least
spread; on a tie, the earliest one. All n R points are visited in order of time. A line has each worker's last point so
far: the head of the line is the first point of a plan, and the point just visited is its barrier. The variants differ
in how a worker's older point is removed from the line:

    zipline   by a search of the line                                  O(R n^2)
    opt       by a search, unless the point is the head                O(R n^2), but fewer searches
    optbs     by bisection, because the line is in order               O(R n log n)
    lru       from a linked list, by a table of workers                O(1) per point, once points are merged
    sweep     there is no line: the barrier is a running maximum       O(1) per point, once points are sorted

Merging the points takes O(R n log(R n)) in all variants. Their baselines are in `pslab.policies.planning.baselines`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise, repeat
from operator import le, sub
from typing import NamedTuple, TypeVar

Points = Sequence[Sequence[float]]  #: per worker, instants in ascending order
T = TypeVar("T")


class Plan(NamedTuple):
    """A barrier, and the number of iterations of each worker before it."""

    spread: float  #: seconds that the first worker waits at the barrier
    barrier: float  #: the instant of the last worker's point
    idx: tuple[int, ...]  #: per worker, counted from 1: its point in the plan


Search = Callable[[Points], Plan]


def zipline(points: Points) -> Plan:
    """Return the plan with the least spread, on a tie the earliest. Time O(R n^2), memory O(R n).

    The plan has each worker's last point that is not after the barrier.

    Source: Zhao et al. (ICDM 2019), algorithm 2.

    Raises:
        ValueError: there are no workers, a worker has no instants, or instants are not finite or not ascending.
    """
    return _visited(points, _searched)


def zipline_opt(points: Points) -> Plan:
    """ZipLine that does not search the line if its head is replaced. O(R n^2), but fewer searches.

    Source: Zhao et al. (DSAA 2021).
    """
    return _visited(points, _pruned)


def zipline_opt_bs(points: Points) -> Plan:
    """ZipLine with bisection. O(R n log n), but deleting a point moves all points after it.

    Source: Zhao et al. (DSAA 2021).
    """
    return _visited(points, _bisected)


def zipline_lru(points: Points) -> Plan:
    """ZipLine with a linked list in the order of last use. O(1) for each point, once the points are merged."""
    return _visited(points, _linked)


def zipline_sweep(points: Points) -> Plan:
    """ZipLine without a line. O(1) for each point, once the points are sorted.

    The best plan that starts with the point t has each worker's first point from t on: the successor of a point before
    t, or the worker's very first point. So the barrier is a running maximum of successors over all workers.
    """
    check(points)
    instants = list(chain.from_iterable(points))
    successors = _ordered(chain.from_iterable((*row[1:], math.inf) for row in points), instants)
    instants.sort()
    barriers = list(accumulate(successors, max, initial=max(row[0] for row in points)))
    spreads = list(map(sub, barriers, instants))  # the last barrier is after all points
    return planned(points, spread := min(spreads), barriers[spreads.index(spread)])


ZIPLINES: dict[str, Search] = {
    "zipline": zipline, "opt": zipline_opt, "optbs": zipline_opt_bs, "lru": zipline_lru, "sweep": zipline_sweep
}  # fmt: skip


# --- lines ------------------------------------------------------------------------------------------------------------
# Each function yields, after each point, the head's instant; minus infinity while a worker is missing in the line.


def _searched(instants: list[float], workers: list[int], count: int) -> Iterator[float]:
    line: list[int] = []
    last = [0.0] * count
    for instant, worker in zip(instants, workers, strict=True):
        try:  # noqa: SIM105 -- suppress would cost as much as a short search
            line.remove(worker)
        except ValueError:  # the point was the head, which is removed already: the search was in vain
            pass
        line.append(worker)
        last[worker] = instant
        yield last[line.pop(0)] if len(line) == count else -math.inf


def _pruned(instants: list[float], workers: list[int], count: int) -> Iterator[float]:
    line: list[int] = []
    last: dict[int, float] = {}
    for instant, worker in zip(instants, workers, strict=True):
        if worker in last:
            if line[0] == worker:
                del line[0]
            else:
                line.remove(worker)
        line.append(worker)
        last[worker] = instant
        yield last[line[0]] if len(line) == count else -math.inf


def _bisected(instants: list[float], workers: list[int], count: int) -> Iterator[float]:
    line: list[int] = []  # positions of the points in the order of all points
    last = [-1] * count
    for position, worker in enumerate(workers):
        before = last[worker]
        if before >= 0:
            del line[0 if line[0] == before else bisect_left(line, before)]
        line.append(position)
        last[worker] = position
        yield instants[line[0]] if len(line) == count else -math.inf


def _linked(instants: list[float], workers: list[int], count: int) -> Iterator[float]:
    line: OrderedDict[int, float] = OrderedDict()
    for instant, worker in zip(instants, workers, strict=True):
        line[worker] = instant
        line.move_to_end(worker)
        yield next(iter(line.values())) if len(line) == count else -math.inf


# --- shared functions -------------------------------------------------------------------------------------------------


def _visited(points: Points, line: Callable[[list[float], list[int], int], Iterator[float]]) -> Plan:
    """Return the best plan that a line finds; at equal instants the point of the lower worker is visited first."""
    check(points)
    instants = list(chain.from_iterable(points))
    workers = _ordered(chain.from_iterable(map(repeat, range(len(points)), map(len, points))), instants)
    instants.sort()
    spreads = list(map(sub, instants, line(instants, workers, len(points))))
    return planned(points, spread := min(spreads), instants[spreads.index(spread)])


def _ordered(values: Iterable[T], keys: list[float]) -> list[T]:
    """Return values in the order of their keys. Sorting two lists is three times as fast as sorting pairs."""
    key = iter(keys).__next__
    return sorted(values, key=lambda _: key())


def planned(points: Points, spread: float, barrier: float) -> Plan:
    """Return the plan with this barrier: the last point of each worker that is not after it."""
    return Plan(spread, barrier, tuple([bisect_right(row, barrier) for row in points]))


def check(points: Points) -> None:
    """Refuse anything but one ascending row of finite instants for each worker."""
    if not points:
        raise ValueError("a plan needs the instants of at least one worker, and got none")
    for worker, row in enumerate(points):
        if not row:
            raise ValueError(f"worker {worker} has no instants, and a plan needs one of each worker")
        if not (math.isfinite(row[0]) and math.isfinite(row[-1]) and all(map(le, row, row[1:]))):
            raise ValueError(f"worker {worker}'s instants {_fault(row)}")


def _fault(row: Sequence[float]) -> str:
    for number, instant in enumerate(row, 1):
        if not math.isfinite(instant):
            return f"are not finite: {instant} at position {number}"
    before, after = next((before, after) for before, after in pairwise(row) if before > after)
    return f"must ascend: {after} comes after {before}"
