"""What every spawned child wants of its parent while it is being started; imports nothing that costs time."""

from __future__ import annotations

import contextlib
import signal
import sys
import types
from collections.abc import Iterator


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


@contextlib.contextmanager
def spawning() -> Iterator[None]:
    """Children inherit a blocked interrupt: one of a whole process group must not end them before they ignore it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with without_main():
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
