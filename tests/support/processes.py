"""Which processes a test has left behind: they carry a token in their environment."""

from __future__ import annotations

import os
import select
from pathlib import Path

LIMIT_S = 10.0  # for a child that is still importing torch when its parent dies; one that runs ends at once


def living(token: str) -> list[int]:
    """The processes that have inherited a token in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if token.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def shared_names() -> set[str]:
    """The names in /dev/shm, but for those of Ray, of browsers and of pools of the checker, which other tests start
    meanwhile, and which no run has."""
    others = "plasma", ".org.chromium", ".com.google", "sem.mp-"
    return {name for name in os.listdir("/dev/shm") if not name.startswith(others)}


def wait_for_end(process: int, limit_s: float = LIMIT_S) -> None:
    """Until the process has ended, or the limit is over."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return
    try:
        select.select([handle], [], [], limit_s)
    finally:
        os.close(handle)
