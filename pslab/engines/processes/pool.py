"""A pool of processes on this machine: a server and W workers, spawned once and reused by later runs."""

from __future__ import annotations

import atexit
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any

from pslab.config import sources
from pslab.engines.experiment.experiment import Experiment
from pslab.engines.experiment.shared_dataset import SharedDataset, TensorLocation, store_arrays
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.processes.channel import ALIVE, NO_TABLE, Report, await_report, limit_waits, order, order_plain
from pslab.engines.processes.child import SERVER as SERVER
from pslab.engines.processes.child import Memory, name
from pslab.engines.processes.spawn import fork_server_ended, limit, own_folders
from pslab.engines.processes.start import Starter
from pslab.engines.processes.watch import STOPPED, WAITING, Phases, Watch
from pslab.errors import RunError, StartFailed, WorkerDied, WorkerFailed, ended
from pslab.tensors.workload.data import Dataset

START_LIMIT_S = 120.0
HEED_S = 0.1
PIPE_LIMIT_S = 10.0  # a child must continue to read a long order, or to write a report, within this time
STOP_LIMIT_S = 2.0
ARENAS = 5  # tensors, data, snapshots and two tables of the server; each worker has one more, for phases
ENDS = ("failed", "gone", "silent")  # the kinds of a child's last report


class Pool:
    """Spawned child processes, a server and `workers` others, and the memory that they share with their parent. The
    memory has no name in a file system, so no file can be left behind."""

    def __init__(
        self, workers: int, heed: Callable[[], None], tolerated: Callable[[int], bool] = lambda number: False
    ) -> None:
        self.workers, self._edits = workers, sources.edits()
        self._dataset: Dataset | None = None
        self._shelf: SharedDataset | None = None
        self.pipes: dict[int, Connection] = {}
        self.processes: dict[int, Any] = {}
        self.ended: dict[int, RunError] = {}  #: children that have ended while the run goes on, and their errors
        self.watch = Watch()
        self._names: dict[int, str] = {}
        self._held: dict[int, Report] = {}  # last reports of children, which `reports` has not handled yet
        self._arenas: list[Arena] = []
        self._starter = Starter(workers)
        try:
            for _ in range(ARENAS + workers):
                self._arenas.append(Arena())
            self.arena, self.data, self.snapshots, *tables = self._arenas
            self.ledger, self.phases = (tables[0], tables[1]), tables[2:]
            self._spawn(range(workers), heed, tolerated)
        except (OSError, EOFError, MemoryError, WorkerDied) as error:
            self.close(kill=True)
            if isinstance(error, WorkerDied) and not fork_server_ended():
                raise
            raise StartFailed(f"{workers + 1} processes could not be started: {error}{limit(error)}") from error
        except BaseException:
            self.close(kill=True)
            raise

    @property
    def alive(self) -> bool:
        """Whether every process is alive, and none has been ended."""
        whole = bool(self.processes) and not self._held and not self.ended
        return whole and all(p.is_alive() for p in self.processes.values())

    def serves(self, workers: int) -> bool:
        """Whether the pool has enough live processes, and no user's module was edited since they were spawned."""
        return self.workers >= workers and self.alive and self._edits == sources.edits()

    def shelve(self, dataset: Dataset) -> SharedDataset:
        """Copy the dataset into shared memory, unless it is the dataset of the last call; return its locations."""
        if self._shelf is None or dataset is not self._dataset:
            self._shelf, self._dataset = SharedDataset.store(self.data, dataset), dataset
        return self._shelf

    def share(self, experiment: Experiment) -> tuple[SharedDataset, dict[str, TensorLocation]]:
        """Copy an experiment's dataset and arrays into the arena `data`; return their locations."""
        shelf = self.shelve(experiment.dataset)
        return shelf, store_arrays(self.data, experiment, shelf.end)

    def start(self, number: int, role: Callable[..., Any], *arguments: Any) -> None:
        """Order a child to create its role by `role(context, *arguments)`, and to report "prepared" then.

        An attribute `called` of `role`, such as ``"host {}"``, says how messages name the child.
        """
        self._names[number] = str(getattr(role, "called", name(number))).format(number)
        self.order_plain(number, "look_in", *own_folders())  # the notebook may have added a folder since the last run
        self.order(number, "start", role, *arguments)

    def who(self, numbers: Iterable[int]) -> str:
        """Return how messages name these children, separated by commas."""
        return ", ".join(self._names[number] for number in sorted(numbers))

    def order(self, number: int, verb: str, *arguments: Any) -> None:
        """Order a child to call a method of its role. `reports` notices if the child has ended or does not read."""
        self._send(number, lambda pipe: order(pipe, verb, arguments))

    def order_plain(self, number: int, verb: str, *arguments: Any) -> None:
        """Send an order whose arguments are plain lists and numbers as JSON, which is fast for frequent orders."""
        self._send(number, lambda pipe: order_plain(pipe, verb, arguments))

    def _send(self, number: int, send: Callable[[Connection], None]) -> None:
        if number in self.ended or number in self._held:
            return
        try:
            send(self.pipes[number])
        except BlockingIOError:
            self._held[number] = _dead(f"has not read its orders for {PIPE_LIMIT_S:g} s")
        except OSError:
            pass  # the child has ended, which `reports` notices

    def reports(
        self, owed: Phases, timeout_s: float, tolerated: Callable[[int], bool] = lambda number: False
    ) -> list[tuple[int, Report]]:
        """Wait for reports of these children, at most `timeout_s`; return each with its child's number.

        If the end of a child is `tolerated`, its last report has the kind "failed", "gone" or "silent", its process is
        killed, and its error is in `ended`. A child that is silent while WAITING is reported as "silent", but not
        ended.

        Raises:
            WorkerFailed: a child raised, and its end is not tolerated.
            WorkerDied: a child has ended or counts as dead (see `watch`), and its end is not tolerated.
        """
        listened = owed.keys() - self.ended.keys()
        sources: dict[Any, int] = {self.pipes[n]: n for n in listened}
        sources |= {self.processes[n].sentinel: n for n in listened}
        ready = connection.wait(list(sources), 0.0 if self._held else timeout_s)
        spoke = {sources[pipe] for pipe in ready if not isinstance(pipe, int)}
        gone = {sources[end] for end in ready if isinstance(end, int)} - spoke  # an ended child's reports come first
        reports = [(number, self._read(number)) for number in sorted(spoke)]
        reports += [(number, self._gone(number)) for number in sorted(gone)]
        self.watch.heard(spoke)
        quiet = {number: owed[number] for number in listened - spoke - gone}
        for number, how in self.watch.silent(quiet, lambda number: self.processes[number].pid).items():
            reports.append((number, Report("silent", {"how": how}, NO_TABLE)))
        waits = {number for number, report in reports if report.kind == "silent" and owed[number] == WAITING
                 and not report.body["how"].startswith(STOPPED)}  # fmt: skip
        ends = {number: report for number, report in reports if report.kind in ENDS and number not in waits}
        others = [(number, report) for number, report in reports if number not in ends and report.kind != ALIVE]
        self._held = ends | self._held
        if others and not all(map(tolerated, self._held)):  # an error must not hide the reports of others
            return others
        last, self._held = self._held, {}
        for number, final in last.items():
            self._end(number, final, tolerated)
        return [*others, *last.items()]

    def end_of(self, number: int) -> RunError:
        """Return the error of a child that has ended, even if `reports` has not handled its end yet."""
        if number not in self.ended:
            report = self._held.pop(number) if number in self._held else self._gone(number)
            self._end(number, report, lambda number: True)
        return self.ended[number]

    def end(self, number: int, how: str, tolerated: Callable[[int], bool]) -> None:
        """End a child that misbehaves, with the reason `how`, as `reports` ends a silent child."""
        self._end(number, Report("silent", {"how": how}, NO_TABLE), tolerated)

    def _read(self, number: int) -> Report:
        try:
            return await_report(self.pipes[number])
        except BlockingIOError:
            return _dead(f"has written half a report, and nothing for {PIPE_LIMIT_S:g} s")
        except (EOFError, OSError):
            return self._gone(number)

    def _gone(self, number: int) -> Report:
        process = self.processes[number]
        process.join(STOP_LIMIT_S)
        return _dead(f"is gone ({ended(process.exitcode)})")

    def _end(self, number: int, report: Report, tolerated: Callable[[int], bool]) -> None:
        who, body = self._names[number], report.body
        failed = report.kind == "failed"
        error = (WorkerFailed(who, body["iteration"], body["traceback"]) if failed
                 else WorkerDied(who, None, body["how"]))  # fmt: skip
        if not tolerated(number):
            raise error
        self.ended[number] = error
        self.processes[number].kill()

    def replace(self, number: int) -> None:
        """Start a new process in place of an ended process; `attach` connects it to the server.

        Raises:
            StartFailed: the process could not be started.
        """
        self._clear([number])
        with self._starting([number]):
            self._begin([number])

    def renew(self, workers: Sequence[int], heed: Callable[[], None]) -> None:
        """Replace the server and these workers by new processes; other processes lose their pipe to the server.

        Raises:
            StartFailed: the processes could not be started.
        """
        self._clear([SERVER, *workers])
        with self._starting([SERVER, *workers]):
            self._spawn(workers, heed)

    def _clear(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.processes[number].kill()
        for number in numbers:
            _closed(self.processes.pop(number))
            self.pipes.pop(number).close()
            self.ended[number] = StartFailed(f"{name(number)} was not started again")
            self._starter.forget(number)
        self.watch.heard(numbers)
        self._held = {number: report for number, report in self._held.items() if number not in numbers}

    @contextlib.contextmanager
    def _starting(self, numbers: Sequence[int]) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError, MemoryError) as error:
            failed = StartFailed(f"{', '.join(map(name, numbers))} could not be started: {error}{limit(error)}")
            self.ended.update(dict.fromkeys(numbers, failed))
            raise failed from error

    def attach(self, number: int) -> None:
        """Send the server the order "attach", and then its end of the pipe to a new process."""
        self._send(SERVER, lambda pipe: order_plain(pipe, "attach", [number]))
        self._send(SERVER, lambda pipe: self._starter.hand(number, pipe, self.processes[SERVER].pid))

    def close(self, *, kill: bool = False) -> None:
        """End every process, by closing its pipe or with `kill` at once, and free the shared memory."""
        self._starter.close()
        for pipe in self.pipes.values():
            pipe.close()
        for process in self.processes.values():
            if kill:
                process.kill()
        for process in self.processes.values():
            _closed(process)
        self.processes, self.pipes = {}, {}
        for arena in self._arenas:
            arena.close()

    def _spawn(
        self, workers: Sequence[int], heed: Callable[[], None], tolerated: Callable[[int], bool] = lambda number: False
    ) -> None:
        self._begin([SERVER, *workers])
        waiting, until_s = {SERVER, *workers}, time.monotonic() + START_LIMIT_S
        while waiting:
            heed()
            reports = self.reports(dict.fromkeys(waiting, ""), HEED_S, tolerated)
            if not reports and time.monotonic() > until_s:
                late = ", ".join(map(name, sorted(waiting)))
                raise StartFailed(f"{late} did not start within {START_LIMIT_S:g} s: set fewer workers or free cores")
            waiting -= {number for number, _ in reports}

    def _begin(self, numbers: Sequence[int]) -> None:
        memory = {number: Memory(self.arena, self.data, self.snapshots, self.ledger,
                                 None if number == SERVER else self.phases[number]) for number in numbers}  # fmt: skip
        for number, process, pipe in self._starter.start(memory):
            self.processes[number], self.pipes[number], self._names[number] = process, pipe, name(number)
            limit_waits(pipe, PIPE_LIMIT_S)
            self.ended.pop(number, None)


def _dead(how: str) -> Report:
    return Report("gone", {"how": how}, NO_TABLE)


def _closed(process: Any) -> None:
    process.join(STOP_LIMIT_S)
    if process.is_alive():
        process.kill()
        process.join()
    process.close()  # closes its descriptors now: the traceback of a stored error may keep the process object


_kept: Pool | None = None


def acquire(
    workers: int, heed: Callable[[], None] = lambda: None, tolerated: Callable[[int], bool] = lambda number: False
) -> Pool:
    """Return the pool of this process with at least so many workers; spawn a new pool if the present one cannot serve.

    Meanwhile `heed` is called many times a second; if it raises, the spawned processes are ended. If the end of a
    process during its start is `tolerated`, its error is in `Pool.ended`. If the fork server ends, a new fork server
    spawns all processes once more.

    Raises:
        StartFailed: the processes could not be started.
    """
    global _kept
    if _kept is not None and not _kept.serves(workers):
        release(kill=not _kept.alive)
    if _kept is None:
        try:
            _kept = Pool(workers, heed, tolerated)
        except StartFailed:
            if not fork_server_ended():
                raise
            _kept = Pool(workers, heed, tolerated)
        atexit.unregister(release)
        atexit.register(release, kill=True)  # at exit no run is under way
    return _kept


def release(*, kill: bool = False) -> None:
    """Close the pool of this process, if there is one."""
    global _kept
    if _kept is not None:
        pool, _kept = _kept, None
        pool.close(kill=kill)
