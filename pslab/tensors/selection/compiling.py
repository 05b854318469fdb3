"""Which of several processes compiles what all of them cache on the disk, and how the others wait for it."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

WAIT_S = 60.0  # at most, for a process that may be stopped
LOOK_S = 0.05

waits: Callable[[], None] | None = None  #: called at each look: a process that waits on purpose is not dead


@contextmanager
def in_turn(folder: Path | None, compiled: str) -> Iterator[None]:
    """Let one of the processes that use this cache compile and note that it has; the others wait, then load together.

    Raises:
        TimeoutError: another one has not been done for WAIT_S.
    """
    if folder is None:
        yield
        return
    with (folder / "lock").open("a+") as notes:
        if not _noted(notes, compiled):
            _lock(notes)
        yield
        if not _noted(notes, compiled):
            notes.write(f"{compiled}\n")


def _noted(notes: IO[str], compiled: str) -> bool:
    notes.seek(0)
    return compiled in notes.read().splitlines()


def _lock(file: IO[str]) -> None:
    until_s = time.monotonic() + WAIT_S
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                raise TimeoutError(f"another process has been compiling for {WAIT_S:g} s") from None
        if waits is not None:
            waits()
        time.sleep(LOOK_S)
