"""Checkpoints: their bytes, their files, wherever a writer is killed, and when one is due."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import random
import shutil
import tracemalloc
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pslab.engines.experiment.checkpoint.checkpointing import PERIOD_S, Checkpointing
from pslab.engines.experiment.checkpoint.file import FACTS, MAGIC, pack, unpack
from pslab.engines.experiment.checkpoint.store import CheckpointStore
from pslab.errors import CheckpointError

TENSORS = {"w": torch.arange(12.0).reshape(3, 4), "none": torch.empty(0, 3), "bytes": torch.ones(3, dtype=torch.uint8),
           "wide": torch.tensor([0.1, -0.0, float("nan")], dtype=torch.float64), "number": torch.tensor(7)}  # fmt: skip
FACTS_OF_ONE = {"pushes": 7, "nested": {"rows": [[1, 0.5], ["x", None]]}, "infinite": float("inf")}


def packed() -> bytes:
    return b"".join(pack(FACTS_OF_ONE, TENSORS))


def forged(content: bytes) -> bytes:
    """These bytes behind a right sum, as an attacker would write them."""
    return MAGIC + hashlib.sha256(content).digest() + content


def saved(found: Any) -> bytes:
    file = io.BytesIO()
    torch.save(found, file)
    return file.getvalue()


def archived(pickled: bytes, compression: int = zipfile.ZIP_STORED) -> bytes:
    """An archive as torch writes one, with this pickle."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in {"data.pkl": pickled, "byteorder": b"little", "version": b"3\n"}.items():
            archive.writestr(f"archive/{name}", content)
    return file.getvalue()


class Calls:
    """Its pickle calls a function where it is read."""

    def __init__(self, function: Any, argument: Any) -> None:
        self.call = function, (argument,)

    def __reduce__(self) -> Any:
        return self.call


def calling(function: Any, argument: Any) -> bytes:
    return archived(pickle.dumps({FACTS: "{}", "w": Calls(function, argument)}, protocol=2))


def test_what_was_packed_is_unpacked():
    facts, tensors = unpack(packed())
    assert facts == FACTS_OF_ONE
    for name, wanted in TENSORS.items():
        found = tensors.pop(name)
        assert (found.numpy().tobytes(), found.shape, found.dtype) == (
            wanted.numpy().tobytes(), wanted.shape, wanted.dtype)  # fmt: skip
    assert not tensors


def test_random_flips_and_truncations_are_refused():
    whole, chance = packed(), random.Random(0)
    for _ in range(300):
        changed = bytearray(whole[: chance.choice([len(whole), chance.randrange(len(whole))])])
        if len(changed) == len(whole):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        with pytest.raises(CheckpointError, match=r"incomplete or was changed|no checkpoint"):
            unpack(bytes(changed))


FORGED = {
    "nothing": (b"", "cannot be read"), "no archive": (b"x" * 100, "cannot be read"),
    "a plain pickle": (pickle.dumps({FACTS: "{}"}), "cannot be read"),
    "harm": (calling(os.mkdir, "harm"), "the file names .*posix mkdir"),
    "large": (calling(bytearray, 2**34), "the file names .*bytearray"),  # 16 GiB of zeros
    "bomb": (archived(bytes(2**26), zipfile.ZIP_DEFLATED), "more bytes than the file has"),
    "stretched": (saved({FACTS: "{}", "w": torch.zeros(1).expand(10**9)}), "the entry 'w' must be a contiguous tensor"),
    "no tensor": (saved({FACTS: "{}", "w": [1, 2]}), "the entry 'w' must be a contiguous tensor"),
    "a list": (saved([1, 2]), "cannot be read"),
    "no facts": (saved({"w": torch.ones(2)}), "cannot be read"), "facts of a list": (saved({FACTS: "[]"}), "be a dict"),
    "facts that are no JSON": (saved({FACTS: "{" * 10**5}), "cannot be read"),
    "a number as a name": (saved({FACTS: "{}", 3: torch.ones(2)}), "the entry 3 must be a contiguous tensor"),
}  # fmt: skip


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_checkpoint_is_refused_in_bounded_memory_and_nothing_of_it_is_executed(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content, words = FORGED[what]
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=words):
        unpack(forged(content))
    assert tracemalloc.get_traced_memory()[1] < 8_000_000
    tracemalloc.stop()
    assert list(tmp_path.iterdir()) == []


class Killed(BaseException):
    """The process is gone."""


def write(place: CheckpointStore, number: int) -> None:
    place.write({"number of state": number}, {"state": torch.tensor([number])})


def states(place: CheckpointStore) -> list[int]:
    """Of what can be read, the newest first."""
    found = [int(tensors["state"]) for _, tensors in place.newest(lambda words: None)]
    assert found == [facts["number of state"] for facts, _ in place.newest(lambda words: None)]
    return found


POINTS = {
    "before the file": (Path, "open"), "before it is on the disk": (os, "fsync"),
    "before it has its name": (Path, "rename"), "before the oldest goes": (Path, "unlink"),
}  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("after", [False, True])
def test_a_writer_that_is_killed_at_any_point_leaves_whole_ones(tmp_path, monkeypatch, point, after):
    place = CheckpointStore(tmp_path / "run")
    assert states(place) == []
    for number in range(3):
        write(place, number)
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
    assert left[:2] in ([2, 1], [3, 2])
    write(place, 4)
    assert states(place) == [4, left[0]]
    assert len(list(place.folder.glob("0*"))) == 2  # the last two are kept
    for _ in range(2):
        place.clear()
        assert not place.folder.exists()


def test_what_has_no_end_or_does_not_fit_is_passed_over_before_it_is_read(tmp_path):
    place = CheckpointStore(tmp_path)
    write(place, 1)
    write(place, 2)
    path = tmp_path / "000002.checkpoint"
    whole, said = path.read_bytes(), list[str]()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert [facts["number"] for facts, _ in place.newest(said.append)] == [1]
    assert len(said) == len(range(0, len(whole), 7))
    path.unlink()
    path.symlink_to("/dev/zero")
    (tmp_path / "000003.checkpoint").touch()
    os.truncate(tmp_path / "000003.checkpoint", 2**43)  # without a byte on disk
    assert [facts["number"] for facts, _ in place.newest(said.append)] == [1]
    assert ["do not fit" in words for words in said[-2:]] == [True, False]


STATE: Any = {"n": 7}, {"w": torch.ones(3)}
SHARE = 0.02  # of a run's time, as documented


def keeper(folder: Path, every: int | None = None) -> tuple[Checkpointing, Any, list[str]]:
    """The checkpoints of a run in a folder, their clock, which is turned by hand, and what is said of them."""
    clock, said = SimpleNamespace(now=0.0), list[str]()
    return Checkpointing(CheckpointStore(folder), every, said.append, lambda: clock.now), clock, said


def test_by_pushes_one_is_due_after_so_many(tmp_path):
    kept, _, _ = keeper(tmp_path, 10)
    written = [pushes for pushes in range(35) if kept.due(pushes) and not kept.write(pushes, lambda: STATE)]
    assert (written, kept.facts()["checkpoints"]) == ([10, 20, 30], 3)


@pytest.mark.parametrize("cost_s", [0.001, 0.5, 4.0])
def test_without_a_number_they_take_at_most_their_share_of_the_time(tmp_path, cost_s):
    kept, clock, _ = keeper(tmp_path)
    seconds = list[int]()

    def state() -> Any:
        clock.now += cost_s
        return STATE

    for second in range(2000):
        clock.now += 1.0
        if kept.due(second):
            kept.write(second, state)
            seconds.append(second)
    assert seconds[0] >= PERIOD_S - 1  # a short run has none
    facts = kept.facts()
    assert cost_s <= facts["checkpoints_s"] <= max(SHARE * clock.now, cost_s) + 1e-9  # the first one's cost is unknown
    assert facts["checkpoints"] == len(seconds) >= min(2000 * SHARE / cost_s, 2000 / PERIOD_S) * 0.8


@pytest.mark.parametrize("error", [CheckpointError("x"), KeyError("x"), RuntimeError()])
def test_a_state_that_its_reader_refuses_is_passed_over_for_the_one_before(tmp_path, error):
    kept, _, _ = keeper(tmp_path, 1)
    for pushes in (1, 2):
        kept.write(pushes, lambda: STATE)

    def read(facts: Any, tensors: Any) -> tuple[int, list[float]]:
        if facts["pushes"] == 2:
            raise error
        return facts["n"], tensors["w"].tolist()

    again, _, said = keeper(tmp_path, 1)
    assert again.newest(read) == (7, [1.0] * 3)
    assert ["checkpoint 2 was passed over" in said[0], "goes on after 1 pushes" in said[1]] == [True, True]
    assert [each["pushes"] for each in again.facts()["resumed"]] == [1]
    assert (again.due(1), again.due(2)) == (False, True)


def test_a_checkpoint_leaves_room_for_the_record(tmp_path, monkeypatch):
    place = CheckpointStore(tmp_path)
    write(place, 1)
    (path,) = tmp_path.glob("0*")
    for missing in (0, 1):
        free = 2 * path.stat().st_size - missing
        monkeypatch.setattr(shutil, "disk_usage", lambda folder, free=free: SimpleNamespace(free=free))
        with pytest.raises(OSError, match="delete files") if missing else contextlib.nullcontext():
            write(place, 2)


def test_a_checkpoint_that_cannot_be_written_ends_them_and_not_the_run(tmp_path):
    (tmp_path / "file").touch()
    kept, _, said = keeper(tmp_path / "file", 1)
    kept.write(1, lambda: STATE)
    assert (kept.due(100), kept.facts()) == (False, {})
    assert said[0].startswith("no more checkpoints: they cannot be written to ")
