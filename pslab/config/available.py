"""The memory and the cores that this process may use, on this machine and within its container's limits."""

from __future__ import annotations

import os
from pathlib import Path


def cores() -> int:
    """Return the number of processes that can compute at the same time: `usable_cores`, rounded down, at least 1."""
    return max(1, int(usable_cores()))


def usable_cores() -> float:
    """Return the number of cores, perhaps a fraction, that affinity and the container's quota allow this process."""
    count = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    quota = words_of(Path("/sys/fs/cgroup/cpu.max"))
    if len(quota) == 2 and quota[0].isdigit():
        count = min(count, int(quota[0]) / int(quota[1]))
    return count


def free_memory_bytes() -> int | None:
    """Return the bytes that are free on the machine and within the container's limit; None if they are unknown."""
    words = words_of(Path("/proc/meminfo"))
    if "MemAvailable:" not in words:
        return None
    free = int(words[words.index("MemAvailable:") + 1]) * 1024
    limit, used = (words_of(Path(f"/sys/fs/cgroup/memory.{name}")) for name in ("max", "current"))
    if limit and used and limit[0].isdigit():
        free = min(free, int(limit[0]) - int(used[0]))
    return free


def words_of(path: Path) -> list[str]:
    """Return the words of a system file; [] if it cannot be read."""
    try:
        return path.read_text().split()
    except OSError:
        return []
