"""Memory that a process of this host can have."""

from __future__ import annotations

import pytest

from pslab.config import free_memory


def test_a_containers_limit_counts(monkeypatch: pytest.MonkeyPatch):
    files = {"meminfo": ["MemTotal:", "9", "kB", "MemAvailable:", "8000", "kB"], "memory.max": ["5000000"],
             "memory.current": ["1000000"]}  # fmt: skip
    monkeypatch.setattr(free_memory, "words_of", lambda path: files.get(path.name, []))
    assert free_memory.free_memory_bytes() == 4_000_000
    files["memory.max"] = ["max"]
    assert free_memory.free_memory_bytes() == 8_192_000
    del files["meminfo"]
    assert free_memory.free_memory_bytes() is None
