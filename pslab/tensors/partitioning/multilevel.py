"""Recursive multilevel bisection of rows, in loops that numba compiles.

Similar vertices are merged until few are left. The merged vertices are divided into two sides, and the division is
refined while the merges are undone.

A hypergraph has rows as vertices and keys as nets. `nets` are the nets of each vertex, `pins` the vertices of each
net, both as (starts, items); every net has at least two pins. A net is cut if it has pins on both sides.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pslab.tensors.sparse import SparseRows

Array = NDArray[Any]
Lists = tuple[Array, Array]  # (starts, items)

LARGE_NET = 500  # pins; larger nets are skipped: they show little about similar vertices, and take long
PASSES = 8  # of a refinement, at most
PATIENCE = 50  # a pass ends after this many moves without a gain, plus a twentieth of the vertices
COARSE = 150  # coarsening ends at this number of vertices
SHRINKS = 0.95  # or if merging leaves more than this share of the vertices
GROWINGS = 8  # first divisions that are tried
HEAVIEST = 8  # the largest weight of a merged vertex, in multiples of a coarsest vertex's mean weight


def halved(rows: SparseRows, weights: Array, workers: int, most: int, chance: np.random.Generator) -> Array:
    """Return the worker of each row (int64 [rows]), such that workers share few keys.

    A worker's weight may slightly exceed `most`.
    """
    parts, weights = np.zeros(len(rows), np.int64), weights.astype(np.int64)
    pins = contracted((rows.holders[0].astype(np.int64), rows.holders[1].astype(np.int64)), np.arange(len(rows)),
                      len(rows))  # fmt: skip
    _halve(pins, weights, np.arange(len(rows)), 0, workers, most, parts, chance)
    return parts


def _halve(
    pins: Lists, weights: Array, vertices: Array, first: int, workers: int, most: int, parts: Array,
    chance: np.random.Generator,
) -> None:  # fmt: skip
    """Split these vertices among `workers` workers, numbered from `first`, and write the result to `parts`."""
    if workers == 1:
        parts[vertices] = first
        return
    left, total = workers // 2, int(weights.sum())
    # each of the bisections gets a share of the slack (Schlag et al., ALENEX 2016)
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
    """Divide the vertices into sides 0 and 1, with weights up to `limits`; return the side of each vertex."""
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


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def transposed(lists: Lists, count: int) -> Lists:
    """Return, for each of `count` items, the increasing numbers of the lists that contain the item."""
    starts, items = lists
    begins = np.zeros(count + 1, np.int64)
    for item in items:
        begins[item + 1] += 1
    begins = np.cumsum(begins)
    at, holders = begins[:-1].copy(), np.empty(len(items), np.int64)
    for number in range(len(starts) - 1):
        for pin in range(starts[number], starts[number + 1]):
            holders[at[items[pin]]] = number
            at[items[pin]] += 1
    return begins, holders


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def matched(nets: Lists, pins: Lists, weights: Array, order: Array, heaviest: int) -> Array:
    """Pair vertices that share many nets; return the number of each vertex's group, a pair or the vertex alone.

    A shared net of d pins adds 1/(d - 1) to the rating of a pair. The rating is divided by the geometric mean of the
    two weights, and no pair is heavier than `heaviest`.
    """
    pair, next_pair = np.full(len(weights), -1, np.int64), 0
    rating, met = np.zeros(len(weights)), np.empty(len(weights), np.int64)
    for vertex in order:
        if pair[vertex] >= 0:
            continue
        count = 0
        for at in range(nets[0][vertex], nets[0][vertex + 1]):
            first, end = pins[0][nets[1][at]], pins[0][nets[1][at] + 1]
            if end - first > LARGE_NET:
                continue
            for pin in range(first, end):
                other = pins[1][pin]
                if pair[other] < 0 and other != vertex:
                    if rating[other] == 0:
                        met[count] = other
                        count += 1
                    rating[other] += 1 / (end - first - 1)
        best, highest = -1, 0.0
        for other in met[:count]:
            rated = rating[other] / np.sqrt(weights[vertex] * weights[other])
            rating[other] = 0
            if rated > highest and weights[vertex] + weights[other] <= heaviest:
                best, highest = other, rated
        pair[vertex] = next_pair
        if best >= 0:
            pair[best] = next_pair
        next_pair += 1
    return pair


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def contracted(pins: Lists, group: Array, groups: int) -> Lists:
    """Return the pins of the nets after each group of vertices is merged into one vertex.

    Vertices with a negative group are dropped, and so are nets with pins in fewer than two groups.
    """
    starts, items = np.zeros(len(pins[0]), np.int64), np.empty(len(pins[1]), np.int64)
    seen = np.full(groups, -1, np.int64)
    nets = end = 0
    for net in range(len(pins[0]) - 1):
        first = end
        for pin in range(pins[0][net], pins[0][net + 1]):
            member = group[pins[1][pin]]
            if member >= 0 and seen[member] != net:
                seen[member] = net
                items[end] = member
                end += 1
        if end - first < 2:
            end = first
            continue
        nets += 1
        starts[nets] = end
    return starts[: nets + 1].copy(), items[:end].copy()


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def grown(nets: Lists, pins: Lists, weights: Array, first: int, least: int) -> Array:
    """Grow side 1 from vertex `first` until its weight reaches `least`; return the side of each vertex.

    Each step adds the vertex that cuts the fewest additional nets.
    """
    side = np.zeros(len(weights), np.int64)
    counts, gains = _counted(nets, pins, side)
    unused = [(np.int64(0), np.int64(0))]
    load, vertex = 0, first
    while True:
        _move(nets, pins, side, counts, gains, vertex, unused, unused)
        load += weights[vertex]
        if load >= least:
            return side
        vertex = -1
        for other in range(len(weights)):
            if side[other] == 0 and (vertex < 0 or gains[other] > gains[vertex]):
                vertex = other
        if vertex < 0:
            return side
        unused.clear()


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def refined(nets: Lists, pins: Lists, weights: Array, side: Array, limits: Array) -> int:
    """Move vertices between the sides, in place, to cut fewer nets; return the number of nets that are cut.

    A side heavier than its limit first loses vertices. In a pass each vertex moves at most once, and the moves after
    the best state are undone.

    Source: Fiduccia and Mattheyses (DAC 1982)
    """
    size = len(weights)
    load = np.zeros(2, np.int64)
    for vertex in range(size):
        load[side[vertex]] += weights[vertex]
    counts, gains = _counted(nets, pins, side)
    for _ in range(PASSES):
        from_0, from_1 = [(np.int64(0), np.int64(0))], [(np.int64(0), np.int64(0))]
        from_0.clear()
        from_1.clear()
        for vertex in range(size):
            heappush(from_1 if side[vertex] else from_0, (-gains[vertex], np.int64(vertex)))
        locked, moves = np.zeros(size, np.bool_), np.empty(size, np.int64)
        count = best_count = gained = best = 0
        least_over = max(0, load[0] - limits[0]) + max(0, load[1] - limits[1])
        begun_over = least_over
        while count - best_count < PATIENCE + size // 20:
            zero = _next(from_0, 0, side, gains, locked, weights, load[1], limits[1])
            one = _next(from_1, 1, side, gains, locked, weights, load[0], limits[0])
            if load[0] > limits[0]:
                vertex = zero
            elif load[1] > limits[1] or zero < 0 or (one >= 0 and gains[one] > gains[zero]):
                vertex = one
            else:
                vertex = zero
            if vertex < 0:
                break
            here = side[vertex]
            gained += gains[vertex]
            load[here] -= weights[vertex]
            load[1 - here] += weights[vertex]
            locked[vertex] = True
            _move(nets, pins, side, counts, gains, vertex, from_0, from_1)
            moves[count] = vertex
            count += 1
            over = max(0, load[0] - limits[0]) + max(0, load[1] - limits[1])
            if over < least_over or (over == least_over and gained > best):
                least_over, best, best_count = over, gained, count
        from_0.clear()
        from_1.clear()
        for at in range(count - 1, best_count - 1, -1):  # undo the moves after the best state
            vertex = moves[at]
            load[side[vertex]] -= weights[vertex]
            load[1 - side[vertex]] += weights[vertex]
            _move(nets, pins, side, counts, gains, vertex, from_0, from_1)
            from_0.clear()
            from_1.clear()
        if best <= 0 and least_over == begun_over:
            break
    cut = 0
    for net in range(len(counts)):
        cut += counts[net, 0] > 0 and counts[net, 1] > 0
    return cut


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _counted(nets: Lists, pins: Lists, side: Array) -> tuple[Array, Array]:
    """Return the number of each net's pins on each side, and each vertex's gain: how many fewer nets its move cuts."""
    counts = np.zeros((len(pins[0]) - 1, 2), np.int64)
    for net in range(len(counts)):
        for pin in range(pins[0][net], pins[0][net + 1]):
            counts[net, side[pins[1][pin]]] += 1
    gains = np.zeros(len(side), np.int64)
    for vertex in range(len(side)):
        for at in range(nets[0][vertex], nets[0][vertex + 1]):
            of_net = counts[nets[1][at]]
            gains[vertex] += (of_net[side[vertex]] == 1) - (of_net[1 - side[vertex]] == 0)
    return counts, gains


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _next(heap: Any, here: int, side: Array, gains: Array, locked: Array, weights: Array, load: int, limit: int) -> int:
    """Return the vertex with the largest gain that can leave side `here`, or -1; drop the heap entries before it."""
    while len(heap):
        gain, vertex = heap[0]
        if not locked[vertex] and side[vertex] == here and -gain == gains[vertex] and load + weights[vertex] <= limit:
            return int(vertex)
        heappop(heap)
    return -1


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _move(
    nets: Lists, pins: Lists, side: Array, counts: Array, gains: Array, vertex: int, from_0: Any, from_1: Any
) -> None:
    """Move a vertex to the other side, update the gains, and push each vertex with a new gain to its side's heap."""
    here = side[vertex]
    there = 1 - here
    side[vertex] = there
    gains[vertex] = -gains[vertex]
    for at in range(nets[0][vertex], nets[0][vertex + 1]):
        net = nets[1][at]
        of_net = counts[net]
        for which, change in ((there, 1), (here, -1)):
            if which == here:
                of_net[here] -= 1
                of_net[there] += 1
            # gains change only if the net has at most one pin there before the move, or here after the move
            left = of_net[which]
            if left > 1:
                continue
            for pin in range(pins[0][net], pins[0][net + 1]):
                other = pins[1][pin]
                if other == vertex or (left == 1 and side[other] != which):
                    continue
                gains[other] += change if left == 0 else -change
                heappush(from_1 if side[other] else from_0, (-gains[other], np.int64(other)))
                if left == 1:
                    break
