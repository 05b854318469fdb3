"""race: which runs it asks for, what it caps, and how it ends. Times are made up; test_recorded_races has real ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import pytest

from pslab.errors import ConfigError
from pslab.lab.advise.race import CAP, LASTING, LOUD, Arm, RaceAnswer, Trial, around, race, rounded_up
from pslab.tensors.random_streams import numpy_generator

Times = Callable[[Trial], float]
SIMPLE = {"bsp": (0, 0), "backup": (1, 0), "ssp": (2, 0), "asp": (3, 0), "local": (4, 0)}


def times_of(best: dict[str, tuple[float, float]], noise: float = 0.01, **own: Times) -> Times:
    """By policy, the time at its best rate, and that rate; twice as long at a rate of twice or half; seeds differ."""

    def time_of(trial: Trial) -> float:
        if trial.policy in own:
            return own[trial.policy](trial)
        best_s, rate = best[trial.policy]
        stream = numpy_generator(trial.seed, trial.policy, f"{trial.learning_rate:g}")
        off = abs(math.log2(trial.learning_rate / rate))
        return best_s * 2**off * (1 + trial.seed % 3) * math.exp(noise * float(stream.standard_normal()))

    return time_of


def played(
    time_of: Times, *policies: str, grid: Iterable[float] = around(1.0), default: str = "bsp", **options: object
) -> tuple[RaceAnswer, list[list[Trial]]]:
    """The answer, and the batches that were asked for; no time is left after `batches` of them."""
    batches, most = list[list[Trial]](), options.pop("batches", 200)

    def needs(trials: Sequence[Trial]) -> dict[Trial, float]:
        batches.append([*trials])
        if len(batches) > most:  # type: ignore[operator]
            return {}
        return {each: time_s if (time_s := time_of(each)) <= each.cap else math.inf for each in trials}

    grids = {policy: tuple(grid) for policy in policies}
    return race(grids, default, needs, simplicity=SIMPLE, **options), batches  # type: ignore[arg-type]


def runs(batches: Iterable[Iterable[Trial]], policy: str) -> dict[int, set[float]]:
    """By seed, the learning rates that a policy ran with."""
    found = dict[int, set[float]]()
    for each in (each for batch in batches for each in batch if each.policy == policy):
        found.setdefault(each.seed, set()).add(each.learning_rate)
    return found


# -- which runs ------------------------------------------------------------------------------------


def test_policies_begin_in_their_order_with_three_rates_each_ended_at_a_multiple_of_the_soonest():
    time_of = times_of({"asp": (1.0, 1.0), "bsp": (3.0, 1.0), "ssp": (2.0, 1.0)}, noise=0.0)
    _, batches = played(time_of, "asp", "bsp", "ssp")
    for batch, policy in zip(batches, ("asp", "bsp", "ssp"), strict=False):
        assert {each.arm for each in batch} == {Arm(policy, rate) for rate in (0.5, 1.0, 2.0)}
    caps = [{each.cap for each in batch} for batch in batches[:3]]
    assert caps == [{math.inf}, {math.inf}, {CAP}], "nothing is known of the first; the default is never capped"


def test_a_grid_is_widened_three_times_at_an_end_where_its_best_rate_lies():
    answer, _ = played(times_of({"asp": (1.0, 8.0), "bsp": (3.0, 1.0)}), "asp", "bsp")
    asp = answer.standing("asp")
    assert (asp.rates, asp.learning_rate, asp.at_end) == ((0.5, 1.0, 2.0, 4.0, 8.0, 16.0), 8.0, False)
    answer, _ = played(times_of({"asp": (1e-6, 1024.0), "bsp": (3.0, 1.0)}), "asp", "bsp")
    assert (answer.standing("asp").rates[-1], answer.standing("asp").at_end) == (16.0, True)


def test_a_rate_that_becomes_the_best_with_a_later_seed_widens_the_grid_on_all_seeds():
    def asp(trial: Trial) -> float:
        found = {0.5: 9.0, 1.0: 1.0, 2.0: 1.05, 4.0: 1.0} if trial.seed == 0 else {1.0: 1.25, 2.0: 1.0, 4.0: 0.9}
        return found.get(trial.learning_rate, 9.0)

    answer, batches = played(times_of({"bsp": (3.0, 1.0)}, asp=asp), "asp", "bsp")
    assert answer.learning_rate == 4.0
    assert {seed for seed, rates in runs(batches, "asp").items() if 4.0 in rates} >= {0, 1, 2}


def test_two_rates_of_a_policy_go_on_until_the_third_seed_and_then_the_better_one():
    def in_turn(trial: Trial) -> float:  # of asp and ssp one is sooner with even seeds, and the other with odd ones
        sooner = (trial.policy == "asp") == (trial.seed % 2 == 0)
        return {0.5: 1.2, 1.0: 1.0, 2.0: 1.1}[trial.learning_rate] * (1.0 if sooner else 1.05)

    time_of = times_of({}, bsp=lambda trial: 30.0, asp=in_turn, ssp=in_turn)
    answer, batches = played(time_of, "asp", "ssp", "bsp", tie=0.001)
    assert answer.ending == "seeds"
    rates = {0: {0.5, 1.0, 2.0}, 1: {1.0, 2.0}, 2: {1.0, 2.0}, **{seed: {1.0} for seed in range(3, 8)}}
    assert runs(batches, "asp") == rates


def test_the_default_has_three_seeds_and_no_cap_though_it_is_far_behind():
    answer, batches = played(times_of({"asp": (1.0, 1.0), "bsp": (99.0, 4.0)}), "asp", "bsp")
    assert answer.standing("bsp").learning_rate == 4.0
    assert len(answer.standing("bsp").arrived) >= 3
    assert {each.cap for batch in batches for each in batch if each.policy == "bsp"} == {math.inf}


def test_before_an_answer_every_policy_has_two_seeds_and_the_answer_as_many_as_there_are():
    time_of = times_of({"asp": (1.0, 1.0), "bsp": (9.0, 1.0), "ssp": (1.2, 1.0), "local": (20.0, 1.0)})
    answer, batches = played(time_of, "asp", "bsp", "ssp", "local")
    assert (answer.policy, answer.ending) == ("asp", "sure")
    assert len(answer.standing("asp").arrived) == LASTING
    assert {*runs(batches, "local")} == {0, 1}
    assert {each.cap for batch in batches for each in batch if each.policy == "asp" and each.seed == 7} == {math.inf}


def test_a_policy_that_one_seed_put_far_behind_is_asked_once_more_and_may_win():
    unlucky: Times = lambda trial: 2.0 if trial.seed == 0 else 0.9 * (1 + trial.seed % 3)  # noqa: E731
    answer, batches = played(times_of({"asp": (1.0, 1.0), "bsp": (9.0, 1.0)}, ssp=unlucky), "asp", "ssp", "bsp")
    assert {*runs(batches, "ssp")} >= {0, 1}
    assert len(answer.standing("ssp").needs) > 2, "one seed throws nothing out"


def test_an_arm_that_a_leader_capped_which_then_misses_is_asked_again_with_more_time():
    rash: Times = lambda trial: 1.0 if trial.seed == 0 else math.inf  # noqa: E731
    time_of = times_of({"ssp": (3.0, 1.0), "bsp": (9.0, 1.0)}, asp=rash)
    answer, batches = played(time_of, "asp", "ssp", "bsp", grid=[1.0])
    again = [each.cap for batch in batches for each in batch if each.policy == "ssp" and each.seed == 0]
    assert again[0] == CAP < again[-1]
    assert answer.policy == "ssp"
    assert [each.policy for each in answer.standings if each.unsafe] == ["asp"]


def test_a_cap_has_three_digits_and_is_not_below_what_it_stands_for():
    assert [rounded_up(x) for x in (0.12345, 0.3, 1234.5, 150, 0.0009999, math.inf)] == [
        0.124, 0.3, 1240, 150, 0.001, math.inf]  # fmt: skip
    assert rounded_up(1.5 * 0.1) == rounded_up(0.15) == 0.15, "last bits do not matter"


# -- how it ends -----------------------------------------------------------------------------------


def test_of_policies_that_tie_the_simplest_is_advised():
    time_of = times_of({"asp": (1.0, 1.0), "ssp": (1.0, 1.0), "bsp": (1.004, 1.0)}, noise=0.004)
    answer, _ = played(time_of, "asp", "ssp", "bsp")
    assert (answer.policy, answer.ending, answer.among) == ("bsp", "tie", ("bsp", "ssp", "asp"))


def test_noise_decides_nothing():
    time_of = times_of({"asp": (1.0, 1.0), "ssp": (0.8, 1.0), "bsp": (1.2, 1.0)}, noise=0.6)
    answer, _ = played(time_of, "asp", "ssp", "bsp")
    assert (answer.ending, answer.decided) == ("noise", False)
    assert answer.noise > LOUD


def test_where_the_seeds_are_used_up_the_answer_says_between_whom():
    time_of = times_of({"asp": (1.0, 1.0), "ssp": (1.04, 1.0), "bsp": (9.0, 1.0)}, noise=0.08)
    answer, batches = played(time_of, "asp", "ssp", "bsp", seeds=range(4))
    assert (answer.ending, {*answer.among}) == ("seeds", {"asp", "ssp"})
    assert max(each.seed for batch in batches for each in batch) == 3


def test_nothing_is_decided_by_fewer_than_three_seeds():
    answer, _ = played(times_of({"asp": (1.0, 1.0), "bsp": (9.0, 1.0)}), "asp", "bsp", seeds=[5, 7])
    assert (answer.policy, answer.ending) == ("asp", "seeds")


def test_a_policy_whose_rivals_never_arrive_or_are_none_stands_alone():
    answer, _ = played(times_of({"bsp": (1.0, 1.0)}, asp=lambda trial: math.inf), "asp", "bsp")
    assert (answer.policy, answer.ending) == ("bsp", "alone")
    answer, _ = played(times_of({"bsp": (1.0, 4.0)}), "bsp", seeds=[0])
    assert (answer.policy, answer.learning_rate, answer.ending) == ("bsp", 4.0, "alone")


def test_a_policy_that_misses_a_seed_is_not_advised_while_another_one_never_does():
    rash: Times = lambda trial: 1.0 if trial.seed < 2 else math.inf  # noqa: E731
    answer, _ = played(times_of({"bsp": (9.0, 1.0)}, asp=rash), "asp", "bsp", grid=[1.0])
    assert answer.policy == "bsp"
    asp = answer.standing("asp")
    assert (asp.unsafe, asp.arrived[:2]) == (True, (1.0, 1.0))


def test_where_every_policy_misses_a_seed_nothing_is_decided():
    rash: Times = lambda trial: math.inf if trial.seed == 1 else 2.0  # noqa: E731
    answer, _ = played(times_of({}, asp=lambda trial: rash(trial) / 2, bsp=rash), "bsp", "asp", grid=[1.0])
    assert (answer.policy, answer.ending, answer.decided) == ("bsp", "unsafe", False)


def test_out_of_time_it_answers_with_what_it_has():
    time_of = times_of({"asp": (0.5, 1.0), "bsp": (3.0, 1.0)})
    answer, _ = played(time_of, "bsp", "asp", batches=1)
    assert (answer.policy, answer.ending, answer.decided) == ("bsp", "time", False)
    assert [each.policy for each in answer.standings if not each.needs] == ["asp"]


def test_what_was_capped_is_a_lower_bound():
    time_of = times_of({"asp": (1.0, 1.0), "bsp": (2.0, 1.0), "ssp": (9.0, 1.0)}, noise=0.001)
    answer, _ = played(time_of, "asp", "bsp", "ssp")
    ssp, bsp = answer.standing("ssp"), answer.standing("bsp")
    assert (ssp.ratio, ssp.capped) == (pytest.approx(CAP, rel=0.01), True)
    assert (bsp.ratio, bsp.capped) == (pytest.approx(2.0, rel=0.01), False)


def test_where_nothing_arrives_there_is_nothing_to_answer():
    with pytest.raises(ConfigError, match="lower it, or give more pushes"):
        played(lambda trial: math.inf, "asp", "bsp")


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [({"default": "bps"}, "did you mean 'bsp'"), ({"grid": []}, "each policy a learning rate"),
     ({"seeds": []}, "at least one seed"), ({"seeds": [1, 1]}, "each of them once"),
     ({"tie": 0.0}, "must be a share above 0"), ({"sure": 1.0}, "below 1")],
)  # fmt: skip
def test_a_race_that_cannot_be_is_refused(options: dict[str, object], words: str):
    with pytest.raises(ConfigError, match=words):
        played(times_of({}), "asp", "bsp", **options)  # type: ignore[arg-type]
