"""The compiled loops against NumPy, and the cache of compiled code."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from numba import config, njit

from pslab.tensors.finite import NonFinite
from pslab.tensors.selection import blocks, compiling, kernels, scan, simd
from pslab.tensors.selection.kernels import SPARE
from pslab.tensors.selection.scan import Sum

DTYPES = (np.dtype("f4"), np.dtype("f8"))


def drawn(n: int, dtype: np.dtype[Any], seed: int = 1) -> np.ndarray:
    """Random entries, some of them zero and some equal."""
    x = np.random.default_rng(seed).standard_normal(n + 4)[:n].astype(dtype)
    x[::7], x[3::11] = -0.0, -1.5
    return x


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    for dtype in DTYPES:
        scan.loops(dtype)


@pytest.mark.parametrize("many", [False, True])
def test_search_writes_nothing_beyond_its_room(many: bool) -> None:
    x = np.ones(5000, np.float32)
    for room in (0, 1000, 2048, 4999):
        indices, magnitudes = np.full(room + SPARE + 9, -7), np.full(room + SPARE + 9, -7, np.float32)
        assert Sum(x).read(kernels.search, np.float32(0), many, indices[:-9], magnitudes[:-9], room) == -1
        *sums, found = Sum(x).read(kernels.moments, 0.0, np.float32(0), many, indices[:-9], magnitudes[:-9], room)
        assert (sums, found) == ([5000, 5000], -1)  # the sums are complete
        assert (indices[-9:] == -7).all()
        assert (magnitudes[-9:] == -7).all()


def test_a_search_that_does_not_fit_reads_on_where_the_entries_may_not_be_finite() -> None:
    x = np.ones(5000, np.float32)
    x[-1] = np.nan
    with pytest.raises(NonFinite):
        Sum(x).read(kernels.search, np.float32(0), False, *scan.arrays(x.dtype, 1000), 1000)


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
    total, _, _ = Sum(x).read(kernels.moments, 0.0, np.inf, False, at, magnitudes, 0)
    assert total / len(x) == pytest.approx(0.1, rel=2e-15)


# --- the cache of compiled code ---------------------------------------------------------------------------------------


class Cache:
    """One loop, which is not compiled yet, and a folder for what is compiled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.patch, self.folder = monkeypatch.setattr, folder
        self.patch(kernels, "LOOPS", ["keep"])
        self.patch(kernels, "_call_all", lambda dtype: kernels.keep(
            np.zeros(2, np.int64), np.ones(2, dtype), dtype.type(1), np.zeros(3, np.int64)))  # fmt: skip
        self.patch(config, "CACHE_DIR", str(folder))
        self.patch(compiling, "WAIT_S", 0.0)

    def hit(self) -> bool:
        """Whether a new process finds the compiled loop here; it works in any case."""
        self.patch(kernels, "keep", njit(kernels.keep.py_func))  # type: ignore[attr-defined]
        kernels.warm(np.dtype("f4"))
        out = np.zeros(3, np.int64)
        assert kernels.keep(np.array([4, 5]), np.array([1, 3], np.float32), np.float32(2), out) == 1
        assert out[0] == 5
        return bool(kernels.keep.stats.cache_hits)  # type: ignore[attr-defined]

    @contextmanager
    def locked(self) -> Iterator[IO[str]]:
        """Another process is compiling."""
        (folder,) = {path.parent for path in self.folder.rglob("lock")} or {kernels._use_cache()}
        assert folder is not None
        with (folder / "lock").open("a") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            yield other


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cache:
    return Cache(monkeypatch, tmp_path)


def test_compiled_code_is_cached_until_its_sources_change(cache: Cache) -> None:
    assert not cache.hit()
    assert list(cache.folder.rglob("*.nbi"))
    assert cache.hit()
    assert str(cache.folder) == config.CACHE_DIR
    other = cache.folder / "simd.py"
    other.write_text(Path(simd.__file__).read_text() + "\n")
    cache.patch(simd, "__file__", str(other))
    assert not cache.hit()


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80\x04."])
def test_damaged_cached_code_is_not_used(cache: Cache, content: bytes) -> None:
    cache.hit()
    for pattern in ("*.nbc", "*.nbi"):
        for file in cache.folder.rglob(pattern):
            file.write_bytes(content)
        cache.hit()


def test_the_cache_falls_back_to_the_user_folder(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache.folder / "file").write_text("")
    cache.patch(config, "CACHE_DIR", str(cache.folder / "file"))
    assert not cache.hit()
    cache.patch(config, "CACHE_DIR", "")
    cache.patch(kernels, "__file__", str(cache.folder / "file" / "kernels.py"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.folder / "user"))
    cache.hit()
    assert list((cache.folder / "user" / "pslab").rglob("*.nbi"))


def test_a_full_disk_only_prevents_caching(cache: Cache) -> None:
    cache.patch(os, "replace", lambda *paths: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert not cache.hit()


def test_a_process_that_waits_for_another_to_compile_reports_it(cache: Cache) -> None:
    reported = list[int]()

    def waits() -> None:
        reported.append(len(reported))
        if len(reported) == 3:
            fcntl.flock(other, fcntl.LOCK_UN)

    cache.patch(compiling, "WAIT_S", 60.0)
    cache.patch(compiling, "LOOK_S", 0.0)
    cache.patch(compiling, "waits", waits)
    with cache.locked() as other:
        assert not cache.hit()
    assert reported == [0, 1, 2]


def test_compiled_code_is_loaded_while_another_process_compiles(cache: Cache) -> None:
    cache.hit()
    with cache.locked():
        assert cache.hit()


def test_the_wait_for_a_stopped_process_has_a_limit(cache: Cache) -> None:
    with cache.locked():
        assert not cache.hit()
    assert not list(cache.folder.rglob("*.nbi"))


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
