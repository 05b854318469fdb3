"""Choose an experiment's engine, and finish runs whose training is over already.

A new engine is a folder beside these and a row of `config.table`.
"""

from __future__ import annotations

import dataclasses
import os
import time

import numpy as np
import torch

from pslab.config.table import ROWS
from pslab.engines.experiment.checkpoint.store import CheckpointStore
from pslab.engines.experiment.experiment import TABLES, Experiment, Interrupted, OnProgress, Outcome, Trained
from pslab.engines.processes import pool as pools
from pslab.engines.processes.coordinator import EVALUATOR, Coordinator
from pslab.errors import WorkerDied

LARGEST = 2**22  # weights; of a larger model several runs at once would take much memory, and no less time
STARTS = 4  # of a run that replaces its processes


def fits(experiment: Experiment) -> bool:
    """Whether a run may be one of many side by side: in virtual time, with gradients on a model that is not large."""
    return experiment.run.engine == "virtual" and experiment.keyspace.size <= LARGEST


def execute(experiment: Experiment, on_progress: OnProgress) -> Outcome:
    """Run an experiment on the engine that its Run names; see there for what it raises.

    One that was interrupted while it was evaluated goes on with that.

    With `Run.on_death` "restart" a run that loses a process before it starts, of which nothing is left, begins again.
    """
    if (rest := _go_on(experiment, on_progress)) is not None:
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


# -- a run that was interrupted while it was evaluated ----------------------------------------------


def keep_trained(outcome: Outcome, place: CheckpointStore | None) -> bool:
    """Write down a run whose training is over beside its checkpoints; whether that was necessary and possible."""
    if place is None or (trained := outcome.trained) is None:
        return False
    facts = {"made": time.strftime("%Y-%m-%d %H:%M:%S"), "facts": outcome.facts,
             "snapshots": list(trained.snapshots.items()), "evaluated": list(trained.evaluated.items()),
             "left": list(trained.left)}  # fmt: skip
    arrays = {name: getattr(outcome, name) for name in TABLES}
    arrays |= {f"snapshot {index}": weights for index, weights in trained.left.items()}
    try:
        _beside(place).write(facts, {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})
    except (OSError, TypeError, ValueError, MemoryError):  # then it begins anew
        return False
    return True


def awaits_evaluation(place: CheckpointStore | None) -> bool:
    """Whether a run was written down by `keep_trained`: alone it goes on with its evaluation."""
    return place is not None and _beside(place).folder.exists()


def _go_on(experiment: Experiment, on_progress: OnProgress) -> Outcome | None:
    """The outcome of a run of which only snapshots were left to be evaluated; None if this is none.

    Raises:
        Interrupted: once more. And what `Pool.reports` raises.
    """

    def say(words: str) -> None:
        on_progress({"pushes": 0, "seconds": 0.0, "checkpoint": words})

    for facts, tensors in () if experiment.checkpoints is None else _beside(experiment.checkpoints).newest(say):
        pushes = int(facts["facts"]["pushes"])
        say(f"goes on with the evaluation, after {len(facts['evaluated'])} of {len(facts['snapshots'])} snapshots")
        resumed = [*facts["facts"].get("resumed", ()), {"pushes": pushes, "made": facts["made"]}]
        accuracy, phases, rows, arrivals, weights = (tensors[name].numpy() for name in TABLES)
        known = {**facts["facts"], "resumed": resumed}
        outcome = Outcome(accuracy, phases, rows, arrivals, weights, known, metrics=experiment.metrics)
        left = {index: tensors[f"snapshot {index}"].numpy() for index in facts["left"]}
        snapshots, evaluated = ({index: tuple(row) for index, row in facts[of]} for of in ("snapshots", "evaluated"))
        count = max(1, min(os.cpu_count() or 1, len(left)))
        pool = pools.acquire(count, lambda: on_progress({}))
        return _Evaluation(pool, experiment, on_progress, outcome).conduct(count, Trained(snapshots, evaluated, left))
    return None


class _Evaluation(Coordinator):
    """The rest of a run: its evaluation."""

    def __init__(self, pool: pools.Pool, experiment: Experiment, on_progress: OnProgress, outcome: Outcome) -> None:
        super().__init__(pool, experiment, on_progress)
        self._outcome = outcome

    def conduct(self, count: int, trained: Trained) -> Outcome:
        """The whole outcome."""
        try:
            job = self.lay_out()
            self.pool.snapshots.reserve((max(trained.left, default=-1) + 1) * self.layout.snapshot_bytes)
            for index, weights in trained.left.items():
                self.layout.snapshot_in(self.pool.snapshots, index).copy_(torch.from_numpy(weights.copy()))
            self.snapshots, self.evaluated = dict(trained.snapshots), dict(trained.evaluated)
            numbers = range(count)
            for number in numbers:
                self.pool.start(number, EVALUATOR, job)
            self.await_prepared(numbers)
            self.evaluate_rest(numbers)
        except KeyboardInterrupt:
            raise Interrupted(self._whole()) from None
        finally:
            if self.busy:
                pools.release(kill=True)
        return self._whole()

    def _whole(self) -> Outcome:
        return dataclasses.replace(self._outcome, accuracy=self.accuracy(), trained=self.left())


def _beside(place: CheckpointStore) -> CheckpointStore:
    return CheckpointStore(place.folder / "trained", place.facts)
