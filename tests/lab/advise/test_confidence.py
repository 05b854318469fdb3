"""confidence: how sure a comparison of arms on common seeds is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pslab.lab.advise.confidence import DRAWS, Comparison

CLOSE = 4 * 0.5 / math.sqrt(DRAWS)  # four standard errors of a share among the draws


def test_a_seed_adds_the_same_to_every_arm_and_changes_nothing():
    times = np.array([[1.0, 1.1, 1.3], [1.1, 1.15, 1.5], [1.3, 1.2, 1.4]])
    paired = Comparison(times * [1.0, 20.0, 0.3])
    assert paired.noise == pytest.approx(Comparison(times).noise)
    assert paired.chances() == pytest.approx(Comparison(times).chances(), abs=2 / DRAWS)


def test_more_seeds_make_it_surer_and_an_arm_with_fewer_or_with_more_noise_is_less_certain():
    times = np.array([[1.0, 1.2, 0.9], [1.1, 1.15, 1.1]])
    chances = [Comparison(np.tile(times, often)).chances()[0] for often in (1, 2, 4)]
    assert 0.5 < chances[0] < chances[1] < chances[2] < 1
    times = np.array([[1.0, 1.2, 0.9, 1.1], [1.1, 1.35, 1.0, 1.25], [1.1, 1.4, 0.95, 1.2]])
    few = times.copy()
    few[1, 1:] = math.nan
    assert Comparison(few).chances()[1] > Comparison(times).chances()[1]
    assert Comparison(np.array([[1.0, math.nan], [math.nan, 2.0]])).degrees == 0, "no common seed"
    gaps = np.array([[0.0] * 6, [0.1, 0.11, 0.09, 0.1, 0.12, 0.08], [0.8, -0.6, 0.7, -0.5, 0.6, -0.4],
                     [0.2, 0.21, 0.19, 0.2, 0.22, 0.18]])  # fmt: skip
    chances = Comparison(np.exp(gaps)).chances()
    assert chances[2] > 1.5 * chances[1], "its mean may be anywhere"


def test_equal_arms_share_the_chance_of_being_best_and_all_of_a_tie():
    compared = Comparison(np.array([[1.0, 2.0, 1.5]] * 3 + [[9.0, 17.0, 14.5]]))
    assert compared.chances() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0], abs=0.1)
    assert compared.chances(tie=1.0) == pytest.approx([1, 1, 1, 0], abs=CLOSE)


def test_a_lower_bound_and_a_single_arm_say_nothing_of_the_noise():
    times = np.array([[1.0, 1.2, 0.9, 1.0], [1.1, 1.0, 1.2, 1.1], [1.5, 1.5, 1.5, 1.5]])
    bounds = np.array([[False] * 4, [False] * 4, [True] * 4])
    assert Comparison(times, bounds).noise > Comparison(times).noise
    assert Comparison(times, bounds).degrees < Comparison(times).degrees
    single = Comparison(np.array([[1.0, 2.0]]))
    assert (single.chances(), single.noise) == ([1], math.inf)
    with pytest.raises(ValueError, match="the noise cannot be estimated"):
        _ = single.drawn


@pytest.mark.parametrize("times", [[[1.0, math.inf]], [[1.0, 0.0]], [[]], [1.0, 2.0], [[1.0, math.nan]],
                                   [[1.0, 2.0], [math.nan, math.nan]]])  # fmt: skip
def test_only_finite_times_on_common_seeds_are_compared(times: list[object]):
    with pytest.raises(ValueError, match="at least one for each arm and seed"):
        Comparison(np.array(times))
