"""The local engine: real processes on this machine, in wall-clock time."""

from __future__ import annotations

from pslab.engines.experiment.experiment import Experiment, Interrupted, OnProgress, Outcome
from pslab.engines.local.local_run import LocalRun
from pslab.engines.processes import pool as pools


def execute(experiment: Experiment, on_progress: OnProgress, *, yields: bool | None = None) -> Outcome:
    """Run an experiment on this process's pool of worker processes; return the outcome.

    An emulated cluster that is too fast for this machine runs slower by a factor, the dilation; records have the
    cluster's seconds. The factor is `Run.dilation`, or what sufficed for the last run of the same kind. If it does not
    suffice, the run is repeated once with a larger one. Limits, such as `Run.lease_s`, are in real seconds.

    Args:
        yields: whether workers compute at the lowest priority, until other processes starve them; None: only if a
            cluster is emulated.

    Raises:
        WorkerFailed, WorkerDied, StartFailed: the run failed; the pool is closed, and the next run spawns another.
        Interrupted: the run was interrupted; the error has the completed part, and is raised within two seconds.
    """
    run = experiment.run
    # a target ends the run while it trains, so snapshots must be evaluated meanwhile
    beside = run.evaluate == "beside" or run.target_accuracy is not None
    pool = pools.acquire(run.workers + run.servers - 1 + beside, lambda: on_progress({}),
                         lambda number: run.on_death != "stop" and 0 <= number < run.workers)  # fmt: skip
    try:
        # in emulated time the server must wake up in time; without, workers and server share the cores as usual
        emulated = experiment.trains and experiment.cluster.emulated
        given = pool, experiment, on_progress, beside, emulated if yields is None else yields
        return run_class(run.on_death)(*given).conduct()
    except BaseException as error:
        if not isinstance(error, Interrupted):
            pools.release(kill=True)
        raise


def run_class(on_death: str) -> type[LocalRun]:
    """Return the class of a run: RestartableRun for "restart", else LocalRun."""
    if on_death != "restart":
        return LocalRun
    from pslab.engines.local.recovery.restartable_run import RestartableRun

    return RestartableRun
