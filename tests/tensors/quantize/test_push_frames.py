"""Frames of pushes: how long they are, what is read of them, and that bytes which no worker writes are refused."""

from __future__ import annotations

import zlib
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pslab.config.spec import build
from pslab.config.table import ROWS
from pslab.errors import FrameError
from pslab.tensors.codec import CRC, HEADER, NO_VALUES, START, Entries, encode, prepare
from pslab.tensors.quantize.push_frames import PushFrames
from pslab.tensors.quantize.rules import Unquantized
from pslab.tensors.random_streams import numpy_generator, seed_of
from pslab.tensors.update.store import Part
from pslab.tensors.workload.keyspace import Keyspace
from pslab.tensors.workload.models import build_model

EVERY = [row.example or name for name, row in ROWS["quantize"].items()]
CODES = [text for text in EVERY if text != "none"]


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    prepare()


@lru_cache(maxsize=1)
def small() -> Keyspace:
    """Tensors of 60, 10, 30 and 3 entries."""
    return Keyspace.of(nn.Sequential(nn.Linear(6, 10), nn.Linear(10, 3)))


def frames(quantize: str, keyspace: Keyspace, *cuts: int, prune: str = "none", codec: str = "auto") -> PushFrames:
    edges = [0, *cuts, keyspace.size]
    parts = [Part((slice(*each),)) for each in pairwise(edges)]
    return PushFrames(build("quantize", quantize), build("prune", prune), parts, keyspace, codec)


def some(n: int, seed: int, share: float = 1.0) -> Entries:
    """Random entries of a vector, all of them if the share is 1."""
    rng = np.random.default_rng(seed)
    k = round(share * n)
    at = None if share == 1 else np.sort(rng.choice(n, k, replace=False))
    return Entries(n, at, rng.standard_normal(k).astype(np.float32))


def written(made: PushFrames, entries: Entries, index: int = 0, **whose: int) -> bytes:
    buffer, context = memoryview(bytearray(made.largest(index))), {"worker": 0, "step": 0, **whose}
    return bytes(buffer[: made.write(buffer, index, entries, kept=np.zeros(10**6, np.float32), **context)])


@pytest.mark.parametrize(
    ("quantize", "size"),
    [("none", 3_729_472), ("fp16", 1_864_748), ("bf16", 1_864_748), ("int8", 932_418), ("fp8", 932_418),
     ("uint8", 932_426), ("e3m0", 466_237), ("qsgd:8", 961_526), ("qsgd:4", 495_345), ("qsgd:2", 262_255),
     ("terngrad", 233_147), ("efsign", 116_602), ("onebit", 116_634), ("sign", 116_570), ("signum", 116_570),
     ("natural", 932_386), ("uniform8", 932_386 + 8 * 1032), ("quantile:16", 466_205 + 8 * 64),
     ("dynamic8", 933_314)],
)  # fmt: skip
def test_a_push_of_the_thesis_model_is_as_long_as_its_rule_says(quantize: str, size: int) -> None:
    keyspace = Keyspace.of(build_model("mlp", 0))
    made = frames(quantize, keyspace)
    assert len(written(made, some(keyspace.size, 0))) == size
    assert made.spread_bytes(0, [(0, keyspace.size, keyspace.size)]) == (size, keyspace.size)


def test_places_that_all_workers_share_are_in_no_frame() -> None:
    keyspace = Keyspace.of(build_model("mlp", 0))
    made = frames("none", keyspace, prune="randomk:1%")
    places = made.places(0, 7)
    frame = written(made, Entries(keyspace.size, places, places.astype(np.float32)), step=7)
    assert len(frame) == made.spread_bytes(0, [(s.offset, s.offset + s.size, -(-s.size // 100))
                                               for s in keyspace.parameters])[0] == 37_344  # fmt: skip
    found = made.read(frame, 0, 7)
    assert np.array_equal(found.indices, places)
    assert np.array_equal(found.values, places)
    assert not np.array_equal(made.read(frame, 0, 8).indices, places)


def test_shared_places_are_those_of_the_stream_of_their_step_and_tensor() -> None:
    """The first three of a permutation of ten, of the root seed 0, in step 2, of the tensor that begins at 0."""
    rule = build("prune", "randomk:30%")
    assert rule.places(10, seed_of(0, "shared", 2, 0)).tolist() == [2, 4, 9]
    whole, first, second = (frames("none", small(), *cuts, prune="randomk:30%") for cuts in ((), (65,), (65,)))
    all_of = whole.places(0, 2)
    assert all_of[(all_of >= 60) & (all_of < 70)].tolist() == (
        60 + rule.places(10, seed_of(0, "shared", 2, 60))).tolist()  # fmt: skip
    assert [*first.places(0, 2), *(65 + second.places(1, 2))] == all_of.tolist()


def test_chance_is_that_of_the_stream_of_its_worker_step_and_piece() -> None:
    u = numpy_generator(0, "quantize", 1, 2, 0).random(3, np.float32)
    np.testing.assert_allclose(u, [0.231040895, 0.7988199, 0.020945251], rtol=1e-7)
    made, entries, rule = frames("qsgd:2", small(), 65), some(103, 0), build("quantize", "qsgd:2")
    halves = [Entries(65, None, entries.values[:65]), Entries(38, None, entries.values[65:])]
    for index, start, stop in ((0, 0, 60), (0, 60, 65), (1, 65, 70), (1, 70, 100), (1, 100, 103)):
        found = made.read(written(made, halves[index], index, worker=1, step=2), index, 2).values
        v, chance = entries.values[start:stop], numpy_generator(0, "quantize", 1, 2, start)
        wanted = rule.decode(rule.encode(v.astype(float), chance.random(len(v), np.float32)), len(v))
        assert np.array_equal(found[start - 65 * index : stop - 65 * index], wanted.astype(np.float32))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(EVERY), st.sampled_from(["auto", "coordinates", "bitmap", "varint", "runs"]),
       st.sampled_from([0.0, 0.01, 0.1, 0.5, 0.99]), st.integers(0, 99))  # fmt: skip
def test_each_tensor_is_quantized_by_itself_whatever_writes_the_places(
    quantize: str, codec: str, share: float, seed: int
) -> None:
    made, rule = frames(quantize, small(), codec=codec), build("quantize", quantize)
    entries = some(103, seed, share)
    found = made.read(written(made, entries, worker=3, step=5), 0, 5)
    assert found.n == 103
    assert np.array_equal(found.indices, entries.indices)
    for start, stop in ((0, 60), (60, 70), (70, 100), (100, 103)):
        own = (entries.indices >= start) & (entries.indices < stop)
        v = wanted = entries.values[own]
        if own.any() and quantize != "none":
            chance = [numpy_generator(0, "quantize", 3, 5, start).random(len(v), np.float32)]
            kept = [np.zeros(len(v), np.float32)]
            more = chance if getattr(rule, "draws", False) else kept if getattr(rule, "keeps", False) else []
            wanted = rule.decode(rule.encode(v.astype(float), *more), len(v)).astype(np.float32)
        assert np.array_equal(found.values[own], wanted)


@pytest.mark.parametrize("quantize", EVERY)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_no_frame_is_longer_than_its_room(quantize: str, share: float) -> None:
    module = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 2))  # of tensors that are smaller than their codes
    keyspace = Keyspace.of(module)
    entries = Entries(6, np.arange(round(6 * share)), np.ones(round(6 * share), np.float32))
    for codec in ("coordinates", "bitmap", "varint", "runs"):
        written(frames(quantize, keyspace, codec=codec), entries)


def test_signum_keeps_a_momentum_of_each_entry() -> None:
    made, kept = frames("signum:0.5", small(), 65), np.zeros(103, np.float32)
    buffer = memoryview(bytearray(made.largest(1)))
    for times in (1, 2):
        made.write(buffer, 1, Entries(38, None, np.arange(38, dtype=np.float32)), 0, times, kept)
    assert kept.tolist() == [0.0] * 65 + [0.75 * i for i in range(38)]


def resealed(frame: bytes | bytearray) -> bytes:
    """The frame with a correct length and CRC: only its content can be wrong."""
    changed = bytearray(frame)
    changed[:8] = len(changed).to_bytes(8, "little")
    CRC.pack_into(changed, HEADER.size, zlib.crc32(changed[START:], zlib.crc32(changed[: HEADER.size])))
    return bytes(changed)


@pytest.mark.parametrize("quantize", CODES)
@pytest.mark.parametrize("share", [0.2, 1.0])
def test_a_forged_push_is_refused_or_is_a_finite_vector(quantize: str, share: float) -> None:
    made, rng = frames(quantize, small()), np.random.default_rng(0)
    frame = written(made, some(103, 1, share))
    assert len(made.read(frame, 0, 0).values) == round(103 * share)
    for wrong in (frame[:-1], frame + b"\0", frame[:START]):
        with pytest.raises(FrameError):
            made.read(resealed(wrong), 0, 0)
    for _ in range(200):
        forged = bytearray(frame)
        for _ in range(rng.integers(1, 4)):
            forged[rng.integers(8, len(forged))] = rng.integers(0, 256)
        try:
            found = made.read(resealed(forged), 0, 0)
        except FrameError:
            continue
        assert np.isfinite(found.values).all()
        assert len(found.values) == (103 if found.indices is None else len(found.indices))


def test_values_of_another_kind_are_refused() -> None:
    entries = some(103, 0)
    codes, plain = frames("int8", small()), frames("none", small())
    with pytest.raises(FrameError, match="code 0, where one of 5 is expected"):
        codes.read(encode(entries), 0, 0)
    with pytest.raises(FrameError, match="that is a dtype is expected"):
        plain.read(written(codes, entries), 0, 0)
    with pytest.raises(FrameError, match="is expected"):
        codes.read(written(frames("fp8", small()), entries), 0, 0)


class Thirds:
    """A rule of the user's: a byte for the nearest third."""

    residual = False

    def encode(self, v: np.ndarray) -> np.ndarray:
        return np.clip(np.rint(3 * v) + 128, 0, 255).astype(np.uint8)

    def decode(self, code: np.ndarray, n: int) -> np.ndarray:
        return (code.astype(float) - 128) / 3

    def bounds(self, n: int) -> tuple[int, int]:
        return n, n


def test_a_rule_of_the_users_has_a_code_of_its_own() -> None:
    made = PushFrames(Thirds(), build("prune", "none"), [Part((slice(0, 103),))], small())
    frame = written(made, Entries(103, None, np.full(103, 0.3, np.float32)))
    assert frame[9] == NO_VALUES + 1 + len(CODES)
    np.testing.assert_allclose(made.read(frame, 0, 0).values, 1 / 3, rtol=1e-6)
    assert len(frame) == START + 103


class Direct(Thirds):
    """The same, in the run's dtype."""

    direct = True

    def __init__(self, into: bool) -> None:
        self.into = into

    def encode(self, v: np.ndarray) -> np.ndarray:
        assert v.dtype == np.float32
        with pytest.raises(ValueError, match="read-only"):
            v *= 0  # it is what the worker has
        return super().encode(v)

    def decode(self, code: np.ndarray, n: int, out: np.ndarray) -> np.ndarray:  # type: ignore[override]
        if not self.into:
            return super().decode(code, n)
        out[:] = super().decode(code, n)
        return out


@pytest.mark.parametrize("into", [True, False])
def test_a_rule_of_the_users_may_take_and_write_values_as_they_are(into: bool) -> None:
    made = PushFrames(Direct(into), build("prune", "none"), [Part((slice(0, 103),))], small())
    found = made.read(written(made, Entries(103, None, np.full(103, 0.3, np.float32))), 0, 0).values
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, 1 / 3, rtol=1e-6)


def test_values_are_read_in_the_dtype_of_the_run_and_stay_in_its_range() -> None:
    largest = float(np.finfo(np.float32).max)
    for dtype, kind in ((torch.float32, "f4"), (torch.float64, "f8")):
        keyspace = Keyspace.of(nn.Linear(1, 2, dtype=dtype))
        made = frames("int8", keyspace)
        values = np.array([largest, 1, -largest, 0], kind)
        found: Any = made.read(written(made, Entries(4, None, values)), 0, 0).values
        assert found.dtype == np.dtype(kind)
        assert np.isfinite(found).all()


def test_without_quantization_a_frame_is_that_of_the_codec() -> None:
    made, entries = frames("none", small(), codec="varint"), some(103, 0, 0.2)
    assert made.exact
    assert written(made, entries) == encode(entries, "varint")
    assert Unquantized() == build("quantize", "none")
