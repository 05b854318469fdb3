"""Multilevel partition of rows: coarsen, partition what is small, refine on the way back; by halves, then by moves.

Source: Duan, Wang and Wu; Karypis et al. (IEEE TVLSI 1999, hMETIS); Catalyurek and Aykanat (IEEE TPDS 1999, PaToH).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslab.tensors.partitioning.bisection import Lists, contracted, grown, matched, refined, transposed
from pslab.tensors.partitioning.rules import moved, relieve
from pslab.tensors.random_streams import numpy_generator
from pslab.tensors.sparse.rows import SparseRows

Array = NDArray[Any]
COARSE = 150  # vertices at which coarsening ends
SHRINKS = 0.95  # or where a level keeps more of them than this
GROWINGS = 8
HEAVIEST = 8  # times the mean weight of a coarsest vertex


def partition(rows: SparseRows, weights: Array, workers: int, most: int, seed: int) -> Array:
    """Rows to workers, of which none holds more than `most`, with few keys used by several: int64 [rows]."""
    chance, weights = numpy_generator(seed, "partition", "multilevel"), weights.astype(np.int64)
    parts = np.zeros(len(rows), np.int64)
    pins = contracted((rows.holders[0].astype(np.int64), rows.holders[1].astype(np.int64)), np.arange(len(rows)),
                      len(rows))  # fmt: skip
    _halve(pins, weights, np.arange(len(rows)), 0, workers, most, parts, chance)
    relieve(parts, weights, workers, most)
    return moved(rows, parts, weights, workers, most, chance.permutation(len(rows)))


def _halve(
    pins: Lists, weights: Array, vertices: Array, first: int, workers: int, most: int, parts: Array,
    chance: np.random.Generator,
) -> None:  # fmt: skip
    """Give these vertices to the workers from `first`: half of these to one side, half to the other, and so on."""
    if workers == 1:
        parts[vertices] = first
        return
    left, total = workers // 2, int(weights.sum())
    # a share of the slack for each of the halvings that follow (Schlag et al., ALENEX 2016)
    slack = max(most * workers / max(total, 1), 1.0) ** (1 / math.ceil(math.log2(workers)))
    limits = np.array([min(most * count, math.ceil(slack * total * count / workers))
                       for count in (workers - left, left)], np.int64)  # fmt: skip
    side = _bisected(pins, weights, limits, total * left // workers, chance)
    for which, begin, count in ((1, first, left), (0, first + left, workers - left)):
        chosen = np.flatnonzero(side == which)
        number = np.full(len(side), -1, np.int64)
        number[chosen] = np.arange(len(chosen))
        _halve(contracted(pins, number, max(len(chosen), 1)), weights[chosen], vertices[chosen], begin, count, most,
               parts, chance)  # fmt: skip


def _bisected(pins: Lists, weights: Array, limits: Array, least: int, chance: np.random.Generator) -> Array:
    """The side of each vertex, 0 or 1."""
    levels, heaviest = list[tuple[Lists, Lists, Array, Array]](), max(HEAVIEST * int(weights.sum()) // COARSE, 1)
    nets = transposed(pins, len(weights))
    while len(weights) > COARSE:
        group = matched(nets, pins, weights, chance.permutation(len(weights)), heaviest)
        count = int(group.max()) + 1
        if count > SHRINKS * len(weights):
            break
        levels.append((nets, pins, weights, group))
        weights = np.bincount(group, weights, minlength=count).astype(np.int64)
        pins = contracted(pins, group, count)
        nets = transposed(pins, count)
    best, fewest = np.zeros(len(weights), np.int64), (math.inf, math.inf)
    for first in chance.integers(len(weights), size=GROWINGS if len(weights) else 0).tolist():
        side = grown(nets, pins, weights, first, least)
        cut = refined(nets, pins, weights, side, limits)
        over = int(np.maximum(np.bincount(side, weights, minlength=2) - limits, 0).sum())
        if (over, cut) < fewest:
            best, fewest = side, (over, cut)
    for nets, pins, weights, group in reversed(levels):
        best = best[group]
        refined(nets, pins, weights, best, limits)
    return best
