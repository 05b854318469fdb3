"""Races on recorded tables of held seconds: what they choose, what that costs, and whether `sure` is kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from held_times import ARMS, CLUSTERS, EVERY, FRESH, POLICIES, PUSHES, SEEDS, run_of, table

from pslab.lab.advise.race import RaceAnswer, Trial, around, race
from pslab.lab.advise.space import simplicity
from pslab.tensors.random_streams import numpy_generator

SIMPLE = {policy: simplicity(run_of("lab", policy, 0.1, 0)) for policy in POLICIES}
RATES = {policy: [rate for name, rate in ARMS if name == policy] for policy in POLICIES}
AT_MOST = 6  # seeds of a race


def row(cluster: str, policy: str, rate: float, seed: int) -> tuple[float, float]:
    """When a run holds the target, and ends. A rate that is not in the table takes as long as the nearest, in vain."""
    near = min(RATES[policy], key=lambda other: abs(math.log(other / rate)))
    held_s, ended_s = table()[cluster, policy, near, seed]
    return held_s if near == rate else math.inf, ended_s


def gradients(cluster: str, trial: Trial) -> float:
    """That a run computes until it is known that it holds the target, or is beyond its cap: two evaluations later."""
    held_s, ended_s = row(cluster, *trial.arm, trial.seed)
    return min(PUSHES * min(held_s, trial.cap) / ended_s + 2 * EVERY, PUSHES)


def played(cluster: str, seeds: Sequence[int]) -> tuple[RaceAnswer, float]:
    """A race, its pilot of the default's rates before it, and the share of the gradients of an exhaustive search."""
    spent, (first, *_) = dict[Trial, float](), seeds

    def needs(trials: Sequence[Trial]) -> dict[Trial, float]:
        spent.update((trial, gradients(cluster, trial)) for trial in trials)
        times = {trial: row(cluster, *trial.arm, trial.seed)[0] for trial in trials}
        return {trial: time_s if time_s <= trial.cap else math.inf for trial, time_s in times.items()}

    pilot = needs([Trial("bsp", rate, first) for rate in RATES["bsp"]])
    centre = min(pilot, key=pilot.__getitem__).learning_rate
    pace = {policy: np.median([row(cluster, policy, rate, first)[1] for rate in RATES[policy]]) for policy in POLICIES}
    found = race({policy: around(centre) for policy in sorted(POLICIES, key=pace.__getitem__)}, "bsp", needs,
                 simplicity=SIMPLE, seeds=seeds)  # fmt: skip
    every = sum(gradients(cluster, Trial(*arm, seed)) for arm in ARMS for seed in seeds)
    return found, sum(spent.values()) / every


@cache
def truth(cluster: str) -> dict[tuple[str, float], float]:
    """Of each arm the geometric mean of its time over all seeds that it has."""
    found = {arm: [table()[cluster, *arm, seed][0] for seed in (*SEEDS, *FRESH) if (cluster, *arm, seed) in table()]
             for arm in ARMS}  # fmt: skip
    return {arm: math.exp(np.log(times).mean()) for arm, times in found.items()}


def regret(cluster: str, answer: RaceAnswer) -> float:
    """By how much the advised policy takes longer than the best one, each at its best rate."""
    best = {policy: min(truth(cluster)[policy, rate] for rate in RATES[policy]) for policy in POLICIES}
    return best[answer.policy] / min(best.values()) - 1


def test_the_policy_that_a_race_chooses_is_the_best_or_as_good_and_takes_few_gradients():
    """6 seeds; the truth is that of 20."""
    races = {cluster: played(cluster, range(AT_MOST)) for cluster in CLUSTERS}
    regrets = [regret(cluster, answer) for cluster, (answer, _) in races.items()]
    assert np.mean(regrets) <= 0.03
    assert max(regrets) <= 0.07
    assert max(share for _, share in races.values()) <= 0.22


def test_a_race_that_is_sure_is_right_as_often_as_it_says():
    """Over 204 races, each with seeds of the table in its own order. Right is what is within the tie of the best."""
    regrets, right = list[float](), list[bool]()
    for cluster in CLUSTERS:
        for number in range(34):
            seeds = numpy_generator(number, "races", cluster).permutation(len(SEEDS))[:AT_MOST].tolist()
            answer, _ = played(cluster, seeds)
            regrets.append(regret(cluster, answer))
            right += [regrets[-1] <= 0.05] if answer.decided else []
    assert len(right) >= 15
    assert np.mean(right) >= 0.9
    assert np.mean(regrets) <= 0.03
