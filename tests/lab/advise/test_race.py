"""race: rules of every race, drawn from known laws, how races end, and how often decided answers are right.

No run is executed: times are drawn, and the best policy is known. test_recorded_races has real times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from laws import LAWS, SEEDS, DrawnRace
from laws import played as played_by_law

from pslab.lab.advise.race import CAP, DECIDED, LASTING, LOUD, RaceAnswer, Trial, around, race, rounded_up
from pslab.tensors.random_streams import numpy_generator

Times = Callable[[Trial], float]
WRONG = 0.1  # of the decided answers, at most: an answer is decided when it is right with a probability of 0.92
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
    time_of: Times, policies: Sequence[str], *, grid: Iterable[float] = around(1.0), default: str = "bsp",
    batches: float = math.inf, **options: Any
) -> tuple[RaceAnswer, list[list[Trial]]]:  # fmt: skip
    """The answer, and the batches that were asked for; no time is left after `batches` of them."""
    asked = list[list[Trial]]()

    def needs(trials: Sequence[Trial]) -> dict[Trial, float]:
        asked.append([*trials])
        if len(asked) > batches:
            return {}
        return {each: time_s if (time_s := time_of(each)) <= each.cap else math.inf for each in trials}

    options = {"simplicity": SIMPLE, **options}
    return race({policy: tuple(grid) for policy in policies}, default, needs, **options), asked


def runs(batches: Iterable[Iterable[Trial]], policy: str) -> dict[int, set[float]]:
    """By seed, the learning rates that a policy ran with."""
    found = dict[int, set[float]]()
    for each in (each for batch in batches for each in batch if each.policy == policy):
        found.setdefault(each.seed, set()).add(each.learning_rate)
    return found


@pytest.mark.parametrize("law", LAWS)
def test_rules_of_every_race(law: str):
    for number in range(5):
        drawn = DrawnRace(LAWS[law], number)
        policies, default = [*drawn.policies], "policy 0"
        simple = {name: (rank,) for rank, name in enumerate(policies)}
        answer, batches = played(drawn.time_s, policies, default=default, simplicity=simple)
        firsts = [next(batch for batch in batches if policy in {each.policy for each in batch}) for policy in policies]
        assert [each.policy for batch in firsts for each in batch] == [name for name in policies for _ in range(3)]
        assert all((each.seed, each.learning_rate in around(1.0)) == (0, True) for batch in firsts for each in batch)
        every = [each for batch in batches for each in batch]
        assert {each.cap for each in every if each.policy == default} == {math.inf}
        assert [each.cap for each in every] == [rounded_up(each.cap) for each in every]
        soonest_s = min(map(drawn.time_s, firsts[0]))
        assert all(each.cap <= rounded_up(CAP * soonest_s) for each in firsts[1]) or math.isinf(soonest_s)
        for standing in answer.standings:
            tried = {rate for rates in runs(batches, standing.policy).values() for rate in rates}
            powers = range(round(math.log2(min(tried))), round(math.log2(max(tried))) + 1)
            assert {*standing.rates} == tried == {2.0**power for power in powers}, "each the next one beyond the best"
            assert 0.5 / 8 <= min(tried) <= max(tried) <= 2 * 8
            if standing.alive and standing.at_end and all(map(math.isfinite, standing.needs.values())):
                assert standing.learning_rate in (0.5 / 8, 2 * 8)
            assert standing.capped == (not standing.unsafe and math.inf in standing.needs.values())
        won = answer.standing(answer.policy)
        assert not won.unsafe or all(each.unsafe for each in answer.standings)
        assert not answer.decided or len(answer.standing(default).needs) >= 3
        assert answer.decided == (answer.ending in DECIDED)
        if answer.decided:
            assert all(len(runs(batches, policy)) >= 2 for policy in policies)
            assert len(won.needs) == min(LASTING, SEEDS)
            assert answer.ending == "alone" or (won.chance >= 0.92 and answer.noise <= LOUD)


ASP_OF_THREE = times_of({"asp": (1.0, 1.0), "bsp": (9.0, 1.0), "ssp": (1.2, 1.0)})
TIED = times_of({"asp": (1.0, 1.0), "ssp": (1.0, 1.0), "bsp": (1.004, 1.0)}, noise=0.004)
NOISY = times_of({"asp": (1.0, 1.0), "ssp": (0.8, 1.0), "bsp": (1.2, 1.0)}, noise=0.6)
CLOSE = times_of({"asp": (1.0, 1.0), "ssp": (1.04, 1.0), "bsp": (9.0, 1.0)}, noise=0.08)
#: Times, policies, options; the chosen policy ("" if it is left open), the ending, and the policies among which it is.
ENDS: dict[str, tuple[Times, str, dict[str, Any], str, str, str]] = {
    "a tie": (TIED, "asp ssp bsp", {}, "bsp", "tie", "bsp ssp asp"),
    "the best is sure": (ASP_OF_THREE, "asp bsp ssp", {}, "asp", "sure", "asp"),
    "noise": (NOISY, "asp ssp bsp", {}, "", "noise", ""),
    "seeds that do not suffice": (CLOSE, "asp ssp bsp", {"seeds": range(4)}, "", "seeds", "asp ssp"),
    "few seeds": (ASP_OF_THREE, "asp bsp", {"seeds": [5, 7]}, "asp", "seeds", ""),
    "none arrives": (times_of({"bsp": (1.0, 1.0)}, asp=lambda _: math.inf), "asp bsp", {}, "bsp", "alone", "bsp"),
    "no rival": (times_of({"bsp": (1.0, 4.0)}), "bsp", {"seeds": [0]}, "bsp", "alone", "bsp"),
    "an unsafe rival": (times_of({"bsp": (9.0, 1.0)}, asp=lambda trial: 1.0 if trial.seed < 2 else math.inf),
                        "asp bsp", {"grid": [1.0]}, "bsp", "alone", "bsp"),
    "all are unsafe": (lambda trial: math.inf if trial.seed == 1 else 2.0 if trial.policy == "bsp" else 1.0,
                       "bsp asp", {"grid": [1.0]}, "bsp", "unsafe", ""),
    "time": (times_of({"asp": (0.5, 1.0), "bsp": (3.0, 1.0)}), "bsp asp", {"batches": 1}, "bsp", "time", ""),
}  # fmt: skip


def test_decided_answers_are_right_in_races_of_every_law():
    found = {name: played_by_law(law, range(8)) for name, law in LAWS.items()}
    decided, wrong = sum(share for share, _ in found.values()), sum(share * own for share, own in found.values())
    assert wrong <= WRONG * decided
    assert found["noise 5 %"][0] >= 0.75, "of policies that far apart so little noise leaves few undecided"
    assert found["noise 50 %"][0] == 0, "so few seeds do not tell the best from the lucky"


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_at_most_one_in_ten_of_the_decided_answers_is_wrong(name: str):
    """The table in docs/advise.md: python tests/support/laws.py prints it."""
    decided, wrong = played_by_law(LAWS[name], range(200))
    assert wrong * decided * 200 <= max(WRONG * decided * 200, 1)


@pytest.mark.parametrize("how", ENDS)
def test_how_a_race_ends(how: str):
    times, policies, options, policy, ending, among = ENDS[how]
    answer, _ = played(times, policies.split(), **options)
    assert (answer.policy, answer.ending) == (policy or answer.policy, ending)
    assert not among or {*answer.among} == {*among.split()}
    assert answer.among[0] == answer.policy or not answer.decided


def test_two_rates_of_a_policy_go_on_until_the_third_seed_and_then_the_better_one():
    def in_turn(trial: Trial) -> float:  # of asp and ssp one is sooner with even seeds, and the other with odd ones
        sooner = (trial.policy == "asp") == (trial.seed % 2 == 0)
        return {0.5: 1.2, 1.0: 1.0, 2.0: 1.1}[trial.learning_rate] * (1.0 if sooner else 1.05)

    time_of = times_of({}, bsp=lambda trial: 30.0, asp=in_turn, ssp=in_turn)
    answer, batches = played(time_of, ("asp", "ssp", "bsp"), tie=0.001)
    assert answer.ending == "seeds"
    rates = {0: {0.5, 1.0, 2.0}, 1: {1.0, 2.0}, 2: {1.0, 2.0}, **{seed: {1.0} for seed in range(3, 8)}}
    assert runs(batches, "asp") == rates


def test_a_grid_is_widened_at_an_end_where_its_best_rate_lies_with_a_later_seed_too():
    answer, _ = played(times_of({"asp": (1.0, 8.0), "bsp": (3.0, 1.0)}), ("asp", "bsp"))
    asp = answer.standing("asp")
    assert (asp.rates, asp.learning_rate, asp.at_end) == ((0.5, 1.0, 2.0, 4.0, 8.0, 16.0), 8.0, False)
    answer, _ = played(times_of({"asp": (1e-6, 1024.0), "bsp": (3.0, 1.0)}), ("asp", "bsp"))
    assert (answer.standing("asp").rates[-1], answer.standing("asp").at_end) == (16.0, True), "three times"

    def later(trial: Trial) -> float:
        found = {0.5: 9.0, 1.0: 1.0, 2.0: 1.05, 4.0: 1.0} if trial.seed == 0 else {1.0: 1.25, 2.0: 1.0, 4.0: 0.9}
        return found.get(trial.learning_rate, 9.0)

    answer, batches = played(times_of({"bsp": (3.0, 1.0)}, asp=later), ("asp", "bsp"))
    assert answer.learning_rate == 4.0
    assert {seed for seed, rates in runs(batches, "asp").items() if 4.0 in rates} >= {0, 1, 2}


def test_what_one_seed_put_far_behind_or_an_unsafe_leader_capped_is_asked_again():
    times = times_of({"asp": (1.0, 1.0), "bsp": (9.0, 1.0)},
                     ssp=lambda trial: 2.0 if trial.seed == 0 else 0.9 * (1 + trial.seed % 3))  # fmt: skip
    answer, batches = played(times, ("asp", "ssp", "bsp"))
    assert {*runs(batches, "ssp")} >= {0, 1}
    assert len(answer.standing("ssp").needs) > 2, "one seed throws nothing out"
    times = times_of({"ssp": (3.0, 1.0), "bsp": (9.0, 1.0)}, asp=lambda trial: 1.0 if trial.seed == 0 else math.inf)
    answer, batches = played(times, ("asp", "ssp", "bsp"), grid=[1.0])
    again = [each.cap for batch in batches for each in batch if each.policy == "ssp" and each.seed == 0]
    assert again[0] == CAP < again[-1]
    assert answer.policy == "ssp"
    assert [each.policy for each in answer.standings if each.unsafe] == ["asp"]


def test_what_was_capped_is_a_lower_bound_of_three_digits():
    times = times_of({"asp": (1.0, 1.0), "bsp": (2.0, 1.0), "ssp": (9.0, 1.0)}, noise=0.001)
    answer, _ = played(times, ("asp", "bsp", "ssp"))
    ssp, bsp = answer.standing("ssp"), answer.standing("bsp")
    assert (ssp.ratio, ssp.capped) == (pytest.approx(CAP, rel=0.01), True)
    assert (bsp.ratio, bsp.capped) == (pytest.approx(2.0, rel=0.01), False)
    assert [rounded_up(x) for x in (0.12345, 0.3, 1234.5, 150, 0.0009999, math.inf)] == [
        0.124, 0.3, 1240, 150, 0.001, math.inf]  # fmt: skip
    assert rounded_up(1.5 * 0.1) == rounded_up(0.15) == 0.15, "last bits do not matter"
