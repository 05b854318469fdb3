"""The module that every child needs, imported once by the fork server, which has nothing else: children start in
milliseconds.

A fork server whose parent is killed meanwhile must not live for the seconds that this takes, nor for those that it
takes to take torch down: children that cannot end by themselves end with it.
"""

from __future__ import annotations

import atexit
import os
import threading

LOOK_S = 0.1

_parent, _imported = os.getppid(), threading.Event()


def _die_with_parent() -> None:
    while not _imported.wait(LOOK_S):
        if os.getppid() != _parent:
            os._exit(1)


_watcher = threading.Thread(target=_die_with_parent)
_watcher.start()
try:
    import torch  # noqa: F401
finally:  # no other thread may run when it forks
    _imported.set()
    _watcher.join()
atexit.register(os._exit, 0)  # before all that torch has registered
