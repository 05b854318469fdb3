"""The audit: a history of a run without tensors that is changed in one way is found, wherever it is changed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from histories import UNEVEN, Change, History, assert_invalid, assert_valid, fresh, judged, plus, span

from tools.audit.verdict import audit

PLAIN = ["bsp", "ssp:1", "asp", "local:3", "backup:1"]
EAGER = ["eager linked", "eager:1 linked"]
INTEGERS = ("worker", "iteration", "range", "version_pulled", "version_applied", "staleness")


def one_change(seed: int) -> tuple[str, History]:
    """A change of one number or row in the first two thirds of a history, behind which something must follow; what it
    is in words."""
    draw = random.Random(seed)
    what = draw.choice(["pushes", "pushes", "arrivals", "phases", "bytes", "facts"])
    name = draw.choice(PLAIN if what == "phases" else PLAIN + EAGER)
    run, tables, facts = fresh(name)
    by = draw.choice([-2, -1, 1, 2])
    if what == "facts":
        column = draw.choice(["pushes", "accepted", "dropped"])
        return f"{name}: {column} {by:+}", (run, tables, {**facts, column: facts[column] + by})
    table = tables[{"bytes": "pushes"}.get(what, what)]
    row = draw.randrange(len(table) * 2 // 3)
    if what == "bytes":
        column = draw.choice(["bytes_up", "bytes_down"])
        row = table.index[table[column] > 0][row // 2]
        changed = plus(table, row, column, by)
    elif what == "phases":
        phase, column = table.phase[row], draw.choice(["begin_s", "end_s", "row"])
        if column == "row" and phase != "decode":  # of the last weights there is none
            changed = table.drop(index=row)
        else:
            changed = plus(table, row, "end_s" if column == "row" else column, 0.1 * by)
    elif draw.random() < 0.3:
        column, changed = "row", table.drop(index=row).reset_index(drop=True)
    elif what == "arrivals":
        column = draw.choice(["worker", "range", "iteration", "version"])
        changed = plus(table, row, column, by)
    else:
        column = draw.choice(INTEGERS)
        changed = plus(table, row, column, by)
    where = f"{name}: {what}, {dict(table.loc[row])}: {column} {by:+}"
    return where, (run, {**tables, {"bytes": "pushes"}.get(what, what): changed}, facts)


@pytest.mark.parametrize("seeds", [range(150), pytest.param(range(150, 3000), marks=pytest.mark.slow)],
                         ids=["some", "many"])  # fmt: skip
def test_no_number_and_no_row_can_be_changed(seeds: range):
    missed = [words for words, changed in map(one_change, seeds) if audit(*changed).verdict != "invalid"]
    assert missed == []


def listed(change: Callable[[list[Any]], list[Any]]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The manifest's list of faults is another one, and it counts those."""

    def changed(facts: dict[str, Any]) -> dict[str, Any]:
        rows = change([list(row) for row in facts["faulted"]])
        return {"faulted": rows, "faults": {name: sum(row[0] == name for row in rows) for name in {r[0] for r in rows}}}

    return changed


def asked(by: float) -> Change:
    """Worker 1's request for iteration 3 comes at another instant."""

    def changed(arrivals: pd.DataFrame) -> pd.DataFrame:
        row = (arrivals.kind == "pull") & (arrivals.worker == 1) & (arrivals.iteration == 3)
        arrivals.loc[row, "seconds"] += by
        return arrivals.sort_values("seconds", kind="stable")

    return changed


def without(what: str, *names: str) -> Change:
    return lambda table: table[~table[what].isin(names)]


KILL = {"cluster": {**UNEVEN, "faults": [{"what": "kill", "worker": 1, "iteration": 4}]}, "on_death": "continue"}
#: What is changed -> the history, what is changed of its tables, "facts" or "run", and words of the verdict.
FOUND: dict[str, tuple[str, dict[str, Any], str]] = {
    "faults without a plan": ("asp", {"facts": {"faulted": [["drop", "up", 0, 1, 0, 1.0]]}}, "the cluster has none"),
    "another count of faults": ("faults", {"facts": {"faults": {"drop": 1, "stop": 1, "kill": 1}}}, "it lists"),
    "an unplanned fault": ("faults", {"facts": listed(lambda rows: [*rows, ["delay", "up", 0, 1, 0, 1.0]])},
                           "none of the cluster's plan"),
    "a fault that is too early": ("faults", {"facts": listed(lambda rows: [*rows, ["stop", "", 1, 1, -1, 1.0]])},
                                  "none of the cluster's plan"),
    "a fault is not listed": ("faults", {"facts": listed(lambda rows: [
        row for row in rows if row[:2] != ["drop", "up"]])}, "which the record does not have"),
    "a death of nothing": ("faults", {"facts": listed(lambda rows: [row for row in rows if row[0] != "kill"])},
                           "worker 2 died at"),
    "a death of which nobody heard": ("faults", {"arrivals": without("kind", "leave")}, "was not notified"),
    "what was delayed came later": ("delay", {"arrivals": asked(-0.5)}, "sooner than 0.6 s later"),
    "what was duplicated came twice": ("duplicate", {
        "arrivals": lambda a: a.drop_duplicates(["kind", "worker", "iteration"])}, "was duplicated, and came once"),
    "who was to be killed pushes no more": ("asp", {
        "run": KILL, "facts": {"faults": {"kill": 0}, "faulted": []}}, "was to kill it"),
    "a stop is recorded": ("stop", {"facts": {"faults": {"stop": 0}, "faulted": []}}, "the record has no such fault"),
    "a phase is recorded twice": ("ssp:1", {"phases": lambda p: pd.concat([p, p.loc[[span(p, "pull")]]])},
                                  "is recorded twice"),
    "another seed": ("ssp:1", {"run": {"seed": 9}}, "the cluster's is"),
    "a shorter run": ("asp", {"facts": lambda facts: {"seconds": facts["seconds"] - 0.5}}, "after the run"),
    "links had a latency": ("asp", {"run": {"cluster": {**UNEVEN, "latency_s": 0.5}}}, "the cluster's links take"),
}  # fmt: skip


@pytest.mark.parametrize("what", FOUND)
def test_a_changed_history_is_found(what: str):
    history, changes, words = FOUND[what]
    assert_invalid(judged(history, **changes), words)


def test_a_history_that_is_not_changed_is_valid():
    for name in {*PLAIN, *EAGER, *(history for history, _, _ in FOUND.values())}:
        assert_valid(judged(name))
