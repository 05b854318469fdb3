"""Planning by hand and against exhaustive search: ZipLine, TIC and TAC on graphs, the fit of a range's size."""

from __future__ import annotations

import math
import random
from collections.abc import Hashable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslab.policies.planning.baselines import BASELINES, full_grid_scan, grid_scan, naive
from pslab.policies.planning.range_size import (
    BETA_MIN,
    P0,
    P_MAX,
    PROBES,
    Fit,
    LinearFit,
    best_size,
    exchange_s,
    fitted,
    idle_s,
)
from pslab.policies.planning.tictac import Operation, Weight, before, receives, tac, tic, weights
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


def operation(seconds: float, *needs: Hashable) -> Operation:
    return Operation(seconds, frozenset(needs))


GRAPH = {"c1": operation(3, "r1"), "c2": operation(1, "r2"), "c3": operation(1, "c1", "c2", "r1", "r2")}
TRANSFER_S = {"r1": 1.0, "r2": 2.0}


def test_published_measures_and_orders():
    found = weights(receives(GRAPH, TRANSFER_S), TRANSFER_S)
    assert found == {"r1": Weight(1, 3, 3), "r2": Weight(2, 1, 3)}
    assert before(found["r1"], found["r2"])
    assert not before(found["r2"], found["r1"])
    assert tac(GRAPH, TRANSFER_S) == ["r1", "r2"]
    groups = {"c1": operation(1, "a", "b", "c"), "c2": operation(1, "d", "e"), "c3": operation(1, "c1", "c2")}
    assert tic(groups, "abcde") == ["d", "e", "a", "b", "c"]  # after d, e still counts as one of two
    pair = {"c1": operation(1, "a"), "c2": operation(5, "b"), "c3": operation(1, "c1", "c2")}
    assert (tic(pair, "ab"), tac(pair, {"a": 2.0, "b": 2.0})) == (["a", "b"], ["b", "a"])


def test_measures_change_with_each_receive():
    """After r3 only r1 is missing for c2, whose time then counts for r1; before, it counted for no receive."""
    graph = {"c1": operation(1, "r3"), "c2": operation(9, "r1", "r3"), "c3": operation(2, "r2")}
    transfer_s = {"r1": 4.0, "r2": 4.0, "r3": 0.5}
    operations = receives(graph, transfer_s)
    assert weights(operations, transfer_s)["r1"].unlocked_s == 0
    assert weights(operations, {"r1": 4.0, "r2": 4.0})["r1"].unlocked_s == 9
    assert tac(graph, transfer_s) == ["r3", "r1", "r2"]


def test_an_invalid_graph_is_refused():
    for graph, message in (({"c1": operation(1, "r9")}, "r9"),
                           ({"c1": operation(1, "c2"), "c2": operation(1, "c1")}, "wait for each other")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            tac(graph, TRANSFER_S)


def line(*pairs: tuple[float, float], forgetting: float = 1.0) -> LinearFit:
    found = LinearFit()
    for size, seconds in pairs:
        found = fitted(found, size, seconds, forgetting)
    return found


def test_best_size_is_the_largest_whose_exchange_is_hidden_within_bounds():
    for known, compute_s, size in (((2, 1), 32, 30), ((2, 0.1), 8, 60), ((2, 0.1), 1000, 60), ((2, 0.1), 1.5, 1),
                                   ((2, 0.1), 2.0, 1), ((-5, 0.1), 3, 30), ((2, -0.1), 10, 60), ((0, 0), 1e-15, 1),
                                   ((2, 0.1), 5, 30)):  # fmt: skip
        assert best_size(LinearFit(*known), compute_s, 60) == size
        assert exchange_s(LinearFit(*known), 60) >= 60 * BETA_MIN
    assert [idle_s(LinearFit(2.0, 0.1), size, 10) for size in (50, 80, 100)] == [0.0, 0.0, 2.0]


@given(st.lists(st.tuples(st.integers(1, 2000), st.floats(0, 10)), min_size=3, max_size=12))
def test_the_fit_is_weighted_least_squares(pairs: list[tuple[int, float]]):
    """The same prior and weights, solved in one step by numpy."""
    found = line(*pairs, forgetting=0.98)
    weights = 0.98 ** np.arange(len(pairs))[::-1]
    x = np.array([[1.0, size] for size, _ in pairs])
    a = (x * weights[:, None]).T @ x + 0.98 ** len(pairs) / P0 * np.eye(2)
    b = (x * weights[:, None]).T @ np.array([seconds for _, seconds in pairs])
    theta = np.linalg.solve(a, b)
    for size, _ in pairs:  # at the sizes that were measured; elsewhere exchanges of one size are no evidence
        assert found.alpha_s + found.beta_s * size == pytest.approx(theta @ [1, size], abs=1e-2)


def test_uncertainty_stays_finite_for_constant_sizes():
    found = line((1000, 1.2), (500, 0.7))
    for seconds in [0.9] * 5000 + [1.8] * 200:
        found = fitted(found, 700, seconds)
    assert max(found.p, found.s) <= P_MAX
    assert found.alpha_s + 700 * found.beta_s == pytest.approx(1.8, rel=0.02)


def test_a_cold_start_probes_two_sizes_and_then_fits():
    fit, sizes = Fit(), []
    for sweep in range(PROBES + 1):
        sizes.append(fit.size(sweep, 1500))
        fit = fit.computed(0.1).exchanged(sizes[-1], 0.01 + 2e-4 * sizes[-1])
    assert sizes == [1500, 750, 1500, 450]
    assert Fit().computed(0.1).exchanged(1500, 1.0).exchanged(1500, 1.0).size(7, 1500) == 750  # one size is not enough
    assert Fit().computed(1.0).computed(2.0).compute_s == pytest.approx(1.1)  # the mean is a smooth one
    fit = Fit()
    for seconds in [9.0] * 100 + [1.0, 2.0, 3.0, 4.0, 5.0] * 8:
        fit = fit.computed(seconds, 0.25)
    assert fit.compute_s == 2.0  # the quantile is of the last forty
