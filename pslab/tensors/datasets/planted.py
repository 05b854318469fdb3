"""Rows with planted structure: communities that share keys, whose frequencies follow a power law, and noise."""

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
SHARPNESS = 4.0  # how surely a row's score gives its label


@dataclass(frozen=True)
class Planted:
    """Each row belongs to a community and draws its keys from it by Zipf's law; a share of them, the noise, from all.

    Communities have equally many rows and keys. A row's label is drawn from the sum of its keys' planted weights.

    Raises:
        ConfigError: a row needs more keys than a community has.
    """

    rows: Annotated[int, Bounds(at_least=1, at_most=10**8), "to train on and to test with"] = 4000
    keys: Annotated[int, Bounds(at_least=1, at_most=2**31 - 1), "in all"] = 8000
    per_row: Annotated[int, Bounds(at_least=1), "distinct keys in each row"] = 20
    communities: Annotated[int, Bounds(at_least=1), "of equally many rows and keys"] = 16
    noise: Annotated[float, Bounds(at_least=0, at_most=1), "of a row's keys that are drawn from all keys"] = 0.05
    exponent: Annotated[float, Bounds(at_least=0, at_most=5), "of Zipf's law"] = 1.1
    seed: Annotated[int, Bounds(at_least=0, at_most=2**63 - 1), "of all that is drawn"] = 0

    def __post_init__(self) -> None:
        check(self, "planted.")
        if self.per_row > self.keys // self.communities:
            problem = f"a community has {self.keys // self.communities} keys, fewer than a row holds"
            raise ConfigError("planted.per_row", self.per_row, problem)

    def dataset(self, name: str, root: Path) -> Dataset:
        """The rows; the same object each time."""
        return _dataset(self)

    def load(self) -> SparseRows:
        """The rows, shuffled."""
        chance = numpy_generator(self.seed, "planted")
        community = chance.permutation(np.arange(self.rows) % self.communities)
        key_of = chance.permutation(self.keys)  # the names of a community's keys tell nothing
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
    """The logarithms of Zipf's weights."""
    return -exponent * np.log(np.arange(1, count + 1))


def _drawn(logarithms: np.ndarray, count: int, chance: np.random.Generator) -> np.ndarray:
    """Draw `count` distinct places one after another by their weights (Gumbel's trick)."""
    if not count:
        return np.empty(0, np.int64)
    return np.argpartition(-(logarithms + chance.gumbel(size=len(logarithms))), count - 1)[:count]
