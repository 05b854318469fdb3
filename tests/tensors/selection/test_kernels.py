"""The compiled loops against NumPy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pslab.tensors.finite import NonFinite
from pslab.tensors.selection import blocks, kernels, scan
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
