"""This machine: what its cores and memory can hold."""

from __future__ import annotations

import os
import time

import pytest

from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.runs import machine

Patch = pytest.MonkeyPatch


def test_cores_by_affinity_and_quota(monkeypatch: Patch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(machine, "words_of", lambda path: [])
    assert machine.usable_cores() == 4
    monkeypatch.setattr(machine, "words_of", lambda path: ["max", "100000"])
    assert machine.usable_cores() == 4
    monkeypatch.setattr(machine, "words_of", lambda path: ["150000", "100000"])
    assert machine.usable_cores() == 1.5


@pytest.mark.parametrize(("fields", "times"), [
    ({"pushes": 100}, 3 + 12 + 22), ({"pushes": 100, "eval_every": 100}, 3 + 12 + 3),
    ({"pushes": None, "seconds": 1.0, "workers": 1}, 3 + 3 + 22),
    ({"pushes": 100, "dtype": "float64"}, 2 * (3 + 12 + 22)),
    ({"pushes": 100, "on_death": "restart"}, 3 + 12 + 22 + 2),
    ({"pushes": 100, "on_death": "restart", "engine": "virtual"}, 3 + 12 + 22),
    ({"pushes": 100, "pull": "keys"}, 1), ({"pushes": 100, "engine": "ray"}, 2 + 22),
])  # fmt: skip
def test_memory_is_for_every_worker_and_every_evaluation(fields: dict, times: int, monkeypatch: Patch):
    run = Run(**fields)
    monkeypatch.setattr(machine, "free_memory_bytes", lambda: 1000 * 4 * times)
    machine.check_memory(run, 1000)
    with pytest.raises(ConfigError, match="1,001 weights"):
        machine.check_memory(run, 1001)
    monkeypatch.setattr(machine, "free_memory_bytes", lambda: None)  # the system does not tell
    machine.check_memory(run, 1001)


def test_checkpoints_that_nobody_asks_for_again_are_forgotten_and_that_is_said(tmp_path):
    for digest, days in (("old", 31), ("older", 300), ("recent", 29), ("added to", 31)):
        place = tmp_path / machine.CHECKPOINTS / digest
        place.mkdir(parents=True)
        names = ["000001.checkpoint", "000002.checkpoint"]
        for name in names:
            (place / name).write_bytes(bytes(500_000))
        instant = time.time() - days * 86400
        for path in (place, *(place / name for name in names[: 1 if digest == "added to" else 2])):
            os.utime(path, (instant, instant))
    words = machine.forget_old_checkpoints(tmp_path)
    assert words.startswith(f"checkpoints of 2 runs were removed from {tmp_path / machine.CHECKPOINTS} (2.0 MB")
    assert sorted(path.name for path in (tmp_path / machine.CHECKPOINTS).iterdir()) == ["added to", "recent"]
    assert machine.forget_old_checkpoints(tmp_path) == machine.forget_old_checkpoints(tmp_path / "none") == ""
