"""The processes of this machine: one server and W workers, spawned once and kept between runs."""

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
from pslab.engines.experiment.job import SharedDataset, TensorLocation, store_arrays
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
PIPE_LIMIT_S = 10.0  # in which a child must read on in an order that its pipe does not hold, or write on in a report
STOP_LIMIT_S = 2.0
ARENAS = 5  # tensors, data, snapshots, two of the server's tables; and one of each worker, for phases
ENDS = ("failed", "gone", "silent")  # the kinds of a child's last report


class Pool:
    """Spawned children, so many beside the server, and memory that is theirs, too. Nothing has a name, so nothing can
    be left behind."""

    def __init__(
        self, workers: int, heed: Callable[[], None], tolerated: Callable[[int], bool] = lambda number: False
    ) -> None:
        self.workers, self._edits = workers, sources.edits()
        self._dataset: Dataset | None = None
        self._shelf: SharedDataset | None = None
        self.pipes: dict[int, Connection] = {}
        self.processes: dict[int, Any] = {}
        self.ended: dict[int, RunError] = {}  #: children that a run goes on without, and why
        self.watch = Watch()
        self._names: dict[int, str] = {}
        self._held: dict[int, Report] = {}  # ends that are not reported yet
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
        """Whether every process is still there; one that is being killed may not be gone yet."""
        whole = bool(self.processes) and not self._held and not self.ended
        return whole and all(p.is_alive() for p in self.processes.values())

    def serves(self, workers: int) -> bool:
        """Whether there are enough processes, and none has a module of the user's that was edited since."""
        return self.workers >= workers and self.alive and self._edits == sources.edits()

    def shelve(self, dataset: Dataset) -> SharedDataset:
        """The dataset in shared memory; copied only if it is another than last time."""
        if self._shelf is None or dataset is not self._dataset:
            self._shelf, self._dataset = SharedDataset.store(self.data, dataset), dataset
        return self._shelf

    def share(self, experiment: Experiment) -> tuple[SharedDataset, dict[str, TensorLocation]]:
        """Lay an experiment's dataset and arrays into `data`; return where they lie."""
        shelf = self.shelve(experiment.dataset)
        return shelf, store_arrays(self.data, experiment, shelf.end)

    def start(self, number: int, role: Callable[..., Any], *arguments: Any) -> None:
        """Give one child a role: what this callable makes of its context and these arguments. It reports "prepared".

        Messages name the child as the role's attribute `called` says: ``"host {}"``.
        """
        self._names[number] = str(getattr(role, "called", name(number))).format(number)
        self.order_plain(number, "look_in", *own_folders())  # a notebook may have added one since
        self.order(number, "start", role, *arguments)

    def who(self, numbers: Iterable[int]) -> str:
        """The names of these children in messages."""
        return ", ".join(self._names[number] for number in sorted(numbers))

    def order(self, number: int, verb: str, *arguments: Any) -> None:
        """Call this method of a child's role. That it is dead, or does not read, is seen where reports are awaited."""
        self._send(number, lambda pipe: order(pipe, verb, arguments))

    def order_plain(self, number: int, verb: str, *arguments: Any) -> None:
        """Send an order as JSON: for orders by the thousand, of plain lists and numbers."""
        self._send(number, lambda pipe: order_plain(pipe, verb, arguments))

    def _send(self, number: int, send: Callable[[Connection], None]) -> None:
        if number in self.ended or number in self._held:
            return
        try:
            send(self.pipes[number])
        except BlockingIOError:
            self._held[number] = _dead(f"has not read its orders for {PIPE_LIMIT_S:g} s")
        except OSError:
            pass  # it is gone

    def reports(
        self, owed: Phases, timeout_s: float, tolerated: Callable[[int], bool] = lambda number: False
    ) -> list[tuple[int, Report]]:
        """The reports of these children within `timeout_s`; an empty list if there are none.

        Where a child's end is `tolerated`, that is its last report: of the kind "failed", "gone" or "silent". Its
        process is killed then, and the error is in `ended`. That a child is silent while WAITING is reported; it goes
        on.

        Raises:
            WorkerFailed: a child raised. WorkerDied: one is gone, or dead by the rule of `watch`.
        """
        listened = owed.keys() - self.ended.keys()
        sources: dict[Any, int] = {self.pipes[n]: n for n in listened}
        sources |= {self.processes[n].sentinel: n for n in listened}
        ready = connection.wait(list(sources), 0.0 if self._held else timeout_s)
        spoke = {sources[pipe] for pipe in ready if not isinstance(pipe, int)}
        gone = {sources[end] for end in ready if isinstance(end, int)} - spoke  # its last words come first
        found = [(number, self._read(number)) for number in sorted(spoke)]
        found += [(number, self._gone(number)) for number in sorted(gone)]
        self.watch.heard(spoke)
        quiet = {number: owed[number] for number in listened - spoke - gone}
        for number, how in self.watch.silent(quiet, lambda number: self.processes[number].pid).items():
            found.append((number, Report("silent", {"how": how}, NO_TABLE)))
        ends = {number: each for number, each in found if each.kind in ENDS and not _waits(each, owed[number])}
        others = [(number, each) for number, each in found if number not in ends and each.kind != ALIVE]
        self._held = ends | self._held
        if others and not all(map(tolerated, self._held)):  # an error must not hide the reports of others
            return others
        held, self._held = self._held, {}
        for number, report in held.items():
            self._end(number, report, tolerated)
        return [*others, *held.items()]

    def end_of(self, number: int) -> RunError:
        """Why a child that is gone has ended."""
        if number not in self.ended:
            report = self._held.pop(number) if number in self._held else self._gone(number)
            self._end(number, report, lambda number: True)
        return self.ended[number]

    def end(self, number: int, how: str, tolerated: Callable[[int], bool]) -> None:
        """Take a child that misbehaves as silent; see `reports`."""
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
        """Start a new process in place of an ended one; its line to the server comes with `attach`.

        Raises:
            StartFailed: it could not be spawned.
        """
        self._clear([number])
        with self._starting([number]):
            self._begin([number])

    def renew(self, workers: Sequence[int], heed: Callable[[], None]) -> None:
        """Start new processes, with new lines, for the server and these workers; others lose theirs. As
        `replace`.

        Raises:
            StartFailed: they could not be spawned.
        """
        self._clear([SERVER, *workers])
        with self._starting([SERVER, *workers]):
            self._spawn(workers, heed)

    def _clear(self, numbers: Sequence[int]) -> None:
        """End these, and forget that they have been; until others are spawned in their places there are none."""
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
        """Hand the server its end of a new process's line, behind the order "attach"."""
        self._send(SERVER, lambda pipe: order_plain(pipe, "attach", [number]))
        self._send(SERVER, lambda pipe: self._starter.hand(number, pipe, self.processes[SERVER].pid))

    def close(self, *, kill: bool = False) -> None:
        """End every process: in order if they are well, at once if not."""
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
                raise StartFailed(f"{', '.join(map(name, sorted(waiting)))} did not start within {START_LIMIT_S:g} s")
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
    process.close()  # its descriptors, now: an error that is kept holds its frames, and they the process


def _waits(report: Report, phase: str) -> bool:
    """Whether a child is silent since it waits for others, as far as can be seen."""
    return report.kind == "silent" and phase == WAITING and not report.body["how"].startswith(STOPPED)


_kept: Pool | None = None


def acquire(
    workers: int, heed: Callable[[], None] = lambda: None, tolerated: Callable[[int], bool] = lambda number: False
) -> Pool:
    """The pool of this process, with at least so many workers; spawned anew if there is none that serves.

    `heed` is called many times a second meanwhile; what it raises ends the spawning, and what was spawned. A process
    that ends before it is there is in `Pool.ended`, if that is `tolerated`. Where the fork server ends meanwhile, all
    are spawned once more, by a new one.
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
        atexit.register(release, kill=True)  # nothing is under way that could be lost
    return _kept


def release(*, kill: bool = False) -> None:
    """Close the kept pool, if there is one."""
    global _kept
    if _kept is not None:
        pool, _kept = _kept, None
        pool.close(kill=kill)
