"""TicTac: the order in which a graph of operations should receive its inputs (Hashemi et al., MLSys 2019).

For each outstanding receive r

    M   its transfer time
    P   the time of the operations that wait for r only
    M+  the least sum of transfer times of an operation that waits for r and others

a goes before b if min(P_b, M_a) < min(P_a, M_b); of equals the one with the smaller M+. This relation is not
transitive: the best receive is searched for again whenever one has arrived. That is TAC. TIC uses no times: it sorts
all receives by M+ alone, counted in receives.
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
    """The operations of a graph, each with all the receives that it waits for, also through other operations.

    Raises:
        ValueError: an operation waits for a name that is neither an operation nor a receive, or for itself.
    """
    found: dict[Hashable, frozenset[Hashable]] = {name: frozenset({name}) for name in transfer_s}
    left = dict(graph)
    for name, operation in graph.items():
        if unknown := operation.needs - graph.keys() - transfer_s.keys():
            raise ValueError(f"operation {name!r} waits for {sorted(map(str, unknown))}, which do not exist")
    while left:
        ready = [name for name, operation in left.items() if operation.needs <= found.keys()]
        if not ready:
            raise ValueError(f"the operations {sorted(map(str, left))} wait for each other")
        for name in ready:
            found[name] = frozenset().union(*(found[need] for need in left.pop(name).needs))
    return [Operation(operation.seconds, found[name]) for name, operation in graph.items()]


def weights(operations: Iterable[Operation], outstanding_s: Mapping[Name, float]) -> dict[Name, Weight]:
    """The measures of each outstanding receive. `operations` name all the receives that they wait for."""
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
    """Whether `one` goes before `other`."""
    first, second = min(other.unlocked_s, one.transfer_s), min(one.unlocked_s, other.transfer_s)
    return first < second or (first == second and one.impending_s < other.impending_s)


def least(operations: Iterable[Operation], outstanding_s: Mapping[Name, float]) -> Name:
    """The receive that goes next; of equals the first of `outstanding_s`, which is not empty."""
    found = weights(operations, outstanding_s)
    names = iter(found)
    best = next(names)
    for name in names:
        if before(found[name], found[best]):
            best = name
    return best


def tac(graph: Mapping[Hashable, Operation], transfer_s: Mapping[Name, float]) -> list[Name]:
    """All receives of a graph, in TAC's order.

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
    """All receives of a graph, in TIC's order; equals in the order of `names`.

    Raises:
        ValueError: an invalid graph; see `receives`.
    """
    outstanding = dict.fromkeys(names, 1.0)
    found = weights(receives(graph, outstanding), outstanding)
    return sorted(found, key=lambda name: found[name].impending_s)
