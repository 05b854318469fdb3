"""Which processes the operating system lets compute first."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable


def let_others_first(processes: Iterable[int], yields: bool) -> bool:
    """Let these processes (by their numbers in the system) compute only where no other wants to, or as usual again.

    Linux alone has such a class, SCHED_IDLE, which a user may take and leave; elsewhere nothing happens. Processes that
    somebody has put into another class stay there.

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
