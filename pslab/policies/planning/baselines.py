"""Baselines for ZipLine: a search of all plans, and two heuristics that combine nearest points."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import product

from pslab.policies.planning.zipline import Plan, Points, Search, check


def naive(points: Points) -> Plan:
    """Return the plan with the least spread of all plans; on a tie the earliest. O(n R^n).

    Source: Zhao et al. (ICDM 2019).
    """
    check(points)
    chosen = min(
        product(*(range(1, len(row) + 1) for row in points)),
        key=lambda idx: (*_extent(points, idx), -sum(idx)),  # of equal plans, the one with the most iterations
    )
    return Plan(*_extent(points, chosen), chosen)


def grid_scan(points: Points) -> Plan:
    """Return the best plan that combines a point of the earliest worker with the nearest point of each other worker.

    The earliest worker has the earliest first point. The plan is not always optimal. O(R n log R), because rows are
    bisected; O(R^2 n) as published.

    Source: Zhao et al. (ICDM 2019).
    """
    check(points)
    return _best(points, [min(range(len(points)), key=lambda worker: points[worker][0])])


def full_grid_scan(points: Points) -> Plan:
    """Return the best plan of a grid scan from each worker in turn: better, but still not always optimal.

    O(R n^2 log R), since the rows are bisected; O(R^2 n^2) as published.

    Source: Zhao et al. (ICDM 2019).
    """
    check(points)
    return _best(points, range(len(points)))


BASELINES: dict[str, Search] = {"naive": naive, "grid": grid_scan, "fullgrid": full_grid_scan}


def _best(points: Points, designated: Iterable[int]) -> Plan:
    """Return the best plan of a point of one of these workers and the nearest point of each other worker."""
    around = (tuple([_nearest(row, instant) for row in points]) for worker in designated for instant in points[worker])
    return min((Plan(*_extent(points, idx), idx) for idx in around), key=lambda plan: plan[:2])


def _nearest(row: Sequence[float], instant: float) -> int:
    # counted from 1; the earlier point if two are equally near
    after = bisect_left(row, instant)
    if after == len(row) or (after and instant - row[after - 1] <= row[after] - instant):
        return after
    return after + 1


def _extent(points: Points, idx: Sequence[int]) -> tuple[float, float]:
    instants = [row[number - 1] for row, number in zip(points, idx, strict=True)]
    return max(instants) - min(instants), max(instants)
