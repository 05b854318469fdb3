"""How sure a comparison of arms is that ran on the same seeds: a two-way model of the logarithms of their needs.

log need = arm + seed + noise. What a seed adds is the same for every arm, so that arms are compared in pairs, also
where one has fewer seeds than another; the noise has one variance, pooled over all of them. A bootstrap of three seeds
would draw from ten distinct samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pslab.tensors.random_streams import numpy_generator

DRAWS = 4000


@dataclass(frozen=True)
class Comparison:
    """Arms on the seeds that they have, of which each shares some with another.

    Raises:
        ValueError: a need that is not finite and positive, or an arm or a seed without one.
    """

    needs: np.ndarray  #: [arms, seeds]; NaN where an arm does not have a seed

    def __post_init__(self) -> None:
        found = ~np.isnan(self.needs)
        known = self.needs[found]
        wrong = self.needs.ndim != 2 or not (np.isfinite(known) & (known > 0)).all()
        if wrong or not (known.size and found.any(axis=0).all() and found.any(axis=1).all()):
            raise ValueError("arms are compared by finite needs on common seeds, [arms, seeds]")

    @cached_property
    def _fitted(self) -> tuple[np.ndarray, np.ndarray, float, int]:
        """Least squares: the arms' effects [arms], their covariance in units of the noise's variance [arms, arms], the
        squares that are left, and their degrees of freedom."""
        arms, seeds = self.needs.shape
        arm, seed = np.nonzero(~np.isnan(self.needs))
        # an arm's effect is its mean with the first seed: what all arms share does not matter
        design = np.hstack([np.eye(arms)[arm], np.eye(seeds)[seed, 1:]])
        logs, spread = np.log(self.needs[arm, seed]), np.linalg.pinv(design.T @ design)
        effects = spread @ design.T @ logs
        rest = float(((logs - design @ effects) ** 2).sum())
        return effects[:arms], spread[:arms, :arms], rest, max(0, len(logs) - design.shape[1])

    @property
    def degrees(self) -> int:
        """Degrees of freedom of the noise: 0 where nothing is known of it, as of one arm or one seed."""
        return self._fitted[3]

    @property
    def noise(self) -> float:
        """The standard deviation of log need that is neither the arm's nor the seed's; infinite if nothing is known."""
        return math.sqrt(self._fitted[2] / self.degrees) if self.degrees else math.inf

    @cached_property
    def drawn(self) -> np.ndarray:
        """[DRAWS, arms]: what the arms' mean logarithms may be, by what is known of the noise; the same each time.

        Raises:
            ValueError: nothing is known of the noise.
        """
        effects, spread, _, degrees = self._fitted
        if not degrees:
            raise ValueError("one arm, or one seed, says nothing of the noise")
        stream = numpy_generator(0, "advise", "confidence", *self.needs.shape)
        # each draw has one estimate of the noise for all arms: Student's t for each of them
        scale = self.noise * np.sqrt(degrees / stream.chisquare(degrees, (DRAWS, 1)))
        noise = stream.standard_normal((DRAWS, len(effects))) @ np.linalg.cholesky(spread).T
        found: np.ndarray = effects + scale * noise
        return found

    def chances(self) -> np.ndarray:
        """[arms]: the probability that each is the soonest."""
        if len(self.needs) == 1:
            return np.ones(1)
        return np.bincount(self.drawn.argmin(axis=1), minlength=len(self.needs)) / DRAWS

    def within(self, leader: int, tie: float) -> np.ndarray:
        """[arms]: the probability that each needs at most a share `tie` more than the leader, an arm's index."""
        found: np.ndarray = (self.drawn <= self.drawn[:, [leader]] + math.log1p(tie)).mean(axis=0)
        return found
