"""A run's exchange on another cluster, without its gradients: these do not depend on any duration where each step is
made of a push of every worker, and no worker computes on before it.

The frames that were recorded travel again, in virtual time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from pslab.engines.experiment.experiment import Experiment, Outcome
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import WHOLE
from pslab.engines.server.ledger import PUSH_COLUMNS
from pslab.engines.virtual.timing import Sizes, exchange, job_without_tensors
from pslab.engines.worker.tensors import Basis, Pulled
from pslab.errors import ConfigError
from pslab.protocol.server import Reply

Pushes = dict[tuple[int, int], dict[str, float]]  # worker, iteration -> a recorded push


class Recorded:
    """Pushes as they were recorded, whatever they are computed on."""

    def __init__(self, job: Job, pushes: Pushes, diverged: Mapping[str, int] | None) -> None:
        self._job, self._pushes, self._diverged = job, pushes, diverged
        self._iterations: dict[int, int] = {}

    def start(
        self, worker: int, iteration: int, pulled: list[Pulled], settled_s: float, basis: Basis
    ) -> None:
        """Which one is asked for."""
        self._iterations[worker] = iteration

    def result(self, worker: int, meanwhile: Any) -> dict[str, Any]:
        """Its size, its entries and its loss; no payloads if it was not finite."""
        iteration = self._iterations[worker]
        if self._diverged == {"worker": worker, "iteration": iteration}:
            return {"payloads": None, "loss": math.nan}
        row = self._pushes.get((worker, iteration)) or self._pushes[worker, iteration - 1]  # of a torn round
        size_bytes = int(row["bytes_up"]) if self._job.sparse else WHOLE
        return {"payloads": [[size_bytes, round(row["density"] * self._job.parts[0].size)]], "loss": row["loss"]}


class RecordedSizes(Sizes):
    """The weights at a server whose answers are as long as those that were recorded."""

    def __init__(self, job: Job, pushes: Pushes) -> None:
        super().__init__(job)
        self._answers: dict[int, int] = {}
        for (_, iteration), row in pushes.items():  # a worker that got no answer would have got what others got
            self._answers[iteration] = max(self._answers.get(iteration, 0), int(row["bytes_down"]))
        self._own = {key: int(row["bytes_down"]) for key, row in pushes.items()}

    def lay(self, reply: Reply) -> int:
        """There is nothing to lay ready."""
        pull, whole = reply.pull, self._job.payload_bytes(0, WHOLE)
        before = pull.iteration - 1
        size_bytes = self._own.get((pull.worker, before), 0) or self._answers.get(before, 0)
        return size_bytes if 0 < size_bytes != whole else WHOLE


def retime(
    experiment: Experiment, pushes: np.ndarray, budget: int, diverged: Mapping[str, int] | None = None
) -> Outcome:
    """What the run would have been on this experiment's cluster, but for its accuracy and its weights.

    Args:
        pushes: the recorded ones, in the columns of the ledger.
        budget: gradients after which it ends, whatever ended it where it was recorded.
        diverged: the worker and iteration of the gradient that was not finite, if the run ended by one. Where several
            of its round were not, another of them may have been the first on this cluster.

    Raises:
        ConfigError: requests for keys; a policy without rounds, whose gradients depend on who is when where, as do
            ranges that are fitted; several ranges; workers that leave or join; nothing was applied.
    """
    run, cluster = experiment.run, experiment.cluster
    if run.on_nonfinite == "skip":
        problem = "a record does not have the gradients that were skipped, nor what they took: run it there"
        raise ConfigError("on_nonfinite", run.on_nonfinite, problem)
    if experiment.keyed:
        raise ConfigError("pull", run.pull, "a record does not have the keys that were asked for: run it there")
    if not experiment.traits.rounds:
        raise ConfigError("sync", run.sync, "without rounds another cluster means other gradients: run it there")
    if not len(pushes):
        raise ConfigError("record", run.digest, "no push was applied: there is nothing to be replayed")
    if getattr(experiment.prune, "fitted", False):
        raise ConfigError("prune", run.prune, "is fitted to its cluster: another means other gradients: run it there")
    if cluster.leave or cluster.join or len(experiment.parts) > 1:
        raise ConfigError("cluster", run.cluster, "only whole pushes of workers that stay can be replayed elsewhere")
    rows = [dict(zip(PUSH_COLUMNS, map(float, row), strict=True)) for row in pushes]
    sizes = {(int(row["worker"]), int(row["iteration"])): row for row in rows}
    ended = run.but(pushes=budget, seconds=None, target_accuracy=None)
    job = job_without_tensors(dataclasses.replace(experiment, run=ended))
    return exchange(job, RecordedSizes(job, sizes), Recorded(job, sizes, diverged), lambda news: None)
