"""Many virtual runs: as many side by side as there are cores, each of them whole in a child of the pool.

A child conducts its run as a parent would (VirtualRun), with itself as the only host: the same bits.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from pslab.engines.experiment.experiment import TABLES, Experiment, Interrupted, Outcome, Trained
from pslab.engines.experiment.job import SharedDataset, TensorLocation
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.processes import pool as pools
from pslab.engines.processes.channel import Report, await_report, report
from pslab.engines.processes.child import ProcessContext
from pslab.engines.processes.coordinator import EVALUATION_LIMIT_S, INTERRUPT_LIMIT_S
from pslab.engines.processes.watch import COMPUTING, Phases, Watch
from pslab.engines.virtual import engine as virtual
from pslab.engines.virtual.simulator import Simulator
from pslab.errors import RunError, StartFailed, WorkerFailed

POLL_S = 0.1
WITHOUT_DATA: dict[str, Any] = {"dataset": None}  # it lies on the shelf
LEFT = "left"  # what a run that fails has completed
TRAINED = "trained"  # what a run that is interrupted while it is evaluated has left of that
NOTHING = "nothing"  # a run that is interrupted before it has started has completed nothing


News = dict[str, Any] | Outcome | RunError


def conduct(
    experiments: Iterable[Experiment], heed: Callable[[], None], unwanted: Callable[[int], bool] = lambda place: False
) -> Iterator[tuple[int, News]]:
    """Runs side by side, as (place in `experiments`, what is new): {} when it starts, news, and at last its outcome.

    A run that fails does not end the others: its last news is the error, whose `outcome` has what it had completed, or
    is None where that has gone with its process. `heed` is called many times a second; what it raises ends everything.
    After a KeyboardInterrupt there is, before it goes on, an outcome "interrupted" of each run that was under way and
    had one within two seconds.

    A run whose place becomes `unwanted` is not begun; one that is under way is ended alone, as an interrupt ends all.

    Raises:
        StartFailed: the children could not be started.
    """
    running = _SideBySide(heed, unwanted)
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

    def __init__(self, heed: Callable[[], None], unwanted: Callable[[int], bool]) -> None:
        self._heed, self._unwanted = heed, unwanted
        self._idle: list[int] = []
        self._busy: dict[int, tuple[int, Experiment]] = {}
        self._reported: dict[int, list[Report]] = {}
        self._stopped: set[int] = set()  # children whose run was told to end
        self._dataset: Any = None

    def conduct(self, experiments: Iterable[Experiment]) -> Iterator[tuple[int, News]]:
        for place, experiment in enumerate(experiments):
            # there is one place for a dataset, which the runs that are under way read
            while self._busy and (not self._idle or experiment.dataset is not self._dataset):
                yield from self._hear()
            if self._unwanted(place):
                continue
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
        """Return the completed parts of the runs under way, as far as they report within the limit."""
        self._heed, until_s = (lambda: None), time.monotonic() + INTERRUPT_LIMIT_S + EVALUATION_LIMIT_S
        self._stop(self._busy)
        while self._busy and time.monotonic() < until_s:
            yield from self._hear()

    def _stop(self, numbers: Iterable[int]) -> None:
        for number in {*numbers} - self._stopped:
            self._pool.order(number, "stop")
            self._stopped.add(number)

    def _hear(self) -> Iterator[tuple[int, News]]:
        self._heed()
        self._stop(number for number, (place, _) in self._busy.items() if self._unwanted(place))
        for number, found in self._pool.reports(dict.fromkeys(self._busy, COMPUTING), POLL_S, lambda number: True):
            place, experiment = self._busy[number]
            if found.kind == "news":
                yield place, found.body
                continue
            self._reported[number].append(found)
            if found.kind == "facts":
                self._free(number)
                yield place, outcome_of(experiment, self._reported.pop(number))
            elif found.kind == NOTHING:
                self._free(number)
                yield place, StartFailed("the run was stopped before it had started")
            elif found.kind in pools.ENDS:
                self._free(number)
                yield place, self._error(number, experiment)

    def _free(self, number: int) -> None:
        del self._busy[number]
        self._stopped.discard(number)
        self._idle = [n for n in (*self._idle, number) if not self._pool.ended]  # a pool with a gap is left in order

    def _error(self, number: int, experiment: Experiment) -> RunError:
        """Why this child has ended, with what it had reported before."""
        error, reported = self._pool.ended[number], self._reported.pop(number)
        if LEFT in [found.kind for found in reported]:
            error.outcome = outcome_of(experiment, reported)
        return error


class WholeRun:
    """The role of a child: it conducts one experiment, as the only host of it."""

    called = "host {} of a virtual run"

    def __init__(self, context: ProcessContext, experiment: Experiment, shelf: SharedDataset) -> None:
        self._parent, self._pool = context.parent, OwnPool(context, shelf)
        experiment = dataclasses.replace(experiment, dataset=shelf.dataset(context.data))
        pool: Any = self._pool
        self._run = virtual.VirtualRun(pool, experiment, self._news, 1, Simulator)

    @property
    def iteration(self) -> int:
        """The iteration whose gradient is computed, for error messages."""
        return self._pool.iteration

    def conduct(self) -> None:
        """Do the run, evaluate its snapshots, and report what came of it; see `outcome_of`."""
        try:
            self._hand_over("facts", self._run.conduct())
        except Interrupted as interrupt:
            if interrupt.outcome is None:
                report(self._parent, NOTHING)
            else:
                self._hand_over("facts", interrupt.outcome)
        except RunError as error:  # what is completed is not lost
            self._hand_over(LEFT, error.outcome)
            raise error.__cause__ or error from None
        finally:
            self._pool.close()

    def stop(self) -> None:
        """The order with which a run ends early: `_news` finds it in the pipe. Here it has come too late."""

    def _news(self, news: dict[str, Any]) -> None:
        if news:
            report(self._parent, "news", news)
        if self._parent.poll():
            raise KeyboardInterrupt

    def _hand_over(self, kind: str, outcome: Outcome | None) -> None:
        if outcome is None:
            raise StartFailed("the run was stopped before it had started")
        for name in TABLES:
            table = getattr(outcome, name)
            report(self._parent, name, table=table[None] if table.ndim == 1 else table)
        if (trained := outcome.trained) is not None and trained.left:
            body = {"snapshots": [[index, *row] for index, row in trained.snapshots.items()],
                    "evaluated": [[index, *row] for index, row in trained.evaluated.items()],
                    "left": list(trained.left)}  # fmt: skip
            report(self._parent, TRAINED, body, np.array(list(trained.left.values())))
        report(self._parent, kind, outcome.facts)


class OwnPool:
    """A pool of one process, which is this one: what that is ordered is done at once. The data are the parent's."""

    def __init__(self, context: ProcessContext, shelf: SharedDataset) -> None:
        self.arena, self.data, self.snapshots = Arena(), context.data, Arena()
        self.ended: dict[int, RunError] = {}
        self.watch = Watch()
        self._shelf, self._role = shelf, None
        self._said = deque[bytes]()
        parent: Any = self
        self._context = context._replace(parent=parent, arena=self.arena, snapshots=self.snapshots)

    @property
    def iteration(self) -> int:
        return getattr(self._role, "iteration", 0)

    def share(self, experiment: Experiment) -> tuple[SharedDataset, dict[str, TensorLocation]]:
        return self._shelf, {}  # its arrays are sent nowhere

    def start(self, number: int, role: Callable[..., Any], *arguments: Any) -> None:
        self._role = role(self._context, *arguments)
        report(self._context.parent, "prepared")

    def order(self, number: int, verb: str, *arguments: Any) -> None:
        """Raises WorkerFailed if that raises anything."""
        try:
            getattr(self._role, verb)(*arguments)
        except Exception as error:
            raise WorkerFailed(WholeRun.called, self.iteration, str(error)) from error

    order_plain = order

    def reports(self, owed: Phases, timeout_s: float, tolerated: Any = None) -> list[tuple[int, Report]]:
        return [(0, await_report(self._context.parent)) for _ in range(len(self._said))]

    def close(self) -> None:
        for arena in (self.arena, self.snapshots):
            arena.close()

    # --- the pipe from the only process to its parent -------------------------------------------------------------

    def send_bytes(self, message: bytes) -> None:
        self._said.append(message)

    def recv_bytes(self) -> bytes:
        return self._said.popleft()


def outcome_of(experiment: Experiment, reports: list[Report]) -> Outcome:
    """Return the outcome that a whole run has reported."""
    found = {each.kind: each for each in reports}
    tables: dict[str, Any] = {name: found[name].table for name in TABLES}
    dtype = experiment.run.dtype
    tables["weights"] = tables["weights"].ravel().astype(dtype)
    trained = None
    if TRAINED in found:
        snapshots, evaluated = ({index: tuple(row) for index, *row in found[TRAINED].body[name]}
                                for name in ("snapshots", "evaluated"))  # fmt: skip
        left = zip(found[TRAINED].body["left"], found[TRAINED].table.astype(dtype), strict=True)
        trained = Trained(snapshots, evaluated, dict(left))
    facts = found["facts" if "facts" in found else LEFT].body
    return Outcome(**tables, facts=facts, trained=trained, metrics=experiment.metrics)
