"""Rates: the factors of a step by hand, and invalid parameters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslab.config.spec import build
from pslab.config.table import ROWS
from pslab.policies.rates import Applied, Constant, DynSGD, Modulated, Split


def push(staleness: int = 0, *, workers: int = 4, weight: float | None = None, stalest: int | None = None,
         seen: int | None = None) -> Applied:  # fmt: skip
    """One push, applied alone."""
    stalest, seen = staleness if stalest is None else stalest, staleness if seen is None else seen
    return Applied(workers, 1, False, weight, staleness, stalest, seen)


def superstep(workers: int = 4, weight: float | None = None) -> Applied:
    return Applied(workers, workers, True, weight, 0, 0, 0)


def test_constant_factor_is_one_over_the_workers():
    assert [Constant().scale(push(tau)) for tau in (0, 3, 9)] == [0.25] * 3
    assert Constant().scale(push(weight=1.0)) == 1.0
    assert Constant().scale(superstep(weight=0.5)) == 1.0


def test_dynsgd_factors():
    assert [DynSGD("inverse").scale(push(tau)) for tau in (0, 0, 0, 3, 0)] == [1, 1, 1, 0.25, 1]
    assert [DynSGD("stalest").scale(push(0, stalest=tau)) for tau in (0, 1, 3)] == [1, 0.5, 0.25]
    assert [DynSGD("versions").scale(push(tau, stalest=9)) for tau in (0, 3)] == [1, 1]


@pytest.mark.parametrize(
    ("form", "factors"),
    [
        ("offset", [1, 1, 1, 1, 4 / 5, 4 / 6, 4 / 7, 1 / 2]),  # no damping up to 3, the staleness of 4 equal workers
        ("inverse", [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6, 1 / 7, 1 / 8]),
        ("reciprocal", [1, 1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6, 1 / 7]),
    ],
)
def test_modulated_factors(form, factors):
    rate = Modulated(form)
    assert [rate.modulation(tau, 4) for tau in range(8)] == pytest.approx(factors)
    assert [rate.scale(push(0, seen=tau)) for tau in range(8)] == pytest.approx([f / 4 for f in factors])
    assert [rate.scale(push(tau, weight=1.0)) for tau in range(8)] == pytest.approx(factors)


@given(st.integers(0, 1000), st.integers(1, 64), st.sampled_from(["offset", "inverse", "reciprocal"]))
def test_modulated_factor_never_rises_with_staleness(tau, workers, form):
    factors = [Modulated(form).modulation(t, workers) for t in (tau, tau + 1)]
    assert 0 < factors[1] <= factors[0] <= 1


@pytest.mark.parametrize("name", ROWS["rate"])
def test_a_superstep_has_the_factor_one(name):
    assert build("rate", name).scale(superstep()) == 1.0


def test_split_shares():
    assert [Split().share(tau, 7) for tau in (0, 1, 3)] == [1, 0.5, 0.25]
    assert [Split("speed").share(3, pushes) for pushes in (1, 2, 4)] == [1, 0.5, 0.25]
    assert Split("equal").share(3, 7) == 1


def test_declared_needs():
    asked = {name: getattr(build("rate", name), "needs", "") for name in
             ("constant", "modulated", "dynsgd", "dynsgd:inverse", "dynsgd:stalest", "adagrad", "adagrad:server",
              "split", "split:speed", "split:identity")}  # fmt: skip
    assert asked == {
        "constant": "", "modulated": "", "dynsgd": "versions", "dynsgd:inverse": "", "dynsgd:stalest": "",
        "adagrad": "own squares", "adagrad:server": "squares", "split": "directions", "split:speed": "directions",
        "split:identity": "",
    }  # fmt: skip
