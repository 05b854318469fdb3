"""The memory that is free for a process on this host."""

from __future__ import annotations

from pathlib import Path


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
