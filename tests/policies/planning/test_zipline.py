"""ZipLine and its variants: vectors by hand, a search of all plans of small instances, and invalid instances."""

from __future__ import annotations

import math
import random

import pytest

from pslab.policies.planning.baselines import BASELINES, full_grid_scan, grid_scan, naive
from pslab.policies.planning.zipline import ZIPLINES, Plan

VECTORS = {
    "Z1": ([(2, 4, 6), (3, 6, 9)], Plan(0, 6, (3, 2))),
    "Z2": ([(3, 6, 9, 12, 15), (4, 8, 12, 16, 20), (5, 10, 15, 20, 25)], Plan(1, 16, (5, 4, 3))),
    "Z3": ([(1, 4, 7), (2, 5, 8), (9, 10, 11)], Plan(2, 9, (3, 3, 1))),
    "Z4": ([(10, 20, 30, 40), (11, 21, 31, 41), (14, 24, 34, 44)], Plan(4, 14, (1, 1, 1))),  # the first of equal optima
    "Z5": ([(1, 7), (7, 21), (5, 20), (20, 22)], Plan(13, 20, (2, 1, 2, 1))),
}
OPTIMAL = {**ZIPLINES, "naive": naive}


def test_vectors_by_hand():
    for name, search in OPTIMAL.items():
        for points, plan in VECTORS.values():
            assert search(points) == plan, name
        assert search([(4.0, 5.0)]) == Plan(0.0, 4.0, (1,))
        assert search([(1.0, 1.0), (1.0, 1.0, 2.0)]) == Plan(0.0, 1.0, (2, 2))
        assert search([(0.0, 3.0)] * 3) == Plan(0.0, 0.0, (1, 1, 1))
    points, best = VECTORS["Z5"]  # on which heuristics fail
    assert (best.spread, full_grid_scan(points).spread, grid_scan(points).spread) == (13, 14, 15)


def test_three_thousand_small_instances_are_optimal():
    rng = random.Random(2019)
    for _ in range(3_000):  # rows of different lengths; instants of a small span, so that many are equal
        span = rng.choice((6, 30))
        points = [sorted(rng.randint(-2, span) / 2 for _ in range(rng.randint(1, 4))) for _ in range(rng.randint(1, 4))]
        best = naive(points)
        for name, search in ZIPLINES.items():
            assert search(points) == best, (name, points)
        for name in ("grid", "fullgrid"):  # which are never better
            found = BASELINES[name](points)
            chosen = [row[place - 1] for row, place in zip(points, found.idx, strict=True)]
            assert found[:2] == (max(chosen) - min(chosen), max(chosen)), (name, points)
            assert found.spread >= best.spread


@pytest.mark.parametrize(("points", "words"), [
    ([], "needs the instants of at least one worker"), ([(1.0,), ()], "worker 1 has no instants"),
    ([(1.0, 2.0), (6.0, 5.0)], "worker 1's instants must ascend: 5.0 comes after 6.0"),
    ([(1.0, math.nan, 2.0)], "worker 0's instants are not finite: nan at position 2"),
    ([(1.0,), (2.0, math.inf)], "worker 1's instants are not finite: inf at position 2"),
])  # fmt: skip
def test_invalid_instances_are_refused(points, words):
    for search in {**ZIPLINES, **BASELINES}.values():
        with pytest.raises(ValueError, match=words):
            search(points)
