"""Histories of runs without tensors, for the judge and the audit."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any

import pandas as pd
from tiny import tiny

from pslab.config.run import Run
from pslab.engines.execute import execute
from pslab.lab.judge import tables_of
from pslab.lab.runs.resolve import resolve

UNEVEN = {"compute_s": 1.0, "slow": {0: 3.0}, "latency_s": 0.01, "compute_sigma": 0.1}
History = tuple[Run, dict[str, pd.DataFrame], dict[str, Any]]


def history(sync: object = "ssp:1", cluster: object = UNEVEN, **fields: object) -> History:
    """Return the run, the tables and the facts of a run in the timing engine."""
    wanted = tiny(engine="timing", sync=sync, cluster=cluster, **{"workers": 3, "pushes": 30, **fields})
    outcome = execute(resolve(wanted), lambda news: None)
    return wanted, tables_of(wanted, outcome)[0], outcome.facts


#: Histories whose name is not that of a policy alone. Over linked workers messages take time; otherwise a request and
#: the push before it arrive at the same time.
NAMED: dict[str, dict[str, Any]] = {
    "eager linked": {"sync": "eager", "cluster": {**UNEVEN, "bandwidth_bit_s": 8e5}},
    "eager:1 linked": {"sync": "eager:1", "cluster": {**UNEVEN, "bandwidth_bit_s": 8e5}},
    "faults": {"sync": "asp", "on_death": "continue", "lease_s": 1.0, "cluster": {**UNEVEN, "faults": [
        {"what": "drop", "probability": 0.3}, {"what": "stop", "worker": 1, "iteration": 2},
        {"what": "kill", "worker": 2, "iteration": 3}]}},
}  # fmt: skip


@lru_cache(maxsize=16)
def _cached(name: str) -> History:
    return history(**NAMED.get(name, {"sync": name}))


def fresh(name: str) -> History:
    """Return copies of a history that a test may change: of NAMED, or of a policy."""
    wanted, tables, facts = _cached(name)
    return wanted, {name: table.reset_index(drop=True).copy() for name, table in tables.items()}, copy.copy(facts)
