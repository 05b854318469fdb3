"""The evaluations of a run's snapshots: finished, under way and remaining."""

from __future__ import annotations

from typing import Any

import numpy as np

from pslab.engines.experiment.experiment import Experiment


class Evaluations:
    """The snapshots of a run by number, their evaluations, and the processes that evaluate them."""

    experiment: Experiment

    def __init__(self) -> None:
        self.snapshots: dict[int, tuple[int, float]] = {}  # index -> pushes, seconds
        self.evaluated: dict[int, tuple[float, ...]] = {}  # index -> accuracy, loss, other metrics
        self.busy: dict[int, int] = {}  # process -> the snapshot that it evaluates
        self.trained = False  # whether the training is over

    @property
    def unevaluated(self) -> list[int]:
        """The numbers of the snapshots that are neither evaluated nor being evaluated, in order."""
        return [i for i in sorted(self.snapshots) if i not in self.evaluated and i not in self.busy.values()]

    @property
    def reached_target(self) -> bool:
        """Whether the evaluations have reached the run's target accuracy."""
        accuracies = (accuracy for _, (accuracy, *_) in sorted(self.evaluated.items()))
        return self.experiment.run.reaches_target(accuracies)

    def count_evaluated(self, index: int, values: tuple[float, ...]) -> dict[str, Any]:
        """Store the values of an evaluated snapshot; return a report of it for `OnProgress`."""
        self.evaluated[index], (pushes, seconds) = values, self.snapshots[index]
        return {"pushes": pushes, "seconds": seconds, "index": index, "accuracy": values[0], "loss": values[1],
                "others": list(values[2:]), **self.to_come()}  # fmt: skip

    def to_come(self) -> dict[str, Any]:
        """Return {"evaluating": [evaluated, all]} once the training is over; before, an empty dict."""
        return {"evaluating": [len(self.evaluated), len(self.snapshots)]} if self.trained else {}

    def accuracy(self) -> np.ndarray:
        """Return a row for each evaluated snapshot: pushes, seconds, accuracy, loss, other metrics."""
        rows = [(*self.snapshots[i], *self.evaluated[i]) for i in sorted(self.evaluated)]
        return np.array(rows, dtype=np.float64).reshape(-1, 4 + len(self.experiment.metrics))
