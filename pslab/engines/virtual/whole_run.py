"""A virtual run whole in one process: the same bits as with hosts, so that several can be side by side."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from pslab.engines.job.experiment import Experiment
from pslab.engines.job.job import Job, Shelf
from pslab.engines.job.layout import Layout
from pslab.engines.job.notes import Note
from pslab.engines.job.shared_memory import Arena
from pslab.engines.outcome import Outcome
from pslab.engines.processes.channel import Report, report
from pslab.engines.server.evaluate import Evaluator
from pslab.engines.server.weights import Keeper
from pslab.engines.virtual import engine as virtual
from pslab.engines.virtual.hosts import body_of
from pslab.engines.virtual.simulator import Clockwork
from pslab.engines.worker.range_schedule import Turn
from pslab.engines.worker.tensors import Producer, Write

TABLES = ("accuracy", "phases", "pushes", "weights")


class Solo:
    """The gradients of one experiment's workers, computed as soon as they are ordered, and all that is around them."""

    def __init__(self, experiment: Experiment, shelf: Shelf, data: Arena) -> None:
        self.made_s, run = time.monotonic(), experiment.run
        layout = Layout.of(experiment)
        self.job = Job.of(experiment, layout, shelf)
        self.arena, self.snapshots = Arena(), Arena()
        self.arena.reserve(layout.end)
        self.weights = self.arena.tensor(layout.server, layout.size, layout.dtype)
        self.weights.copy_(experiment.weights)
        self.producers = [Producer(self.job, worker, self.arena, data) for worker in range(run.workers)]
        self.evaluator = Evaluator(self.job, data, torch.device(run.device))
        self.iteration = 0
        self._bodies: dict[int, dict[str, Any]] = {}
        self._kept: list[tuple[int, float]] = []  # pushes and seconds of each snapshot
        self._rows: list[tuple[float, ...]] = []

    def begin(
        self, worker: int, iteration: int, pulled: list[Note], settled_s: float, writes: list[Write],
        turn: Turn | None = None,
    ) -> None:  # fmt: skip
        """A worker's weights are settled: compute."""
        self.iteration = iteration
        self._bodies[worker] = body_of(self.producers[worker], iteration, pulled, writes, turn)

    def result(self, worker: int, meanwhile: Any) -> dict[str, Any]:
        """What it has computed."""
        meanwhile()
        return self._bodies.pop(worker)

    def conduct(self, on_progress: Any) -> Outcome:
        """The run, and the evaluation of its snapshots."""
        begun_s = time.monotonic()
        keeper = Keeper(self.job, self.arena, self.snapshots, self._keep_snapshot)
        clockwork = Clockwork(self.job, keeper, self)
        virtual.turn(clockwork, on_progress, lambda: self._stop_at_target(clockwork))
        turning_s = time.monotonic() - begun_s
        pushes = keeper.ledger.close(keeper.applied, clockwork.now)
        self._evaluate()
        facts = virtual.facts_of(clockwork, begun_s - self.made_s, turning_s, time.monotonic() - self.made_s)
        accuracy = np.array(self._rows, dtype=np.float64).reshape(-1, 4)
        return Outcome(accuracy, virtual.phase_table(clockwork), pushes, self.weights.numpy().copy(), facts)

    def close(self) -> None:
        """Give the memory back."""
        for arena in (self.arena, self.snapshots):
            arena.close()

    def _keep_snapshot(self, body: dict[str, Any]) -> None:
        self._kept.append((body["pushes"], body["seconds"]))

    def _stop_at_target(self, clockwork: Clockwork) -> None:
        target = self.job.run.target_accuracy
        if target is not None and len(self._rows) < len(self._kept):
            self._evaluate()
            if self._rows[-1][2] >= target:
                clockwork.outcome, clockwork.now = "target", self._kept[-1][1]

    def _evaluate(self) -> None:
        size, dtype = self.job.layout.size, self.job.layout.dtype
        for index in range(len(self._rows), len(self._kept)):
            snapshot = self.snapshots.tensor(index * size * dtype.itemsize, size, dtype)
            self._rows.append((*self._kept[index], *self.evaluator.measure(snapshot)))


def tell(outcome: Outcome, parent: Connection) -> None:
    """In a child: report what came of a run."""
    for name in TABLES:
        table = getattr(outcome, name)
        report(parent, name, table=table.reshape(1, -1) if name == "weights" else table)
    report(parent, "facts", outcome.facts)


def heard(experiment: Experiment, reports: list[Report]) -> Outcome:
    """In the parent: the same from these reports, the last of which is of the facts."""
    tables = {found.kind: found.table for found in reports if found.kind in TABLES}
    weights = tables.pop("weights").ravel().astype(experiment.run.dtype)
    return Outcome(**tables, weights=weights, facts=reports[-1].body)
