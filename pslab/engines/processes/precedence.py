"""Run workers in SCHED_IDLE, so that the server wakes in time."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator

WINDOW_S = 2.0
SHARE = 0.25  # of the cores, which processes that want one get at least, or they starve


def let_others_first(processes: Iterable[int], yields: bool) -> bool:
    """Let these processes (by their numbers in the system) compute only where no other wants to, or as usual again.

    Linux alone has such a class, SCHED_IDLE, which a user may take and leave; elsewhere nothing happens. Processes in
    another class stay there.

    Returns:
        whether the system does it for all of them.
    """
    if not hasattr(os, "SCHED_IDLE"):
        return False
    found, wanted = list(processes), os.SCHED_IDLE if yields else os.SCHED_OTHER
    with contextlib.suppress(OSError):  # gone, or not allowed here
        if all(os.sched_getscheduler(process) in (os.SCHED_IDLE, os.SCHED_OTHER) for process in found):
            for process in found:
                os.sched_setscheduler(process, wanted, os.sched_param(0))
            return True
    return False


class Precedence:
    """Whether the processes of a run that compute let others first, unless that starves them: where others begin to
    keep all cores busy, a gradient would take a hundred times as long as in the rehearsal, and so would the run.

    Args:
        computing: their numbers in the system, now.
        asked: whether they do; None: unless a rehearsal shows that it starves them.
    """

    def __init__(
        self, computing: Callable[[], list[int]], asked: bool | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._computing, self.asked, self._clock = computing, asked, clock
        self.yields = bool(asked)
        self.starved = False  #: whether they did, and no longer do
        self._looked_s, self._before = clock(), dict[int, tuple[float, float]]()

    @contextlib.contextmanager
    def yielding(self, yields: bool) -> Iterator[bool]:
        """They let others first if they `yield`, and the system can do that: then no message is late because they
        compute. What it gives says whether they do."""
        try:
            yield yields and let_others_first(self._computing(), True)
        finally:
            self.as_usual()

    def renew(self) -> None:
        """Apply the precedence to a new process."""
        if self.yields:
            let_others_first(self._computing(), True)

    def relieve(self) -> None:
        """End the precedence if it starves the workers. To be called many times in each
        WINDOW_S."""
        if self.yields and self._starve():
            self.as_usual()
            self.yields, self.starved = False, True

    def as_usual(self) -> None:
        """Let the workers compete for the cores as all others do."""
        let_others_first(self._computing(), False)

    def _starve(self) -> bool:
        """Whether they have wanted a core for most of the last WINDOW_S, and had less than a SHARE of all cores; no
        while that lasts."""
        passed_s = self._clock() - self._looked_s
        if passed_s < WINDOW_S:
            return False
        found, before = {process: used_and_awaited(process) for process in self._computing()}, self._before
        self._looked_s, self._before = self._clock(), found
        both = [(found[process], before[process]) for process in found.keys() & before.keys()]
        used_s, awaited_s = (sum(now[each] - then[each] for now, then in both) for each in (0, 1))
        return awaited_s > passed_s / 2 and used_s < SHARE * passed_s * cores()


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def used_and_awaited(process: int) -> tuple[float, float]:
    """For how many seconds a process's first thread has had a core, and has waited for one; zeros where the system does
    not say. See the kernel's sched-stats.rst."""
    try:
        with open(f"/proc/{process}/schedstat") as file:
            used, awaited, _ = map(int, file.read().split())
    except (OSError, ValueError):
        return 0.0, 0.0
    return used / 1e9, awaited / 1e9
