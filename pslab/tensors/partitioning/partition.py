"""partition(rows, workers, rule): which worker holds which rows.

Every rule gives each row to one worker. A row weighs its entries, unless rows are to be balanced, since the entries are
what a worker computes. By two-step and by levels no worker holds more than `capacity` of the weight; the other rules
balance as well as they can.
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
PASSES = 50  # over all rows; moves end long before
TRIES = 100_000  # rows that are put to a worker in the search for a partition within the capacity


class Problem(NamedTuple):
    """The rows that a rule divides among workers, and the limits that it keeps to."""

    rows: SparseRows
    weights: Array  #: int64 [rows]
    workers: int
    epsilon: float
    most: int  #: the weight that one worker may hold
    seed: int


def partition(
    rows: SparseRows, workers: int, rule: str = "multilevel", *, epsilon: float = 0.03, balance: str = "entries",
    seed: int = 0,
) -> Array:  # fmt: skip
    """Return the worker of each row: int64 [rows].

    Args:
        rule: one of RULES. Parsa's always balances rows.
        epsilon: by how much more than an equal share a worker may hold.
        balance: the number that is equal at all workers: entries, by which computing time grows, or rows.

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
    most = capacity(weights, workers, epsilon)
    return RULES[rule](Problem(rows, weights, workers, epsilon, most, seed))


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


# --- rules ------------------------------------------------------------------------------------------------------------


def at_random(problem: Problem) -> Array:
    """Rows in random order, each to the worker with the least so far: what no partitioner is."""
    weights, workers = problem.weights, problem.workers
    order = numpy_generator(problem.seed, "partition", "random").permutation(len(weights))
    parts, load = np.empty(len(weights), np.int64), np.zeros(workers, np.int64)
    for row in order.tolist():
        parts[row] = worker = int(load.argmin())
        load[worker] += weights[row]
    return parts


def two_step(problem: Problem) -> Array:
    """The two-step heuristic's first step: rows move from contiguous blocks, one by one, to where they save most.

    Rows are visited in random order until none moves. Each goes to the worker below `most` with the largest gain in
    Σ(λ - 1), or with none if that makes the two loads more equal. The second step is `placement`.

    Source: Duan, Wang and Wu; that it starts from contiguous blocks, and moves, is this project's: streaming rows onto
    the worker with the fewest new keys gains nothing where one key is in all rows.
    """
    weights, workers = problem.weights, problem.workers
    order = numpy_generator(problem.seed, "partition", "moves").permutation(len(problem.rows))
    middle = np.cumsum(weights) - weights / 2
    blocks = np.minimum((middle * workers / max(int(weights.sum()), 1)).astype(np.int64), workers - 1)
    parts = moved(problem, blocks, order)
    return moved(problem, parts, order) if relieve(problem, parts) else parts


def multilevel(problem: Problem) -> Array:
    """Partition rows by levels: coarsen, partition the small graph, refine on the way back; by halves, then by moves.

    Source: Duan, Wang and Wu; Karypis et al. (IEEE TVLSI 1999, hMETIS); Catalyurek and Aykanat (IEEE TPDS 1999, PaToH).
    """
    chance = numpy_generator(problem.seed, "partition", "multilevel")
    parts = halved(problem.rows, problem.weights, problem.workers, problem.most, chance)
    relieve(problem, parts)
    return moved(problem, parts, chance.permutation(len(problem.rows)))


def parsa(problem: Problem) -> Array:
    """Give each worker in turn the row that adds the fewest keys to its own; of several rows the first.

    Workers hold equally many rows, light or heavy. One pass, without the published code's warm-up passes.

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

    The lightest rows of a worker that holds too much go to the workers that hold the least. Where that does not
    suffice, all rows are distributed anew without regard to their keys.

    Raises:
        ConfigError: no such partition was found.
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
    problem = f"no partition was found in which each of {workers} workers holds at most {most}: allow a larger epsilon"
    raise ConfigError("workers", workers, f"{problem}, use fewer workers, or rule='random'")


def moved(problem: Problem, parts: Array, order: Array) -> Array:
    """The partition that `two_step` makes of another one, with rows visited in this order."""
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
    """Visit every row once; return how many moved."""
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
