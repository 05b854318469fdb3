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
    ],
    ids=["unplanned", "another worker", "too early", "forgotten", "a death of nothing"],
)
def test_a_list_that_is_not_the_plan_is_invalid(change: Any, words: str):
    assert_invalid(judged(change), words)


def arrivals(change: Callable[[Any], Any], faults: list[dict[str, Any]], words: str) -> None:
    """A history with these faults is valid, and with its arrivals changed it is not."""
    run, tables, facts = history("asp", {**UNEVEN, "faults": faults}, on_death="continue", lease_s=1.0)
    assert_valid(judge(run, tables, facts))
    assert_invalid(judge(run, {**tables, "arrivals": change(tables["arrivals"].copy())}, facts), words)


def test_what_was_delayed_came_later():
    def sooner(table: Any) -> Any:
        table.loc[(table.kind == "pull") & (table.worker == 1) & (table.iteration == 3), "seconds"] -= 0.5
        return table.sort_values("seconds", kind="stable")

    arrivals(sooner, [{"what": "delay", "worker": 1, "iteration": 2, "for_s": 0.6}], "sooner than 0.6 s later")


def test_what_was_duplicated_came_twice():
    def once(table: Any) -> Any:
        return table.drop_duplicates(["kind", "worker", "iteration"])

    arrivals(once, [{"what": "duplicate", "worker": 1, "iteration": 2}], "was duplicated, and came once")


def test_who_was_to_be_killed_pushes_no_more():
    run, tables, facts = history("asp")
    doomed = run.but(cluster={**UNEVEN, "faults": [{"what": "kill", "worker": 1, "iteration": 4}]}, on_death="continue")
    assert_invalid(judge(doomed, tables, {**facts, "faults": {"kill": 0}, "faulted": []}), "was to kill it")


def test_a_stop_is_recorded():
    stop = [{"what": "stop", "worker": 1, "iteration": 2}]
    run, tables, facts = history("asp", {**UNEVEN, "faults": stop})
    assert_invalid(judge(run, tables, {**facts, "faults": {"stop": 0}, "faulted": []}), "says nothing of it")


def test_a_request_names_the_weights_that_the_push_was_computed_on():
    run, tables, facts = history("asp")
    table = tables["arrivals"].copy()
    table.loc[(table.kind == "pull") & (table.worker == 1) & (table.iteration == 3), "version"] -= 1
    assert_invalid(judge(run, {**tables, "arrivals": table}, facts), "as its push and its request for the next one say")


def test_counts_are_those_of_the_list():
    assert_invalid(judge(RUN, TABLES, {**FACTS, "faults": {**FACTS["faults"], "drop": 1}}), "it lists")


def test_a_cluster_without_faults_has_none():
    run, tables, facts = history("asp")
    assert_invalid(judge(run, tables, {**facts, "faulted": FACTS["faulted"]}), "the cluster has none")
