"""Which module is an experiment's engine. A new engine is a folder beside these and a row of `config.table`."""

from __future__ import annotations

from pslab.config.table import ROWS
from pslab.engines.job.experiment import Experiment
from pslab.engines.job.outcome import OnProgress, Outcome


def execute(experiment: Experiment, on_progress: OnProgress) -> Outcome:
    """Run an experiment on the engine that its Run names; see there for what it raises."""
    outcome: Outcome = ROWS["engine"][experiment.run.engine].load().execute(experiment, on_progress)
    return outcome
