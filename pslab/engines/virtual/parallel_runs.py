"""Execute virtual runs side by side, one for each core; a child process of the pool executes a whole run.

The child does what the parent of a run does (VirtualRun, or the engine without tensors), with itself as the only host,
so the bits are the same.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from pslab.config.available import cores
from pslab.engines.experiment.experiment import TABLES, Experiment, Interrupted, Outcome, Trained
from pslab.engines.experiment.shared_dataset import SharedDataset, TensorLocation
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.processes import pool as pools
from pslab.engines.processes.channel import Report, await_report, report
from pslab.engines.processes.child import ProcessContext
from pslab.engines.processes.coordinator import EVALUATION_LIMIT_S, INTERRUPT_LIMIT_S
from pslab.engines.processes.watch import COMPUTING, Phases, Watch
from pslab.engines.virtual import engine as virtual
from pslab.engines.virtual import timing
from pslab.engines.virtual.simulator import Simulator
from pslab.errors import RunError, StartFailed, WorkerFailed

POLL_S = 0.1
WITHOUT_DATA: dict[str, Any] = {"dataset": None}  # the dataset lies in shared memory
# kinds of reports: the completed part of a failed run, the snapshots of a run interrupted during its evaluations, and
# a run that was interrupted before its start
LEFT, TRAINED, NOTHING = "left", "trained", "nothing"
UNSTARTED = "the run was stopped before it had started: run it again"


News = dict[str, Any] | Outcome | RunError


def conduct(
    experiments: Iterable[Experiment], heed: Callable[[], None], unwanted: Callable[[int], bool] = lambda index: False
) -> Iterator[tuple[int, News]]:
    """Execute runs side by side; yield (index in `experiments`, news): {} when a run starts, and at last its outcome.

    A failed run does not end the others. Its last news is the error, whose `outcome` is the completed part, or None if
    this was lost with the process. `heed` is called many times a second; an error that it raises ends all runs. After a
    KeyboardInterrupt, each run under way has two seconds to yield its outcome "interrupted"; then it is raised again.

    If `unwanted(index)` becomes true, the run with this index is not started, or it alone is interrupted.

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
    """The parent's part: the child processes, and the experiment that each child executes."""

    def __init__(self, heed: Callable[[], None], unwanted: Callable[[int], bool]) -> None:
        self._heed, self._unwanted = heed, unwanted
        self._idle: list[int] = []
        self._busy: dict[int, tuple[int, Experiment]] = {}
        self._reported: dict[int, list[Report]] = {}
        self._stopped: set[int] = set()  # children whose run was told to end
        self._dataset: Any = None

    def conduct(self, experiments: Iterable[Experiment]) -> Iterator[tuple[int, News]]:
        for index, experiment in enumerate(experiments):
            # shared memory has room for one dataset, which the runs under way read
            while self._busy and (not self._idle or experiment.dataset is not self._dataset):
                yield from self._hear()
            if self._unwanted(index):
                continue
            if not self._idle:  # at first, or if a child of the pool has ended: then its other runs have ended by now
                count = cores()
                self._pool, self._idle = pools.acquire(count, self._heed), list(range(count))
            self._dataset, number = experiment.dataset, self._idle.pop()
            self._busy[number], self._reported[number] = (index, experiment), []
            # one watch for all children, so the longest lease of their runs holds
            self._pool.watch = Watch(max(other.run.lease_s for _, other in self._busy.values()))
            shelf = self._pool.shelve(experiment.dataset)
            light: Any = dataclasses.replace(experiment, **WITHOUT_DATA)  # its data are sent once, through memory
            self._pool.start(number, WholeRun, light, shelf)
            self._pool.order(number, "conduct")
            yield index, {}
        while self._busy:
            yield from self._hear()

    def wind_up(self) -> Iterator[tuple[int, News]]:
        """Stop the runs under way; yield the completed parts that are reported within the limit."""
        self._heed, until_s = (lambda: None), time.monotonic() + INTERRUPT_LIMIT_S + EVALUATION_LIMIT_S
        self._stop(self._busy)
        while self._busy and time.monotonic() < until_s:
            yield from self._hear()

    def _stop(self, numbers: Iterable[int]) -> None:
        for number in {*numbers} - self._stopped:
            self._pool.order(number, "stop")
            self._stopped.add(number)  # a second order would reach the child's next run

    def _hear(self) -> Iterator[tuple[int, News]]:
        self._heed()
        self._stop(number for number, (index, _) in self._busy.items() if self._unwanted(index))
        for number, heard in self._pool.reports(dict.fromkeys(self._busy, COMPUTING), POLL_S, lambda number: True):
            index, experiment = self._busy[number]
            if heard.kind == "news":
                yield index, heard.body
                continue
            self._reported[number].append(heard)
            if heard.kind == "facts":
                self._free(number)
                yield index, outcome_of(experiment, self._reported.pop(number))
            elif heard.kind == NOTHING:
                self._free(number)
                yield index, StartFailed(UNSTARTED)
            elif heard.kind in pools.ENDS:
                self._free(number)
                yield index, self._error(number, experiment)

    def _free(self, number: int) -> None:
        del self._busy[number]
        self._stopped.discard(number)
        self._idle = [n for n in (*self._idle, number) if not self._pool.ended]  # leave a pool with an ended child

    def _error(self, number: int, experiment: Experiment) -> RunError:
        """Return the error of a child that has ended, with the completed part of its run if it was reported."""
        error, reported = self._pool.ended[number], self._reported.pop(number)
        if LEFT in [heard.kind for heard in reported]:
            # reported before the error: the completed part of the run
            error.outcome = outcome_of(experiment, reported)
        return error


class WholeRun:
    """The role of a child that executes one run, as the run's only host."""

    called = "host {} of a virtual run"

    def __init__(self, context: ProcessContext, experiment: Experiment, shelf: SharedDataset) -> None:
        self._parent, self._pool = context.parent, OwnPool(context, shelf)
        experiment = dataclasses.replace(experiment, dataset=shelf.dataset(context.data))
        pool: Any = self._pool
        self._conduct = (virtual.VirtualRun(pool, experiment, self._news, 1, Simulator).conduct if experiment.trains
                         else partial(timing.execute, experiment, self._news))  # fmt: skip

    @property
    def iteration(self) -> int:
        """The iteration whose gradient is computed, for error messages."""
        return self._pool.iteration

    def conduct(self) -> None:
        """Execute the run, evaluate its snapshots, and report the outcome in parts, which `outcome_of` joins."""
        try:
            self._hand_over("facts", self._conduct())
        except Interrupted as interrupt:
            if interrupt.outcome is None:
                report(self._parent, NOTHING)
            else:
                self._hand_over("facts", interrupt.outcome)
        except RunError as error:  # the completed part is not lost
            self._hand_over(LEFT, error.outcome)
            # unwrapped, because the report of this process adds its name and its iteration again
            raise error.__cause__ or error from None
        finally:
            self._pool.close()

    def stop(self) -> None:
        """Do nothing: if this order is read, the run has ended. During the run, `_news` notices it in the pipe."""

    def _news(self, news: dict[str, Any]) -> None:
        if news:
            report(self._parent, "news", news)
        # an order is in the pipe: during a run it can only be `stop`, which is read after the run
        if self._parent.poll():
            raise KeyboardInterrupt

    def _hand_over(self, kind: str, outcome: Outcome | None) -> None:
        if outcome is None:
            raise StartFailed(UNSTARTED)
        # a report has one table, so an outcome takes several
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
    """A pool whose only process is this process, which executes an order at once. Its dataset is the parent's."""

    def __init__(self, context: ProcessContext, shelf: SharedDataset) -> None:
        # its own memory: several children execute runs at the same time, on one dataset
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
        return self._shelf, {}  # the experiment's arrays are in this process already

    def start(self, number: int, role: Callable[..., Any], *arguments: Any) -> None:
        self._role = role(self._context, *arguments)
        report(self._context.parent, "prepared")

    def order(self, number: int, verb: str, *arguments: Any) -> None:
        """Call a method of the role; raise WorkerFailed if the method raises."""
        try:
            getattr(self._role, verb)(*arguments)
        except Exception as error:
            raise WorkerFailed(WholeRun.called, self.iteration, str(error)) from error

    order_plain = order

    def reports(self, owed: Phases, timeout_s: float, tolerated: Any = None) -> list[tuple[int, Report]]:
        # orders were executed at once: their reports are here, and waiting for more would never end
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
    """Join the reports of a child to the outcome of its run."""
    by_kind = {heard.kind: heard for heard in reports}
    tables: dict[str, Any] = {name: by_kind[name].table for name in TABLES}
    dtype = experiment.run.dtype
    # reports have float64 tables, which hold every float32 exactly
    tables["weights"] = tables["weights"].ravel().astype(dtype)
    trained = None
    if TRAINED in by_kind:
        snapshots, evaluated = ({index: tuple(row) for index, *row in by_kind[TRAINED].body[name]}
                                for name in ("snapshots", "evaluated"))  # fmt: skip
        left = zip(by_kind[TRAINED].body["left"], by_kind[TRAINED].table.astype(dtype), strict=True)
        trained = Trained(snapshots, evaluated, dict(left))
    facts = by_kind["facts" if "facts" in by_kind else LEFT].body
    return Outcome(**tables, facts=facts, trained=trained, metrics=experiment.metrics)
