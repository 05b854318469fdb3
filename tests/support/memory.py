"""How much memory processes have at once."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

PERIOD_S = 0.02


@contextlib.contextmanager
def peak_bytes() -> Iterator[list[int]]:
    """The most that this process and its descendants had together, each shared page once; known at the end."""
    found, over = [0], threading.Event()

    def watch() -> None:
        while not over.wait(PERIOD_S):
            found[0] = max(found[0], sum(map(_held_bytes, _family())))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield found
    finally:
        over.set()
        watching.join()


def _family() -> set[int]:
    """This process and its descendants."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):  # it has ended meanwhile
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    family, new = {os.getpid()}, {os.getpid()}
    while new:
        new = {process for process, parent in parents.items() if parent in new} - family
        family |= new
    return family


def _held_bytes(process: int) -> int:
    """The proportional share of a process's memory."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
