"""The processes of this machine: one server and W workers, spawned once and kept between runs."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing as mp
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any

from pslab.config import sources
from pslab.engines.job.job import Shelf
from pslab.engines.job.shared_memory import Arena
from pslab.engines.processes import child
from pslab.engines.processes.channel import Report, await_report, order, order_plain
from pslab.engines.processes.spawn import without_main
from pslab.errors import StartFailed, WorkerDied, WorkerFailed, ended
from pslab.tensors.workload.data import Dataset

SERVER = -1  # the number of the process to which all others have a pipe; they count from 0
START_LIMIT_S = 120.0
HEED_S = 0.1
STOP_LIMIT_S = 2.0


class Pool:
    """Spawned children and the memory that they share. Nothing has a name, so nothing can be left behind."""

    def __init__(self, workers: int, heed: Callable[[], None]) -> None:
        self.workers, self._edits = workers, sources.edits()
        self.arena, self.data, self.snapshots = Arena(), Arena(), Arena()
        self._dataset: Dataset | None = None
        self._shelf: Shelf | None = None
        self.pipes: dict[int, Connection] = {}
        self.processes: dict[int, Any] = {}
        try:
            self._spawn(heed)
        except BaseException:
            self.close(kill=True)
            raise

    @property
    def alive(self) -> bool:
        """Whether every process is still there."""
        return bool(self.processes) and all(p.is_alive() for p in self.processes.values())

    def serves(self, workers: int) -> bool:
        """Whether there are enough processes, and none has a module of the user's that was edited since."""
        return self.workers >= workers and self.alive and self._edits == sources.edits()

    def shelve(self, dataset: Dataset) -> Shelf:
        """The dataset in shared memory; copied only if it is another than last time."""
        if self._shelf is None or dataset is not self._dataset:
            self._shelf, self._dataset = Shelf.store(self.data, dataset), dataset
        return self._shelf

    def start(self, number: int, role: Callable[..., Any], *arguments: Any) -> None:
        """Give one child a role: what this callable makes of its seat and these arguments. It reports "prepared"."""
        self.order(number, "start", role, *arguments)

    def order(self, number: int, verb: str, *arguments: Any) -> None:
        """Call this method of a child's role; its death is noticed where reports are awaited."""
        with contextlib.suppress(OSError):
            order(self.pipes[number], verb, arguments)

    def order_plain(self, number: int, verb: str, *arguments: Any) -> None:
        """The same for orders that come by the thousand, of plain lists and numbers."""
        with contextlib.suppress(OSError):
            order_plain(self.pipes[number], verb, arguments)

    def reports(
        self, numbers: set[int], timeout_s: float, tolerated: Callable[[int], bool]
    ) -> list[tuple[int, Report]]:
        """Reports that have come from some children within `timeout_s` (an empty list if none).

        Raises:
            WorkerFailed: a child raised. WorkerDied: a child that is not `tolerated` is gone.
        """
        sources: dict[Any, int] = {self.pipes[n]: n for n in numbers if not self.pipes[n].closed}
        sources |= {self.processes[n].sentinel: n for n in numbers if not tolerated(n)}
        found = []
        ready = connection.wait(list(sources), timeout_s)
        for source in sorted(ready, key=lambda s: isinstance(s, int)):  # a child's last words before its death
            number = sources[source]
            if isinstance(source, int):
                raise WorkerDied(_name(number), None, f"is gone ({ended(self.processes[number].exitcode)})")
            try:
                report = await_report(self.pipes[number])
            except (EOFError, OSError):
                self.pipes[number].close()
                continue
            if report.kind == "failed":
                raise WorkerFailed(_name(number), report.body["iteration"], report.body["traceback"])
            found.append((number, report))
        return found

    def close(self, *, kill: bool = False) -> None:
        """End every process: in order if they are well, at once if not."""
        for pipe in self.pipes.values():
            pipe.close()
        for process in self.processes.values():
            if kill:
                process.kill()
        for process in self.processes.values():
            process.join(STOP_LIMIT_S)
            if process.is_alive():
                process.kill()
                process.join()
        self.processes, self.pipes = {}, {}
        for arena in (self.arena, self.data, self.snapshots):
            arena.close()

    def _spawn(self, heed: Callable[[], None]) -> None:
        context = mp.get_context("spawn")
        ends = [context.Pipe() for _ in range(self.workers)]
        lines = {SERVER: [server for server, _ in ends]} | {w: [worker] for w, (_, worker) in enumerate(ends)}
        with without_main(), _deaf():
            for number, pipes in lines.items():
                here, there = context.Pipe()
                self.pipes[number] = here
                seat = child.Seat(number, there, pipes, self.arena, self.data, self.snapshots)
                process = context.Process(target=child.main, args=(seat,), name=f"pslab-{_name(number)}", daemon=True)
                process.start()
                self.processes[number] = process
                there.close()
        for pair in ends:
            for end in pair:
                end.close()
        waiting, until_s = set(self.processes), time.monotonic() + START_LIMIT_S
        while waiting:
            heed()
            reports = self.reports(waiting, HEED_S, lambda number: False)
            if not reports and time.monotonic() > until_s:
                raise StartFailed(f"{', '.join(map(_name, sorted(waiting)))} did not start within {START_LIMIT_S:g} s")
            waiting -= {number for number, _ in reports}


def _name(number: int) -> str:
    return "server" if number == SERVER else f"worker {number}"


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Children inherit a blocked interrupt: one of a whole process group must not end them before they ignore it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_kept: Pool | None = None


def acquire(workers: int, heed: Callable[[], None] = lambda: None) -> Pool:
    """The pool of this process, with at least so many workers; spawned anew if there is none that serves.

    `heed` is called many times a second meanwhile; what it raises ends the spawning, and what was spawned.
    """
    global _kept
    if _kept is not None and not _kept.serves(workers):
        release(kill=not _kept.alive)
    if _kept is None:
        _kept = Pool(workers, heed)
    return _kept


def release(*, kill: bool = False) -> None:
    """Close the kept pool, if there is one."""
    global _kept
    if _kept is not None:
        pool, _kept = _kept, None
        pool.close(kill=kill)


atexit.register(release, kill=True)  # nothing is under way that could be lost
