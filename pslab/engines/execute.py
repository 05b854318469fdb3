"""Which module is an experiment's engine. A new engine is a folder beside these and a row of `config.table`."""

from __future__ import annotations

from pslab.config.table import ROWS
from pslab.engines import trained
from pslab.engines.job.experiment import Experiment
from pslab.engines.job.outcome import OnProgress, Outcome
from pslab.errors import WorkerDied

STARTS = 4  # of a run that replaces its processes


def execute(experiment: Experiment, on_progress: OnProgress) -> Outcome:
    """Run an experiment on the engine that its Run names; see there for what it raises.

    One that was interrupted while it was evaluated goes on with that.

    With `Run.on_death` "restart" a run that loses a process before it starts, of which nothing is left, begins again.
    """
    if (rest := trained.go_on(experiment, on_progress)) is not None:
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
