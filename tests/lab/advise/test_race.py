"""race: which runs it asks for, what it caps, and when it ends. Times are made up; test_tables has recorded ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import pytest

from pslab.errors import ConfigError
from pslab.lab.advise.race import CAP, Arm, Race, Trial, around, rounded_up
from pslab.tensors.random_streams import numpy_generator

Times = Callable[[Trial], float]
SIMPLE = {"bsp": (0, 0), "backup": (1, 0), "ssp": (2, 0), "asp": (3, 0), "local": (4, 0)}


def times_of(best: dict[str, tuple[float, float]], noise: float = 0.0, **own: Times) -> Times:
    """By policy, the time at its best rate, and that rate; twice as long at a rate of twice or half; seeds differ."""

    def time_of(trial: Trial) -> float:
        if trial.policy in own:
            return own[trial.policy](trial)
        best_s, rate = best[trial.policy]
        stream = numpy_generator(trial.seed, trial.policy, f"{trial.learning_rate:g}")
        off = abs(math.log2(trial.learning_rate / rate))
        return best_s * 2**off * (1 + trial.seed % 3) * math.exp(noise * float(stream.standard_normal()))

    return time_of


def race(*policies: str, default: str = "bsp", grid: Iterable[float] = around(1.0), **options: object) -> Race:
    grids = {policy: tuple(grid) for policy in policies}
    return Race(grids, default, simplicity=SIMPLE, **options)  # type: ignore[arg-type]


def told(trials: Iterable[Trial], time_of: Times) -> dict[Trial, float]:
    """What the runs take: infinite beyond their caps."""
    return {each: time_s if (time_s := time_of(each)) <= each.cap else math.inf for each in trials}


def played(own: Race, time_of: Times, limit: int = 200) -> list[list[Trial]]:
    """The batches of the whole race."""
    batches = []
    while not own.over:
        batches.append(own.ask())
        own.tell(told(batches[-1], time_of))
        assert len(batches) < limit
    return batches


def in_turn(trial: Trial) -> float:
    """Of asp and ssp one is sooner with even seeds, and the other with odd ones: it is never decided."""
    sooner = (trial.policy == "asp") == (trial.seed % 2 == 0)
    return {0.5: 1.1, 1.0: 1.0, 2.0: 1.05}[trial.learning_rate] * (1.0 if sooner else 1.03)


def arms(trials: Iterable[Trial]) -> set[Arm]:
    return {each.arm for each in trials}


# -- the first round -------------------------------------------------------------------------------------


def test_policies_begin_in_the_order_given_with_their_three_rates():
    time_of = times_of({"asp": (1.0, 1.0), "bsp": (3.0, 1.0), "ssp": (2.0, 1.0)})
    batches = played(race("asp", "bsp", "ssp"), time_of)
    assert [arms(batch) for batch in batches[:3]] == [
        {Arm(policy, rate) for rate in (0.5, 1.0, 2.0)} for policy in ("asp", "bsp", "ssp")
    ]
    assert {each.seed for batch in batches[:3] for each in batch} == {0}


def test_runs_end_at_a_multiple_of_the_soonest_on_their_seed():
    time_of = times_of({"asp": (1.0, 1.0), "bsp": (3.0, 1.0), "ssp": (2.0, 1.0)})
    batches = played(race("asp", "bsp", "ssp"), time_of)
    assert {each.cap for each in batches[0]} == {math.inf}, "nothing is known yet"
    assert {each.cap for each in batches[2]} == {CAP}


def test_what_a_pilot_has_run_is_not_asked_for_and_caps_the_others():
    time_of = times_of({"asp": (1.0, 1.0), "bsp": (3.0, 1.0)})
    own = race("asp", "bsp")
    own.tell(told((Trial("bsp", 2.0**k, 0) for k in (-2, -1, 0, 1, 2)), time_of))
    batches = played(own, time_of)
    assert {each.cap for each in batches[0]} == {rounded_up(CAP * 3)}
    assert not any(each.policy == "bsp" and each.seed == 0 for batch in batches for each in batch)


def test_a_cap_has_three_digits_and_is_not_below_what_it_stands_for():
    assert [rounded_up(x) for x in (0.12345, 0.3, 1234.5, 150, 0.0009999, math.inf)] == [
        0.124, 0.3, 1240, 150, 0.001, math.inf]  # fmt: skip
    assert rounded_up(1.5 * 0.1) == rounded_up(0.15) == 0.15, "last bits do not matter"


def test_the_order_in_which_a_batch_is_told_does_not_matter():
    time_of = times_of({"asp": (1.0, 2.0), "bsp": (1.1, 1.0), "ssp": (1.05, 0.5)}, noise=0.1)
    forth, back = race("asp", "bsp", "ssp"), race("asp", "bsp", "ssp")
    while not forth.over:
        assert forth.ask() == back.ask()
        batch = forth.ask()
        forth.tell(told(batch, time_of))
        for each in reversed(batch):
            back.tell(told([each], time_of))
    assert back.over
    assert forth.answer() == back.answer()


# -- learning rates --------------------------------------------------------------------------------------


def test_a_grid_is_widened_while_its_best_rate_lies_at_an_end():
    time_of = times_of({"asp": (1.0, 8.0), "bsp": (3.0, 1.0)})
    own = race("asp", "bsp")
    played(own, time_of)
    asp = next(each for each in own.answer().standings if each.policy == "asp")
    assert asp.rates == (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
    assert (asp.learning_rate, asp.at_end) == (8.0, False)


@pytest.mark.parametrize(("best", "ends"), [(1024.0, (0.5, 16.0)), (1 / 1024, (1 / 16, 2.0))])
def test_a_grid_is_widened_three_times_at_each_end_and_the_answer_says_where_that_ended(
    best: float, ends: tuple[float, float]
):
    own = race("asp", "bsp")
    played(own, times_of({"asp": (1e-6, best), "bsp": (3.0, 1.0)}))
    asp = own.answer().standings[0]
    assert (asp.policy, asp.rates[0], asp.rates[-1], asp.at_end) == ("asp", *ends, True)


def test_a_grid_is_not_widened_where_that_is_not_wanted():
    own = race("asp", "bsp", wider=0)
    batches = played(own, times_of({"asp": (1.0, 8.0), "bsp": (3.0, 1.0)}))
    assert {each.learning_rate for batch in batches for each in batch} == {0.5, 1.0, 2.0}


def test_a_rate_that_becomes_the_best_with_a_later_seed_widens_the_grid_too():
    def asp(trial: Trial) -> float:  # with the first seed the middle is the best, with the others the end
        found = {0.5: 9.0, 1.0: 1.0, 2.0: 1.05, 4.0: 1.0} if trial.seed == 0 else {1.0: 1.25, 2.0: 1.0, 4.0: 0.9}
        return found.get(trial.learning_rate, 9.0)

    own = race("asp", "bsp")
    batches = played(own, times_of({"bsp": (3.0, 1.0)}, asp=asp))
    first = next(batch for batch in batches if Arm("asp", 4.0) in arms(batch))
    assert [each.seed for each in first if each.policy == "asp"] == [0, 1], "on all seeds that the others have"
    assert own.answer().learning_rate == 4.0


def test_two_rates_of_a_policy_go_on_until_the_third_seed_and_then_the_better_one():
    batches = played(race("asp", "ssp", "bsp", tie=0.001), times_of({"bsp": (30.0, 1.0)}, asp=in_turn, ssp=in_turn))
    rates = {seed: {each.learning_rate for batch in batches for each in batch
                    if each.seed == seed and each.policy == "asp"} for seed in range(1, 8)}  # fmt: skip
    assert rates == {1: {1.0, 2.0}, 2: {1.0, 2.0}, **{seed: {1.0} for seed in range(3, 8)}}


def test_a_policy_stands_at_a_rate_that_always_arrives():
    rash: Times = lambda trial: (1.0 if trial.seed < 1 else math.inf) if trial.learning_rate == 2 else 3.0  # noqa: E731
    own = race("asp", "bsp", grid=[1.0, 2.0], wider=0)
    played(own, times_of({"bsp": (4.0, 1.0)}, asp=rash))
    assert (own.answer().policy, own.answer().learning_rate) == ("asp", 1.0)


def test_the_default_is_tuned_though_it_is_far_behind():
    own = race("asp", "bsp")
    played(own, times_of({"asp": (1.0, 1.0), "bsp": (9.0, 4.0)}))
    assert own.answer().standings[1].learning_rate == 4.0


# -- further seeds ---------------------------------------------------------------------------------------


def test_a_new_seed_begins_with_the_leader_and_the_default_and_their_times_cap_the_others():
    time_of = times_of({"asp": (1.0, 1.0), "ssp": (1.1, 1.0), "bsp": (1.2, 1.0)})
    batches = played(race("asp", "ssp", "bsp"), time_of)
    first, second = (batch for batch in batches if {each.seed for each in batch} == {1})
    assert [(each.arm, each.cap) for each in first] == [
        (Arm("asp", 1.0), math.inf), *((Arm("bsp", rate), math.inf) for rate in (1.0, 0.5))]  # fmt: skip
    assert [(each.arm, each.cap) for each in second] == [(Arm("ssp", 1.0), rounded_up(CAP * 2.0))]


def test_what_is_further_behind_than_the_next_cap_runs_no_more():
    time_of = times_of({"asp": (1.0, 1.0), "ssp": (1.25, 1.0), "local": (1.45, 1.0), "bsp": (9.0, 1.0)}, noise=0.001)
    batches = played(race("asp", "ssp", "local", "bsp"), time_of)
    seeds = {policy: {each.seed for batch in batches for each in batch if each.policy == policy}
             for policy in ("ssp", "local")}  # fmt: skip
    assert seeds == {"ssp": {0, 1, 2}, "local": {0, 1}}


def test_the_rate_of_a_default_that_is_far_behind_rests_on_three_seeds():
    lucky: Times = lambda trial: 8.0 if (trial.learning_rate, trial.seed) == (1.0, 0) else {2.0: 9.0}.get(  # noqa: E731
        trial.learning_rate, 20.0)  # fmt: skip
    own = race("asp", "bsp", wider=0)
    played(own, times_of({"asp": (1.0, 1.0)}, bsp=lucky))
    default = own.answer().standing("bsp")
    assert (default.learning_rate, [*default.needs]) == (2.0, [0, 1, 2]), "and not the one that was best with one seed"


def test_the_default_policy_is_never_capped_and_its_best_has_three_seeds():
    batches = played(race("asp", "ssp", "bsp", tie=0.001), times_of({"bsp": (99.0, 1.0)}, asp=in_turn, ssp=in_turn))
    assert max(each.seed for batch in batches for each in batch) == 7
    own = [each for batch in batches for each in batch if each.policy == "bsp"]
    assert {each.cap for each in own} == {math.inf}
    assert [each.seed for each in own if each.learning_rate == 1.0] == [0, 1, 2]


def test_an_arm_whose_leader_turned_out_unsafe_is_asked_for_again_with_more_time():
    """The leader caps everyone out with the first seed, and never arrives with the second."""
    rash: Times = lambda trial: 1.0 if trial.seed == 0 else math.inf  # noqa: E731
    own = race("asp", "ssp", "bsp", grid=[1.0])
    batches = played(own, times_of({"ssp": (3.0, 1.0), "bsp": (9.0, 1.0)}, asp=rash))
    again = [each.cap for batch in batches for each in batch if each.policy == "ssp" and each.seed == 0]
    assert again[0] == CAP
    assert again[-1] == rounded_up(CAP * 9)
    answer = own.answer()
    assert (answer.policy, answer.decided) == ("ssp", True)
    assert [(each.policy, each.unsafe) for each in answer.standings] == [("ssp", False), ("bsp", False), ("asp", True)]


# -- how it ends -----------------------------------------------------------------------------------------


def test_a_policy_that_is_far_ahead_is_the_answer_after_three_seeds():
    own = race("asp", "bsp")
    batches = played(own, times_of({"asp": (1.0, 1.0), "bsp": (9.0, 1.0)}))
    answer = own.answer()
    assert (answer.policy, answer.learning_rate, answer.ending, answer.among) == ("asp", 1.0, "sure", ("asp",))
    assert {each.seed for batch in batches for each in batch} == {0, 1, 2}


def test_a_policy_whose_rivals_never_arrive_stands_alone():
    own = race("asp", "bsp")
    played(own, times_of({"bsp": (1.0, 1.0)}, asp=lambda trial: math.inf))
    assert (own.answer().policy, own.answer().ending) == ("bsp", "alone")
    assert (own.answer().standings[1].policy, own.answer().standings[1].ratio) == ("asp", math.inf)


def test_the_likeliest_rival_goes_on_until_the_leader_is_sure():
    """After the third seed ssp is behind what goes on, but with such noise it may still be the best."""
    asp = {0: 1.0, 1: 1.0, 2: 1.0}
    ssp = {0: 0.95, 1: 1.0, 2: 1.95, 3: 1.3}
    own = race("asp", "ssp", "bsp", grid=[1.0])
    batches = played(own, times_of({"bsp": (9.0, 1.0)}, asp=lambda trial: asp.get(trial.seed, 1.0),
                                   ssp=lambda trial: ssp.get(trial.seed, 1.3)))  # fmt: skip
    assert [each.seed for batch in batches for each in batch if each.policy == "ssp"][:4] == [0, 1, 2, 3]


def test_a_policy_that_is_the_best_with_the_wanted_probability_is_the_answer():
    own = race("asp", "bsp")
    played(own, times_of({"asp": (1.0, 1.0), "bsp": (1.1, 1.0)}, noise=0.01))
    answer = own.answer()
    assert (answer.policy, answer.ending, answer.among) == ("asp", "sure", ("asp",))
    assert answer.standings[0].chance >= 0.9


def test_a_rival_that_was_capped_runs_after_the_third_seed_if_nothing_else_says_how_large_the_noise_is():
    own = race("asp", "ssp", default="asp", grid=[1.0])
    batches = played(own, times_of({"asp": (1.0, 1.0), "ssp": (9.0, 1.0)}, noise=0.01))
    assert [[(each.policy, each.seed) for each in batch] for batch in batches] == [
        [("asp", 0)], [("ssp", 0)], [("asp", 1)], [("asp", 2)], [("ssp", 1), ("ssp", 2)]]  # fmt: skip
    assert (own.answer().policy, own.answer().ending) == ("asp", "sure")


def test_it_is_no_tie_where_one_is_surely_later_by_more():
    own = race("asp", "bsp", grid=[1.0], tie=0.02, sure=0.9999)
    played(own, times_of({"asp": (1.0, 1.0), "bsp": (1.04, 1.0)}, noise=0.01))
    assert own.answer().ending == "seeds"


def test_the_chance_of_a_policy_is_the_sum_over_its_rates():
    own = race("asp", "bsp", grid=[1.0, 2.0])
    times = {("asp", 1.0): [1.0, 1.1, 0.9], ("asp", 2.0): [1.1, 0.9, 1.0], ("bsp", 1.0): [0.9, 1.0, 1.1]}
    own.tell({Trial(*arm, seed): time_s for arm, each in times.items() for seed, time_s in enumerate(each)})
    chances = {each.policy: each.chance for each in own.answer().standings}
    assert chances == {"asp": pytest.approx(2 / 3, abs=0.05), "bsp": pytest.approx(1 / 3, abs=0.05)}


def test_of_policies_that_tie_the_simplest_is_advised():
    own = race("asp", "ssp", "bsp")
    played(own, times_of({"asp": (1.0, 1.0), "ssp": (1.0, 1.0), "bsp": (1.004, 1.0)}, noise=0.004))
    answer = own.answer()
    assert (answer.policy, answer.ending) == ("bsp", "tie")
    assert answer.among == ("bsp", "ssp", "asp")
    assert answer.decided


def test_where_the_seeds_are_used_up_it_is_not_decided_and_the_answer_says_between_whom():
    own = race("asp", "ssp", "bsp", seeds=range(4))
    batches = played(own, times_of({"asp": (1.0, 1.0), "ssp": (1.04, 1.0), "bsp": (9.0, 1.0)}, noise=0.08))
    answer = own.answer()
    assert (answer.ending, answer.decided, set(answer.among)) == ("seeds", False, {"asp", "ssp"})
    assert max(each.seed for batch in batches for each in batch) == 3


def test_nothing_is_decided_by_fewer_than_three_seeds():
    own = race("asp", "bsp", seeds=[5, 7])
    played(own, times_of({"asp": (1.0, 1.0), "bsp": (9.0, 1.0)}))
    assert (own.answer().policy, own.answer().ending) == ("asp", "seeds")


def test_of_a_single_policy_the_rates_are_tuned():
    own = race("bsp")
    played(own, times_of({"bsp": (1.0, 4.0)}))
    assert (own.answer().policy, own.answer().learning_rate, own.answer().ending) == ("bsp", 4.0, "alone")
    few = race("bsp", seeds=[0])
    played(few, times_of({"bsp": (1.0, 1.0)}))
    assert few.answer().ending == "alone", "there is nothing to choose"


def test_out_of_time_it_answers_with_what_it_has():
    time_of = times_of({"asp": (1.0, 1.0), "ssp": (0.5, 1.0), "bsp": (3.0, 1.0)})
    own = race("asp", "bsp", "ssp")
    own.tell(told(own.ask(), time_of))
    own.out_of_time()
    answer = own.answer()
    assert (own.over, own.ask(), answer.policy, answer.ending) == (True, [], "asp", "time")
    assert [each.policy for each in answer.standings if not each.needs] == ["bsp", "ssp"]


def test_out_of_time_after_the_pilot_it_advises_the_default():
    own = race("asp", "bsp")
    own.tell({Trial("bsp", 1.0, 0): 2.0, Trial("bsp", 2.0, 0): 1.5})
    own.out_of_time()
    answer = own.answer()
    assert (answer.policy, answer.learning_rate, answer.decided) == ("bsp", 2.0, False)


def test_a_policy_of_which_a_seed_never_arrives_is_not_advised_while_one_with_all_seeds_exists():
    rash: Times = lambda trial: 1.0 if trial.seed < 2 else math.inf  # noqa: E731
    own = race("asp", "bsp", grid=[1.0])
    played(own, times_of({"bsp": (9.0, 1.0)}, asp=rash))
    answer = own.answer()
    assert answer.policy == "bsp"
    assert [(each.policy, each.unsafe, each.arrived) for each in answer.standings[1:]] == [("asp", True, (1.0, 1.0))]


def test_where_every_policy_is_unsafe_the_one_that_is_soonest_is_named_and_nothing_decided():
    own = race("bsp", "asp", grid=[1.0])
    rash: Times = lambda trial: math.inf if trial.seed == 1 else 2.0  # noqa: E731
    played(own, times_of({}, asp=lambda trial: rash(trial) / 2, bsp=rash))
    assert (own.answer().policy, own.answer().ending, own.answer().decided) == ("asp", "unsafe", False)


@pytest.mark.parametrize(("late", "unsafe"), [(3.0, True), (1.7, False)])
def test_what_does_not_arrive_within_twice_its_own_time_is_unsafe_and_sooner_it_is_capped(late: float, unsafe: bool):
    """With the second seed all others take longer."""
    own = race("asp", "bsp", grid=[1.0])
    own.tell({Trial("bsp", 1.0, 0): 0.9, Trial("asp", 1.0, 0): 1.0})
    own.tell({Trial("bsp", 1.0, 1): late, Trial("asp", 1.0, 1, late): math.inf})
    asp = next(each for each in own.answer().standings if each.policy == "asp")
    assert (asp.unsafe, asp.capped) == (unsafe, not unsafe)


def test_where_nothing_arrives_there_is_nothing_to_answer():
    own = race("asp", "bsp")
    played(own, lambda trial: math.inf)
    with pytest.raises(ConfigError, match="lower it, or give more pushes"):
        own.answer()


def test_what_was_capped_is_a_lower_bound():
    own = race("asp", "bsp", "ssp")
    played(own, times_of({"asp": (1.0, 1.0), "bsp": (2.0, 1.0), "ssp": (9.0, 1.0)}))
    asp, ssp, bsp = own.answer().standings
    assert [each.policy for each in (asp, ssp, bsp)] == ["asp", "ssp", "bsp"], "by what is known of them"
    assert (asp.ratio, asp.capped) == (1.0, False)
    assert (ssp.ratio, ssp.capped) == (pytest.approx(CAP), True)
    assert (bsp.ratio, bsp.capped) == (pytest.approx(2.0), False)


# -- limits, and what joins ------------------------------------------------------------------------------


def limited(own: Race, time_of: Times, breaks: Callable[[Trial], bool]) -> list[list[Trial]]:
    """A race in which some runs that arrive break a limit."""
    batches = []
    while not own.over:
        batches.append(own.ask())
        needs = told(batches[-1], time_of)
        own.tell(needs, {each: "breaks bytes" for each in batches[-1] if math.isfinite(needs[each]) and breaks(each)})
        assert len(batches) < 100
    return batches


def test_an_arm_that_breaks_a_limit_with_a_later_seed_is_out_and_caps_no_other():
    own = race("asp", "ssp", "bsp", grid=[1.0])
    batches = limited(own, times_of({"asp": (1.0, 1.0), "ssp": (3.0, 1.0), "bsp": (9.0, 1.0)}),
                      lambda trial: trial.policy == "asp" and trial.seed == 1)  # fmt: skip
    answer = own.answer()
    assert (answer.policy, answer.decided) == ("ssp", True)
    assert [(each.policy, each.broken) for each in answer.standings] == [
        ("ssp", ""), ("bsp", ""), ("asp", "breaks bytes")]  # fmt: skip
    caps = [each.cap for batch in batches for each in batch if each.policy == "ssp" and each.seed == 0]
    assert (caps[0], caps[-1]) == (CAP, rounded_up(CAP * 9)), "asp does not cap it any more"


def test_another_learning_rate_that_keeps_the_limit_stands_for_its_policy():
    own = race("asp", "bsp", wider=0)
    limited(own, times_of({"asp": (1.0, 1.0), "bsp": (9.0, 1.0)}),
            lambda trial: trial.policy == "asp" and trial.learning_rate <= 1.0)  # fmt: skip
    assert (own.answer().policy, own.answer().learning_rate) == ("asp", 2.0)


def test_a_default_that_breaks_a_limit_has_three_seeds_at_its_best_rate_and_is_not_advised():
    own = race("asp", "bsp")
    limited(own, times_of({"asp": (9.0, 1.0), "bsp": (1.0, 1.0)}, noise=0.01), lambda trial: trial.policy == "bsp")
    bsp = own.answer().standing("bsp")
    assert (own.answer().policy, bsp.learning_rate, len(bsp.arrived)) == ("asp", 1.0, 3)
    assert bsp.ratio == pytest.approx(1 / 9, rel=0.1), "sooner than what keeps the limit"


def test_where_all_break_a_limit_each_stands_at_the_rate_that_needs_the_least():
    own = race("asp", "bsp")
    batches = limited(own, times_of({"asp": (1.0, 2.0), "bsp": (9.0, 1.0)}), lambda trial: True)
    assert {each.seed for batch in batches for each in batch} == {0}
    assert not own.led
    assert {each.policy: (each.learning_rate, each.broken) for each in own.answer().standings} == {
        "asp": (2.0, "breaks bytes"), "bsp": (1.0, "breaks bytes")}  # fmt: skip


def test_without_a_cap_every_run_goes_to_its_last_push():
    time_of = times_of({"asp": (1.0, 1.0), "ssp": (1.2, 1.0), "bsp": (30.0, 1.0)})
    batches = played(race("asp", "ssp", "bsp", cap=math.inf), time_of)
    assert {each.cap for batch in batches for each in batch} == {math.inf}
    assert not any(each.policy == "bsp" and each.seed > 2 for batch in batches for each in batch), "and is out"


def test_a_policy_that_joins_begins_with_the_first_seed_and_all_its_rates():
    time_of = times_of({"asp": (1.0, 1.0), "bsp": (3.0, 1.0), "ssp": (0.5, 2.0)})
    own = race("asp", "bsp")
    while {each.seed for each in own.ask()} == {0}:
        own.tell(told(own.ask(), time_of))
    own.join({"ssp": (2.0, 1.0, 4.0)}, {"ssp": (2, 0)})
    assert own.ask() == [Trial("ssp", rate, 0, CAP) for rate in (1.0, 2.0, 4.0)]
    batches = played(own, time_of)
    assert (own.answer().policy, own.answer().learning_rate, own.answer().decided) == ("ssp", 2.0, True)
    assert {each.policy for each in batches[1]} == {"ssp", "bsp"}, "the leader and the default begin the next seed"


# -- bad input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [({"default": "bps"}, "did you mean 'bsp'"), ({"grid": []}, "each policy a learning rate"),
     ({"seeds": []}, "at least one seed"), ({"seeds": [1, 1]}, "each of them once"),
     ({"tie": 0.0}, "must be a share above 0"), ({"sure": 1.0}, "below 1")],
)  # fmt: skip
def test_a_race_that_cannot_be_is_refused(options: dict[str, object], words: str):
    with pytest.raises(ConfigError, match=words):
        race("asp", "bsp", **options)  # type: ignore[arg-type]


def test_times_that_none_can_be_are_refused():
    with pytest.raises(ConfigError, match="did you mean 'asp'"):
        race("asp", "bsp").tell({Trial("aps", 1.0, 0): 1.0})
    with pytest.raises(ConfigError, match=r"its seeds are \[5, 7\]"):
        race("asp", "bsp", seeds=[5, 7]).tell({Trial("asp", 1.0, 0): 1.0})
    with pytest.raises(ConfigError, match="more than 0"):
        race("asp", "bsp").tell({Trial("asp", 1.0, 0): math.nan})
