"""Histories of runs without tensors, for the judge and the audit, and changes of their tables."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pandas as pd
from tiny import tiny
from tools.audit.verdict import Verdict, audit

from pslab.config.run import Run
from pslab.engines.execute import execute
from pslab.lab.judge import tables_of
from pslab.lab.runs.resolve import resolve

UNEVEN = {"compute_s": 1.0, "slow": {0: 3.0}, "latency_s": 0.01, "compute_sigma": 0.1}
History = tuple[Run, dict[str, pd.DataFrame], dict[str, Any]]
Change = Callable[[pd.DataFrame], pd.DataFrame]


def history(sync: object = "ssp:1", cluster: object = UNEVEN, **fields: object) -> History:
    """The run, the tables and the facts of a run in the timing engine."""
    wanted = tiny(engine="timing", sync=sync, cluster=cluster, **{"workers": 3, "pushes": 30, **fields})
    outcome = execute(resolve(wanted), lambda news: None)
    return wanted, tables_of(wanted, outcome)[0], outcome.facts


def faulty(*faults: dict[str, Any]) -> dict[str, Any]:
    return {"sync": "asp", "cluster": {**UNEVEN, "faults": list(faults)}, "on_death": "continue", "lease_s": 1.0}


#: Histories whose name is not that of a policy alone. Over linked workers messages take time; otherwise a request and
#: the push before it arrive at the same time.
NAMED: dict[str, dict[str, Any]] = {
    "eager linked": {"sync": "eager", "cluster": {**UNEVEN, "bandwidth_bit_s": 8e5}},
    "eager:1 linked": {"sync": "eager:1", "cluster": {**UNEVEN, "bandwidth_bit_s": 8e5}},
    "many dropped": {"sync": "backup:1", "cluster": {**UNEVEN, "compute_sigma": 0.5, "slow": {}}},
    "faults": faulty({"what": "drop", "probability": 0.3}, {"what": "stop", "worker": 1, "at_s": 2.5},
                     {"what": "kill", "worker": 2, "iteration": 3}),
    "delay": faulty({"what": "delay", "worker": 1, "iteration": 2, "for_s": 0.6}),
    "duplicate": faulty({"what": "duplicate", "worker": 1, "iteration": 2}),
    "stop": faulty({"what": "stop", "worker": 1, "iteration": 2}),
}  # fmt: skip


@lru_cache(maxsize=16)
def _cached(name: str) -> History:
    return history(**NAMED.get(name, {"sync": name}))


def fresh(name: str) -> History:
    """Copies of a history that a test may change: of NAMED, or of a policy."""
    wanted, tables, facts = _cached(name)
    return wanted, {name: table.reset_index(drop=True).copy() for name, table in tables.items()}, copy.copy(facts)


def assert_valid(verdict: Verdict) -> None:
    assert (verdict.verdict, verdict.violations) == ("valid", ())


def assert_invalid(verdict: Verdict, words: str = "") -> None:
    """The verdict is invalid, and one of its violations contains these words."""
    assert verdict.verdict == "invalid"
    assert any(words in violation for violation in verdict.violations), verdict.violations


def judged(name: str, **changes: Any) -> Verdict:
    """The verdict on a history with changed tables, "facts" or fields of its "run".

    The manifest's number of pushes follows a changed table of pushes.
    """
    wanted, tables, facts = fresh(name)
    for what, change in changes.items():
        if what == "run":
            wanted = wanted.but(**change)
        elif what == "facts":
            facts |= change(facts) if callable(change) else change
        else:
            tables[what] = change(tables[what])
    if "pushes" in changes:
        facts["pushes"] = len(tables["pushes"])
    return audit(wanted, tables, facts)


# --- changes of a table -----------------------------------------------------------------------------------------------


def plus(table: pd.DataFrame, row: int, name: str, by: float) -> pd.DataFrame:
    """One number changed."""
    changed = table.copy()
    changed.loc[row, name] += by
    return changed


# --- places in a table ------------------------------------------------------------------------------------------------


def span(phases: pd.DataFrame, phase: str, worker: int = 1, iteration: int = 3) -> int:
    (row,) = phases.index[(phases.phase == phase) & (phases.worker == worker) & (phases.iteration == iteration)]
    return row
