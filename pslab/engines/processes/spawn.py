"""How a parent starts children; this module imports nothing that costs time."""

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
from multiprocessing import forkserver
from typing import Any

PRELOADED = "pslab.engines.processes.preload"
SENT = 200  # the children to which a fork server can hand their descriptors; multiprocessing's limit is 256 of these

ENDS_WITHIN_S = 0.5

LIMITS = {
    errno.EMFILE: ("RLIMIT_NOFILE", "files", "ulimit -n"),
    errno.EAGAIN: ("RLIMIT_NPROC", "processes", "ulimit -u"),
}


def context(children: int) -> Any:
    """How so many children are spawned: by a fork server that has imported torch, where there can be one.

    It is a fresh process without the parent's threads, memory or devices, and each child is a copy of it. Importing
    torch takes one to two seconds of a core: once for the first pool, not once a child, and never for the next ones.
    """
    if children > SENT or "forkserver" not in mp.get_all_start_methods():
        return mp.get_context("spawn")
    found = mp.get_context("forkserver")
    found.set_forkserver_preload([PRELOADED])
    return found


def fork_server_ended() -> bool:
    """Whether the fork server has ended; waits for it half a second, since its pipes close before it has ended."""
    server, until_s = getattr(forkserver._forkserver, "_forkserver_pid", None), time.monotonic() + ENDS_WITHIN_S
    while server is not None and hasattr(os, "waitid"):
        if os.waitid(os.P_PID, server, os.WEXITED | os.WNOHANG | os.WNOWAIT):  # multiprocessing is to see its end, too
            return True
        if time.monotonic() > until_s:
            return False
        time.sleep(0.01)
    return False


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Spawned children would import the parent's main module again: a script without a guard, or a whole kernel.

    What they need of it travels by cloudpickle instead.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def own_folders() -> list[str]:
    """Where this process looks for modules beside its environment: there a child looks, too."""
    known = (sys.prefix, sys.base_prefix)
    folders = [*map(os.path.abspath, sys.path)]
    if not all(map(os.path.isabs, sys.path)):  # what a module was imported from, before the working directory changed
        for name, module in [*sys.modules.items()]:
            file = getattr(module, "__file__", None)
            if "." not in name and isinstance(file, str):
                folder, last = os.path.split(os.path.abspath(file))
                folders.append(os.path.dirname(folder) if last.startswith("__init__.") else folder)
    return [folder for folder in dict.fromkeys(folders) if not folder.startswith(known)]


@contextlib.contextmanager
def spawning() -> Iterator[None]:
    """Children inherit a blocked interrupt: one of a whole process group must not end them before they ignore it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with without_main():
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def limit(error: BaseException) -> str:
    """The limit that a system call has met, and how to raise it; "" if that is not known."""
    if isinstance(error, (EOFError, ConnectionError)):
        return "; the fork server, which starts them, has ended: perhaps the system killed it for want of memory"
    if "AF_UNIX path too long" in str(error):
        return f": a socket's path has at most 107 characters; let TMPDIR, now {tempfile.gettempdir()}, be shorter"
    name, what, command = LIMITS.get(getattr(error, "errno", None) or 0, ("", "", ""))
    if not name:
        return ""
    return f"; at most {resource.getrlimit(getattr(resource, name))[0]} {what} are allowed here: see `{command}`"
