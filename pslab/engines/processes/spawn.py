"""Functions by which a parent starts children; this module imports nothing slow."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing as mp
import os
import resource
import signal
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from typing import Any

PRELOADED = "pslab.engines.processes.preload"
SENT = 200  # most children of a fork server: the server's process gets a pipe for each, and a fork server passes 256

ENDS_WITHIN_S = 0.5

LIMITS = {
    errno.EMFILE: ("RLIMIT_NOFILE", "files", "ulimit -n"),
    errno.EAGAIN: ("RLIMIT_NPROC", "processes", "ulimit -u"),
}


def context(children: int) -> Any:
    """Return multiprocessing's context for so many children: a fork server that has imported torch, else "spawn".

    A fork server is a fresh process without the parent's threads, memory or devices, and each child is a copy of it. So
    torch, whose import takes one to two seconds of a core, is imported once for all pools, not once for each child.
    """
    if children > SENT or "forkserver" not in mp.get_all_start_methods():
        return mp.get_context("spawn")
    forking = mp.get_context("forkserver")
    forking.set_forkserver_preload([PRELOADED])
    return forking


def fork_server_ended() -> bool:
    """Whether the fork server has ended; wait up to half a second for it, since its pipes close before it has ended."""
    server, until_s = getattr(forkserver._forkserver, "_forkserver_pid", None), time.monotonic() + ENDS_WITHIN_S
    while server is not None and hasattr(os, "waitid"):
        if os.waitid(os.P_PID, server, os.WEXITED | os.WNOHANG | os.WNOWAIT):  # multiprocessing waits for it, too
            return True
        if time.monotonic() > until_s:
            return False
        time.sleep(0.01)
    return False


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Hide the main module, which spawned children would import again: a script without a guard, or a whole kernel.

    cloudpickle sends the children the objects of the main module that they need.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def own_folders() -> list[str]:
    """Return the folders outside the Python environment in which this process finds modules; a child uses them, too."""
    known = (sys.prefix, sys.base_prefix)
    folders = [*map(os.path.abspath, sys.path)]
    if not all(map(os.path.isabs, sys.path)):  # the working directory may have changed since a module was imported
        for name, module in [*sys.modules.items()]:
            file = getattr(module, "__file__", None)
            if "." not in name and isinstance(file, str):
                folder, last = os.path.split(os.path.abspath(file))
                folders.append(os.path.dirname(folder) if last.startswith("__init__.") else folder)
    return [folder for folder in dict.fromkeys(folders) if not folder.startswith(known)]


@contextlib.contextmanager
def spawning() -> Iterator[None]:
    """Hide the main module and block interrupts while children start: they inherit the block, so that an interrupt of
    the process group does not end them before they ignore interrupts."""
    resource_tracker.ensure_running()  # before the block: where it starts, it ends a block of interrupts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with without_main():
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def limit(error: BaseException) -> str:
    """Return why children could not be started, and how to change that, as the end of a message; "" if unknown."""
    if isinstance(error, (EOFError, ConnectionError)):
        return "; the fork server that starts them has ended: the system may have killed it because memory ran out"
    if "AF_UNIX path too long" in str(error):
        return f": a socket's path has at most 107 characters; set TMPDIR to a shorter one than {tempfile.gettempdir()}"
    name, what, command = LIMITS.get(getattr(error, "errno", None) or 0, ("", "", ""))
    if not name:
        return ""
    return f"; at most {resource.getrlimit(getattr(resource, name))[0]} {what} are allowed: raise it by `{command}`"
