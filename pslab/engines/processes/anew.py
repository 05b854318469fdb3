"""Settings of the user's modules after a new process has imported the modules, as workers do."""

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
    """Import a module in a new process; return the module's settings there, or the error of the import as a string."""
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles an interrupt: it kills this process
    threading.Thread(target=die_with_parent, daemon=True).start()
    sys.path += [folder for folder in folders if folder not in sys.path]
    try:
        pipe.send(content.settings_of(with_operators(partial(import_module, module))))
    except Exception as error:  # a user's module may raise anything
        pipe.send(f"{type(error).__name__}: {error}")
