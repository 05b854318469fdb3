"""Rows with planted structure: communities that share keys with power-law frequencies, and noise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np

from pslab.config.parameters import Bounds, check
from pslab.errors import ConfigError
from pslab.tensors.random_streams import numpy_generator
from pslab.tensors.sparse import SparseRows, rows_of
from pslab.tensors.workload.data import Dataset, of_rows

TEST_SHARE = 0.2
SHARPNESS = 4.0  # slope of a label's probability by the row's score


@dataclass(frozen=True)
class Planted:
    """Rows whose keys are drawn by Zipf's law: most from the row's community, and a share, the noise, from all keys.

    Communities have equally many rows and keys. The sum of the planted weights of a row's keys determines the
    probability of the row's label.

    Raises:
        ConfigError: a row has more keys than a community.
    """

    rows: Annotated[int, Bounds(at_least=1, at_most=10**8), "the number of training and test rows"] = 4000
    keys: Annotated[int, Bounds(at_least=1, at_most=2**31 - 1), "the number of keys"] = 8000
    per_row: Annotated[int, Bounds(at_least=1), "the number of distinct keys in a row"] = 20
    communities: Annotated[int, Bounds(at_least=1), "the number of communities"] = 16
    noise: Annotated[float, Bounds(at_least=0, at_most=1), "the share of keys that are drawn from all keys"] = 0.05
    exponent: Annotated[float, Bounds(at_least=0, at_most=5), "the exponent of Zipf's law"] = 1.1
    seed: Annotated[int, Bounds(at_least=0, at_most=2**63 - 1), "the seed of all random numbers"] = 0

    def __post_init__(self) -> None:
        check(self, "planted.")
        if self.per_row > self.keys // self.communities:
            problem = f"a community has {self.keys // self.communities} keys: set fewer communities, or more keys"
            raise ConfigError("planted.per_row", self.per_row, problem)

    def dataset(self, name: str, root: Path) -> Dataset:
        """Return the rows as a Dataset; equal parameters give the same object."""
        return _dataset(self)

    def load(self) -> SparseRows:
        """Draw the rows, in random order."""
        chance = numpy_generator(self.seed, "planted")
        community = chance.permutation(np.arange(self.rows) % self.communities)
        key_of = chance.permutation(self.keys)  # so that a key's number does not show its community
        size = self.keys // self.communities
        inside = _logarithms(size, self.exponent)
        everywhere = np.concatenate([_logarithms(-(-self.keys // self.communities), self.exponent)] * self.communities)
        everywhere = everywhere.reshape(self.communities, -1).T.ravel()[: self.keys]  # key r of community c: r * C + c
        noisy = chance.binomial(self.per_row, self.noise, self.rows)
        weights = chance.standard_normal(self.keys)
        rows, scores = [], np.empty(self.rows)
        for row in range(self.rows):
            drawn = _drawn(inside, self.per_row - int(noisy[row]), chance) * self.communities + community[row]
            if noisy[row]:
                left = everywhere + 0.0
                left[drawn] = -np.inf
                drawn = np.concatenate([drawn, _drawn(left, int(noisy[row]), chance)])
            keys = np.sort(key_of[drawn])
            rows.append((keys, np.full(len(keys), len(keys) ** -0.5)))
            scores[row] = weights[keys].sum() * len(keys) ** -0.5
        labels = chance.random(self.rows) < 1 / (1 + np.exp(-SHARPNESS * scores))
        name = (f"planted: {self.rows} rows, {self.keys} keys, {self.per_row} a row, {self.communities} communities, "
                f"noise {100 * self.noise:g} %, exponent {self.exponent:g}, seed {self.seed}")  # fmt: skip
        return rows_of(name, self.keys, rows, labels, chance.random(self.rows) < TEST_SHARE)


@lru_cache(maxsize=1)
def _dataset(planted: Planted) -> Dataset:
    return of_rows(planted.load())


def _logarithms(count: int, exponent: float) -> np.ndarray:
    return -exponent * np.log(np.arange(1, count + 1))


def _drawn(logarithms: np.ndarray, count: int, chance: np.random.Generator) -> np.ndarray:
    """Draw `count` distinct positions, with probabilities by the logarithms of their weights (Gumbel's trick)."""
    if not count:
        return np.empty(0, np.int64)
    return np.argpartition(-(logarithms + chance.gumbel(size=len(logarithms))), count - 1)[:count]
