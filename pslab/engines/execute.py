"""Run an experiment on the engine that its Run names.

A new engine is a subpackage of `pslab.engines` and a row of `config.table`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pslab.config.table import ROWS
from pslab.engines.experiment.experiment import Experiment, OnProgress, Outcome
from pslab.errors import WorkerDied

if TYPE_CHECKING:
    from pslab.engines.experiment.checkpoint.store import CheckpointStore

LARGEST = 2**22  # weights; with a larger model, parallel runs take much memory and save no time
MESSAGES = 1024  # pushes of ranges: the timing engine takes half a second, and starting a process pays from there
STARTS = 4  # attempts to start a run with on_death="restart"


def fits(experiment: Experiment) -> bool:
    """Whether a run may be executed in parallel with others, each on one core: engine="virtual" and at most LARGEST
    weights, or engine="timing" and at least MESSAGES pushes of ranges."""
    if experiment.run.engine == "timing":
        return (experiment.run.pushes or math.inf) * len(experiment.parts) >= MESSAGES
    return experiment.run.engine == "virtual" and experiment.keyspace.size <= LARGEST


def execute(experiment: Experiment, on_progress: OnProgress) -> Outcome:
    """Run an experiment on the engine that its Run names; return the outcome.

    If an earlier call was interrupted after the training, only the snapshots that it did not evaluate are evaluated.
    With `Run.on_death` "restart", a run that loses a process before the training starts is begun again, up to STARTS
    times in all. Errors of the engine are raised.
    """
    if awaits_evaluation(experiment.checkpoints):
        from pslab.engines.trained import evaluate_trained  # loaded only by a run that was interrupted

        if (rest := evaluate_trained(experiment, on_progress)) is not None:
            return rest
    engine, run, fallen = ROWS["engine"][experiment.run.engine].load(), experiment.run, list[str]()
    while True:
        try:
            outcome: Outcome = engine.execute(experiment, on_progress)
        except WorkerDied as error:
            fallen.append(f"{error.who} {error.how}")
            if run.on_death != "restart" or error.outcome is not None or len(fallen) == STARTS:
                raise
            on_progress({"pushes": 0, "seconds": 0.0, "repeated": f"{error}: once again"})
            continue
        if fallen:
            outcome.facts["fallen_starts"] = fallen
        return outcome


def awaits_evaluation(store: CheckpointStore | None) -> bool:
    """Whether an earlier call was interrupted after the training, while snapshots were evaluated."""
    return store is not None and store.trained.folder.exists()
