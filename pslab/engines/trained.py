"""Runs that were interrupted after the training, while snapshots were evaluated: save them, and evaluate the rest."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import torch

from pslab.config.available import cores
from pslab.engines.experiment.checkpoint.store import CheckpointStore
from pslab.engines.experiment.experiment import TABLES, Experiment, Interrupted, OnProgress, Outcome, Trained
from pslab.engines.processes import pool as pools
from pslab.engines.processes.coordinator import EVALUATOR, Coordinator


def keep_trained(outcome: Outcome, store: CheckpointStore | None) -> bool:
    """Save an outcome with unevaluated snapshots beside the run's checkpoints; return whether it was saved.

    False: the run has no checkpoints, was not interrupted during its evaluation, or the files cannot be written.
    """
    if store is None or (trained := outcome.trained) is None:
        return False
    facts = {"made": time.strftime("%Y-%m-%d %H:%M:%S"), "facts": outcome.facts,
             "snapshots": list(trained.snapshots.items()), "evaluated": list(trained.evaluated.items()),
             "left": list(trained.left)}  # fmt: skip
    arrays = {name: getattr(outcome, name) for name in TABLES}
    arrays |= {f"snapshot {index}": weights for index, weights in trained.left.items()}
    try:
        store.trained.write(facts, {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})
    except (OSError, TypeError, ValueError, MemoryError):  # the next call trains again
        return False
    return True


def evaluate_trained(experiment: Experiment, on_progress: OnProgress) -> Outcome | None:
    """Evaluate the remaining snapshots of a saved run; return its outcome, or None if no run was saved.

    Raises:
        Interrupted: the evaluation was interrupted again. Errors of `Pool.reports` are raised, too.
    """

    def say(words: str) -> None:
        on_progress({"pushes": 0, "seconds": 0.0, "checkpoint": words})

    for facts, tensors in () if experiment.checkpoints is None else experiment.checkpoints.trained.newest(say):
        pushes = int(facts["facts"]["pushes"])
        say(f"goes on with the evaluation, after {len(facts['evaluated'])} of {len(facts['snapshots'])} snapshots")
        resumed = [*facts["facts"].get("resumed", ()), {"pushes": pushes, "made": facts["made"]}]
        accuracy, phases, rows, arrivals, weights = (tensors[name].numpy() for name in TABLES)
        known = {**facts["facts"], "resumed": resumed}
        outcome = Outcome(accuracy, phases, rows, arrivals, weights, known, metrics=experiment.metrics)
        left = {index: tensors[f"snapshot {index}"].numpy() for index in facts["left"]}
        snapshots, evaluated = ({index: tuple(row) for index, row in facts[of]} for of in ("snapshots", "evaluated"))
        count = max(1, min(cores(), len(left)))
        pool = pools.acquire(count, lambda: on_progress({}))
        return _Evaluation(pool, experiment, on_progress, outcome).conduct(count, Trained(snapshots, evaluated, left))
    return None


class _Evaluation(Coordinator):
    def __init__(self, pool: pools.Pool, experiment: Experiment, on_progress: OnProgress, outcome: Outcome) -> None:
        super().__init__(pool, experiment, on_progress)
        self._outcome = outcome

    def conduct(self, count: int, trained: Trained) -> Outcome:
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
