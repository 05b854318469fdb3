"""The fit of a range's size: vectors by hand, its bounds, and its reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
