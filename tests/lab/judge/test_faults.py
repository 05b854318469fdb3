"""What a record says of faults is held against the cluster's plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from histories import UNEVEN, assert_invalid, assert_valid, history

from pslab.lab.judge.verdict import judge

FAULTS = [{"what": "drop", "probability": 0.3}, {"what": "stop", "worker": 1, "at_s": 2.5},
          {"what": "kill", "worker": 2, "iteration": 3}]  # fmt: skip
RUN, TABLES, FACTS = history("asp", {**UNEVEN, "faults": FAULTS}, on_death="continue", lease_s=1.0)


def judged(change: Callable[[list[Any]], list[Any]]) -> Any:
    rows = change([list(row) for row in FACTS["faulted"]])
    counts = {name: sum(row[0] == name for row in rows) for name in {row[0] for row in rows}}
    return judge(RUN, TABLES, {**FACTS, "faulted": rows, "faults": counts})


def without(what: str) -> Callable[[list[Any]], list[Any]]:
    return lambda rows: [row for row in rows if row[0] != what]


def test_the_true_list_is_valid():
    assert_valid(judged(lambda rows: rows))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rows: [*rows, ["delay", "up", 0, 1, 0, 1.0]], "none of the cluster's plan"),
        (lambda rows: [*rows, ["stop", "", 0, 1, -1, 3.0]], "none of the cluster's plan"),
        (lambda rows: [*rows, ["stop", "", 1, 1, -1, 1.0]], "none of the cluster's plan"),
        (lambda rows: [row for row in rows if row[:2] != ["drop", "up"]], "the record says nothing"),
        (without("kill"), "worker 2 died at"),
        (lambda rows: [["kill"]], "cannot be read"),
    ],
    ids=["unplanned", "another worker", "too early", "forgotten", "a death of nothing", "torn"],
)
def test_a_list_that_is_not_the_plan_is_invalid(change: Any, words: str):
    assert_invalid(judged(change), words)


def test_counts_are_those_of_the_list():
    assert_invalid(judge(RUN, TABLES, {**FACTS, "faults": {**FACTS["faults"], "drop": 1}}), "it lists")


def test_a_cluster_without_faults_has_none():
    run, tables, facts = history("asp")
    assert_invalid(judge(run, tables, {**facts, "faulted": FACTS["faulted"]}), "the cluster has none")
