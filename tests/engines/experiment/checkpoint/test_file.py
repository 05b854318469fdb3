"""A checkpoint's bytes: what was packed is unpacked, and all else is refused with one type of error."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import random
import tracemalloc
import zipfile
from typing import Any

import pytest
import torch

from pslab.engines.experiment.checkpoint.file import FACTS, MAGIC, pack, unpack
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


def archived(pickled: bytes, compression: int = zipfile.ZIP_STORED, **entries: bytes) -> bytes:
    """An archive as torch writes one, with this pickle."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in {"data.pkl": pickled, "byteorder": b"little", "version": b"3\n", **entries}.items():
            archive.writestr(f"archive/{name}", content)
    return file.getvalue()


class Harm:
    """Its pickle makes a folder where it is read."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("harm",)


class Large:
    """Its pickle makes 16 GiB of zeros where it is read."""

    def __reduce__(self) -> Any:
        return bytearray, (2**34,)


def test_what_was_packed_is_unpacked():
    facts, tensors = unpack(packed())
    assert facts == FACTS_OF_ONE
    assert {name: each.numpy().tobytes() for name, each in tensors.items()} == {
        name: each.numpy().tobytes() for name, each in TENSORS.items()}  # fmt: skip
    assert {name: (each.shape, each.dtype) for name, each in tensors.items()} == {
        name: (each.shape, each.dtype) for name, each in TENSORS.items()}  # fmt: skip


def test_of_a_view_nothing_is_packed_that_it_does_not_show():
    whole = torch.zeros(2**20)
    assert sum(map(len, pack({}, {"view": whole[5:9]}))) < 5000


def damaged(count: int) -> int:
    """Random flips and truncations: how many were refused."""
    whole, chance, refused = packed(), random.Random(0), 0
    for _ in range(count):
        changed = bytearray(whole[: chance.choice([len(whole), chance.randrange(len(whole))])])
        if len(changed) == len(whole):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        with pytest.raises(CheckpointError, match=r"incomplete or was changed|no checkpoint"):
            unpack(bytes(changed))
        refused += 1
    return refused


def test_random_flips_and_truncations_are_refused():
    assert damaged(300) == 300


def stretched() -> bytes:
    """A tensor of 10^9 numbers that are one number."""
    return saved({FACTS: "{}", "w": torch.zeros(1).expand(10**9)})


def lengthened() -> bytes:
    """A tensor of 6 numbers whose pickle says that there are 65,535."""
    with zipfile.ZipFile(io.BytesIO(saved({FACTS: "{}", "w": torch.arange(6.0)}))) as archive:
        entries = {each.filename.partition("/")[2]: archive.read(each) for each in archive.infolist()}
    pickled = entries.pop("data.pkl").replace(b"K\x06t", b"M\xff\xfft").replace(b"K\x06\x85", b"M\xff\xff\x85")
    return archived(pickled, **{name: entries[name] for name in entries if name.startswith("data/")})


FORGED = {
    "nothing": (b"", "cannot be read"), "no archive": (b"x" * 100, "cannot be read"),
    "a plain pickle": (pickle.dumps({FACTS: "{}"}), "cannot be read"),
    "harm": (archived(pickle.dumps({FACTS: "{}", "w": Harm()}, protocol=2)), "it names .*posix mkdir"),
    "large": (archived(pickle.dumps({FACTS: "{}", "w": Large()}, protocol=2)), "it names .*bytearray"),
    "bomb": (archived(bytes(2**26), zipfile.ZIP_DEFLATED), "larger than it is"),
    "stretched": (stretched(), "no tensor that lies whole in it"), "lengthened": (lengthened(), "cannot be read"),
    "strided": (saved({FACTS: "{}", "w": torch.ones(3, 4).T}), "no tensor that lies whole"),
    "no tensor": (saved({FACTS: "{}", "w": [1, 2]}), "'w' is no tensor"), "a list": (saved([1, 2]), "cannot be read"),
    "no facts": (saved({"w": torch.ones(2)}), "cannot be read"), "facts of a list": (saved({FACTS: "[]"}), "no dict"),
    "facts that are no JSON": (saved({FACTS: "{" * 10**5}), "cannot be read"),
    "a number as a name": (saved({FACTS: "{}", 3: torch.ones(2)}), "3 is no tensor"),
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


def test_a_checkpoint_of_another_version_says_what_it_begins_with():
    with pytest.raises(CheckpointError, match="b'pslabrn3'"):
        unpack(b"pslabrn3" + packed()[8:])
