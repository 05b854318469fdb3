"""confidence: how sure a comparison of arms on common seeds is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pslab.lab.advise.confidence import DRAWS, compared

CLOSE = 4 * 0.5 / math.sqrt(DRAWS)  # four standard errors of a share among the draws


def of(times: Any, bounds: Any = None, tie: float = 0.0) -> tuple[list[float], float]:
    """The arms' chances and the noise."""
    needs = np.array(times)
    chances, noise = compared(needs, np.zeros(needs.shape, bool) if bounds is None else np.array(bounds), tie)
    return chances.tolist(), noise


def test_a_seed_adds_the_same_to_every_arm_and_changes_nothing():
    times = np.array([[1.0, 1.1, 1.3], [1.1, 1.15, 1.5], [1.3, 1.2, 1.4]])
    chances, noise = of(times * [1.0, 20.0, 0.3])
    assert noise == pytest.approx(of(times)[1])
    assert chances == pytest.approx(of(times)[0], abs=2 / DRAWS)


def test_more_seeds_make_it_surer_and_an_arm_with_fewer_or_with_more_noise_is_less_certain():
    times = np.array([[1.0, 1.2, 0.9], [1.1, 1.15, 1.1]])
    chances = [of(np.tile(times, often))[0][0] for often in (1, 2, 4)]
    assert 0.5 < chances[0] < chances[1] < chances[2] < 1
    times = np.array([[1.0, 1.2, 0.9, 1.1], [1.1, 1.35, 1.0, 1.25], [1.1, 1.4, 0.95, 1.2]])
    few = times.copy()
    few[1, 1:] = math.nan
    assert of(few)[0][1] > of(times)[0][1]
    gaps = np.array([[0.0] * 6, [0.1, 0.11, 0.09, 0.1, 0.12, 0.08], [0.8, -0.6, 0.7, -0.5, 0.6, -0.4],
                     [0.2, 0.21, 0.19, 0.2, 0.22, 0.18]])  # fmt: skip
    chances = of(np.exp(gaps))[0]
    assert chances[2] > 1.5 * chances[1], "its mean may be anywhere"


def test_equal_arms_share_the_chance_of_being_best_and_all_of_a_tie():
    times = [[1.0, 2.0, 1.5]] * 3 + [[9.0, 17.0, 14.5]]
    assert of(times)[0] == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0], abs=0.1)
    assert of(times, tie=1.0)[0] == pytest.approx([1, 1, 1, 0], abs=CLOSE)


def test_a_lower_bound_a_single_arm_and_arms_without_a_common_seed_say_nothing_of_the_noise():
    times = [[1.0, 1.2, 0.9, 1.0], [1.1, 1.0, 1.2, 1.1], [1.5, 1.5, 1.5, 1.5]]
    assert of(times, [[False] * 4, [False] * 4, [True] * 4])[1] > of(times)[1]
    assert of([[1.0, 2.0]]) == ([1], pytest.approx(math.nan, nan_ok=True))
    assert np.isnan([*(parted := of([[1.0, math.nan], [math.nan, 2.0]]))[0], parted[1]]).all()
