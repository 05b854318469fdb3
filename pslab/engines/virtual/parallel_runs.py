"""Many virtual runs: as many side by side as there are cores, each of them whole in a child of the pool.

A run whole in one process leaves the same bits as one with hosts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from pslab.config.metric import metric_of
from pslab.engines.experiment.checkpoint.checkpointing import Checkpointing
from pslab.engines.experiment.experiment import TABLES, Experiment, Outcome
from pslab.engines.experiment.job import Job, SharedDataset
from pslab.engines.experiment.layout import Layout
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.processes import pool as pools
from pslab.engines.processes.channel import Report, report
from pslab.engines.processes.child import ProcessContext
from pslab.engines.processes.coordinator import EVALUATION_LIMIT_S, INTERRUPT_LIMIT_S
from pslab.engines.processes.watch import COMPUTING, Watch
from pslab.engines.server.evaluate import Evaluator
from pslab.engines.server.ledger import Ledger
from pslab.engines.server.push_accounts import PushAccounts
from pslab.engines.server.shard import TensorShard
from pslab.engines.virtual import engine as virtual
from pslab.engines.virtual.hosts import body_of
from pslab.engines.virtual.simulator import Simulator
from pslab.engines.worker.batches import by_load, requests_of
from pslab.engines.worker.tensors import Basis, Producer, Pulled
from pslab.errors import RunError
from pslab.tensors.device import DEVICES
from pslab.tensors.partitioning.placement import by_key

POLL_S = 0.1
WITHOUT_DATA: dict[str, Any] = {"dataset": None}  # it lies on the shelf
LARGEST = 2**22  # weights; of a larger model several runs at once would take much memory, and no less time
LEFT = "left"  # what a run that fails has completed
#: What a checkpoint has of a whole run.
RESUMED: dict[str, type] = {"simulator": Simulator, "bodies": dict, "kept": list, "rows": dict, "remembered": list}


def fits(experiment: Experiment) -> bool:
    """Whether a run may be one of many side by side: in virtual time, with gradients on a model that is not large."""
    return experiment.run.engine == "virtual" and experiment.keyspace.size <= LARGEST


News = dict[str, Any] | Outcome | RunError


def conduct(experiments: Iterable[Experiment], heed: Callable[[], None]) -> Iterator[tuple[int, News]]:
    """Runs side by side, as (place in `experiments`, what is new): {} when it starts, news, and at last its outcome.

    A run that fails does not end the others: its last news is the error, whose `outcome` has what it had completed, or
    is None where that has gone with its process. `heed` is called many times a second; what it raises ends everything.
    After a KeyboardInterrupt there is, before it goes on, an outcome "interrupted" of each run that was under way and
    had one within two seconds.

    Raises:
        StartFailed: the children could not be started.
    """
    running = _SideBySide(heed)
    try:
        yield from running.conduct(experiments)
    except KeyboardInterrupt:
        yield from running.wind_up()
        pools.release(kill=True)
        raise
    except BaseException:
        pools.release(kill=True)
        raise


class _SideBySide:
    """In the parent: the children, and the experiment that each of them has."""

    def __init__(self, heed: Callable[[], None]) -> None:
        self._heed = heed
        self._idle: list[int] = []
        self._busy: dict[int, tuple[int, Experiment]] = {}
        self._reported: dict[int, list[Report]] = {}
        self._dataset: Any = None

    def conduct(self, experiments: Iterable[Experiment]) -> Iterator[tuple[int, News]]:
        for place, experiment in enumerate(experiments):
            # there is one place for a dataset, which the runs that are under way read
            while self._busy and (not self._idle or experiment.dataset is not self._dataset):
                yield from self._hear()
            if not self._idle:  # as at first: of a pool in which a run has failed, the other children end in order
                self._pool = pools.acquire(virtual.cores(), self._heed)
                self._idle = list(range(virtual.cores()))
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

    def wind_up(self) -> Iterator[tuple[int, News]]:
        """What the runs under way have completed, as far as they say it within the limit."""
        self._heed, until_s = (lambda: None), time.monotonic() + INTERRUPT_LIMIT_S + EVALUATION_LIMIT_S
        for number in self._busy:
            self._pool.order(number, "stop")
        while self._busy and time.monotonic() < until_s:
            yield from self._hear()

    def _hear(self) -> Iterator[tuple[int, News]]:
        self._heed()
        for number, found in self._pool.reports(dict.fromkeys(self._busy, COMPUTING), POLL_S, lambda number: True):
            place, experiment = self._busy[number]
            if found.kind == "news":
                yield place, found.body
                continue
            self._reported[number].append(found)
            if found.kind == "facts":
                self._free(number)
                yield place, outcome_of(experiment, self._reported.pop(number))
            elif found.kind in pools.ENDS:
                self._free(number)
                yield place, self._error(number, experiment)

    def _free(self, number: int) -> None:
        del self._busy[number]
        self._idle = [n for n in (*self._idle, number) if not self._pool.ended]  # a pool with a gap is left in order

    def _error(self, number: int, experiment: Experiment) -> RunError:
        """Why this child has ended, with what it had reported before."""
        error, reported = self._pool.ended[number], self._reported.pop(number)
        if LEFT in [found.kind for found in reported]:
            error.outcome = outcome_of(experiment, reported)
        return error


class WholeRun:
    """The role of a child: one experiment, its workers' gradients computed as soon as they may be."""

    called = "host {} of a virtual run"

    def __init__(self, seat: ProcessContext, experiment: Experiment, shelf: SharedDataset) -> None:
        self.start_s, run, self.checkpoints = time.monotonic(), experiment.run, experiment.checkpoints
        experiment = dataclasses.replace(experiment, dataset=shelf.dataset(seat.data))
        layout = Layout.of(experiment)
        self.seat, self.job = seat, Job.of(experiment, layout, shelf)
        self.arena, self.snapshots = Arena(), Arena()
        self.arena.reserve(layout.end)
        self._weights = self.arena.tensor(layout.server, layout.size, layout.dtype)
        self._weights.copy_(experiment.weights)
        self.requests = requests_of(self.job, self.arena, seat.data)
        self.job = by_load(self.job, self.requests)
        self.producers = [Producer(self.job, worker, self.arena, seat.data, requests=self.requests)
                          for worker in range(run.workers)]  # fmt: skip
        self.evaluator = Evaluator(self.job, seat.data, DEVICES[run.device].of(max(0, seat.number)))
        self.iteration = 0
        self._bodies: dict[int, dict[str, Any]] = {}
        self._kept: list[tuple[int, float]] = []  # pushes and seconds of each snapshot
        self._rows: dict[int, tuple[float, ...]] = {}  # of those that are evaluated

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
            self._conduct()
        finally:
            for arena in (self.arena, self.snapshots):
                arena.close()

    def stop(self) -> None:
        """The order with which a run ends early: `_heed` finds it in the pipe. Here it has come too late."""

    def _conduct(self) -> None:
        begin_s = time.monotonic()
        given: dict[str, Any] = {"snapshots": self.snapshots, "whole": self, "keep": self._keep_snapshot,
                                 "requests": self.requests}  # fmt: skip
        keeper = Checkpointing(self.checkpoints, self.job, self.arena, self._say, **given)
        state = keeper.newest(**RESUMED)
        simulator = self._fresh() if state is None else self._restore(state)
        driver, books, turning_s = simulator.driver, simulator.driver.books, 0.0

        def hand_over(kind: str) -> None:
            wall_s = keeper.before_s + time.monotonic() - self.start_s
            facts = {**simulator.facts(begin_s - self.start_s, turning_s, wall_s), **keeper.facts()}
            rows = [self._rows[index] for index in sorted(self._rows)]
            accuracy = np.array(rows, dtype=np.float64).reshape(-1, 4)
            weights = by_key(self._weights.numpy(), self.job.places)
            tables = accuracy, simulator.phases(), pushes, books.ledger.arrivals, weights[None]
            for name, table in zip(TABLES, tables, strict=True):
                report(self.seat.parent, name, table=table)
            report(self.seat.parent, kind, facts)

        try:
            simulator.run(self._report, lambda: self._after_event(simulator, keeper))
            turning_s = keeper.turned_s
            pushes = books.ledger.close(books.applied, driver.ended_s)
            self._evaluate(math.inf, last=True)
            hand_over("facts")
        except Exception as error:  # what is completed is not lost
            until_s = time.monotonic() + INTERRUPT_LIMIT_S
            if not driver.outcome:
                driver.end("interrupted", simulator.scheduler.now)
            pushes = books.ledger.close(books.applied, driver.ended_s)
            with contextlib.suppress(Exception):  # there is one already
                self._evaluate(until_s)
            hand_over("facts" if isinstance(error, _Stopped) else LEFT)
            if not isinstance(error, _Stopped):
                raise

    def _report(self, news: dict[str, Any]) -> None:
        report(self.seat.parent, "news", news)
        self._heed()

    def _heed(self) -> None:
        if self.seat.parent.poll():
            raise _Stopped

    def _keep_snapshot(self, body: dict[str, Any]) -> None:
        self._kept.append((body["pushes"], body["seconds"]))

    def _say(self, words: str) -> None:
        report(self.seat.parent, "news", {"pushes": 0, "seconds": 0.0, "checkpoint": words})

    def _after_event(self, simulator: Simulator, keeper: Checkpointing) -> None:
        self._stop_at_target(simulator)
        if keeper.due(simulator.pushes) and not (simulator.driver.outcome or simulator.driver.copying):
            self._evaluate(math.inf)  # then no checkpoint needs the weights of a snapshot
            keeper.keep(simulator.pushes, lambda: {
                "simulator": simulator, "bodies": self._bodies, "kept": self._kept, "rows": self._rows,
                "remembered": [producer.remembered() for producer in self.producers],
            })  # fmt: skip

    def _fresh(self) -> Simulator:
        ledger = Ledger(self.job, self._weights, self.snapshots, self._keep_snapshot)
        accounts = PushAccounts(self.job, ledger)
        return Simulator(self.job, accounts, TensorShard(self.job, self.arena), self, self.requests)

    def _restore(self, state: dict[str, Any]) -> Simulator:
        self._bodies, self._kept, self._rows = state["bodies"], state["kept"], state["rows"]
        for producer, remembered in zip(self.producers, state["remembered"], strict=True):
            producer.recall(remembered)
        simulator: Simulator = state["simulator"]
        return simulator

    def _stop_at_target(self, simulator: Simulator) -> None:
        target = self.job.run.target_accuracy
        if target is not None and len(self._rows) < len(self._kept):
            self._evaluate(math.inf)
            if metric_of(self.job.run).reaches(self._rows[len(self._kept) - 1][2], target):
                simulator.driver.end("target", self._kept[-1][1])

    def _evaluate(self, until_s: float, *, last: bool = False) -> None:
        """What is not evaluated; if there is a limit, the last one first. It is reported where nothing else is left."""
        todo = [index for index in range(len(self._kept)) if index not in self._rows]
        for index in todo if until_s == math.inf else todo[::-1]:
            if until_s == math.inf:
                self._heed()
            elif time.monotonic() > until_s:
                return
            if last:
                pushes, seconds = self._kept[-1]
                news = {"pushes": pushes, "seconds": seconds, "evaluating": [len(self._rows), len(self._kept)]}
                report(self.seat.parent, "news", news)
            self._rows[index] = (*self._kept[index], *self.evaluator.snapshot(index, self.snapshots))


class _Stopped(Exception):
    """The parent wants no more of this run."""


def outcome_of(experiment: Experiment, reports: list[Report]) -> Outcome:
    """What a whole run has reported."""
    facts = next(found.body for found in reports if found.kind in ("facts", LEFT))
    tables: dict[str, Any] = {found.kind: found.table for found in reports if found.kind in TABLES}
    weights = tables.pop("weights").ravel().astype(experiment.run.dtype)
    return Outcome(**tables, weights=weights, facts=facts)
