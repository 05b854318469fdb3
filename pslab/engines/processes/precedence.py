"""Run workers in SCHED_IDLE, so that the server wakes in time."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator

from pslab.config.available import cores

WINDOW_S = 2.0
SHARE = 0.25  # processes that wait for a core starve if they get less than this share of all cores


def let_others_first(processes: Iterable[int], yields: bool) -> bool:
    """Put processes, given by PID, into the scheduling class SCHED_IDLE if `yields`, else back into SCHED_OTHER.

    A process in SCHED_IDLE gets a core only if no other process wants it. Return False if the system has no such class
    (only Linux has it) or forbids the change, or if one of the processes is in a third class; else True.
    """
    if not hasattr(os, "SCHED_IDLE"):
        return False
    numbers, wanted = list(processes), os.SCHED_IDLE if yields else os.SCHED_OTHER
    with contextlib.suppress(OSError):  # a process has ended, or the change is not allowed
        if all(os.sched_getscheduler(process) in (os.SCHED_IDLE, os.SCHED_OTHER) for process in numbers):
            for process in numbers:
                os.sched_setscheduler(process, wanted, os.sched_param(0))
            return True
    return False


class Precedence:
    """Runs the workers in SCHED_IDLE until they starve: if other programs keep all cores busy, a gradient would
    take a hundred times as long.

    Args:
        computing: returns the PIDs of the workers.
        yields: whether the workers begin in SCHED_IDLE.
    """

    def __init__(
        self, computing: Callable[[], list[int]], yields: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._computing, self.yields, self._clock = computing, yields, clock
        self.starved = False  #: whether the workers starved in SCHED_IDLE, and were taken out of it
        self._looked_s, self._before = clock(), dict[int, tuple[float, float]]()

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Run the body of `with` with the workers in SCHED_IDLE, if `yields` is set and the system allows it."""
        self.yields = self.yields and let_others_first(self._computing(), True)
        try:
            yield
        finally:
            let_others_first(self._computing(), False)

    def renew(self) -> None:
        """Put the new process of a replaced worker into SCHED_IDLE, if the workers run in it."""
        if self.yields:
            let_others_first(self._computing(), True)

    def relieve(self) -> None:
        """Take the workers out of SCHED_IDLE if they starve; call this several times in each WINDOW_S."""
        if self.yields and self._starve():
            let_others_first(self._computing(), False)
            self.yields, self.starved = False, True

    def _starve(self) -> bool:
        """Whether the workers starved since the last check: their waits for a core sum up to more than half of the
        time, and they had less than SHARE of all cores. Return False until WINDOW_S have passed."""
        passed_s = self._clock() - self._looked_s
        if passed_s < WINDOW_S:
            return False
        times, before = {process: used_and_awaited(process) for process in self._computing()}, self._before
        self._looked_s, self._before = self._clock(), times
        both = [(times[process], before[process]) for process in times.keys() & before.keys()]
        used_s, awaited_s = (sum(now[column] - then[column] for now, then in both) for column in (0, 1))
        return awaited_s > passed_s / 2 and used_s < SHARE * passed_s * cores()


def used_and_awaited(process: int) -> tuple[float, float]:
    """Return the seconds for which a process's first thread has had a core, and has waited for one (see the kernel's
    sched-stats.rst); zeros if the system does not say."""
    try:
        with open(f"/proc/{process}/schedstat") as file:
            used, awaited, _ = map(int, file.read().split())
    except (OSError, ValueError):
        return 0.0, 0.0
    return used / 1e9, awaited / 1e9
