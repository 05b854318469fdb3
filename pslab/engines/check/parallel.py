"""Explorations in parallel: each is one task of a spawned process, which imports neither torch nor the lab."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from pslab.engines.check.explorer import explore
from pslab.engines.check.result import Explored
from pslab.engines.check.worker import FAULTS
from pslab.engines.processes.spawn import without_main
from pslab.errors import PslabError, StartFailed, ended

END_LIMIT_S = 2.0


@dataclass(frozen=True)
class Task:
    """One exploration of a policy that is shown as `name`."""

    name: str
    sync: Any
    workers: int
    ranges: int
    iterations: int
    faults: tuple[str, ...] = ()
    faults_max: int = len(FAULTS)
    states_max: int | None = None
    bound: int | None = None
    layered: bool = False
    servers: int = 1

    @property
    def weight(self) -> tuple[int, ...]:
        """Sort key: tasks with a larger weight usually take longer."""
        kinds = min(self.faults_max, len(self.faults))
        return kinds > 1, self.workers * self.ranges, kinds, "duplicate" in self.faults, self.sync.window or 99

    def run(self) -> Explored:
        """Explore this cluster."""
        cluster = {name: value for name, value in vars(self).items() if name not in ("name", "sync")}
        return replace(explore(self.sync, **cluster), policy=self.name)


def explore_all(tasks: Sequence[Task], processes: int) -> Iterator[tuple[int, Explored]]:
    """Yield (index of the task, its result), each as soon as it is known. Tasks are started in their order.

    With one process, or one task, no process is spawned.

    Raises:
        StartFailed: a process ended early, perhaps because memory ran out.
        ConfigError: as `explore`.
    """
    if min(processes, len(tasks)) <= 1:
        yield from ((index, task.run()) for index, task in enumerate(tasks))
        return
    children: dict[Connection, Any] = {}
    try:
        for _ in range(min(processes, len(tasks))):
            children.update([_spawned()])
        waiting = list(enumerate(tasks))[::-1]
        busy = {pipe for pipe in children if _give(pipe, waiting)}
        while busy:
            for pipe in connection.wait(busy):
                assert isinstance(pipe, Connection)
                index, found = _received(pipe, children[pipe])
                if not _give(pipe, waiting):
                    busy.remove(pipe)
                yield index, found
    finally:
        for process in children.values():
            process.kill()
            process.join(END_LIMIT_S)


def _spawned() -> tuple[Connection, Any]:
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), name="pslab-check", daemon=True)
    with without_main():
        process.start()
    theirs.close()
    return ours, process


def _give(pipe: Connection, waiting: list[tuple[int, Task]]) -> bool:
    if not waiting:
        return False
    index, task = waiting.pop()
    with contextlib.suppress(OSError):  # that it ended is noticed where its answer is awaited
        pipe.send((index, cloudpickle.dumps(task)))  # by value: the policy may be a class of a notebook's cell
    return True


def _received(pipe: Connection, process: Any) -> tuple[int, Explored]:
    try:
        index, found = pipe.recv()
    except (EOFError, OSError):
        process.join(END_LIMIT_S)
        raise StartFailed(f"a process of the checker ended early ({ended(process.exitcode)})") from None
    if isinstance(found, PslabError):
        raise found
    return index, found


# --- in a child ----------------------------------------------------------------------------------------------------


def _serve(pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process if it is interrupted
    threading.Thread(target=_die_with_parent, daemon=True).start()
    while True:
        try:
            index, task = pipe.recv()
        except EOFError:
            return
        found: Explored | PslabError
        try:
            found = cloudpickle.loads(task).run()
        except PslabError as error:
            found = error
        except Exception:
            found = PslabError(traceback.format_exc())
        pipe.send((index, found))


def _die_with_parent() -> None:
    parent = mp.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
