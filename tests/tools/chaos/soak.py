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
from typing import NamedTuple

import numpy as np
import psutil

from pslab.config.run import Run
from tools.chaos.draw import DATA, MODEL

PERIOD = 5  # runs with faults between two samples
WARM_UP = 0.2  # of the samples, in which caches fill
MIB, TEN_MINUTES_S = 2**20, 600.0
#: The run that is sampled after. It has as many processes as any that is drawn: the pool is always of one size.
STILL = Run.of({"model": MODEL, "data": DATA, "batch_size": 16, "pushes": 20, "eval_every": 1000, "dilation": 1,
                "workers": 4, "servers": 3, "evaluate": "beside"})  # fmt: skip


class Sample(NamedTuple):
    """Measurements of this process and its children."""

    seconds: float
    memory: dict[int, int]  #: bytes of each process
    descriptors: int  #: of all processes
    own: int  #: descriptors of this process


def sample(now: float) -> Sample:
    """Measure this process and its children."""
    gc.collect()  # what cycles still hold is no leak: the memory of a pool that was closed
    numbers = [os.getpid(), *(child.pid for child in mp.active_children() if child.pid)]
    memory = {number: resident_bytes(number) for number in numbers}
    return Sample(now, memory, sum(map(descriptors, numbers)), descriptors(os.getpid()))


def slope(samples: list[Sample], *processes: int) -> float:
    """Return MiB in ten minutes by a linear fit, without the first part; NaN of fewer than three samples.

    Of these processes, or of all that were there throughout: one that was killed and replaced begins with less, which
    says nothing of a leak.
    """
    rows = samples[int(len(samples) * WARM_UP) :]
    if len(rows) < 3:
        return float("nan")
    counted = processes or set(rows[0].memory).intersection(*(row.memory for row in rows))
    sums = [sum(row.memory[process] for process in counted) for row in rows]
    return float(np.polyfit([row.seconds for row in rows], sums, 1)[0]) * TEN_MINUTES_S / MIB


def words(samples: list[Sample]) -> str:
    """Return the figures in a few lines."""
    last, every, own = samples[-1], [each.descriptors for each in samples], [each.own for each in samples]
    return (f"memory: {sum(last.memory.values()) / MIB:.0f} MiB in {len(last.memory)} processes; those that were never "
            f"replaced {slope(samples):+.2f} MiB in 10 minutes (the parent {slope(samples, os.getpid()):+.2f})\n"
            f"descriptors: {min(every)} to {max(every)} in all processes, {every[-1]} at the end, "
            f"{min(own)} to {max(own)} in the parent\nsamples: {len(samples)}")  # fmt: skip


def resident_bytes(process: int) -> int:
    """Return the memory of a process that no other one shares; 0 if it is gone."""
    try:
        memory = psutil.Process(process).memory_info()
    except psutil.Error:
        return 0
    return int(memory.rss - memory.shared)


def descriptors(process: int) -> int:
    """Return how many descriptors a process has open; 0 if it is gone.

    Those of one piece of shared memory count once: each of Python's maps holds one for as long as a view of it is
    there, so that how many there are depends on what the last runs have asked for.
    """
    found = set[str | int]()
    for path in glob.glob(f"/proc/{process}/fd/*"):
        with contextlib.suppress(OSError):  # it has been closed since
            found.add(os.stat(path).st_ino if os.readlink(path).startswith("/memfd:") else path)
    return len(found)
