"""A checkpoint's bytes: unchanged, or refused with one type of error."""

from __future__ import annotations

import hashlib
import json
import random
import tracemalloc
from typing import Any

import numpy as np
import pytest

from pslab.engines.experiment.checkpoint.file import MAGIC, START, SUM_BYTES, VERSION, pack, unpack
from pslab.engines.experiment.checkpoint.flatten import flatten
from pslab.engines.experiment.checkpoint.rebuild import rebuild
from pslab.errors import CheckpointError

STATE = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "none": np.empty((0, 3)), "one": [1.5, (2, "x")]}


def packed() -> bytes:
    return b"".join(pack({"pushes": 7}, flatten(STATE, {})))


def forged(header: Any, behind: bytes = b"", length: int | None = None) -> bytes:
    """With a right sum, as an attacker would."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    start = START.pack(MAGIC, VERSION, 0, len(text) if length is None else length)
    return start + hashlib.sha256(start + text + behind).digest() + text + behind


def test_what_was_packed_is_unpacked():
    facts, graph = unpack(packed())
    found = rebuild(graph, {})
    assert facts == {"pushes": 7}
    assert found["w"].tolist() == STATE["w"].tolist()
    assert found["none"].shape == (0, 3)
    assert found["one"] == STATE["one"]
    found["w"][0, 0] = 1  # its own


def damaged(count: int) -> int:
    """Random flips and truncations: how many were refused. The sum would miss one of 2**256."""
    whole, chance, refused = packed(), random.Random(0), 0
    for _ in range(count):
        changed = bytearray(whole[: chance.choice([len(whole), chance.randrange(len(whole))])])
        if len(changed) == len(whole):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        with pytest.raises(CheckpointError):
            unpack(bytes(changed))
        refused += 1
    return refused


def test_random_flips_and_truncations_are_refused():
    assert damaged(500) == 500


@pytest.mark.slow
def test_ten_thousand_random_flips_and_truncations_are_refused():
    assert damaged(10_000) == 10_000


HEADER = {"facts": {}, "nodes": [], "arrays": []}


@pytest.mark.parametrize(
    "checkpoint",
    [forged(HEADER, b"x"), forged({**HEADER, "arrays": [["<f8", [10**15]]]}),
     forged({**HEADER, "arrays": [["|O", [1]]]}, b"x" * 8),
     forged({**HEADER, "arrays": [["<f8", [-1]]]}), forged({**HEADER, "arrays": [["<f8", [2.5]]]}),
     forged({**HEADER, "arrays": [["<f8", [2**62, 2**62]]]}), forged({**HEADER, "arrays": [["<f8", [0, 2**70]]]}),
     forged({**HEADER, "arrays": 7}), forged({**HEADER, "facts": []}), forged([]),
     forged(b"[" * 200_000), forged(b"\xff"),
     forged(HEADER, length=2**63), forged(b'{"facts": {}, "nodes": [' + b"9" * 5000 + b'], "arrays": []}')],
    ids=["rest", "larger than it", "objects", "negative", "half", "overflow", "empty overflow", "no list", "no facts",
         "list", "brackets", "no text", "length", "huge number"],
)  # fmt: skip
def test_a_forged_header_is_refused_in_bounded_memory(checkpoint: bytes):
    tracemalloc.start()
    with pytest.raises(CheckpointError):
        unpack(checkpoint)
    assert tracemalloc.get_traced_memory()[1] < 4_000_000
    tracemalloc.stop()


def test_another_version_is_named():
    changed = bytearray(packed())
    changed[len(MAGIC)] = VERSION + 1
    with pytest.raises(CheckpointError, match=f"version {VERSION + 1}"):
        unpack(bytes(changed))
    assert START.size + SUM_BYTES == 56
