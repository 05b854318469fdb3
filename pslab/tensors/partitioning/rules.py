"""Partitions of rows among workers: at random, in blocks, by moves, and greedily. Multilevel: a page of its own.

Every rule gives each row to one worker. A row weighs its entries, unless rows are to be balanced, since the entries are
what a worker computes. By moves and by levels no worker holds more than `capacity` of the weight; the other rules
balance as well as they can.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pslab.errors import ConfigError
from pslab.tensors.random_streams import numpy_generator
from pslab.tensors.sparse.rows import SparseRows

Array = NDArray[Any]
PASSES = 50  # over all rows; moves end long before
TRIES = 100_000  # rows that are put to a worker in the search for a partition within the capacity


def capacity(weights: Array, workers: int, epsilon: float) -> int:
    """The most that one worker may hold: ε above an equal share, rounded up before and down after.

    Raises:
        ConfigError: a row is heavier.
    """
    most = int((1 + epsilon) * -(-int(weights.sum()) // workers))
    if len(weights) and weights.max() > most:
        problem = f"a row weighs {weights.max()}, more than the {most} that a worker may hold: use fewer workers"
        raise ConfigError("workers", workers, problem)
    return most


def at_random(weights: Array, workers: int, seed: int) -> Array:
    """Rows in random order, each to the worker with the least so far: what no partitioner is."""
    order = numpy_generator(seed, "partition", "random").permutation(len(weights))
    parts, load = np.empty(len(weights), np.int64), np.zeros(workers, np.int64)
    for row in order.tolist():
        parts[row] = worker = int(load.argmin())
        load[worker] += weights[row]
    return parts


def in_blocks(weights: Array, workers: int) -> Array:
    """Contiguous blocks of equal weight: what costs nothing, and is good where neighbours are alike."""
    middle = np.cumsum(weights) - weights / 2
    return np.minimum((middle * workers / max(int(weights.sum()), 1)).astype(np.int64), workers - 1)


def by_moves(rows: SparseRows, parts: Array, weights: Array, workers: int, most: int, seed: int) -> Array:
    """The two-step heuristic's first step: rows move, one by one, to where they save the most traffic.

    Rows are visited in random order until none moves. Each goes to the worker below `most` with the largest gain in
    Σ(λ - 1), or with none if that makes the two loads more equal.

    Source: Duan, Wang and Wu; that it starts from contiguous blocks, and moves, is this project's: streaming rows onto
    the worker with the fewest new keys gains nothing where one key is in all rows.
    """
    order = numpy_generator(seed, "partition", "moves").permutation(len(rows))
    parts = moved(rows, parts, weights, workers, most, order)
    if not relieve(parts, weights, workers, most):
        return parts
    return moved(rows, parts, weights, workers, most, order)


def relieve(parts: Array, weights: Array, workers: int, most: int) -> bool:
    """Bring every worker within its capacity, in place; whether there was anything to do.

    The lightest rows of a worker that holds too much go to those that hold the least. Where that does not suffice, all
    rows are put anew, whatever their keys.

    Raises:
        ConfigError: no such partition was found.
    """
    load = np.bincount(parts, weights, minlength=workers).astype(np.int64)
    if load.max() <= most:
        return False
    for worker in np.flatnonzero(load > most).tolist():
        own = np.flatnonzero(parts == worker)
        for row in own[np.argsort(weights[own], kind="stable")].tolist():
            other = int(load.argmin())
            if load[worker] <= most or load[other] + weights[row] > most:
                break
            parts[row] = other
            load[worker] -= weights[row]
            load[other] += weights[row]
    if load.max() > most:
        parts[:] = _packed(weights, workers, most)
    return True


def _packed(weights: Array, workers: int, most: int) -> Array:
    """A partition within the capacity: the heaviest row first, to the fullest worker that can take it; where a row fits
    nowhere, the last choice is taken back."""
    order = np.argsort(-weights, kind="stable").tolist()
    load, parts = [0] * workers, np.empty(len(weights), np.int64)
    choices: list[list[int]] = []  # of each row that was put: the workers that are still to be tried, the next one last
    for _ in range(TRIES + len(order)):
        if len(choices) == len(order):
            return parts
        weight = int(weights[order[len(choices)]])
        fits = {load[worker]: worker for worker in range(workers) if load[worker] + weight <= most}  # equal ones once
        choices.append([fits[held] for held in sorted(fits)])
        while choices and not choices[-1]:
            choices.pop()
            if choices:
                row = order[len(choices) - 1]
                load[parts[row]] -= int(weights[row])
        if not choices:
            break
        row = order[len(choices) - 1]
        parts[row] = worker = choices[-1].pop()
        load[worker] += int(weights[row])
    problem = f"no partition was found in which each of {workers} workers holds at most {most}: allow a larger epsilon"
    raise ConfigError("workers", workers, f"{problem}, use fewer workers, or rule='random'")


def moved(rows: SparseRows, parts: Array, weights: Array, workers: int, most: int, order: Array) -> Array:
    """`by_moves`, with rows visited in this order."""
    parts = parts.astype(np.int64)  # a copy
    counts = np.zeros((rows.key_count, workers), np.int32)
    np.add.at(counts, (rows.keys, parts[rows.row_of]), 1)
    load = np.bincount(parts, weights, minlength=workers).astype(np.int64)
    for _ in range(PASSES):
        if not _move_all(rows.starts, rows.keys, weights.astype(np.int64), parts, counts, load, most, order):
            break
    return parts


def parsa(rows: SparseRows, workers: int) -> Array:
    """Greedily, worker by worker in turn, the row that adds the fewest keys to those that it has; the first of these.

    Workers hold equally many rows, whatever these weigh. One pass, without the published code's warm-up passes.

    Source: Li et al. (KDD workshop 2015, "Parsa").
    """
    parts = np.full(len(rows), -1, np.int64)
    cost = np.repeat(rows.entries_of[None, :].astype(np.int32), workers, axis=0)
    known = np.zeros((workers, rows.key_count), bool)
    starts, holders = rows.holders
    for turn in range(len(rows)):
        worker = turn % workers
        row = int(cost[worker].argmin())
        parts[row] = worker
        cost[:, row] = np.iinfo(np.int32).max
        keys = rows.keys[rows.starts[row] : rows.starts[row + 1]]
        for key in keys[~known[worker, keys]].tolist():
            others = holders[starts[key] : starts[key + 1]]
            cost[worker, others[parts[others] < 0]] -= 1
        known[worker, keys] = True
    return parts


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _move_all(
    starts: Array, keys: Array, weights: Array, parts: Array, counts: Array, load: Array, most: int, order: Array
) -> int:
    """One visit of every row; how many have moved."""
    moves, workers = 0, load.shape[0]
    cost = np.zeros(workers, np.int64)
    for row in order:
        here, gain = parts[row], 0
        cost[:] = 0
        for at in range(starts[row], starts[row + 1]):
            of_key = counts[keys[at]]
            gain += of_key[here] == 1
            for there in range(workers):
                cost[there] += of_key[there] == 0
        best, largest = -1, 0
        for there in range(workers):
            if there == here or load[there] + weights[row] > most:
                continue
            evens = load[there] + weights[row] < load[here]
            if gain - cost[there] > largest or (best < 0 and evens and gain == cost[there]):
                best, largest = there, gain - cost[there]
        if best < 0:
            continue
        for at in range(starts[row], starts[row + 1]):
            counts[keys[at], here] -= 1
            counts[keys[at], best] += 1
        load[here] -= weights[row]
        load[best] += weights[row]
        parts[row] = best
        moves += 1
    return moves
