"""TIC and TAC on graphs of operations."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from pslab.policies.planning.tictac import Operation, Weight, before, receives, tac, tic, weights


def operation(seconds: float, *needs: Hashable) -> Operation:
    return Operation(seconds, frozenset(needs))


GRAPH = {"c1": operation(3, "r1"), "c2": operation(1, "r2"), "c3": operation(1, "c1", "c2", "r1", "r2")}
TRANSFER_S = {"r1": 1.0, "r2": 2.0}


def test_published_measures_and_orders():
    found = weights(receives(GRAPH, TRANSFER_S), TRANSFER_S)
    assert found == {"r1": Weight(1, 3, 3), "r2": Weight(2, 1, 3)}
    assert before(found["r1"], found["r2"])
    assert not before(found["r2"], found["r1"])
    assert tac(GRAPH, TRANSFER_S) == ["r1", "r2"]
    groups = {"c1": operation(1, "a", "b", "c"), "c2": operation(1, "d", "e"), "c3": operation(1, "c1", "c2")}
    assert tic(groups, "abcde") == ["d", "e", "a", "b", "c"]  # after d, e still counts as one of two
    pair = {"c1": operation(1, "a"), "c2": operation(5, "b"), "c3": operation(1, "c1", "c2")}
    assert (tic(pair, "ab"), tac(pair, {"a": 2.0, "b": 2.0})) == (["a", "b"], ["b", "a"])


def test_measures_change_with_each_receive():
    """After r3 only r1 is missing for c2, whose time then counts for r1; before, it counted for no receive."""
    graph = {"c1": operation(1, "r3"), "c2": operation(9, "r1", "r3"), "c3": operation(2, "r2")}
    transfer_s = {"r1": 4.0, "r2": 4.0, "r3": 0.5}
    operations = receives(graph, transfer_s)
    assert weights(operations, transfer_s)["r1"].unlocked_s == 0
    assert weights(operations, {"r1": 4.0, "r2": 4.0})["r1"].unlocked_s == 9
    assert tac(graph, transfer_s) == ["r3", "r1", "r2"]


def test_an_invalid_graph_is_refused():
    for graph, message in (({"c1": operation(1, "r9")}, "r9"),
                           ({"c1": operation(1, "c2"), "c2": operation(1, "c1")}, "wait for each other")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            tac(graph, TRANSFER_S)
