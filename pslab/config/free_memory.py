"""Memory that a process of this host can have."""

from __future__ import annotations

from pathlib import Path


def free_memory_bytes() -> int | None:
    """Memory that can be had: by the machine, and by the container's limit; None where the system does not say."""
    words = words_of(Path("/proc/meminfo"))
    if "MemAvailable:" not in words:
        return None
    free = int(words[words.index("MemAvailable:") + 1]) * 1024
    limit, used = (words_of(Path(f"/sys/fs/cgroup/memory.{name}")) for name in ("max", "current"))
    if limit and used and limit[0].isdigit():
        free = min(free, int(limit[0]) - int(used[0]))
    return free


def words_of(path: Path) -> list[str]:
    """The words of one of the system's files; none if it has no such file."""
    try:
        return path.read_text().split()
    except OSError:
        return []
