"""Import torch once, in the fork server, so that its children start in milliseconds.

If the parent is killed, the fork server must end at once, even while it imports or unloads torch: children that cannot
end by themselves are killed when it ends. It also removes the folder of its socket, as the parent would have done.
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
    """Return the path of the fork server's listening socket; "" if there is none."""
    for descriptor in map(int, os.listdir("/dev/fd") if os.path.isdir("/dev/fd") else ()):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as listener:
                    if listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        return str(listener.getsockname())
    return ""


_parent, _imported, _asked_at = os.getppid(), threading.Event(), _address()  # at exit the socket is closed


def _end() -> None:
    """End this process at once; remove the folder of its socket if the parent has ended and so cannot do it."""
    until_s = time.monotonic() + LOOK_S  # the parent's pipes close before the parent has ended
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
finally:  # no other thread may run when the fork server forks
    _imported.set()
    _watcher.join()
atexit.register(_end)  # runs before torch's own exit functions
