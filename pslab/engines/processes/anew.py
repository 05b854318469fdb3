"""The settings of the user's modules as a new process has them, which imports the modules anew, as workers do."""

from __future__ import annotations

import signal
import sys
import threading
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection

from pslab.config import content
from pslab.engines.processes.child import die_with_parent
from pslab.engines.processes.spawn import context, own_folders, spawning
from pslab.tensors.workload.torchvision_ops import with_operators

Settings = dict[str, tuple[str, str]]  # see content.settings_of


def settings_anew(module: str) -> Settings | str:
    """Import a module in a process of its own, and return its settings there, or the error that it raises."""
    spawns = context(1)
    ours, theirs = spawns.Pipe(duplex=False)
    with spawning():
        process = spawns.Process(target=_send, args=(theirs, module, own_folders()), daemon=True)
        process.start()
    theirs.close()
    try:
        settings: Settings | str = ours.recv()
    except EOFError:
        return "its process ended"
    finally:
        ours.close()
        process.kill()
        process.join()
    return settings


def _send(pipe: Connection, module: str, folders: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's, which then kills this process
    threading.Thread(target=die_with_parent, daemon=True).start()
    sys.path += [folder for folder in folders if folder not in sys.path]
    try:
        pipe.send(content.settings_of(with_operators(partial(import_module, module))))
    except Exception as error:  # whatever a module of the user's raises
        pipe.send(f"{type(error).__name__}: {error}")
