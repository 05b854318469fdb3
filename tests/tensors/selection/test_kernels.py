"""The compiled loops against NumPy, and the cache of compiled code."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import config, njit

from pslab.tensors.selection import blocks, compiling, kernels, scan, simd
from pslab.tensors.selection.kernels import SPARE
from pslab.tensors.selection.scan import Sum

DTYPES = (np.dtype("f4"), np.dtype("f8"))
LENGTHS = (0, 1, 63, 64, 65, 200, 1024, 1025, 5000)


def drawn(n: int, dtype: np.dtype[Any], seed: int = 1) -> np.ndarray:
    """Random entries, some of them zero and some equal."""
    x = np.random.default_rng(seed).standard_normal(n + 4)[:n].astype(dtype)
    x[::7], x[3::11] = -0.0, -1.5
    return x


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    for dtype in DTYPES:
        scan.loops(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("many", [False, True])
def test_search_and_moments(dtype: np.dtype[Any], many: bool) -> None:
    for n in LENGTHS:
        x = drawn(n, dtype)
        for edge in (-1, 0, 0.3, 1.5, 99):
            expected = np.flatnonzero(np.abs(x) > dtype.type(edge))
            indices, magnitudes = np.zeros(n + SPARE, np.int64), np.zeros(n + SPARE, dtype)
            found = kernels.search(Sum(x).once(), dtype.type(edge), many, indices, magnitudes, n)
            assert indices[:found].tolist() == expected.tolist()
            assert magnitudes[:found].tolist() == np.abs(x[expected]).tolist()
            total, squares, also = kernels.moments(Sum(x).once(), 0.5, dtype.type(edge), many, indices, magnitudes, n)
            assert indices[:also].tolist() == expected.tolist()
            shifted = x.astype(np.float64) - 0.5
            assert (total, squares) == pytest.approx((shifted.sum(), np.square(shifted).sum()), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("many", [False, True])
def test_search_writes_nothing_beyond_its_room(many: bool) -> None:
    x = np.ones(5000, np.float32)
    for room in (0, 1000, 2048, 4999):
        indices, magnitudes = np.full(room + SPARE + 9, -7), np.full(room + SPARE + 9, -7, np.float32)
        assert kernels.search(Sum(x).once(), np.float32(0), many, indices[:-9], magnitudes[:-9], room) == -1
        *sums, found = kernels.moments(Sum(x).once(), 0.0, np.float32(0), many, indices[:-9], magnitudes[:-9], room)
        assert (sums, found) == ([5000, 5000], -1)  # the sums are complete
        assert (indices[-9:] == -7).all()
        assert (magnitudes[-9:] == -7).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tails(dtype: np.dtype[Any]) -> None:
    for n in LENGTHS:
        x, (edge, *bounds) = drawn(n, dtype), (dtype.type(b) for b in (0.1, 0.4, 0.6, 0.9, 1.2))
        low, high, deep, last = bounds
        m = np.abs(x)
        for room in (n, 0):
            lists = tuple(np.zeros(n + SPARE, dtype) for _ in range(3))
            indices = np.zeros(n + SPARE, np.int64)
            total, count, low_total, low_count, *lengths = kernels.tails(
                Sum(x).once(), edge, tuple(bounds), indices, lists, (room, room, room)
            )
            assert (count, low_count) == ((m > edge).sum(), (m > low).sum())
            exact = m.astype(np.float64)
            assert (total, low_total) == pytest.approx((exact[m > edge].sum(), exact[m > low].sum()), rel=1e-12)
            if not room:
                assert lengths == [-(n > 0), -(low_count > 0), -(low_count > 0)]
                continue
            masks = m > last, (m > low) & (m <= high), m > deep
            for found, length, wanted in zip(lists, lengths, masks, strict=True):
                assert found[:length].tolist() == m[wanted].tolist()
            assert indices[: lengths[0]].tolist() == np.flatnonzero(m > last).tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tail_moves_what_exceeds_to_the_front(dtype: np.dtype[Any]) -> None:
    for n in LENGTHS:
        m = np.abs(drawn(n, dtype))
        kept = m[m > dtype.type(0.7)]
        total, found = kernels.tail(m, dtype.type(0.7))
        assert m[:found].tolist() == kept.tolist()
        assert total == pytest.approx(kept.astype(np.float64).sum(), rel=1e-12)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kth_and_largest(dtype: np.dtype[Any]) -> None:
    integer = np.dtype(f"i{dtype.itemsize}")
    outlier = np.full(4000, 1.5, dtype)
    outlier[::2] += np.finfo(dtype).eps
    outlier[7], outlier[9] = np.finfo(dtype).max, 0  # nearly all share their leading bits
    for m in (np.abs(drawn(5000, dtype)), np.zeros(100, dtype), outlier, np.ones(1, dtype)):
        ordered = np.argsort(-m, kind="stable")
        for k in {1, len(m) // 3 + 1, len(m) - 1 or 1, len(m)}:
            edge = kernels.kth(m.view(integer), k)
            assert np.array(edge, integer).view(dtype) == m[ordered[k - 1]]
            out = np.empty(k + 1, np.int64)
            kernels.largest(np.arange(len(m)) * 2, m.view(integer), integer.type(edge), out)
            assert out[:k].tolist() == (np.sort(ordered[:k]) * 2).tolist()


def test_sample_takes_one_entry_of_every_stretch() -> None:
    for n in (10, 4096, 100_003):
        x, out = np.arange(n, dtype=np.float64), np.empty(4096)
        kernels.sample(x, out)
        assert np.abs(out - (np.arange(4096) + 0.5) * n / 4096).max() <= n / 4096 / 2 + 1
        assert len(np.unique(out.astype(np.int64) % 64)) == min(n, 64)


def test_spread() -> None:
    m = np.abs(drawn(4096, np.dtype("f4")))
    tail = m[m > np.float32(0.5)].astype(np.float64)
    expected = (len(tail), tail.mean(), tail.std() / np.sqrt(len(tail)) / tail.mean())
    assert kernels.spread(m, np.float32(0.5)) == pytest.approx(expected, rel=1e-9)
    assert kernels.spread(m, np.float32(1e9)) == (0, 0.0, 0.0)


def test_sums_of_many_blocks_are_compensated() -> None:
    """Equal entries are rounded the same way in every block."""
    x = np.full(3_000_000, 0.1)
    at, magnitudes = np.empty(SPARE, np.int64), np.empty(SPARE)
    total, _, _ = kernels.moments(Sum(x).once(), 0.0, np.inf, False, at, magnitudes, 0)
    assert total / len(x) == pytest.approx(0.1, rel=2e-15)


# --- the cache of compiled code ---------------------------------------------------------------------------------------


@pytest.fixture
def one_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one loop, which is not compiled yet."""
    def call(dtype: np.dtype[Any]) -> None:
        kernels.keep(np.zeros(2, np.int64), np.ones(2, dtype), dtype.type(1), np.zeros(3, np.int64))

    monkeypatch.setattr(kernels, "LOOPS", ["keep"])
    monkeypatch.setattr(kernels, "_call_all", call)
    monkeypatch.setattr(kernels, "keep", njit(kernels.keep.py_func))  # type: ignore[attr-defined]


def fresh(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(kernels, "keep", njit(kernels.keep.py_func))  # type: ignore[attr-defined]
    kernels.warm(np.dtype("f4"))
    out = np.zeros(3, np.int64)
    assert kernels.keep(np.array([4, 5]), np.array([1, 3], np.float32), np.float32(2), out) == 1
    assert out[0] == 5
    return kernels.keep


@pytest.mark.usefixtures("one_loop")
def test_compiled_code_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    assert not fresh(monkeypatch).stats.cache_hits
    assert list(tmp_path.rglob("*.nbi"))
    assert fresh(monkeypatch).stats.cache_hits
    assert str(tmp_path) == config.CACHE_DIR


@pytest.mark.usefixtures("one_loop")
def test_cached_code_of_changed_sources_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    fresh(monkeypatch)
    other = tmp_path / "simd.py"
    other.write_text(Path(simd.__file__).read_text() + "\n")
    monkeypatch.setattr(simd, "__file__", str(other))
    assert not fresh(monkeypatch).stats.cache_hits


@pytest.mark.usefixtures("one_loop")
@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80\x04."])
def test_damaged_cached_code_is_not_used(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    fresh(monkeypatch)
    for pattern in ("*.nbc", "*.nbi"):
        for file in tmp_path.rglob(pattern):
            file.write_bytes(content)
        fresh(monkeypatch)


@pytest.mark.usefixtures("one_loop")
def test_the_cache_falls_back_to_the_user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "file"))
    assert not fresh(monkeypatch).stats.cache_hits
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "file" / "kernels.py"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    fresh(monkeypatch)
    assert list((tmp_path / "user" / "pslab").rglob("*.nbi"))


@pytest.mark.usefixtures("one_loop")
def test_a_full_disk_only_prevents_caching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert not fresh(monkeypatch).stats.cache_hits


@pytest.mark.usefixtures("one_loop")
def test_who_waits_for_a_process_that_compiles_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiling, "LOOK_S", 0.0)
    said = list[int]()

    def waits() -> None:
        said.append(len(said))
        if len(said) == 3:
            fcntl.flock(other, fcntl.LOCK_UN)

    monkeypatch.setattr(compiling, "waits", waits)
    with lock_file().open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not fresh(monkeypatch).stats.cache_hits
    assert said == [0, 1, 2]


def lock_file() -> Path:
    folder = kernels._use_cache()
    assert folder is not None
    return folder / "lock"


@pytest.mark.usefixtures("one_loop")
def test_what_is_compiled_is_loaded_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiling, "WAIT_S", 0.0)
    fresh(monkeypatch)
    with lock_file().open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert fresh(monkeypatch).stats.cache_hits


@pytest.mark.usefixtures("one_loop")
def test_a_stopped_process_that_was_to_compile_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiling, "WAIT_S", 0.0)
    with lock_file().open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not fresh(monkeypatch).stats.cache_hits
    assert not list(tmp_path.rglob("*.nbi"))


@pytest.mark.slow
def test_a_processor_without_wide_registers_selects_the_same(tmp_path: Path) -> None:
    code = """
import torch
from pslab.tensors.selection import simd
from pslab.tensors.selection import select
from pslab.tensors.selection import reference
assert not simd.SQUEEZES
for dtype in (torch.float32, torch.float64):
    v = torch.randn(50_001, generator=torch.Generator().manual_seed(1), dtype=dtype)
    for k in (5, 500, 9000):
        assert torch.equal(select.top(v, k), reference.top(v, k))
    for sigmas in (1, 3):
        assert torch.equal(select.deviation(v, sigmas), reference.above(v, sigmas * reference.std(v)))
    for passes in (1, 5):
        assert torch.equal(select.dynamic(v, passes)[0], reference.dynamic(v, passes)[0])
"""
    plain = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=os.environ | plain, check=True)


def test_scan_allows_for_the_blocks_of_the_loops() -> None:
    assert scan.SPARE == blocks.SPARE
    assert scan.BLOCK >= 2 * kernels.BLOCK
