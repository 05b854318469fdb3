"""What an engine hands to the records: plain tables and facts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

OnProgress = Callable[[dict[str, Any]], None]  # {"pushes", "seconds"} now and then, {"accuracy", ...} when evaluated


@dataclass
class Outcome:
    """One finished run. Tables are float64 [rows, columns]; seconds count from the run's begin."""

    accuracy: np.ndarray  #: pushes, seconds, accuracy, loss
    phases: np.ndarray  #: worker, iteration, phase, begin_s, end_s, waits_for
    pushes: np.ndarray  #: see pslab.engines.serve.PUSH_COLUMNS
    weights: np.ndarray  #: the final ones, flat
    facts: dict[str, Any] = field(default_factory=dict)
