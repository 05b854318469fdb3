"""partition(rows, workers, rule): which worker holds which rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pslab.errors import ConfigError, nearest
from pslab.tensors.partitioning import libraries, multilevel, rules
from pslab.tensors.sparse.rows import SparseRows

Array = NDArray[Any]


class Wanted(NamedTuple):
    """What a rule is asked for."""

    rows: SparseRows
    weights: Array  #: int64 [rows]
    workers: int
    epsilon: float
    most: int  #: the weight that one worker may hold
    seed: int

    @property
    def blocks(self) -> Array:
        """The rows in contiguous blocks."""
        return rules.in_blocks(self.weights, self.workers)


RULES: dict[str, Callable[[Wanted], Array]] = {
    "random": lambda w: rules.at_random(w.weights, w.workers, w.seed),
    "blocks": lambda w: w.blocks,
    "moves": lambda w: rules.by_moves(w.rows, w.blocks, w.weights, w.workers, w.most, w.seed),
    "parsa": lambda w: rules.parsa(w.rows, w.workers),
    "multilevel": lambda w: multilevel.partition(w.rows, w.weights, w.workers, w.most, w.seed),
    "mtkahypar": lambda w: libraries.mtkahypar(w.rows, w.weights, w.workers, w.epsilon, w.seed),
    "metis": lambda w: libraries.metis(w.rows, w.weights, w.workers),
}
BALANCES = ("entries", "rows")


def partition(
    rows: SparseRows, workers: int, rule: str = "multilevel", *, epsilon: float = 0.03, balance: str = "entries",
    seed: int = 0,
) -> Array:  # fmt: skip
    """Which worker holds each row: int64 [rows].

    Args:
        rule: one of RULES. Parsa's balances rows, whatever `balance` says, and METIS may exceed ε.
        epsilon: by how much more than an equal share a worker may hold.
        balance: what is shared out equally: entries, which are what a worker computes, or rows.

    Raises:
        ConfigError: an unknown rule or balance, no workers, more workers than rows, or a row that is too heavy.
    """
    if rule not in RULES:
        raise ConfigError("partition", rule, f"there is no such rule; {nearest(rule, RULES)}")
    if balance not in BALANCES:
        raise ConfigError("balance", balance, f"nothing has this name; {nearest(balance, BALANCES)}")
    if not 1 <= workers <= len(rows):
        raise ConfigError("workers", workers, f"must be from 1 to the number of rows, {len(rows)}")
    if not 0 <= epsilon <= 1:
        raise ConfigError("epsilon", epsilon, "must be from 0 to 1")
    weights = rows.entries_of if balance == "entries" else np.ones(len(rows), np.int64)
    most = rules.capacity(weights, workers, epsilon)
    return RULES[rule](Wanted(rows, weights, workers, epsilon, most, seed))
