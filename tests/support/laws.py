"""Races drawn from known laws, in which the best policy is known: no run is executed, times are drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pslab.lab.advise.race import RaceAnswer, Trial, around, race
from pslab.tensors.random_streams import numpy_generator

APART, SEEDS_APART = 0.3, 0.2  # the deviations of the policies' mean log times, and of what a seed adds to all
OFF = 0.3  # what a learning rate of twice or half the best one adds to log time
TIE, SEEDS = 0.05, 8
RATES = tuple(2.0**power for power in range(-4, 5))  # of which a race begins with the middle three


@dataclass(frozen=True)
class Law:
    """How times come about: log time = policy + learning rate + seed + noise."""

    noise: float  #: the deviation of log time that neither policy nor seed explains
    rivals: int = 0  #: so many policies behind the best one have a noise of `rivals_noise`
    rivals_noise: float = 0.0
    tails: float = math.inf  #: degrees of freedom of the noise, which is Student's t
    misses: float = 0.0  #: the share of runs that never arrive
    missing: float = 1.0  #: of the policies, the share of which runs miss


LAWS = {
    "noise 5 %": Law(0.05), "noise 10 %": Law(0.1), "noise 15 %": Law(0.15), "noise 20 %": Law(0.2),
    "noise 30 %": Law(0.3), "noise 50 %": Law(0.5),
    "noise 10 %, heavy tails": Law(0.1, tails=2.5),
    "noise 5 %, of three rivals 30 %": Law(0.05, 3, 0.3),
    "noise 10 %, one run in five misses": Law(0.1, misses=0.2),
    "noise 10 %, a third of the policies miss one seed in five": Law(0.1, misses=0.2, missing=1 / 3),
}  # fmt: skip


class DrawnRace:
    """One race of a law."""

    def __init__(self, law: Law, number: int) -> None:
        stream = numpy_generator(number, "laws", repr(law))
        self.law, self.number = law, number
        names = [f"policy {index}" for index in range(int(stream.integers(5, 14)))]
        self.policies = dict(zip(names, stream.normal(0, APART, len(names)).tolist(), strict=True))
        self.best_rate = {name: float(2.0 ** stream.integers(-1, 2)) for name in names}
        self.misses = {name: law.misses * float(stream.random() < law.missing) for name in names}
        ranked = sorted(names, key=self.policies.__getitem__)
        self.noise = dict.fromkeys(names, law.noise) | dict.fromkeys(ranked[1 : 1 + law.rivals], law.rivals_noise)
        self.seeds = stream.normal(0, SEEDS_APART, SEEDS).tolist()
        size = len(names), len(RATES), SEEDS
        tailed = stream.standard_normal(size) if math.isinf(law.tails) else stream.standard_t(law.tails, size)
        self.noises, self.draws = tailed.tolist(), stream.random(size).tolist()

    def time_s(self, trial: Trial) -> float:
        """What a run takes; infinite if it never arrives."""
        policy, rate, seed, _ = trial
        at = [*self.policies].index(policy), RATES.index(rate)
        if self.draws[at[0]][at[1]][seed] < self.misses[policy]:
            return math.inf
        off = OFF * abs(math.log2(rate / self.best_rate[policy]))
        noise = self.noise[policy] * self.noises[at[0]][at[1]][seed]
        return math.exp(self.policies[policy] + off + self.seeds[seed] + noise)

    def right(self, policy: str) -> bool:
        """Whether a policy is the best or within a tie of it; of those that never miss, if there are such."""
        safe = [name for name, misses in self.misses.items() if not misses] or [*self.policies]
        best = min(self.policies[name] for name in safe)
        return policy in safe and self.policies[policy] <= best + math.log1p(TIE)

    def answer(self) -> RaceAnswer:
        """How the race ends."""

        def needs(trials: Sequence[Trial]) -> dict[Trial, float]:
            times = {trial: self.time_s(trial) for trial in trials}
            return {trial: time_s if time_s <= trial.cap else math.inf for trial, time_s in times.items()}

        return race(dict.fromkeys(self.policies, around(1.0)), "policy 0", needs, tie=TIE,
                    simplicity={name: (rank,) for rank, name in enumerate(self.policies)})  # fmt: skip


def played(law: Law, numbers: Sequence[int]) -> tuple[float, float]:
    """The share of decided races, and of these the share whose policy is not right."""
    races = [DrawnRace(law, number) for number in numbers]
    answers = [each.answer() for each in races]
    wrong = [not each.right(found.policy) for each, found in zip(races, answers, strict=True) if found.decided]
    return len(wrong) / len(races), float(np.mean(wrong or [0.0]))


if __name__ == "__main__":
    print("| law | decided | wrong among them |\n|---|---|---|")
    for words, own in LAWS.items():
        share, mistaken = played(own, range(200))
        print(f"| {words} | {100 * share:.0f} % | {100 * mistaken:.0f} % |", flush=True)
