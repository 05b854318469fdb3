"""The probability that an arm is better than the others, estimated from runs on the same seeds.

An arm is a policy with a learning rate. Its need is the seconds, bytes or gradients that a run takes to hold the
target. The model is log need = arm + seed + noise. A seed adds the same amount to every arm, so arms are compared in
pairs, even if one arm has fewer seeds than another. Each arm has its own variance of noise, which is shrunk towards the
variance of all arms together: three seeds do not suffice to estimate one arm's noise, but a noisier policy must not
look certain. A bootstrap of three seeds would draw from only ten distinct samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pslab.tensors.random_streams import numpy_generator

DRAWS = 2000
SHRUNK = 3.0  # degrees of freedom of the variance of all arms in the estimate of one arm's variance
ROUNDS = 3  # repetitions of the fit, each with the variances of the fit before as weights


class _Fit(NamedTuple):
    effects: np.ndarray  #: [arms]: the mean log need with the first seed
    solution: np.ndarray  #: [arms, needs]: effects = solution @ logarithms
    arm: np.ndarray  #: [needs]: the arm of each need
    squares: np.ndarray  #: [arms]: sums of squared residuals
    degrees: np.ndarray  #: [arms]: the degrees of freedom of these squares


@dataclass(frozen=True)
class Comparison:
    """The needs of arms on seeds, fitted by the model. Each arm must share a seed with another arm.

    Raises:
        ValueError: a need is not finite and positive, or an arm or a seed has no need.
    """

    needs: np.ndarray  #: [arms, seeds]; NaN where an arm does not have a seed
    bounds: np.ndarray | None = None  #: [arms, seeds]: whether a need is a lower bound, which the noise ignores

    def __post_init__(self) -> None:
        present = ~np.isnan(self.needs)
        known = self.needs[present]
        wrong = self.needs.ndim != 2 or not (np.isfinite(known) & (known > 0)).all()
        if wrong or not (known.size and present.any(axis=0).all() and present.any(axis=1).all()):
            raise ValueError(f"needs of shape {self.needs.shape} must be an array [arms, seeds] of finite values above "
                             "0 (NaN: missing), with at least one for each arm and seed")  # fmt: skip

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
        """Degrees of freedom of the noise: 0 if it cannot be estimated, as with one arm or one seed."""
        return float(self._fit.degrees.sum())

    @property
    def noise(self) -> float:
        """The standard deviation of the noise, over all arms; infinite if it cannot be estimated."""
        return math.sqrt(self._fit.squares.sum() / self.degrees) if self.degrees else math.inf

    @cached_property
    def drawn(self) -> np.ndarray:
        """Return DRAWS repeatable samples of the arms' mean log needs, given the noise, as [DRAWS, arms].

        Raises:
            ValueError: the noise cannot be estimated.
        """
        effects, solution, arm, squares, degrees = self._fit
        if not self.degrees:
            raise ValueError("the noise cannot be estimated from one arm or one seed: compare at least two of each")
        stream = numpy_generator(0, "advise", "confidence", *self.needs.shape)
        # each draw has its own estimate of each arm's noise, so the effects follow Student's t
        chi = stream.chisquare(SHRUNK + degrees, (DRAWS, len(effects)))
        deviation = np.sqrt((SHRUNK * self.noise**2 + squares) / chi)
        noise = stream.standard_normal((DRAWS, len(arm))) * deviation[:, arm]
        draws: np.ndarray = effects + noise @ solution.T
        return draws

    def chances(self, tie: float = 0.0) -> np.ndarray:
        """Return, for each arm, the probability that its mean need is at most a share `tie` above the least."""
        if len(self.needs) == 1:
            return np.ones(1)
        shares: np.ndarray = (self.drawn <= self.drawn.min(axis=1, keepdims=True) + math.log1p(tie)).mean(axis=0)
        return shares
