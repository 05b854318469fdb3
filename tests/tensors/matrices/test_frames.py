"""Frames of whole matrices: how long they are, what is read of them, and that what no worker writes is refused."""

from __future__ import annotations

import struct
import zlib
from itertools import pairwise

import numpy as np
import pytest
from torch import nn

from pslab.config.spec import build
from pslab.errors import FrameError
from pslab.tensors.codec import CRC, HEADER, START, Entries, prepare
from pslab.tensors.matrices.frames import MatrixFrames, frames_of
from pslab.tensors.quantize.push_frames import PushFrames
from pslab.tensors.update.store import Part
from pslab.tensors.workload.keyspace import Keyspace
from pslab.tensors.workload.models import build_model

RULES = ("lowrank:2", "powersgd:2", "demo:topk=3,chunk=4", "lowrank:1,square=on", "powersgd:1,after=1",
         "sketch:cols=20,rows=3")  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    prepare()


def small() -> Keyspace:
    """Tensors of 20 x 12, 20, 8 x 20 and 8 entries."""
    return Keyspace.of(nn.Sequential(nn.Linear(12, 20), nn.Linear(20, 8)))


def frames(prune: str, keyspace: Keyspace, *cuts: int, quantize: str = "none") -> MatrixFrames:
    parts = [Part((slice(*each),)) for each in pairwise([0, *cuts, keyspace.size])]
    found = frames_of(build("quantize", quantize), build("prune", prune), parts, keyspace)
    assert isinstance(found, MatrixFrames)
    return found


def some(n: int, seed: int = 0) -> Entries:
    return Entries(n, None, np.random.default_rng(seed).standard_normal(n).astype(np.float32))


def written(made: MatrixFrames, entries: Entries, index: int = 0, turn: int = 0, kept: np.ndarray | None = None
            ) -> bytes:  # fmt: skip
    buffer = memoryview(bytearray(made.largest(index)))
    kept = np.zeros(made.kept, np.float32) if kept is None else kept
    return bytes(buffer[: made.write(buffer, index, entries, 0, turn, kept)])


@pytest.mark.parametrize(("model", "prune", "sizes"), [
    ("mlp", "lowrank:4", (68_064, 68_064)), ("mlp", "lowrank:1", (21_672, 21_672)), ("mlp", "demo", (52_308, 52_308)),
    ("mlp", "powersgd:1", (24 + 4 * 3866, 24 + 4 * 3092)), ("mlp", "none", (3_729_472, 3_729_472)),
    ("gpt:64", "lowrank:4", (41_240, 41_240)), ("gpt:64", "lowrank:1", (11_288, 11_288)),
    ("gpt:64", "demo", (6_552, 6_552)), ("mlp", "sketch:rows=5,cols=1000", (20_024, 20_024)),
])  # fmt: skip
def test_a_push_of_a_model_is_as_long_as_its_rule_says(model: str, prune: str, sizes: tuple[int, int]):
    keyspace = Keyspace.of(build_model(model, 0))
    parts = [Part((slice(0, keyspace.size),))]
    made, entries = frames_of(build("quantize", "none"), build("prune", prune), parts, keyspace), some(keyspace.size)
    buffer = memoryview(bytearray(made.largest(0)))
    found = []
    for turn in (0, 1):
        kept = np.ones(made.kept, np.float32)
        found.append(made.write(buffer, 0, entries, 0, turn, kept))
        pieces = [(0, keyspace.size, keyspace.size)]
        assert made.spread_bytes(0, pieces, turn) == (found[-1], made.count(0, entries, turn))
    assert tuple(found) == sizes


@pytest.mark.parametrize("quantize", ["none", "fp16", "int8", "inceptionn", "uniform8"])
@pytest.mark.parametrize("prune", RULES)
def test_what_is_read_is_what_the_rule_makes_of_each_matrix(prune: str, quantize: str):
    keyspace, turn = small(), 1
    whole, entries = frames(prune, keyspace, quantize=quantize), some(keyspace.size)
    kept = np.random.default_rng(3).standard_normal(whole.kept).astype(np.float32)
    frame = written(whole, entries, turn=turn, kept=kept.copy())
    found = whole.sent(frame, 0, turn, kept=kept).values
    one = "square" in prune or "sketch" in prune  # matrix of all tensors of a range
    if not one:
        cut = frames(prune, keyspace, 260, quantize=quantize)  # of a layer each
        edges = [0, 260, keyspace.size]
        for index, (start, stop) in enumerate(pairwise(edges)):
            own = written(cut, Entries(stop - start, None, entries.values[start:stop]), index, turn, kept.copy())
            assert np.array_equal(cut.sent(own, index, turn, kept=kept).values, found[start:stop])
    if quantize == "none" and "demo" not in prune and not one:
        assert np.array_equal(found[240:260], entries.values[240:260])  # a vector is sent as it is
        assert not np.array_equal(found[:240], entries.values[:240])


def resealed(frame: bytes, **changes: bytes) -> bytes:
    """A frame with other bytes and the right length and CRC-32."""
    header, body = bytearray(frame[: HEADER.size]), frame[START:] if "body" not in changes else changes["body"]
    header[:8] = struct.pack("<Q", START + len(body))
    return bytes(header) + CRC.pack(zlib.crc32(body, zlib.crc32(header))) + body


@pytest.mark.parametrize("quantize", ["none", "int8"])
@pytest.mark.parametrize("prune", RULES)
def test_bytes_that_no_worker_writes_are_refused(prune: str, quantize: str):
    keyspace = small()
    made = frames(prune, keyspace, quantize=quantize)
    frame = written(made, some(keyspace.size))
    body = frame[START:]
    assert resealed(frame) == frame
    for forged in (frame[:-1], frame + b"\0", resealed(frame, body=body[:-2]), resealed(frame, body=body + b"\0\0"),
                   resealed(frame, body=b""), frame[:30] + bytes([frame[30] ^ 1]) + frame[31:]):  # fmt: skip
        with pytest.raises(FrameError):
            made.read(forged, 0, 0)
    nan = struct.pack("<f", float("nan"))
    with pytest.raises(FrameError, match="finite"):
        made.read(resealed(frame, body=nan + body[4:]), 0, 0)


def test_frames_of_other_runs_are_refused():
    keyspace = small()
    made = {name: frames(name, keyspace) for name in RULES}
    plain = PushFrames(build("quantize", "none"), build("prune", "none"), [Part((slice(0, keyspace.size),))], keyspace)
    sparse = Entries(keyspace.size, np.arange(0, keyspace.size, 3), some(keyspace.size).values[::3])
    buffer = memoryview(bytearray(plain.largest(0)))
    others = [bytes(buffer[: plain.write(buffer, 0, entries, 0, 0)]) for entries in (some(keyspace.size), sparse)]
    for name in RULES[:4]:
        mine = others + [written(made[other], some(keyspace.size)) for other in RULES[:4] if other != name]
        for frame in mine:
            with pytest.raises(FrameError):
                made[name].read(frame, 0, 0)


def test_places_of_coefficients_that_do_not_increase_are_refused():
    keyspace = small()
    made = frames("demo:topk=3,chunk=4", keyspace)
    frame = written(made, some(keyspace.size))
    found = made.read(frame, 0, 0)
    assert (np.diff(found.indices) > 0).all()
    swapped = frame[START:-4] + frame[-2:] + frame[-4:-2]
    with pytest.raises(FrameError, match="do not increase"):
        made.read(resealed(frame, body=swapped), 0, 0)


def test_what_comes_with_the_weights_is_kept_for_the_next_push():
    keyspace = small()
    made = frames("powersgd:2", keyspace)
    for turn in (1, 2):
        told = sum(made.stated(0, turn))
        values = np.arange(keyspace.size + told, dtype=np.float32)
        kept = np.zeros(made.kept, np.float32)
        weights = made.install(0, turn, Entries(len(values), None, values), kept)
        assert np.array_equal(weights.values, values[: keyspace.size])
        assert np.array_equal(np.sort(kept[kept > 0]), values[keyspace.size :])
        before = kept.copy()
        for forged in (Entries(len(values), np.arange(len(values)), values), Entries(len(values) - 1, None, values[1:]),
                       Entries(len(values), np.arange(1, len(values)), values[1:])):  # fmt: skip
            with pytest.raises(FrameError, match=f"not {keyspace.size} weights and {told} values"):
                made.install(0, turn, forged, kept)
        assert np.array_equal(kept, before)
        sides = [(20, 12), (8, 20)]
        assert told == sum(2 * shape[1 if turn == 1 else 0] for shape in sides if 4 * sum(shape) < shape[0] * shape[1])


@pytest.mark.parametrize("prune", ["none", "lowrank:2"])
def test_weights_for_a_rule_that_is_told_nothing_are_all_that_comes(prune: str):
    keyspace = small()
    made = frames_of(build("quantize", "none"), build("prune", prune), [Part((slice(0, keyspace.size),))], keyspace)
    assert sum(made.stated(0, 1)) == 0
    for indices in (None, np.arange(0, keyspace.size, 2)):  # all, or those that have changed
        values = np.ones(keyspace.size if indices is None else len(indices), np.float32)
        entries = Entries(keyspace.size, indices, values)
        assert made.install(0, 1, entries, None) is entries
