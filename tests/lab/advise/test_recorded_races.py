"""Races on recorded tables of held seconds: what they choose, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from held_times import ARMS, CLUSTERS, EVERY, FRESH, POLICIES, PUSHES, SEEDS, run_of, table

from pslab.lab.advise.race import RaceAnswer, Trial, around, race
from pslab.lab.advise.space import simplicity

SIMPLE = {policy: simplicity(run_of("lab", policy, 0.1, 0)) for policy in POLICIES}
RATES = {policy: [rate for name, rate in ARMS if name == policy] for policy in POLICIES}
USED = range(6)  # seeds of a race


def row(cluster: str, policy: str, rate: float, seed: int) -> tuple[float, float]:
    """When a run holds the target, and ends. A rate that is not in the table takes as long as the nearest, in vain."""
    near = min(RATES[policy], key=lambda other: abs(math.log(other / rate)))
    held_s, ended_s = table()[cluster, policy, near, seed]
    return held_s if near == rate else math.inf, ended_s


def gradients(cluster: str, trial: Trial) -> float:
    """That a run computes until it is known that it holds the target, or is beyond its cap: two evaluations later."""
    held_s, ended_s = row(cluster, *trial.arm, trial.seed)
    return min(PUSHES * min(held_s, trial.cap) / ended_s + 2 * EVERY, PUSHES)


def played(cluster: str) -> tuple[RaceAnswer, float]:
    """A race, its pilot of the default's rates before it, and the share of the gradients of an exhaustive search."""
    spent = dict[Trial, float]()

    def needs(trials: Sequence[Trial]) -> dict[Trial, float]:
        spent.update((trial, gradients(cluster, trial)) for trial in trials)
        times = {trial: row(cluster, *trial.arm, trial.seed)[0] for trial in trials}
        return {trial: time_s if time_s <= trial.cap else math.inf for trial, time_s in times.items()}

    pilot = needs([Trial("bsp", rate, 0) for rate in RATES["bsp"]])
    centre = min(pilot, key=pilot.__getitem__).learning_rate
    pace = {policy: np.median([row(cluster, policy, rate, 0)[1] for rate in RATES[policy]]) for policy in POLICIES}
    found = race({policy: around(centre) for policy in sorted(POLICIES, key=pace.__getitem__)}, "bsp", needs,
                 simplicity=SIMPLE, seeds=USED)  # fmt: skip
    every = sum(gradients(cluster, Trial(*arm, seed)) for arm in ARMS for seed in USED)
    return found, sum(spent.values()) / every


def regret(cluster: str, answer: RaceAnswer) -> float:
    """By how much the advised policy takes longer than the best one, each at its best rate: means over all seeds."""
    logs = {arm: np.mean([math.log(table()[cluster, *arm, seed][0]) for seed in (*SEEDS, *FRESH)
                          if (cluster, *arm, seed) in table()]) for arm in ARMS}  # fmt: skip
    best = {policy: min(logs[policy, rate] for rate in RATES[policy]) for policy in POLICIES}
    return math.exp(best[answer.policy] - min(best.values())) - 1


def test_the_policy_that_a_race_chooses_is_the_best_or_as_good_and_takes_few_gradients():
    races = {cluster: played(cluster) for cluster in CLUSTERS}
    regrets = [regret(cluster, answer) for cluster, (answer, _) in races.items()]
    assert np.mean(regrets) <= 0.03
    assert max(regrets) <= 0.07
    assert max(share for _, share in races.values()) <= 0.22
