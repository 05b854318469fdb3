"""TicTac: the order in which a graph of operations should receive its inputs (Hashemi et al., MLSys 2019).

For each outstanding receive r

    M   its transfer time
    P   the time of the operations that wait for r only
    M+  the least sum of transfer times of an operation that waits for r and others

a comes before b if min(P_b, M_a) < min(P_a, M_b); among equals the one with the smaller M+ comes first. This relation
is not transitive, so TAC searches for the best receive again whenever one has arrived. TIC uses no times: it sorts all
receives by M+ alone, counted in receives.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple, TypeVar

Name = TypeVar("Name", bound=Hashable)


class Operation(NamedTuple):
    """A computation: its time in seconds, and the names of the operations and receives that it waits for."""

    seconds: float
    needs: frozenset[Hashable]


class Weight(NamedTuple):
    """The measures by which receives are compared."""

    transfer_s: float  #: M
    unlocked_s: float  #: P
    impending_s: float  #: M+


def receives(graph: Mapping[Hashable, Operation], transfer_s: Mapping[Name, float]) -> list[Operation]:
    """Return the operations of a graph, each with all receives for which it waits, directly or by other operations.

    Raises:
        ValueError: an operation waits for a name that is neither an operation nor a receive, or for itself.
    """
    needed: dict[Hashable, frozenset[Hashable]] = {name: frozenset({name}) for name in transfer_s}
    left = dict(graph)
    for name, operation in graph.items():
        if unknown := operation.needs - graph.keys() - transfer_s.keys():
            raise ValueError(f"operation {name!r} waits for {sorted(map(str, unknown))}, which the graph lacks")
    while left:
        ready = [name for name, operation in left.items() if operation.needs <= needed.keys()]
        if not ready:
            raise ValueError(f"the operations {sorted(map(str, left))} wait for each other: a graph must have no cycle")
        for name in ready:
            needed[name] = frozenset().union(*(needed[need] for need in left.pop(name).needs))
    return [Operation(operation.seconds, needed[name]) for name, operation in graph.items()]


def weights(operations: Iterable[Operation], outstanding_s: Mapping[Name, float]) -> dict[Name, Weight]:
    """Return the measures of each outstanding receive. Each operation names all receives for which it waits."""
    unlocked_s, impending_s = dict.fromkeys(outstanding_s, 0.0), dict.fromkeys(outstanding_s, math.inf)
    for operation in operations:
        missing = [name for name in outstanding_s if name in operation.needs]
        if len(missing) == 1:
            unlocked_s[missing[0]] += operation.seconds
            continue
        load_s = sum(outstanding_s[name] for name in missing)
        for name in missing:
            impending_s[name] = min(impending_s[name], load_s)
    return {name: Weight(size_s, unlocked_s[name], impending_s[name]) for name, size_s in outstanding_s.items()}


def before(one: Weight, other: Weight) -> bool:
    """Whether a receive with the measures `one` comes before a receive with the measures `other`."""
    first, second = min(other.unlocked_s, one.transfer_s), min(one.unlocked_s, other.transfer_s)
    return first < second or (first == second and one.impending_s < other.impending_s)


def least(operations: Iterable[Operation], outstanding_s: Mapping[Name, float]) -> Name:
    """Return the receive to request next; on a tie the first one in `outstanding_s`, which is not empty."""
    measures = weights(operations, outstanding_s)
    names = iter(measures)
    best = next(names)
    for name in names:
        if before(measures[name], measures[best]):
            best = name
    return best


def tac(graph: Mapping[Hashable, Operation], transfer_s: Mapping[Name, float]) -> list[Name]:
    """Return all receives of a graph in TAC's order.

    Raises:
        ValueError: an invalid graph; see `receives`.
    """
    operations, outstanding_s = receives(graph, transfer_s), dict(transfer_s)
    order = []
    while outstanding_s:
        order.append(least(operations, outstanding_s))
        del outstanding_s[order[-1]]
    return order


def tic(graph: Mapping[Hashable, Operation], names: Iterable[Name]) -> list[Name]:
    """Return all receives of a graph in TIC's order; on a tie in the order of `names`.

    Raises:
        ValueError: an invalid graph; see `receives`.
    """
    outstanding = dict.fromkeys(names, 1.0)
    measures = weights(receives(graph, outstanding), outstanding)
    return sorted(measures, key=lambda name: measures[name].impending_s)
