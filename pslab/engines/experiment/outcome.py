"""What an engine hands to the records: plain tables and facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

OnProgress = Callable[[dict[str, Any]], None]
"""Gets {"pushes", "seconds", "workers"} now and then, {"pushes", "seconds", "accuracy", "loss"} when a snapshot was
evaluated, and {} ten times a second meanwhile. Each of "workers" is {"doing": computing, waiting, transferring or dead,
"for": [workers], "iteration"}. With "repeated", which says why, the run has begun again;
"checkpoint" says from which one the run goes on, or why there are none;
"waits" says who waits for whom where no push came for a lease;
"evaluating" is [done, of] snapshots once the training is over.
It may raise KeyboardInterrupt to end the run in order."""


TABLES = ("accuracy", "phases", "pushes", "arrivals", "weights")  # the arrays of an Outcome, in their order


class Trained(NamedTuple):
    """The snapshots of a run whose training is over."""

    snapshots: Mapping[int, tuple[int, float]]  #: by number: pushes, seconds
    evaluated: Mapping[int, tuple[float, float]]  #: of some: accuracy, loss
    left: Mapping[int, np.ndarray]  #: of the others their weights


@dataclass
class Outcome:
    """One run that has ended. Tables are float64 [rows, columns]; seconds count from its start."""

    accuracy: np.ndarray  #: pushes, seconds, accuracy, loss
    phases: np.ndarray  #: see pslab.engines.worker.phases.PHASE_COLUMNS
    pushes: np.ndarray  #: see pslab.engines.server.ledger.PUSH_COLUMNS
    arrivals: np.ndarray  #: ... ARRIVAL_COLUMNS
    weights: np.ndarray  #: the final ones, flat
    facts: dict[str, Any] = field(default_factory=dict)
    trained: Trained | None = None  #: of one that was interrupted while it was evaluated


class Interrupted(KeyboardInterrupt):
    """A run that was interrupted and ended in order; `outcome` has its completed iterations, None if there are none."""

    def __init__(self, outcome: Outcome | None) -> None:
        self.outcome = outcome
        super().__init__("interrupted")
