"""A soak: run after run on real processes with faults, and whether memory or descriptors grow.

Samples are taken after a run without faults, always the same, so that the same processes have done the same last. What
still grows without a leak: NumPy keeps seven freed blocks of each size below 1 KiB, at most 3.6 MiB in a process.
"""

from __future__ import annotations

import contextlib
import gc
import glob
import multiprocessing as mp
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import psutil

from pslab.config.run import Run
from tools.chaos.draw import DATA, MODEL

PERIOD = 5  # runs with faults between two samples
WARM_UP = 0.2  # of the samples, in which caches fill
MIB, TEN_MINUTES_S = 2**20, 600.0


def still() -> Run:
    """The run that is sampled after. It has as many processes as any that is drawn: the pool is always of one size."""
    return Run.of({"model": MODEL, "data": DATA, "batch_size": 16, "pushes": 20, "eval_every": 1000, "dilation": 1,
                   "workers": 4, "servers": 3})  # fmt: skip


@dataclass
class Samples:
    """What was measured, sample by sample: seconds, bytes of each process in memory, descriptors of all of them and of
    this one."""

    rows: list[tuple[float, dict[int, int], int, int]] = field(default_factory=list)

    def take(self, now: float) -> None:
        """One more."""
        gc.collect()  # what cycles still hold is no leak: the memory of a pool that was closed
        own, children = os.getpid(), [child.pid for child in mp.active_children() if child.pid]
        counted = [own, *children]
        self.rows.append((now, {process: resident_bytes(process) for process in counted},
                          sum(map(descriptors, counted)), descriptors(own)))  # fmt: skip

    def slope(self, *processes: int) -> float:
        """MiB in ten minutes by a linear fit, without the first part, of these processes, or of all that were there
        throughout: one that was killed and replaced begins with less, which says nothing of a leak. NaN of fewer than
        three samples."""
        rows = self.rows[int(len(self.rows) * WARM_UP) :]
        if len(rows) < 3:
            return float("nan")
        sums = [sum(memory[process] for process in processes or self.throughout()) for _, memory, *_ in rows]
        return float(np.polyfit([row[0] for row in rows], sums, 1)[0]) * TEN_MINUTES_S / MIB

    def throughout(self) -> list[int]:
        """The processes of all samples but those of the first part."""
        first, *others = (set(memory) for _, memory, *_ in self.rows[int(len(self.rows) * WARM_UP) :])
        return sorted(first.intersection(*others))

    def words(self) -> str:
        """The figures in a few lines."""
        if not self.rows:
            return "no sample was taken"
        memory, every, own = self.rows[-1][1], [row[2] for row in self.rows], sorted({row[3] for row in self.rows})
        return (f"memory: {sum(memory.values()) / MIB:.0f} MiB in all {len(memory)} processes; in the "
                f"{len(self.throughout())} that were never replaced {self.slope():+.2f} MiB in 10 minutes "
                f"(in the parent {self.slope(os.getpid()):+.2f})\n"
                f"descriptors: {min(every)} to {max(every)} in all processes, {every[-1]} at the end, "
                f"{own[0]} to {own[-1]} in the parent\nsamples: {len(self.rows)}")  # fmt: skip


def soak(minutes: float, each: Callable[[int], None], quiet: Callable[[], None]) -> Samples:
    """Call `each` with 0, 1, ... for so long, and `quiet` before each sample."""
    samples, begin_s, number = Samples(), time.monotonic(), 0
    while (now := time.monotonic() - begin_s) < minutes * 60 or not samples.rows:
        if number % PERIOD == 0:
            quiet()
            samples.take(now)
        each(number)
        number += 1
    return samples


def resident_bytes(process: int) -> int:
    """Memory of a process that no other one shares; 0 if it is gone."""
    try:
        memory = psutil.Process(process).memory_info()
    except psutil.Error:
        return 0
    return int(memory.rss - memory.shared)


def descriptors(process: int) -> int:
    """How many a process has open; 0 if it is gone.

    Those of one piece of shared memory count once: each of Python's maps holds one for as long as a view of it is
    there, so that how many there are depends on what the last runs have asked for.
    """
    found = set[str | int]()
    for path in glob.glob(f"/proc/{process}/fd/*"):
        with contextlib.suppress(OSError):  # it has been closed since
            found.add(os.stat(path).st_ino if os.readlink(path).startswith("/memfd:") else path)
    return len(found)
