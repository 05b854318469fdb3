"""TIC and TAC on graphs of operations."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import pytest

from pslab.policies.planning.tictac import Operation, Weight, before, receives, tac, tic, weights


def operation(seconds: float, *needs: Hashable) -> Operation:
    return Operation(seconds, frozenset(needs))


GRAPH = {"c1": operation(3, "r1"), "c2": operation(1, "r2"), "c3": operation(1, "c1", "c2", "r1", "r2")}
TRANSFER_S = {"r1": 1.0, "r2": 2.0}


def makespan(graph: Mapping[str, Operation], transfer_s: Mapping[str, float], order: Sequence[str]) -> float:
    """When all is done: receives one after another, and on one processor ready operations in their order."""
    done_s: dict[Hashable, float] = {}
    now = 0.0
    for name in order:
        done_s[name] = now = now + transfer_s[name]
    left, now = dict(graph), 0.0
    while left:
        ready_s = {name: max(done_s.get(need, float("inf")) for need in each.needs) for name, each in left.items()}
        name = min(left, key=lambda name: max(now, ready_s[name]))
        done_s[name] = now = max(now, ready_s[name]) + left.pop(name).seconds
    return now


def test_published_measures_and_the_order_with_the_smaller_makespan():
    found = weights(receives(GRAPH, TRANSFER_S), TRANSFER_S)
    assert found == {"r1": Weight(1, 3, 3), "r2": Weight(2, 1, 3)}
    assert before(found["r1"], found["r2"])
    assert not before(found["r2"], found["r1"])
    assert tac(GRAPH, TRANSFER_S) == ["r1", "r2"]
    assert makespan(GRAPH, TRANSFER_S, ["r1", "r2"]) == 6
    assert makespan(GRAPH, TRANSFER_S, ["r2", "r1"]) == 7


def test_measures_change_with_each_receive():
    """After r3 only r1 is missing for c2, whose time then counts for r1; before, it counted for no receive."""
    graph = {"c1": operation(1, "r3"), "c2": operation(9, "r1", "r3"), "c3": operation(2, "r2")}
    transfer_s = {"r1": 4.0, "r2": 4.0, "r3": 0.5}
    operations = receives(graph, transfer_s)
    assert weights(operations, transfer_s)["r1"].unlocked_s == 0
    assert weights(operations, {"r1": 4.0, "r2": 4.0})["r1"].unlocked_s == 9
    assert tac(graph, transfer_s) == ["r3", "r1", "r2"]


def test_tic_sends_the_smallest_group_of_receives_first_and_tac_decides_by_times_where_it_cannot():
    """c1 waits for three receives, c2 for two others: after d, e still counts as one of two."""
    graph = {"c1": operation(1, "a", "b", "c"), "c2": operation(1, "d", "e"), "c3": operation(1, "c1", "c2")}
    assert tic(graph, "abcde") == ["d", "e", "a", "b", "c"]
    graph = {"c1": operation(1, "a"), "c2": operation(5, "b"), "c3": operation(1, "c1", "c2")}
    assert tic(graph, "ab") == ["a", "b"]
    assert tac(graph, {"a": 2.0, "b": 2.0}) == ["b", "a"]


@pytest.mark.parametrize(
    ("graph", "message"),
    [({"c1": operation(1, "r9")}, "r9"),
     ({"c1": operation(1, "c2"), "c2": operation(1, "c1")}, "wait for each other")],
)  # fmt: skip
def test_an_invalid_graph_is_refused(graph: dict[Hashable, Operation], message: str):
    with pytest.raises(ValueError, match=message):
        tac(graph, TRANSFER_S)
