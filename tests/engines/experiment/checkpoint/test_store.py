"""Checkpoints on disk: wherever their writer is killed, the newest whole one is there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pslab.engines.experiment.checkpoint import store as module
from pslab.engines.experiment.checkpoint.store import CheckpointStore


class Killed(BaseException):
    """The process is gone."""


def write(place: CheckpointStore, number: int) -> None:
    place.write({"number of state": number}, {"state": torch.tensor([number])})


def states(place: CheckpointStore) -> list[int]:
    """Of what can be read, the newest first."""
    found = [int(tensors["state"]) for _, tensors in place.newest(lambda words: None)]
    assert found == [facts["number of state"] for facts, _ in place.newest(lambda words: None)]
    return found


def test_the_last_two_are_kept(tmp_path):
    place = CheckpointStore(tmp_path / "run")
    assert states(place) == []
    for number in range(1, 6):
        write(place, number)
    assert states(place) == [5, 4]
    assert sorted(path.name for path in place.folder.iterdir()) == ["000004.checkpoint", "000005.checkpoint"]
    place.clear()
    place.clear()
    assert not place.folder.exists()


POINTS = {
    "before the file": (Path, "open"), "before it is on the disk": (os, "fsync"),
    "before it has its name": (Path, "rename"),
    "before the folder is": (module, "_flush"), "before the oldest goes": (Path, "unlink"),
}  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("after", [False, True])
def test_a_writer_that_is_killed_at_any_point_leaves_whole_ones(tmp_path, monkeypatch, point, after):
    place = CheckpointStore(tmp_path)
    write(place, 1)
    write(place, 2)
    owner, name = POINTS[point]
    original = getattr(owner, name)

    def killed(*arguments: Any, **named: Any) -> None:
        if after:
            original(*arguments, **named)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, killed)
        with pytest.raises(Killed):
            write(place, 3)
    left = states(place)
    assert left[0] in (2, 3)
    assert len(left) >= 2
    write(place, 4)
    assert states(place) == [4, left[0]]
    assert len(list(tmp_path.glob("0*"))) == 2


def test_a_file_torn_at_any_byte_is_passed_over(tmp_path):
    place = CheckpointStore(tmp_path)
    write(place, 1)
    write(place, 2)
    path = tmp_path / "000002.checkpoint"
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        said: list[str] = []
        assert [facts["number"] for facts, _ in place.newest(said.append)] == [1]
        assert len(said) == 1


def test_what_has_no_end_or_does_not_fit_is_passed_over_before_it_is_read(tmp_path):
    place = CheckpointStore(tmp_path)
    write(place, 1)
    (tmp_path / "000002.checkpoint").symlink_to("/dev/zero")
    (tmp_path / "000003.checkpoint").touch()
    os.truncate(tmp_path / "000003.checkpoint", 2**43)  # without a byte on disk
    said: list[str] = []
    assert [facts["number"] for facts, _ in place.newest(said.append)] == [1]
    assert ["do not fit" in words for words in said] == [True, False]


@pytest.mark.parametrize("point", ["fsync", "rename", "replace"])
def test_what_cannot_be_written_changes_nothing(tmp_path, monkeypatch, point):
    place = CheckpointStore(tmp_path)
    write(place, 1)

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, point, full)
        if point == "replace":
            patched.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=100))
        with pytest.raises(OSError, match=r"No space|bytes are free"):
            write(place, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["000001.checkpoint"]
    assert states(place) == [1]


def test_what_is_no_checkpoint_is_left_alone(tmp_path):
    place = CheckpointStore(tmp_path)
    for name in ("notes.txt", "x.checkpoint", "-1.checkpoint", "²"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "000007.checkpoint").mkdir()
    write(place, 1)
    assert states(place) == [1]
    assert len(list(tmp_path.iterdir())) == 6
