"""The audit of a finished run: the replay of its arrivals, and the rules for what the replay does not see.

What is allowed follows from the policy object (its traits and its decisions), never from its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pslab.config.run import Run
from pslab.lab.judge import judge
from tools.audit.reading import Reading
from tools.audit.rules import RULES


@dataclass(frozen=True)
class Verdict:
    """Whether a run's tables follow from its arrivals and keep the rules, and why not."""

    verdict: str  #: valid, invalid, unknown
    violations: tuple[str, ...] = ()  #: why it is invalid: which worker, when, and what was expected
    unjudged: tuple[str, ...] = ()  #: why it is unknown


def audit(run: Run, tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]) -> Verdict:
    """Whether a run's tables ("arrivals", "pushes", "phases", "accuracy") and facts are what they must be."""
    replayed = judge(run, tables, facts)
    if replayed.verdict == "unknown":
        return Verdict("unknown", unjudged=(replayed.why,))
    record, found = Reading(run, tables, facts), [replayed.why] if replayed.why else []
    for rule in RULES if len(tables["pushes"]) else ():
        try:
            found += rule(record)
        except IndexError:  # of a version or an iteration that does not exist, which the replay has named
            if replayed.verdict == "valid":
                raise
    return Verdict("invalid" if found else "valid", tuple(found))
