"""How sure a comparison of arms is that ran on the same seeds: a two-way model of the logarithms of their needs.

log need = arm + seed + noise. A seed adds the same to every arm, so that arms are compared in pairs, also where one arm
has fewer seeds than another. Each arm's noise has a variance of its own, drawn towards the variance of all arms
together: three seeds say little of one arm's noise, yet a policy that is noisier than the others must not look sure. A
bootstrap of three seeds would draw from ten distinct samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pslab.tensors.random_streams import numpy_generator

DRAWS = 2000
SHRUNK = 3.0  # degrees of freedom with which the variance of all arms counts in the variance of each
ROUNDS = 3  # of weighing arms by their variance, and fitting again


class _Fit(NamedTuple):
    """Least squares, weighted by the arms' variances."""

    effects: np.ndarray  #: [arms]: the mean log need with the first seed
    solution: np.ndarray  #: [arms, needs]: the effects are this times the logarithms
    arm: np.ndarray  #: [needs]: whose each of them is
    squares: np.ndarray  #: [arms]: of the residuals
    degrees: np.ndarray  #: [arms]: the degrees of freedom of these squares


@dataclass(frozen=True)
class Comparison:
    """Arms on the seeds that they have, of which each shares some with another.

    Raises:
        ValueError: a need that is not finite and positive, or an arm or a seed without one.
    """

    needs: np.ndarray  #: [arms, seeds]; NaN where an arm does not have a seed
    bounds: np.ndarray | None = None  #: [arms, seeds]: whether a need is a lower bound, which says nothing of noise

    def __post_init__(self) -> None:
        found = ~np.isnan(self.needs)
        known = self.needs[found]
        wrong = self.needs.ndim != 2 or not (np.isfinite(known) & (known > 0)).all()
        if wrong or not (known.size and found.any(axis=0).all() and found.any(axis=1).all()):
            raise ValueError("arms are compared by finite needs on common seeds, [arms, seeds]")

    @cached_property
    def _fit(self) -> _Fit:
        arms, seeds = self.needs.shape
        arm, seed = np.nonzero(~np.isnan(self.needs))
        exact = np.ones(len(arm)) if self.bounds is None else 1.0 - self.bounds[arm, seed]
        design = np.hstack([np.eye(arms)[arm], np.eye(seeds)[seed, 1:]])
        logs, deviation = np.log(self.needs[arm, seed]), np.ones(arms)
        for _ in range(ROUNDS):
            weights = 1 / deviation[arm]
            solution = np.linalg.pinv(design * weights[:, None]) * weights
            free = 1 - (design * solution.T).sum(axis=1)
            squares = np.bincount(arm, exact * (logs - design @ (solution @ logs)) ** 2)
            degrees = np.bincount(arm, exact * free)
            if degrees.sum() < 0.5:
                return _Fit((solution @ logs)[:arms], solution[:arms], arm, squares, np.zeros(arms))
            shared = squares.sum() / degrees.sum()
            deviation = np.sqrt((SHRUNK * shared + squares) / (SHRUNK + degrees)) + 1e-9
        return _Fit((solution @ logs)[:arms], solution[:arms], arm, squares, degrees)

    @property
    def degrees(self) -> float:
        """Degrees of freedom of the noise: 0 where nothing is known of it, as of one arm or one seed."""
        return float(self._fit.degrees.sum())

    @property
    def noise(self) -> float:
        """The standard deviation of log need that is neither the arm's nor the seed's, over all arms; infinite if
        nothing is known."""
        return math.sqrt(self._fit.squares.sum() / self.degrees) if self.degrees else math.inf

    @cached_property
    def drawn(self) -> np.ndarray:
        """[DRAWS, arms]: what the arms' mean logarithms may be, by what is known of the noise; the same each time.

        Raises:
            ValueError: nothing is known of the noise.
        """
        effects, solution, arm, squares, degrees = self._fit
        if not self.degrees:
            raise ValueError("one arm, or one seed, says nothing of the noise")
        stream = numpy_generator(0, "advise", "confidence", *self.needs.shape)
        # each draw has one estimate of each arm's noise: Student's t
        chi = stream.chisquare(SHRUNK + degrees, (DRAWS, len(effects)))
        deviation = np.sqrt((SHRUNK * self.noise**2 + squares) / chi)
        noise = stream.standard_normal((DRAWS, len(arm))) * deviation[:, arm]
        found: np.ndarray = effects + noise @ solution.T
        return found

    def chances(self, tie: float = 0.0) -> np.ndarray:
        """[arms]: the probability that each is the soonest, or needs at most a share `tie` more than the soonest."""
        if len(self.needs) == 1:
            return np.ones(1)
        found: np.ndarray = (self.drawn <= self.drawn.min(axis=1, keepdims=True) + math.log1p(tie)).mean(axis=0)
        return found
