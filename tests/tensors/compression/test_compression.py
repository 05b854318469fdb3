"""Compression from a gradient to a frame and back: every rule against its paper, on drawn vectors; answers to pulls as
differences.

A case is a seed: a failure names it. A new rule needs a row in `pslab.config.table`, lines in `references`, and a text
below; a rule without these fails.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import references
import torch
from apart import Elsewhere, elsewhere
from hypothesis import given
from hypothesis import strategies as st
from references import Worker, largest, quantized
from refusals import check_refused
from torch import nn

from pslab.config.spec import build
from pslab.config.table import ROWS
from pslab.errors import FrameError
from pslab.protocol.messages import NO_WORKER, Pull
from pslab.protocol.rotation import Rotation
from pslab.protocol.server import Reply
from pslab.tensors.compression import bits, compression, frame, select
from pslab.tensors.compression.downlink import DownlinkRules, HeldWeights, downlink_rules
from pslab.tensors.compression.matrices import orthonormal
from pslab.tensors.compression.pieces import Compression
from pslab.tensors.compression.rule import At
from pslab.tensors.compression.sparse import keys_of
from pslab.tensors.entries import Entries
from pslab.tensors.finite import NonFinite
from pslab.tensors.random_streams import generator, numpy_generator, seed_of
from pslab.tensors.update.part import Part
from pslab.tensors.workload.keyspace import Keyspace

QUANTIZE = ("fp16", "bf16", "int8", "int8:3", "uint8", "uint8:7", "fp8", "fp8:5", "e3m0", "e3m0:4", "qsgd:2",
            "qsgd:4,bucket=9", "qsgd:8,norm=max", "qsgd:3,residual=on", "terngrad", "onebit", "efsign", "sign",
            "signum", "signum:0.5", "natural", "natural:residual=on", "uniform8", "quantile:2", "quantile:16",
            "quantile:256", "dynamic8", "dynamic8:6", "inceptionn", "inceptionn:7", "inceptionn:15")  # fmt: skip
PRUNE = ("none", "static:1%", "static:30%", "static:10%,residual=off", "static:5%,warm_up=3", "static:20%,mode=frozen",
         "std:1", "std:2.5,warm_up=7", "dynamic", "dynamic:1", "dynamic:mode=literal", "dynamic:mode=ratchet",
         "dynamic:mode=decay,gamma=0.5,warm_up=1", "dgc:5%,momentum=0.5,warm_up=0", "dgc:1%,momentum=0,warm_up=3",
         "dgc:10%,momentum=0.5,nesterov=on,masking=off", "threshold:2", "randomk:10%", "randomk:30%,residual=off",
         "adaq:10%", "ef21:10%")  # fmt: skip
MATRICES = ("lowrank:2", "lowrank:1,after=1", "lowrank:2,square=on", "powersgd:2", "powersgd:1,after=2",
            "demo:topk=3,chunk=4", "demo:topk=1,chunk=64", "sketch:cols=20,rows=3",
            "sketch:cols=9,rows=4")  # fmt: skip
DTYPES = (np.dtype("f4"), np.dtype("f8"))
EPOCH = 2.0  # iterations of an epoch


def vector(rng: np.random.Generator, n: int, dtype: Any) -> np.ndarray:
    """Return a gradient that misleads a scale, a sample, a stride or a sum, or one that is drawn from a Gaussian."""
    gauss, at = rng.standard_normal(n), np.arange(n)
    kinds: list[Callable[[], np.ndarray]] = [
        lambda: gauss, lambda: gauss, lambda: rng.integers(-9, 10, n), lambda: rng.integers(-1, 2, n),
        lambda: gauss * np.exp(2 * rng.standard_normal(n)), lambda: np.zeros(n), lambda: np.full(n, -0.1),
        lambda: 0.5 * (1 - 2 * (at % 2)), lambda: -7.0 * (at == n // 3), lambda: gauss * (rng.random(n) < 0.05),
        lambda: np.where(at < 0.98 * n, 1e-3, 1e3) * gauss, lambda: gauss * 1e-42, lambda: gauss * 1e30,
        lambda: at % 64 / 7, lambda: -at[::-1] * 1.0, lambda: gauss + 1e4, lambda: np.full(n, -0.0),
        lambda: rng.choice([0.25, 0.5, 1.0, 1.5, 2.0, 3.0], n) * rng.choice([-1, 1], n),
    ]  # fmt: skip
    return kinds[rng.integers(len(kinds))]().astype(dtype)


def model_of(rng: np.random.Generator, dtype: Any = DTYPES[0], most: int = 14) -> Keyspace:
    """One to three linear layers, some with biases, some tiny."""
    widths, torch_dtype = rng.integers(1, most, rng.integers(2, 5)).tolist(), torch.from_numpy(np.empty(0, dtype)).dtype
    return Keyspace.of(nn.Sequential(*(nn.Linear(a, b, bias=bool(rng.integers(2)), dtype=torch_dtype)
                                       for a, b in pairwise(widths))))  # fmt: skip


def parts_of(rng: np.random.Generator, keyspace: Keyspace) -> list[Part]:
    cuts = sorted({0, keyspace.size, *rng.integers(1, keyspace.size + 1, rng.integers(0, 3)).tolist()})
    return [Part((slice(*each),)) for each in pairwise(cuts)]


def whole(keyspace: Keyspace) -> list[Part]:
    return [Part((slice(0, keyspace.size),))]


def made_of(prune: str, quantize: str, parts: list[Part], keyspace: Keyspace, seed: int = 0) -> Compression:
    found = compression(build("prune", prune), build("quantize", quantize), parts, keyspace, seed)
    return found or Compression(build("quantize", "none"), build("quantize", "none"), parts, keyspace, seed)


def memories(made: Compression) -> dict[str, torch.Tensor]:
    return {name: memory.zeros("cpu") for name, memory in made.memories.items()}


def written(made: Compression, index: int, pieces: list[Any]) -> memoryview:
    """Write a frame into a room of exactly the bytes that are said to hold it."""
    buffer = memoryview(bytearray(b"\xff" * (made.largest(index) + 8)))
    size = frame.write(buffer, pieces)
    assert size == frame.length(pieces) <= made.largest(index)
    assert bytes(buffer[size:]) == b"\xff" * (len(buffer) - size)
    return buffer[:size]


def whose(step: int, **more: Any) -> dict[str, Any]:
    return {"worker": 1, "step": step, "turn": step, "epoch": step / EPOCH, **more}


@pytest.mark.parametrize("text", QUANTIZE)
def test_a_code_reads_as_its_paper_says(text: str):
    rule, name = build("quantize", text), text.partition(":")[0]
    for seed in range(100):
        rng = np.random.default_rng(seed)
        n, dtype = int(rng.integers(1, 60 if seed % 10 else 700)), DTYPES[seed % 2]
        v = vector(rng, n, dtype)
        u = numpy_generator(seed, "quantize", 2, 3, seed).random(n, np.float32)
        state, own = np.ones((2, n), dtype)
        at = At(start=seed, shape=(n,), dtype=torch.from_numpy(v).dtype, seed=seed, worker=2, step=3,
                memory={"average": torch.from_numpy(state)})  # fmt: skip
        parts = rule.compress(torch.from_numpy(v.copy()), at)
        wanted, size = quantized(name, rule, v.astype(float), u, own)
        read = rule.decompress([part.view(torch.uint8) for part in parts], at).numpy()
        assert read.dtype == dtype
        tie = np.abs(np.abs(v - read) - np.abs(v - wanted)) <= 1e-5 * np.abs(v)  # of two levels that are equally near
        np.testing.assert_allclose(np.where(tie, wanted, read), wanted, rtol=3e-7, atol=1e-38, err_msg=f"{text} {seed}")
        assert abs(sum(part.nbytes for part in parts) - size) <= 8, (text, seed)  # symbols fill whole bytes
        np.testing.assert_allclose(state, own, rtol=1e-6)


@pytest.mark.parametrize("text", PRUNE)
def test_a_worker_sends_and_keeps_what_a_sequential_one_does(text: str):
    name, rule = text.partition(":")[0], build("prune", text)
    for seed in range(25):
        rng, dtype = np.random.default_rng(seed), DTYPES[seed % 2]
        keyspace = model_of(rng, dtype, 220 if seed < 2 else 14)
        setting = SimpleNamespace(seed=seed, worker=1, epoch_iterations=EPOCH)
        plain = Worker(name, rule, keyspace.size, dtype, setting, seed_of)
        made = made_of(text, "none", whole(keyspace), keyspace, seed)
        state = memories(made)
        by_tensor = name in ("dgc", "randomk")
        slots = [(slice(slot.offset, slot.offset + slot.size), name == "dgc" and len(slot.shape) < 2)
                 for slot in keyspace.parameters]  # fmt: skip
        pieces = slots if by_tensor else [(slice(layer.start, layer.stop), False) for layer in keyspace.layers]
        for step in range(8):
            gradient = vector(rng, keyspace.size, dtype) * dtype.type(100 if step == 5 else 1)
            gradient = np.clip(gradient, -1e30, 1e30).astype(dtype)
            given, case = torch.from_numpy(gradient.copy()), f"{text} seed {seed} step {step}"
            sent, count = made.push(0, given, state, **whose(step))
            entries = made.read(0, frame.read(written(made, 0, sent)), torch.empty(0), **whose(step))
            at = np.arange(keyspace.size) if entries.indices is None else entries.indices
            own = [plain.push(gradient[piece], piece.start, number, step, unpruned=dense)
                   for number, (piece, dense) in enumerate(pieces)]  # fmt: skip
            wanted = [piece.start + i for (indices, _), (piece, _) in zip(own, pieces, strict=True) for i in indices]
            assert at.tolist() == wanted, case
            values = np.concatenate([gradient[:0], *(each for _, each in own)])
            np.testing.assert_allclose(entries.values, values, rtol=1e-6, err_msg=case)
            assert count == len(wanted), case
            assert np.array_equal(given.numpy(), gradient), case
            for memory, wanted_state in (("residual", plain.residual), ("momentum", plain.momentum)):
                if memory in state and (memory == "residual" or plain.m):
                    np.testing.assert_allclose(state[memory].numpy(), wanted_state, rtol=1e-6, atol=1e-30, err_msg=case)


LOSSLESS = ("static:10%", "std:1", "dynamic:3", "adaq:10%", "randomk:20%", "threshold:0.7", "range:3",
            "dgc:10%,momentum=0,warm_up=0", "lowrank:1", "none")  # fmt: skip
CODES = ("none", "int8:residual=on", "efsign", "onebit", "qsgd:4,residual=on", "fp16:residual=on",
         "uniform8:residual=on")  # fmt: skip


@pytest.mark.parametrize("prune", LOSSLESS)
@pytest.mark.parametrize("quantize", CODES)
def test_whatever_is_not_sent_stays_in_the_residual(prune: str, quantize: str):
    """Error feedback's law: the sum of all gradients is the sum of all that is read, and the residual."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        keyspace = model_of(rng, DTYPES[1])
        parts = parts_of(rng, keyspace)
        made = made_of(prune, quantize, parts, keyspace, seed)
        state, total, read = memories(made), np.zeros(keyspace.size), torch.zeros(keyspace.size, dtype=torch.float64)
        for step in range(6):
            gradient = rng.standard_normal(keyspace.size)
            total += gradient
            slices = keyspace.slices(keys_of(min(3, keyspace.keys), keyspace.keys, step))
            for index, part in enumerate(parts):
                more = whose(step, slices=slices)
                sent, _ = made.push(index, torch.from_numpy(gradient), state, **more)
                part.add(read, made.read(index, frame.read(written(made, index, sent)), torch.empty(0), **more), 1.0)
        rest = state["residual"].numpy() if "residual" in state else 0.0
        np.testing.assert_allclose(read.numpy() + rest, total, atol=2e-5 if quantize == "none" else 1e-9 + 2e-5)


@pytest.mark.parametrize("text", [*PRUNE, *MATRICES])
def test_a_gradient_that_is_not_finite_is_refused(text: str):
    keyspace = model_of(np.random.default_rng(3), DTYPES[1])
    made = made_of(text, "none", whole(keyspace), keyspace)
    for bad in (np.nan, np.inf):
        gradient = torch.ones(keyspace.size, dtype=torch.float64)
        gradient[:] = bad
        with pytest.raises((NonFinite, ValueError)):
            made.push(0, gradient, memories(made), **whose(9))


@pytest.mark.parametrize("prune", ["none", "static:10%", "lowrank:1"])
@pytest.mark.parametrize("quantize", CODES)
def test_a_gradient_whose_scale_overflows_is_refused_or_can_be_read(prune: str, quantize: str):
    for dtype, size in zip(DTYPES, (3e38, 1e300), strict=True):
        keyspace = model_of(np.random.default_rng(3), dtype)
        made = made_of(prune, quantize, whole(keyspace), keyspace)
        gradient = torch.full((keyspace.size,), size, dtype=getattr(torch, np.dtype(dtype).name))
        try:
            sent, _ = made.push(0, gradient, memories(made), **whose(9))
        except NonFinite:
            continue
        assert np.isfinite(made.read(0, frame.read(written(made, 0, sent)), torch.empty(0), **whose(9)).values).all()


def test_clipping_is_by_the_norm_of_the_whole_gradient():
    for clip, scale in ((10.0, 1.0), (5.0, 0.5), (1.0, 0.1), (100.0, 1.0)):
        rule = build("prune", f"dgc:100%,momentum=0,warm_up=0,clip={clip}")
        assert rule.before(torch.tensor([3.0, 4, 0, 0]), 4).tolist() == pytest.approx([3 * scale, 4 * scale, 0, 0])


class Fixed:
    """A user's rule that always selects the same entries."""

    residual = True

    def __init__(self, chosen: object) -> None:
        self.chosen = chosen

    def select(self, v: torch.Tensor) -> object:
        return self.chosen


@pytest.mark.parametrize("chosen", [[3, 1], np.array([1, 3]), torch.tensor([3, 1], dtype=torch.int32),
                                    torch.tensor([0, 1, 0, 1, 0], dtype=torch.bool)])  # fmt: skip
def test_a_users_rule_may_give_indices_in_any_form(chosen: object):
    keyspace = Keyspace.of(nn.Sequential(nn.Linear(4, 1), nn.Linear(4, 1)))
    made = compression(Fixed(chosen), build("quantize", "none"), whole(keyspace), keyspace)
    assert made is not None
    entries = made.read(0, made.push(0, torch.arange(10.0), memories(made))[0], torch.empty(0))
    assert (list(entries.indices), entries.values.tolist()) == ([1, 3, 6, 8], [1, 3, 6, 8])
    for wrong in ([1, 1], [-1], [5]):
        made = compression(Fixed(wrong), build("quantize", "none"), whole(keyspace), keyspace)
        with pytest.raises(ValueError, match="distinct indices from 0 to 4"):
            made.push(0, torch.arange(10.0), memories(made))


def definitions(v: np.ndarray, k: int, sigmas: float, passes: int, threshold: float) -> dict[str, list[int]]:
    size = np.abs(v)
    return {
        "top": largest(v, k), "dynamic": references.by_dynamic(v, passes),
        "std": references.by_deviation(v, sigmas) if len(v) else [],
        "above": np.flatnonzero(size > threshold * (1 + 1e-12)).tolist(),
        "reaching": np.flatnonzero(size >= threshold * (1 - 1e-12)).tolist(),
    }  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "elsewhere"])
def test_selection_is_its_definition_on_each_device(device: str):
    for seed in range(0, 300, 1 if device == "cpu" else 3):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 400)) if seed % 10 else int(rng.choice([1, 63, 1025, 8193, 40_001]))
        v = np.clip(vector(rng, n, DTYPES[seed % 2]), -1e30, 1e30).astype(DTYPES[seed % 2])
        k = int(rng.choice([0, 1, n // 100, n // 30, n // 7, n, rng.integers(0, n + 1)]))
        sigmas, passes = float(rng.choice([0.1, 1, 2, 3])), int(rng.integers(1, 30))
        threshold = float(np.abs(v).mean() * rng.choice([0, 1, 3]))
        given, case = torch.from_numpy(v.copy()), f"seed {seed} n={n} k={k} {sigmas} {passes} {threshold}"
        with elsewhere():
            x = given.as_subclass(Elsewhere) if device == "elsewhere" else given
            got = {"top": select.top(x, k), "std": select.above(x, sigmas * select.std(x)),
                   "dynamic": select.dynamic(x, passes)[0], "above": select.above(x, threshold),
                   "reaching": select.reaching(x, threshold)}  # fmt: skip
        for name, wanted in definitions(v, k, sigmas, passes, threshold).items():
            assert got[name].tolist() == wanted, f"{name} {case}"
        more = rng.standard_normal(n).astype(v.dtype)
        total = given.clone()
        indices, values = select.add_top(total, k, torch.from_numpy(more))
        assert indices.tolist() == largest(v + more, k), case
        assert np.array_equal(total.numpy(), v + more)
        assert np.array_equal(values.numpy(), (v + more)[indices.numpy()])
        assert np.array_equal(given.numpy(), v)


def test_symbols_are_packed_alike_on_each_device_and_unpacked():
    for seed in range(60):
        rng = np.random.default_rng(seed)
        width, n = int(rng.integers(1, 9)), int(rng.integers(1, 300))
        symbols = torch.from_numpy(rng.integers(0, 1 << width, n).astype(np.uint8))
        code = bits.pack(symbols, width)
        with elsewhere():
            there = bits.pack(symbols.as_subclass(Elsewhere), width)
            back = bits.unpack(there, width, n)
        assert there.tolist() == code.tolist(), seed
        assert back.tolist() == bits.unpack(code, width, n).tolist() == symbols.tolist(), seed


def test_positions_are_read_as_they_were_written():
    for seed in range(400):
        rng = np.random.default_rng(seed)
        n = int(rng.choice([1, 8, 9, 127, 129, 1000, 20_000, 2_100_000]))
        near = rng.integers(0, n, 4)[:, None] + rng.choice([0, 1, 2, 3, 127, 128, 129, 16_384, 2**20], (4, 12))
        at = np.unique(near[near < n])[: rng.integers(0, 40)]
        at = np.arange(n)[: rng.integers(0, n + 1)] if seed % 9 == 0 and n < 30_000 else at
        parts = bits.positions(torch.from_numpy(at), n)
        assert bits.indices_of(parts, n).tolist() == at.tolist(), seed
        assert bits.count_of(parts) == len(at)
        forms = [len(at) * 1, -(-n // 8), 8 * int((np.diff(at, prepend=-2) > 1).sum())]
        assert len(parts) - 8 <= max(min(forms[1:]), 0) or len(parts) - 8 < 5 * len(at), seed


@pytest.mark.parametrize("forged", [
    b"", b"\0" * 7, b"\0\0\0\0\2\0\0\0\1", b"\0\0\0\0\1\0\0\0\x09", b"\0\0\0\0\1\0\0\0\x81", b"\0\0\0\0\1\0\0\0",
    b"\0\0\0\0\0\0\0\x7f\1", b"\1\0\0\0\1\0\0\0\3\0", b"\1\0\0\0\1\0\0\0\1", b"\2\0\0\0\2\0\0\0\1\0\0\0\xff\0\0\0",
    b"\2\0\0\0\2\0\0\0\1\0\0\0", b"\2\0\0\0\2\0\0\0\x08\0\0\0\2\0\0\0",
    b"\2\0\0\0\2\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0",
    b"\2\0\0\0\2\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\0",
])  # fmt: skip
def test_forged_positions_are_refused(forged: bytes):
    with pytest.raises(FrameError):
        bits.indices_of(torch.tensor(list(forged), dtype=torch.uint8), 9)


def sealed(content: bytes) -> memoryview:
    """A frame with a right checksum and length: only its content can be wrong."""
    changed = bytearray(content)
    changed[4:8] = len(changed).to_bytes(4, "little")
    changed[:4] = zlib.crc32(changed[frame.HEAD.size :]).to_bytes(4, "little")
    return memoryview(changed)


@pytest.mark.parametrize(
    "rules",
    [
        *(("none", text) for text in QUANTIZE),
        *((text, "none") for text in PRUNE[1:]),
        *((text, "none") for text in MATRICES),
        ("static:10%", "int8"),
        ("std:1", "qsgd:4"),
    ],
)
def test_a_forged_frame_is_refused_or_is_a_vector_of_the_range(rules: tuple[str, str]):
    rng = np.random.default_rng(7)
    keyspace = model_of(rng)
    made = made_of(*rules, whole(keyspace), keyspace)
    served = torch.zeros(made.served(0))
    sent, _ = made.push(0, torch.randn(keyspace.size), memories(made), **whose(1))
    right = bytes(written(made, 0, sent))
    wrong = [right[:-1], right[: frame.HEAD.size], b"", right[:-1] + bytes([right[-1] ^ 1])]
    for content in wrong:
        with pytest.raises(FrameError):
            made.read(0, frame.read(memoryview(bytearray(content))), served, **whose(1))
    for _ in range(24):
        forged = bytearray(right)
        for at in rng.integers(8, len(forged), rng.integers(1, 4)):
            forged[at] = rng.choice([0, 255, rng.integers(256)])
        for content in (forged, forged[:-1], forged + b"\0"):
            try:
                entries = made.read(0, frame.read(sealed(bytes(content))), served, **whose(1))
            except FrameError:
                continue
            assert entries.values.dtype == np.float32
            assert entries.indices is None or (np.diff(entries.indices) > 0).all()
            assert len(entries.dense()) == keyspace.size


@pytest.mark.parametrize("text", MATRICES)
def test_matrices_are_read_as_their_papers_say(text: str):
    """Push after push of one worker, whose factors the server tells in between."""
    rule, name = build("prune", text), text.partition(":")[0]
    for seed in range(5):
        rng = np.random.default_rng(seed)
        keyspace = Keyspace.of(nn.Sequential(nn.Linear(12, 20, bias=bool(seed % 2)), nn.Linear(20, 8)))
        made = made_of(text, "none", whole(keyspace), keyspace, seed)
        state, served = memories(made), torch.zeros(made.served(0))
        factors, residual, kept = dict[int, np.ndarray](), np.zeros(keyspace.size), np.zeros(keyspace.size)
        for turn in range(5):
            gradient = rng.standard_normal(keyspace.size).astype(np.float32)
            if seed > 2:  # as of MNIST's border, whose pixels are always black
                gradient[:240].reshape(20, 12)[:, 0] = 0
            told = served.clone()
            if "told" in state:
                state["told"].copy_(told)
            v = gradient + residual * (rule.decay if name == "demo" else 1)
            sent, _ = made.push(0, torch.from_numpy(gradient), state, **whose(turn))
            pieces = frame.read(written(made, 0, sent))
            read, wanted = made.read(0, pieces, told, **whose(turn)).dense(), v.copy()
            if rule.combine:
                made.combined(0, [pieces], served, **whose(turn))
            square = getattr(rule, "square", False)
            for slot in keyspace.parameters if name != "sketch" and not square else ():
                own, shape = slice(slot.offset, slot.offset + slot.size), slot.shape
                if name == "demo":
                    matrix = v[own].reshape(shape if len(shape) == 2 else (-1, 1))
                    wanted[own] = references.of_matrix(name, rule, matrix, turn, None, None).ravel()
                    continue
                if len(shape) < 2 or turn < rule.after or 2 * rule.rank * sum(shape) >= shape[0] * shape[1]:
                    continue
                matrix, side = v[own].reshape(shape), shape[1]
                if name == "powersgd":
                    side = shape[(turn - rule.after) % 2]
                names = ("lowrank", 1) if name == "lowrank" else ("powersgd",)
                if slot.offset not in factors:
                    drawn = numpy_generator(seed, *names, slot.offset).standard_normal((side, rule.rank))
                    factors[slot.offset] = references.orthogonal(drawn)
                start = factors[slot.offset]
                wanted[own] = references.of_matrix(name, rule, matrix, turn, start, None).ravel()
                if name == "lowrank":
                    factors[slot.offset] = matrix.T @ references.orthogonal(matrix @ start)
                else:
                    odd = (turn - rule.after) % 2
                    factors[slot.offset] = references.orthogonal(matrix @ start if odd else matrix.T @ start)
            if square:
                side = int(np.ceil(keyspace.size**0.5))
                filled = np.zeros(-(-keyspace.size // side) * side)
                filled[: keyspace.size] = v
                matrix = filled.reshape(-1, side)
                if not factors:
                    drawn = numpy_generator(seed, "lowrank", 1, 0).standard_normal((side, rule.rank))
                    factors[0] = references.orthogonal(drawn)
                wanted = references.of_matrix(name, rule, matrix, turn, factors[0], None).ravel()[: keyspace.size]
                factors[0] = matrix.T @ references.orthogonal(matrix @ factors[0])
            if name == "sketch" and rule.rows * rule.cols < keyspace.size:
                chance = np.random.default_rng(int(numpy_generator(seed, "sketch", 0).integers(2**63)))
                buckets = chance.integers(0, rule.cols, (rule.rows, keyspace.size), np.int32)
                signs = 2.0 * chance.integers(0, 2, buckets.shape, np.int8) - 1
                wanted = references.of_matrix(name, rule, v[None], turn, None, (buckets, signs)).ravel()
            np.testing.assert_allclose(read, wanted, atol=3e-5 * np.abs(v).max(), err_msg=f"{text} {seed} {turn}")
            kept = v - read
            residual = kept if rule.residual else np.zeros(keyspace.size)
            if "residual" in state:
                np.testing.assert_allclose(state["residual"].numpy(), residual, atol=3e-5 * np.abs(v).max())


@pytest.mark.parametrize("text", [*PRUNE, *MATRICES])
def test_a_push_of_a_layer_of_prime_length_fits_its_room(text: str):
    """Of such a layer a rule of chunks sends every entry with its position."""
    keyspace = Keyspace.of(nn.Linear(643, 1, bias=False, dtype=torch.float64))
    made = made_of(text, "none", whole(keyspace), keyspace)
    gradient = torch.randn(643, dtype=torch.float64, generator=generator(1, "prime"))
    written(made, 0, made.push(0, gradient, memories(made), **whose(0))[0])


def test_a_column_that_depends_on_earlier_ones_becomes_zero():
    first, third = torch.randn(2, 9, dtype=torch.float64, generator=generator(1, "columns"))
    basis = orthonormal(torch.stack([first, -3 * first, third, first + third], 1))
    torch.testing.assert_close(basis.T @ basis, torch.diag(torch.tensor([1.0, 0, 1, 0], dtype=torch.float64)))


@pytest.mark.parametrize("text", ["powersgd:1", "ef21:30%", "demo:topk=1,chunk=4,by=all", "none+sign"])
def test_a_combined_step_is_that_of_the_mean_of_the_workers(text: str):
    """Linear rules: a step of several workers' pushes is the step of one worker with their mean gradient."""
    prune, _, quantize = text.partition("+")
    rng, keyspace = np.random.default_rng(2), Keyspace.of(nn.Linear(12, 10))
    made = made_of(prune, quantize or "none", whole(keyspace), keyspace)
    gradients = [torch.from_numpy(rng.standard_normal(keyspace.size).astype(np.float32)) for _ in range(3)]
    served = torch.zeros(made.served(0))
    sent = [made.push(0, gradient, memories(made), **whose(0, worker=worker))[0]
            for worker, gradient in enumerate(gradients)]  # fmt: skip
    step = made.combined(0, sent, served, **whose(0)).dense()
    reads = np.mean([made.read(0, pieces, torch.zeros(made.served(0)), **whose(0)).dense() for pieces in sent], 0)
    wanted = np.where(reads < 0, -1, 1) if quantize else np.sign(reads) if "demo" in prune else reads
    clear = np.abs(reads) > 1e-5
    np.testing.assert_allclose(step[clear], wanted[clear], atol=1e-5)


def test_every_rule_of_the_table_is_among_these():
    for kind, texts in (("quantize", QUANTIZE), ("prune", (*PRUNE, *MATRICES, "range"))):
        assert {text.partition(":")[0] for text in texts} | {"none"} == set(ROWS[kind])


REFUSED = {
    "prune": [("range:1.5", "or fit"), ("static", "static needs fraction"), ("dynamic:2.5", "cannot be read"),
              ("dynamic:mode=rachet", "did you mean 'ratchet'"), ("dgc:1%,momentum=0,nesterov=on", "needs a momentum"),
              ("dgc:0.1%,residual=off", "no parameter 'residual'"), ("none:1", "none takes no parameters"),
              ("statik:1%", "did you mean 'static'"), ("demo:chunk=300", "256")],
    "quantize": [("terngrad:residual=on", "would grow without bound"), ("qsgd", "needs bits, as in 'qsgd:4'"),
                 ("qsgd:9", "from 2 to 8"), ("inceptionn:16", "from 7 to 15")],
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_a_wrong_rule_is_refused_with_what_is_allowed(kind: str):
    check_refused((kind, functools.partial(build, kind, text), words) for text, words in REFUSED[kind])


RULES = ("int8", "static:20%", "static:20%+fp16", "std:1", "efsign", "qsgd:4,residual=on", "adaq:30%+onebit",
         "natural:residual=on")  # fmt: skip


class Side:
    """A server's view of some workers, and the workers."""

    def __init__(self, text: str | DownlinkRules, keyspace: Keyspace, workers: int, *, shared: bool = False,
                 cuts: tuple[int, ...] = (), fragments: int = 1) -> None:  # fmt: skip
        rules = downlink_rules(text) if isinstance(text, str) else text
        assert rules is not None
        self.parts = tuple(Part((slice(*each),)) for each in pairwise([0, *cuts, keyspace.size]))
        made = compression(rules.prune, rules.quantize, self.parts, keyspace)
        assert made is not None
        made.forget()
        self.rules = made
        self.weights = torch.zeros(keyspace.size, dtype=keyspace.dtype)
        self.server = HeldWeights(made, self.parts, self.weights, 0 if shared else workers, Rotation(fragments))
        self.workers = [self.weights.clone() for _ in range(workers)]
        self.place = memoryview(bytearray(max(made.largest(index) for index in range(len(self.parts)))))

    def pull(self, worker: int, iteration: int, before: int, version: int, index: int = 0) -> int:
        """A worker that holds a version asks for another: the size of the frame, or 0 if it gets all."""
        reply = Reply(Pull(worker, index, iteration, before), version, NO_WORKER)
        size = self.server.lay(reply, self.weights, self.place)
        own, part = self.workers[worker], self.parts[index]
        if size:
            part.add(own, self.read(index, self.place[:size], iteration), 1.0)
        else:
            for there, here in zip(part.views(own), part.views(self.server.of(worker)), strict=True):
                there.copy_(here)
        return size

    def read(self, index: int, sent: memoryview, iteration: int) -> Entries:
        return self.rules.read(index, frame.read(sent), torch.empty(0), step=iteration)


def keyspace(dtype: torch.dtype = torch.float32) -> Keyspace:
    return Keyspace.of(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)).to(dtype))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("text", RULES)
def test_a_worker_holds_to_the_bit_what_the_server_knows(text: str, shared: bool):
    side, rng = Side(text, keyspace(), 3, shared=shared, cuts=(37,)), np.random.default_rng(0)
    for version in range(1, 9):
        side.weights.add_(torch.from_numpy(rng.standard_normal(len(side.weights)).astype(np.float32)))
        for worker in range(3):
            for index in range(2):
                assert 0 < side.pull(worker, version, version - 1, version, index) <= side.rules.largest(index)
            assert torch.equal(side.workers[worker], side.server.of(worker))


@pytest.mark.parametrize("text", RULES)
def test_what_is_lost_waits_until_all_of_it_has_come(text: str):
    side = Side(text, keyspace(torch.float64), 1)
    side.weights.copy_(torch.from_numpy(np.random.default_rng(1).standard_normal(len(side.weights))))
    exact, version = side.weights.clone(), 0
    for version in range(1, 200):
        side.pull(0, version, version - 1, version)
    assert torch.equal(side.weights, exact)  # the server's own are never rounded
    assert (side.workers[0] - exact).abs().max() < 1e-4


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["pull", "lost", "left", "step", "step"])), max_size=40),
       st.booleans())  # fmt: skip
def test_whoever_leaves_comes_back_or_loses_an_answer_never_holds_something_else(
    events: list[tuple[int, str]], shared: bool
):
    side, version, rng = Side("static:20%+int8", keyspace(), 3, shared=shared), 0, np.random.default_rng(0)
    has, asked = [0, 0, 0], [1, 1, 1]  # the versions that they hold, and the iterations whose weights they ask for
    for worker, event in events:
        if event == "step":
            side.weights.add_(torch.from_numpy(rng.standard_normal(len(side.weights)).astype(np.float32)))
            version += 1
        elif event == "left":  # its memory is as it was when the run started, or torn
            side.server.leave(worker)
            side.workers[worker].fill_(float("nan"))
            has[worker] = 0
        elif event == "lost":
            before = side.workers[worker].clone()
            side.pull(worker, asked[worker], has[worker], version)
            side.workers[worker].copy_(before)
        else:
            side.pull(worker, asked[worker], has[worker], version)
            assert torch.equal(side.workers[worker], side.server.of(worker))
            has[worker], asked[worker] = version, asked[worker] + 1


@pytest.mark.parametrize("shared", [False, True])
def test_of_fragments_in_turn_the_last_answer_lies_a_rotation_back(shared: bool):
    side = Side("int8", keyspace(), 2, shared=shared, cuts=(35,), fragments=2)
    for iteration in range(1, 9):
        side.weights += torch.linspace(-1, 1, len(side.weights))
        index, turn = (iteration - 1) % 2, (iteration + 1) // 2
        for worker in range(2):
            assert side.pull(worker, iteration, turn - 1, turn, index) > 0
            held = side.parts[index].views(side.workers[worker])[0]
            assert torch.equal(held, side.parts[index].views(side.server.of(worker))[0])


def test_weights_that_are_not_finite_are_sent_whole_and_an_empty_answer_moves_nothing():
    side = Side("int8", keyspace(), 2)
    side.weights.fill_(1.0)
    reply = Reply(Pull(0, 0, 1, 0), 1, NO_WORKER, empty=True)
    assert side.server.lay(reply, side.weights, side.place) == 0
    assert not side.workers[0].any()
    assert side.pull(0, 2, 1, 2) > 0  # the next difference is to what was held
    assert torch.equal(side.workers[0], side.server.of(0))
    assert side.workers[0].min() > 0.9
    side.weights.fill_(float("inf"))
    assert side.pull(1, 1, 0, 1) == 0
    assert torch.equal(side.workers[1], side.weights)


def test_rules_that_cannot_make_differences_are_refused():
    lacks = ("sign", "signum", "dgc:1%", "lowrank:2", "ef21:1%", "range:5", "static:1%,warm_up=2",
             "dynamic:3,mode=literal")  # fmt: skip
    check_refused(("downlink", functools.partial(downlink_rules, text), words) for text, words in (
        ("int88", "did you mean 'int8'"), ("static:1%+std:2", "two rules of one kind"),
        ("int8+fp16", "two rules of one kind"), *((text, "which replies lack") for text in lacks),
        ("qsgd:4", "use residual=on"), ("terngrad", "use residual=on"), ("static", "static:1%"),
        ("", "unknown name")))  # fmt: skip
