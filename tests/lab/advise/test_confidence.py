"""confidence: how sure a comparison of arms on common seeds is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pslab.lab.advise.confidence import DRAWS, Comparison
from pslab.tensors.random_streams import numpy_generator

CLOSE = 4 * 0.5 / math.sqrt(DRAWS)  # four standard errors of a share among the draws


def cauchy(x: float) -> float:
    """The distribution function of Student's t with one degree of freedom."""
    return 0.5 + math.atan(x) / math.pi


def test_two_arms_on_two_seeds_differ_by_students_t():
    times = np.array([[1.0, 1.1], [1.2, 1.5]])
    compared, gaps = Comparison(times), np.log(times[1] / times[0])
    assert compared.degrees == 1
    error = gaps.std(ddof=1) / math.sqrt(2)  # of the mean of the paired differences
    assert compared.chances()[0] == pytest.approx(cauchy(gaps.mean() / error), abs=CLOSE)
    within = cauchy((math.log(1.05) - gaps.mean()) / error)
    assert compared.within(0, 0.05)[1] == pytest.approx(within, abs=CLOSE)


def test_the_leader_is_within_any_share_of_itself():
    assert Comparison(np.array([[2.0, 1.0, 1.5], [1.0, 1.2, 1.1]])).within(0, 0.01)[0] == 1


def test_what_a_seed_adds_to_every_arm_changes_nothing():
    times = np.array([[1.0, 1.1, 1.3], [1.1, 1.15, 1.5], [1.3, 1.2, 1.4]])
    paired = Comparison(times * [1.0, 20.0, 0.3])
    assert paired.noise == pytest.approx(Comparison(times).noise)
    assert paired.chances() == pytest.approx(Comparison(times).chances(), abs=1 / DRAWS)


def test_more_seeds_of_the_same_make_it_surer():
    times = np.array([[1.0, 1.2, 0.9], [1.1, 1.15, 1.1]])
    chances = [Comparison(np.tile(times, often)).chances()[0] for often in (1, 2, 4)]
    assert 0.5 < chances[0] < chances[1] < chances[2] < 1


def test_an_arm_with_fewer_seeds_is_compared_on_those_that_it_has():
    """Of two arms only the common seeds say something: a third seed of one adds a time and an unknown."""
    whole, less = np.array([[1.0, 1.3], [1.1, 1.5]]), np.array([[1.0, 1.3, 5.0], [1.1, 1.5, math.nan]])
    assert Comparison(less).degrees == Comparison(whole).degrees == 1
    assert Comparison(less).noise == pytest.approx(Comparison(whole).noise)
    assert Comparison(less).chances() == pytest.approx(Comparison(whole).chances(), abs=CLOSE)


def test_an_arm_with_fewer_seeds_is_less_certain():
    times = np.array([[1.0, 1.2, 0.9, 1.1], [1.1, 1.35, 1.0, 1.25], [1.1, 1.4, 0.95, 1.2]])
    few = times.copy()
    few[1, 1:] = math.nan
    assert Comparison(few).chances()[1] > Comparison(times).chances()[1]


def test_arms_without_a_common_seed_say_nothing_of_the_noise():
    assert Comparison(np.array([[1.0, math.nan], [math.nan, 2.0]])).degrees == 0


def test_equal_arms_share_the_chance_of_being_best():
    chances = Comparison(np.array([[1.0, 2.0, 1.5]] * 3 + [[9.0, 17.0, 14.5]])).chances()
    assert chances == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0], abs=CLOSE)


def test_a_single_arm_is_the_best_and_says_nothing_of_the_noise():
    compared = Comparison(np.array([[1.0, 2.0]]))
    assert compared.chances() == [1]
    assert math.isinf(compared.noise)
    with pytest.raises(ValueError, match="nothing of the noise"):
        _ = compared.drawn


@pytest.mark.parametrize("times", [[[1.0, math.inf]], [[1.0, 0.0]], [[]], [1.0, 2.0], [[1.0, math.nan]],
                                   [[1.0, 2.0], [math.nan, math.nan]]])  # fmt: skip
def test_only_finite_times_on_common_seeds_are_compared(times: list[object]):
    with pytest.raises(ValueError, match="finite needs on common seeds"):
        Comparison(np.array(times))


def test_chances_come_true_as_often_as_they_say():
    stream, said, right = numpy_generator(0, "simulated"), 0.0, 0
    for _ in range(400):
        arms = stream.normal(0, 0.2, 4)
        logs = arms[:, None] + stream.normal(0, 0.5, 3) + stream.normal(0, 0.1, (4, 3))
        chances = Comparison(np.exp(logs)).chances()
        said += chances.max() / 400
        right += chances.argmax() == arms.argmin()
    assert said == pytest.approx(right / 400, abs=0.05)
