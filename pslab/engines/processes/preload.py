"""The module that every child needs, imported once by the fork server, which has nothing else: children start in
milliseconds.

A fork server whose parent is killed meanwhile must not live for the seconds that this takes, nor for those that it
takes to take torch down: children that cannot end by themselves end with it. The folder of its address, which a parent
removes as it ends, is removed by the fork server where the parent was killed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import stat
import threading
import time

LOOK_S = 0.1


def _address() -> str:
    """Return the path of the socket at which the parent asks for children."""
    for descriptor in map(int, os.listdir("/dev/fd") if os.path.isdir("/dev/fd") else ()):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as found:
                    if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        return str(found.getsockname())
    return ""


_parent, _imported, _asked_at = os.getppid(), threading.Event(), _address()  # the socket is closed before the end


def _end() -> None:
    """End this process at once; remove the folder of its address if the parent was killed and could not."""
    until_s = time.monotonic() + LOOK_S  # a parent's pipes close before it is gone
    while os.getppid() == _parent and time.monotonic() < until_s:
        time.sleep(LOOK_S / 10)
    if os.getppid() != _parent:
        with contextlib.suppress(OSError, ValueError):
            os.unlink(_asked_at)
            os.rmdir(os.path.dirname(_asked_at))
    os._exit(0)


def _die_with_parent() -> None:
    while not _imported.wait(LOOK_S):
        if os.getppid() != _parent:
            _end()


_watcher = threading.Thread(target=_die_with_parent)
_watcher.start()
try:
    import torch  # noqa: F401
finally:  # no other thread may run when it forks
    _imported.set()
    _watcher.join()
atexit.register(_end)  # before all that torch has registered
