"""The probability that an arm is better than the others, estimated from runs on the same seeds.

An arm is a policy with a learning rate. Its need is the seconds, bytes or gradients that a run takes to hold the
target. The model is log need = arm + seed + noise. A seed adds the same amount to every arm, so arms are compared in
pairs, even if one arm has fewer seeds than another. Each arm has its own variance of noise, which is shrunk towards the
variance of all arms together: three seeds do not suffice to estimate one arm's noise, but a noisier policy must not
look certain. A bootstrap of three seeds would draw from only ten distinct samples.
"""

from __future__ import annotations

import math

import numpy as np

from pslab.tensors.random_streams import numpy_generator

DRAWS = 2000
SHRUNK = 3.0  # degrees of freedom of the variance of all arms in the estimate of one arm's variance
ROUNDS = 3  # repetitions of the fit, each with the variances of the fit before as weights


def compared(needs: np.ndarray, bounds: np.ndarray, tie: float = 0.0) -> tuple[np.ndarray, float]:
    """Return the chances of the arms, and the noise of all arms: the standard deviation of log need.

    The chance of an arm is the probability that its mean need is at most a share `tie` above the least; a single arm
    has 1. Both are NaN if the noise cannot be estimated, as with one seed or without a common one.

    Args:
        needs: [arms, seeds], finite and above 0; NaN where an arm does not have a seed.
        bounds: [arms, seeds]: whether a need is a lower bound, which the noise ignores.
    """
    arms, seeds = needs.shape
    arm, seed = np.nonzero(~np.isnan(needs))
    exact = 1.0 - bounds[arm, seed]
    design = np.hstack([np.eye(arms)[arm], np.eye(seeds)[seed, 1:]])
    logs, deviation = np.log(needs[arm, seed]), np.ones(arms)
    for _ in range(ROUNDS):
        weights = 1 / deviation[arm]
        solution = np.linalg.pinv(design * weights[:, None]) * weights
        free = 1 - (design * solution.T).sum(axis=1)
        squares = np.bincount(arm, exact * (logs - design @ (solution @ logs)) ** 2)
        degrees = np.bincount(arm, exact * free)
        if degrees.sum() < 0.5:
            return np.full(arms, 1.0 if arms == 1 else math.nan), math.nan
        variance = squares.sum() / degrees.sum()
        deviation = np.sqrt((SHRUNK * variance + squares) / (SHRUNK + degrees)) + 1e-9
    stream = numpy_generator(0, "advise", "confidence", arms, seeds)
    # each draw has its own estimate of each arm's noise, so the arms' means follow Student's t
    chi = stream.chisquare(SHRUNK + degrees, (DRAWS, arms))
    drawn_deviation = np.sqrt((SHRUNK * variance + squares) / chi)
    noise = stream.standard_normal((DRAWS, len(arm))) * drawn_deviation[:, arm]
    means = (solution @ logs)[:arms] + noise @ solution[:arms].T
    chances = (means <= means.min(axis=1, keepdims=True) + math.log1p(tie)).mean(axis=0)
    return chances, math.sqrt(variance)
