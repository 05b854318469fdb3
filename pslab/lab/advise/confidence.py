"""How sure a comparison of arms is that ran on the same seeds: a two-way model of the logarithms of their times.

log T = arm + seed + noise. What a seed adds is the same for every arm, so that arms are compared in pairs; the noise
has one variance, pooled over all of them. A bootstrap of three seeds would draw from ten distinct samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pslab.tensors.random_streams import numpy_generator

DRAWS = 4000


@dataclass(frozen=True)
class Comparison:
    """Arms on common seeds.

    Raises:
        ValueError: a time that is not finite and positive; no arm or no seed.
    """

    times_s: np.ndarray  #: [arms, seeds]

    def __post_init__(self) -> None:
        known = np.isfinite(self.times_s) & (self.times_s > 0)
        if self.times_s.ndim != 2 or not known.size or not known.all():
            raise ValueError("arms are compared by finite times on common seeds, [arms, seeds]")

    @property
    def means(self) -> np.ndarray:
        """[arms]: the mean logarithm of each arm's time."""
        found: np.ndarray = np.log(self.times_s).mean(axis=1)
        return found

    @property
    def degrees(self) -> int:
        """Degrees of freedom of the noise: 0 for one arm or one seed, of which nothing is known."""
        return (len(self.times_s) - 1) * (len(self.times_s[0]) - 1)

    @property
    def noise(self) -> float:
        """The standard deviation of log T that is neither the arm's nor the seed's; infinite if nothing is known."""
        logs = np.log(self.times_s)
        rest = logs - logs.mean(axis=1, keepdims=True) - logs.mean(axis=0, keepdims=True) + logs.mean()
        return math.sqrt(float((rest**2).sum()) / self.degrees) if self.degrees else math.inf

    def drawn(self) -> np.ndarray:
        """[DRAWS, arms]: what the arms' means may be, by what is known of the noise; the same draws each time.

        Raises:
            ValueError: one arm or one seed.
        """
        if not self.degrees:
            raise ValueError("one arm, or one seed, says nothing of the noise")
        stream = numpy_generator(0, "advise", "confidence", *self.times_s.shape)
        # the arms share the estimate of the noise, so that each draw has one: Student's t for each arm
        scale = self.noise * np.sqrt(self.degrees / stream.chisquare(self.degrees, (DRAWS, 1)) / self.times_s.shape[1])
        found: np.ndarray = self.means + scale * stream.standard_normal((DRAWS, len(self.times_s)))
        return found

    def chances(self) -> np.ndarray:
        """[arms]: the probability that each is the soonest."""
        if len(self.times_s) == 1:
            return np.ones(1)
        return np.bincount(self.drawn().argmin(axis=1), minlength=len(self.times_s)) / DRAWS

    def within(self, leader: int, tie: float) -> np.ndarray:
        """[arms]: the probability that each takes at most a share `tie` more time than the leader, an arm's index."""
        drawn = self.drawn()
        found: np.ndarray = (drawn <= drawn[:, [leader]] + math.log1p(tie)).mean(axis=0)
        return found


def by_policy(policies: Sequence[str], chances: np.ndarray) -> dict[str, float]:
    """The probability that each policy is the best: the sum over its arms, of which `policies` has one name each."""
    found = dict.fromkeys(policies, 0.0)
    for policy, chance in zip(policies, chances, strict=True):
        found[policy] += float(chance)
    return found
