"""The first code of a spawned process. It imports little: the watcher on the parent stands within milliseconds."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import threading
import traceback
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pslab.engines.job.shared_memory import Arena

def main(number: int, parent: Connection, pipes: list[Connection], arenas: tuple[Arena, Arena, Arena]) -> None:
    """Serve orders until the parent closes the pipe or is gone. `number` is the worker's, or SERVER."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the notebook's interrupt is for the notebook: it stops us in order
    threading.Thread(target=_die_with_parent, daemon=True).start()
    from pslab.engines.processes.channel import await_order, report
    from pslab.engines.processes.station import Station

    station = Station(number, parent, pipes, arenas)
    report(parent, "ready")
    while True:
        try:
            verb, argument = await_order(parent)
        except (EOFError, OSError):
            return
        try:
            station.obey(verb, argument)
        except Exception:  # whatever a user's model or policy raises is told to the parent, which ends the run
            report(parent, "failed", {"iteration": station.iteration, "traceback": traceback.format_exc()})


def _die_with_parent() -> None:
    parent = mp.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
