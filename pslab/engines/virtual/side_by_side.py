"""Many virtual runs: as many side by side as there are cores, each of them whole in a child of the pool.

A run whole in one process leaves the same bits as one with hosts.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch

from pslab.config.metric import metric_of
from pslab.engines.job.checkpoint.keeper import Keeper
from pslab.engines.job.experiment import Experiment
from pslab.engines.job.job import Job, Shelf
from pslab.engines.job.layout import Layout
from pslab.engines.job.outcome import Outcome
from pslab.engines.job.shared_memory import Arena
from pslab.engines.processes import pool as pools
from pslab.engines.processes.channel import Report, report
from pslab.engines.processes.child import Seat
from pslab.engines.processes.watch import COMPUTING, Watch
from pslab.engines.server.books import Books
from pslab.engines.server.evaluate import Evaluator
from pslab.engines.server.ledger import Ledger
from pslab.engines.server.shard import TensorShard
from pslab.engines.virtual import engine as virtual
from pslab.engines.virtual.hosts import body_of
from pslab.engines.virtual.simulator import Simulator
from pslab.engines.worker.tensors import Basis, Producer, Pulled

POLL_S = 0.1
WITHOUT_DATA: dict[str, Any] = {"dataset": None}  # it lies on the shelf
LARGEST = 2**22  # weights; of a larger model several runs at once would take much memory, and no less time
TABLES = ("accuracy", "phases", "pushes", "arrivals", "weights")


def fits(experiment: Experiment) -> bool:
    """Whether a run may be one of many side by side: in virtual time, with gradients on a model that is not large."""
    return experiment.run.engine == "virtual" and experiment.keyspace.size <= LARGEST


def conduct(
    experiments: Iterable[Experiment], heed: Callable[[], None]
) -> Iterator[tuple[int, dict[str, Any] | Outcome]]:
    """Runs side by side, as (place in `experiments`, what is new): {} when it starts, news, and at last its outcome.

    `heed` is called many times a second; what it raises ends everything, as does what a run raises.

    Raises:
        WorkerFailed, WorkerDied, StartFailed: a child did; the pool is closed then.
    """
    pool = pools.acquire(virtual.cores(), heed)
    try:
        yield from _SideBySide(pool, heed).conduct(experiments)
    except BaseException:
        pools.release(kill=True)
        raise


class _SideBySide:
    """In the parent: the children, and the experiment that each of them has."""

    def __init__(self, pool: pools.Pool, heed: Callable[[], None]) -> None:
        self._pool, self._heed = pool, heed
        self._idle = list(range(virtual.cores()))
        self._busy: dict[int, tuple[int, Experiment]] = {}
        self._reported: dict[int, list[Report]] = {}
        self._dataset: Any = None

    def conduct(self, experiments: Iterable[Experiment]) -> Iterator[tuple[int, dict[str, Any] | Outcome]]:
        for place, experiment in enumerate(experiments):
            # there is one place for a dataset, which the runs that are under way read
            while not self._idle or (self._busy and experiment.dataset is not self._dataset):
                yield from self._hear()
            self._dataset, number = experiment.dataset, self._idle.pop()
            self._busy[number], self._reported[number] = (place, experiment), []
            self._pool.watch = Watch(max(each.run.lease_s for _, each in self._busy.values()))
            shelf = self._pool.shelve(experiment.dataset)
            light: Any = dataclasses.replace(experiment, **WITHOUT_DATA)
            self._pool.start(number, WholeRun, light, shelf)
            self._pool.order(number, "conduct")
            yield place, {}
        while self._busy:
            yield from self._hear()

    def _hear(self) -> Iterator[tuple[int, dict[str, Any] | Outcome]]:
        self._heed()
        for number, found in self._pool.reports(dict.fromkeys(self._busy, COMPUTING), POLL_S):
            place, experiment = self._busy[number]
            if found.kind == "news":
                yield place, found.body
                continue
            self._reported[number].append(found)
            if found.kind == "facts":
                del self._busy[number]
                self._idle.append(number)
                yield place, outcome_of(experiment, self._reported.pop(number))


class WholeRun:
    """The role of a child: one experiment, its workers' gradients computed as soon as they may be."""

    called = "host {} of a virtual run"

    def __init__(self, seat: Seat, experiment: Experiment, shelf: Shelf) -> None:
        self.start_s, run, self.checkpoints = time.monotonic(), experiment.run, experiment.checkpoints
        experiment = dataclasses.replace(experiment, dataset=shelf.dataset(seat.data))
        layout = Layout.of(experiment)
        self.seat, self.job = seat, Job.of(experiment, layout, shelf)
        self.arena, self.snapshots = Arena(), Arena()
        self.arena.reserve(layout.end)
        self.arena.tensor(layout.server, layout.size, layout.dtype).copy_(experiment.weights)
        self.producers = [Producer(self.job, worker, self.arena, seat.data) for worker in range(run.workers)]
        self.evaluator = Evaluator(self.job, seat.data, torch.device(run.device))
        self.iteration = 0
        self._bodies: dict[int, dict[str, Any]] = {}
        self._kept: list[tuple[int, float]] = []  # pushes and seconds of each snapshot
        self._rows: list[tuple[float, ...]] = []

    def start(
        self, worker: int, iteration: int, pulled: list[Pulled], settled_s: float, basis: Basis
    ) -> None:
        """A worker's weights are settled: compute."""
        self.iteration = iteration
        self._bodies[worker] = body_of(self.producers[worker], iteration, pulled, basis)

    def result(self, worker: int, meanwhile: Callable[[], None]) -> dict[str, Any]:
        """What it has computed."""
        meanwhile()
        return self._bodies.pop(worker)

    def conduct(self) -> None:
        """Do the run, evaluate its snapshots, and report what came of it; see `outcome_of`."""
        try:
            begin_s, parent = time.monotonic(), self.seat.parent
            weights = self.arena.tensor(self.job.layout.server, self.job.layout.size, self.job.layout.dtype)
            given = {"snapshots": self.snapshots, "whole": self, "keep": self._keep_snapshot}
            keeper = Keeper(self.checkpoints, self.job, self.arena, self._say, **given)
            if (state := keeper.newest()) is not None:
                simulator = self._restore(state)
            else:
                ledger = Ledger(self.job, weights, self.snapshots, self._keep_snapshot)
                simulator = Simulator(self.job, Books(self.job, ledger), TensorShard(self.job, self.arena), self)
            simulator.run(lambda news: report(parent, "news", news), lambda: self._after_event(simulator, keeper))
            turning_s, books = keeper.turned_s, simulator.driver.books
            pushes = books.ledger.close(books.applied, simulator.driver.ended_s)
            self._evaluate()
            wall_s = keeper.before_s + time.monotonic() - self.start_s
            facts = {**simulator.facts(begin_s - self.start_s, turning_s, wall_s), **keeper.facts()}
            accuracy = np.array(self._rows, dtype=np.float64).reshape(-1, 4)
            tables = accuracy, simulator.phases(), pushes, books.ledger.arrivals, weights.numpy()[None]
            for name, table in zip(TABLES, tables, strict=True):
                report(parent, name, table=table)
            report(parent, "facts", facts)
        finally:
            for arena in (self.arena, self.snapshots):
                arena.close()

    def _keep_snapshot(self, body: dict[str, Any]) -> None:
        self._kept.append((body["pushes"], body["seconds"]))

    def _say(self, words: str) -> None:
        report(self.seat.parent, "news", {"pushes": 0, "seconds": 0.0, "checkpoint": words})

    def _after_event(self, simulator: Simulator, keeper: Keeper) -> None:
        self._stop_at_target(simulator)
        if keeper.due(simulator.pushes) and not simulator.driver.outcome:
            self._evaluate()  # then no checkpoint needs the weights of a snapshot
            keeper.keep(simulator.pushes, lambda: {
                "simulator": simulator, "bodies": self._bodies, "kept": self._kept, "rows": self._rows,
                "remembered": [producer.remembered() for producer in self.producers],
            })  # fmt: skip

    def _restore(self, state: dict[str, Any]) -> Simulator:
        self._bodies, self._kept, self._rows = (state[name] for name in ("bodies", "kept", "rows"))
        for producer, remembered in zip(self.producers, state["remembered"], strict=True):
            producer.recall(remembered)
        simulator: Simulator = state["simulator"]
        return simulator

    def _stop_at_target(self, simulator: Simulator) -> None:
        target = self.job.run.target_accuracy
        if target is not None and len(self._rows) < len(self._kept):
            self._evaluate()
            if metric_of(self.job.run).reaches(self._rows[-1][2], target):
                simulator.driver.end("target", self._kept[-1][1])

    def _evaluate(self) -> None:
        for index in range(len(self._rows), len(self._kept)):
            self._rows.append((*self._kept[index], *self.evaluator.snapshot(index, self.snapshots)))


def outcome_of(experiment: Experiment, reports: list[Report]) -> Outcome:
    """What a whole run has reported, the facts last."""
    tables = {found.kind: found.table for found in reports if found.kind in TABLES}
    weights = tables.pop("weights").ravel().astype(experiment.run.dtype)
    return Outcome(**tables, weights=weights, facts=reports[-1].body)
