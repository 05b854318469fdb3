"""The audit: a phase or a number of bytes that is changed is found, wherever it is."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from histories import UNEVEN, History, fresh

from tools.audit.rules import audit

PLAIN = ["bsp", "ssp:1", "asp", "local:3", "backup:1"]
EAGER = ["eager linked", "eager:1 linked"]


def one_change(seed: int) -> tuple[str, History]:
    """Return a history with one phase or one number of bytes changed, in the first two thirds, behind which something
    must follow, and the change in words."""
    draw = random.Random(seed)
    what = draw.choice(["phases", "pushes"])
    name = draw.choice(PLAIN if what == "phases" else PLAIN + EAGER)
    run, tables, facts = fresh(name)
    table, by = tables[what], draw.choice([-2, -1, 1, 2])
    row, column = draw.randrange(len(table) * 2 // 3), draw.choice(["begin_s", "end_s", "row"])
    if what == "pushes":
        column = draw.choice(["bytes_up", "bytes_down"])
        row = table.index[table[column] > 0][row // 2]
    elif column == "row" and table.phase[row] == "decode":  # of the last weights there is none
        column = "end_s"
    words = f"{name}: {what}, {dict(table.loc[row])}: {column} {by:+}"
    if column == "row":
        return words, (run, {**tables, what: table.drop(index=row)}, facts)
    table.loc[row, column] += by if what == "pushes" else 0.1 * by
    return words, (run, tables, facts)


@pytest.mark.parametrize("seeds", [range(100), pytest.param(range(100, 2000), marks=pytest.mark.slow)],
                         ids=["some", "many"])  # fmt: skip
def test_no_phase_and_no_number_of_bytes_can_be_changed(seeds: range):
    missed = [words for words, changed in map(one_change, seeds) if audit(*changed).verdict != "invalid"]
    assert missed == []


def listed(kept: Callable[[list[Any]], bool]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Keep some rows of the manifest's list of faults, and count those."""

    def changed(facts: dict[str, Any]) -> dict[str, Any]:
        rows = [list(row) for row in facts["faulted"] if kept(list(row))]
        return {"faulted": rows, "faults": {name: sum(row[0] == name for row in rows) for name in {r[0] for r in rows}}}

    return changed


def asked_sooner(arrivals: pd.DataFrame) -> pd.DataFrame:
    """Let worker 1's request for iteration 3 come half a second before."""
    row = (arrivals.kind == "pull") & (arrivals.worker == 1) & (arrivals.iteration == 3)
    arrivals.loc[row, "seconds"] -= 0.5
    return arrivals.sort_values("seconds", kind="stable")


def pulled_twice(phases: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([phases, phases[(phases.phase == "pull") & (phases.worker == 1) & (phases.iteration == 3)]])


KILL = {"cluster": {**UNEVEN, "faults": [{"what": "kill", "worker": 1, "iteration": 4}]}, "on_death": "continue"}
#: What holds -> the history, a change of a table, of the "facts" or of the "run", and words of the verdict.
FOUND: dict[str, tuple[str, str, Any, str]] = {
    "faults are counted": ("faults", "facts", {"faults": {"drop": 1, "stop": 1, "kill": 1}}, "it lists"),
    "a fault that is due is listed": ("faults", "facts", listed(lambda row: row[:2] != ["drop", "up"]),
                                      "which the record does not have"),
    "who dies was killed": ("faults", "facts", listed(lambda row: row[0] != "kill"), "worker 2 died at"),
    "of a death the server hears": ("faults", "arrivals", lambda a: a[a.kind != "leave"], "was not notified"),
    "what was delayed came later": ("delay", "arrivals", asked_sooner, "sooner than 0.6 s later"),
    "what was duplicated came twice": ("duplicate", "arrivals", lambda a: a.drop_duplicates(
        ["kind", "worker", "iteration"]), "was duplicated, and came once"),
    "who was to be killed pushes no more": ("asp", "run", KILL, "was to kill it"),
    "a stop is recorded": ("stop", "facts", {"faults": {"stop": 0}, "faulted": []}, "the record has no such fault"),
    "a phase is recorded once": ("ssp:1", "phases", pulled_twice, "is recorded twice"),
    "times are those of the seed": ("ssp:1", "run", {"seed": 9}, "another time than the cluster's"),
    "nothing comes after the run": ("asp", "facts", lambda facts: {"seconds": facts["seconds"] - 0.5}, "after the run"),
}  # fmt: skip


@pytest.mark.parametrize("what", FOUND)
def test_a_changed_history_is_found(what: str):
    name, changed, change, words = FOUND[what]
    run, tables, facts = fresh(name)
    if changed == "run":
        run, facts = run.but(**change), {**facts, "faults": {}, "faulted": []}
    elif changed == "facts":
        facts |= change(facts) if callable(change) else change
    else:
        tables[changed] = change(tables[changed])
    verdict = audit(run, tables, facts)
    assert verdict.verdict == "invalid"
    assert any(words in violation for violation in verdict.violations), verdict.violations


def test_a_history_that_is_not_changed_is_valid():
    for name in {*PLAIN, *EAGER, *(history for history, *_ in FOUND.values())}:
        assert audit(*fresh(name)) == ("valid", ())
