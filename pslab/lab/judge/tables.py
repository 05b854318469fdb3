"""The outcome of an engine as the tables of a record, with its verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pslab.config.run import Run
from pslab.lab.judge.verdict import judge

if TYPE_CHECKING:
    from pslab.engines.experiment.experiment import Outcome


def tables_of(run: Run, outcome: Outcome) -> tuple[dict[str, pd.DataFrame], np.ndarray, dict[str, Any]]:
    """An engine's arrays as tidy tables; the weights; the facts, with the verdict."""
    from pslab.engines.server.ledger import ARRIVAL_COLUMNS, ARRIVALS, PUSH_COLUMNS
    from pslab.engines.worker.phases import PHASE_COLUMNS, PHASES

    accuracy = pd.DataFrame(outcome.accuracy, columns=["pushes", "seconds", "accuracy", "loss", *outcome.metrics])
    accuracy.insert(1, "iteration", accuracy.pushes / run.workers)
    phases = pd.DataFrame(outcome.phases, columns=PHASE_COLUMNS)
    phases["phase"] = phases.phase.astype(int).map(dict(enumerate(PHASES)))
    pushes = pd.DataFrame(outcome.pushes, columns=PUSH_COLUMNS)
    arrivals = pd.DataFrame(outcome.arrivals, columns=ARRIVAL_COLUMNS)
    arrivals["kind"] = arrivals.kind.astype(int).map(dict(enumerate(ARRIVALS)))
    floats = ("seconds", "begin_s", "end_s", "loss", "density", "kind", "phase")  # and words

    def typed(table: pd.DataFrame) -> pd.DataFrame:
        return table.astype({name: int for name in table if name not in floats})

    tables = {
        "accuracy": accuracy.astype({"pushes": int}),
        "phases": typed(phases).sort_values("begin_s"),
        "pushes": typed(pushes),
        "arrivals": typed(arrivals),
    }
    judged = judge(run, tables, outcome.facts).facts()
    return tables, outcome.weights, {**outcome.facts, "largest_weight": largest(outcome.weights), **judged}


def largest(weights: np.ndarray) -> float:
    """The largest absolute value; NaN if one is not a number."""
    return float(max(weights.max(initial=0.0), -weights.min(initial=0.0)))
