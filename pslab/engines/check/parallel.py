"""Run explorations in parallel, in spawned processes that import neither torch nor `pslab.lab`."""

from __future__ import annotations

import multiprocessing as mp
import os
import threading
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from pslab.engines.check.explorer import explore
from pslab.engines.check.result import Explored
from pslab.engines.check.worker import FAULTS
from pslab.engines.processes.spawn import spawning
from pslab.errors import PslabError, StartFailed


@dataclass(frozen=True)
class Task:
    """The parameters of one exploration; `name` is the policy's name in the result."""

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
        """A sort key: tasks with a larger weight usually take longer."""
        kinds = min(self.faults_max, len(self.faults))
        return kinds > 1, self.workers * self.ranges, kinds, "duplicate" in self.faults, self.sync.window or 99

    def run(self) -> Explored:
        """Explore this cluster."""
        cluster = {name: value for name, value in vars(self).items() if name not in ("name", "sync")}
        return replace(explore(self.sync, **cluster), policy=self.name)


def explore_all(tasks: Sequence[Task], processes: int) -> Iterator[tuple[int, Explored]]:
    """Yield (index of the task, its result) whenever a task ends. Tasks are started in the order given.

    With one process, or one task, no process is spawned.

    Raises:
        StartFailed: a process ended early, perhaps because memory ran out.
        ConfigError: as `explore`.
    """
    if min(processes, len(tasks)) <= 1:
        yield from ((index, task.run()) for index, task in enumerate(tasks))
        return
    end, ours = mp.Pipe(duplex=False)
    pool = ProcessPoolExecutor(min(processes, len(tasks)), mp.get_context("spawn"), _end_with, (end,))
    with end, pool, ours:  # the children end when `ours` is closed: here, or because this process ends
        try:
            with spawning():  # by value: the policy may be a class of a notebook's cell
                futures = {pool.submit(_explored, cloudpickle.dumps(task)): index for index, task in enumerate(tasks)}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool:
            problem = "a process of the checker ended early, perhaps because memory ran out"
            raise StartFailed(f"{problem}: use fewer processes, or check fewer workers") from None


# --- in a child ----------------------------------------------------------------------------------------------------


def _end_with(end: Connection) -> None:
    """Make this process exit as soon as the other end of a pipe is closed."""

    def watch() -> None:
        end.poll(None)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _explored(task: bytes) -> Explored:
    try:
        explored: Explored = cloudpickle.loads(task).run()
    except PslabError:
        raise
    except Exception:
        raise PslabError(traceback.format_exc()) from None
    return explored
