"""The audit: a phase or a number of bytes that is changed is found, wherever it is."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from histories import History, fresh

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


def pulled_twice(phases: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([phases, phases[(phases.phase == "pull") & (phases.worker == 1) & (phases.iteration == 3)]])


#: What holds, where no seeded bug breaks it -> the history, a change of a table or the "facts", words of the verdict.
FOUND: dict[str, tuple[str, str, Any, str]] = {
    "faults are counted": ("faults", "facts", {"faults": {"drop": 1, "stop": 1, "kill": 1}}, "it lists"),
    "a fault that is due is listed": ("faults", "facts", listed(lambda row: row[:2] != ["drop", "up"]),
                                      "which the record does not have"),
    "a stop is recorded": ("faults", "facts", listed(lambda row: row[0] != "stop"), "the record has no such fault"),
    "a phase is recorded once": ("ssp:1", "phases", pulled_twice, "is recorded twice"),
    "nothing comes after the run": ("asp", "facts", lambda facts: {"seconds": facts["seconds"] - 0.5}, "after the run"),
}  # fmt: skip


@pytest.mark.parametrize("what", FOUND)
def test_a_changed_history_is_found(what: str):
    name, changed, change, words = FOUND[what]
    run, tables, facts = fresh(name)
    if changed == "facts":
        facts |= change(facts) if callable(change) else change
    else:
        tables[changed] = change(tables[changed])
    verdict = audit(run, tables, facts)
    assert verdict.verdict == "invalid"
    assert any(words in violation for violation in verdict.violations), verdict.violations


def test_a_history_that_is_not_changed_is_valid():
    for name in {*PLAIN, *EAGER, *(history for history, *_ in FOUND.values())}:
        assert audit(*fresh(name)) == ("valid", ())
