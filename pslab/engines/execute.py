"""Which module is an experiment's engine. A new engine is a folder beside these and a row of the table."""

from __future__ import annotations

from importlib import import_module

from pslab.engines.job.experiment import Experiment
from pslab.engines.outcome import OnProgress, Outcome

ENGINES = {
    "local": "pslab.engines.local.engine",
    "virtual": "pslab.engines.virtual.engine",
    "timing": "pslab.engines.virtual.timing",
}


def execute(experiment: Experiment, on_progress: OnProgress) -> Outcome:
    """Run an experiment on the engine that its Run names; see there for what it raises."""
    outcome: Outcome = import_module(ENGINES[experiment.run.engine]).execute(experiment, on_progress)
    return outcome
