"""partition(rows, workers, rule): the assignment of rows to workers.

Every rule assigns each row to one worker. A row's weight is its number of entries, to which computing time is
proportional, or 1 if rows are balanced. With two-step and multilevel no worker's weight exceeds `capacity`; with the
other rules it may.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pslab.errors import ConfigError, nearest
from pslab.tensors.partitioning.multilevel import halved
from pslab.tensors.random_streams import numpy_generator
from pslab.tensors.sparse import SparseRows

Array = NDArray[Any]
BALANCES = ("entries", "rows")
PASSES = 50  # limit of passes over all rows; usually moves end long before
TRIES = 100_000  # limit of assignments in the search for a partition within the capacity


class Problem(NamedTuple):
    """The rows to divide among workers, and the limits of a partition."""

    rows: SparseRows
    weights: Array  #: int64 [rows]
    workers: int
    epsilon: float
    most: int  #: the largest weight that one worker may have
    seed: int


def partition(
    rows: SparseRows, workers: int, rule: str = "multilevel", *, epsilon: float = 0.03, balance: str = "entries",
    seed: int = 0,
) -> Array:  # fmt: skip
    """Return the worker of each row: int64 [rows].

    Args:
        rule: one of RULES. The rule parsa always balances rows.
        epsilon: the share by which a worker's weight may exceed an equal share.
        balance: the quantity that is balanced: entries, to which computing time is proportional, or rows.

    Raises:
        ConfigError: an unknown rule or balance, no workers, more workers than rows, an epsilon outside of 0 to 1, or a
            row heavier than the capacity.
    """
    if rule not in RULES:
        raise ConfigError("partition", rule, f"there is no such rule; {nearest(rule, RULES)}")
    if balance not in BALANCES:
        raise ConfigError("balance", balance, f"there is no such balance; {nearest(balance, BALANCES)}")
    if not 1 <= workers <= len(rows):
        raise ConfigError("workers", workers, f"must be from 1 to the number of rows, {len(rows)}")
    if not 0 <= epsilon <= 1:
        raise ConfigError("epsilon", epsilon, "must be from 0 to 1, such as 0.03")
    weights = rows.entries_of if balance == "entries" else np.ones(len(rows), np.int64)
    most = capacity(weights, workers, epsilon)
    return RULES[rule](Problem(rows, weights, workers, epsilon, most, seed))


def capacity(weights: Array, workers: int, epsilon: float) -> int:
    """Return the largest weight of one worker: (1 + ε) times an equal share; the share is rounded up, the product down.

    Raises:
        ConfigError: a single row is heavier.
    """
    most = int((1 + epsilon) * -(-int(weights.sum()) // workers))
    if len(weights) and weights.max() > most:
        problem = f"a row has {weights.max()} entries, but a worker may have only {most}: use fewer workers"
        raise ConfigError("workers", workers, problem)
    return most


# --- rules ------------------------------------------------------------------------------------------------------------


def at_random(problem: Problem) -> Array:
    """Assign rows in random order, each to the worker with the least weight so far: the baseline of other rules."""
    weights, workers = problem.weights, problem.workers
    order = numpy_generator(problem.seed, "partition", "random").permutation(len(weights))
    parts, load = np.empty(len(weights), np.int64), np.zeros(workers, np.int64)
    for row in order.tolist():
        parts[row] = worker = int(load.argmin())
        load[worker] += weights[row]
    return parts


def two_step(problem: Problem) -> Array:
    """Apply the two-step heuristic's first step: move rows one by one, from contiguous blocks, to the best worker.

    Rows are visited in random order, in at most 50 passes, until no row moves. A row moves to the worker that reduces
    Σ(λ - 1) most (λ: the number of workers that use a key), if that worker's load stays at or below `most`. If no move
    reduces the sum, a row may move without changing it if the two loads become more equal. If a load still exceeds
    `most`, `relieve` moves rows, and the passes are repeated. The second step is `placement`.

    Source: Duan, Wang and Wu. They stream rows, each to the worker with the fewest new keys. This project starts from
    contiguous blocks instead, because streaming gains nothing if one key is in all rows.
    """
    weights, workers = problem.weights, problem.workers
    order = numpy_generator(problem.seed, "partition", "moves").permutation(len(problem.rows))
    middle = np.cumsum(weights) - weights / 2
    blocks = np.minimum((middle * workers / max(int(weights.sum()), 1)).astype(np.int64), workers - 1)
    parts = moved(problem, blocks, order)
    return moved(problem, parts, order) if relieve(problem, parts) else parts


def multilevel(problem: Problem) -> Array:
    """Merge similar rows, bisect them recursively, refine while the merges are undone, and move single rows.

    Source: Duan, Wang and Wu; Karypis et al. (IEEE TVLSI 1999, hMETIS); Catalyurek and Aykanat (IEEE TPDS 1999, PaToH).
    """
    chance = numpy_generator(problem.seed, "partition", "multilevel")
    parts = halved(problem.rows, problem.weights, problem.workers, problem.most, chance)
    relieve(problem, parts)
    return moved(problem, parts, chance.permutation(len(problem.rows)))


def parsa(problem: Problem) -> Array:
    """Give each worker in turn the row with the fewest keys that the worker does not have yet; of equal rows the first.

    Workers get equally many rows, regardless of the rows' weights. There is one pass; the published code has warm-up
    passes before it.

    Source: Li et al. (KDD workshop 2015, "Parsa").
    """
    rows, workers = problem.rows, problem.workers
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


RULES: dict[str, Callable[[Problem], Array]] = {
    "random": at_random, "two-step": two_step, "parsa": parsa, "multilevel": multilevel,
}  # fmt: skip


# --- moves ------------------------------------------------------------------------------------------------------------


def relieve(problem: Problem, parts: Array) -> bool:
    """Bring every worker within its capacity, in place; return whether any row moved.

    The lightest rows of an overloaded worker go to the least loaded workers. If that does not suffice, all rows are
    assigned again, regardless of their keys.

    Raises:
        ConfigError: no partition within the capacity was found.
    """
    weights, workers, most = problem.weights, problem.workers, problem.most
    load = np.bincount(parts, weights, minlength=workers).astype(np.int64)
    if load.max() <= most:
        return False
    for worker in np.flatnonzero(load > most).tolist():
        rows = np.flatnonzero(parts == worker)
        for row in rows[np.argsort(weights[rows], kind="stable")].tolist():
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
    """Search for a partition within the capacity by backtracking; return the worker of each row."""
    # each row, the heaviest first, goes to the fullest worker with enough capacity left; else the last choice is undone
    order = np.argsort(-weights, kind="stable").tolist()
    load, parts = [0] * workers, np.empty(len(weights), np.int64)
    choices: list[list[int]] = []  # for each assigned row: workers still to be tried, the next one last
    for _ in range(TRIES + len(order)):
        if len(choices) == len(order):
            return parts
        weight = int(weights[order[len(choices)]])
        fits = {load[worker]: worker for worker in range(workers) if load[worker] + weight <= most}  # one per load
        choices.append([fits[total] for total in sorted(fits)])
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
    problem = f"no partition with a weight of at most {most} per worker was found: set a larger epsilon, such as 0.1"
    raise ConfigError("workers", workers, f"{problem}, use fewer workers, or set rule='random'")


def moved(problem: Problem, parts: Array, order: Array) -> Array:
    """Return a copy of the partition after the moves that `two_step` describes, with rows visited in `order`."""
    rows, weights, workers = problem.rows, problem.weights.astype(np.int64), problem.workers
    parts = parts.astype(np.int64)  # a copy
    counts = np.zeros((rows.key_count, workers), np.int32)
    np.add.at(counts, (rows.keys, parts[rows.row_of]), 1)
    load = np.bincount(parts, weights, minlength=workers).astype(np.int64)
    for _ in range(PASSES):
        if not _move_all(rows.starts, rows.keys, weights, parts, counts, load, problem.most, order):
            break
    return parts


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _move_all(
    starts: Array, keys: Array, weights: Array, parts: Array, counts: Array, load: Array, most: int, order: Array
) -> int:
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
