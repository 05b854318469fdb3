"""The compiled loops over values against NumPy, to the bit."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pslab.tensors.compiling import read_only
from pslab.tensors.quantize.codes import loops, packed, unpacked
from pslab.tensors.quantize.rules import E4M3, Dynamic8, PowersOfTwo, dynamic_steps

DOUBLE = np.dtype(np.float64)
VALUES = arrays(np.float64, st.integers(1, 40), elements=st.floats(-500, 500, width=32))
SCALES = st.lists(st.sampled_from([0.3, 7.0, np.inf]), min_size=40, max_size=40)


def symbols(loop: str, v: Any, scales: Any, block: int, *more: Any) -> np.ndarray:
    """What a loop makes of values in blocks with these scales."""
    found = np.empty(len(v), np.uint8)
    scales = np.array(scales, float)[: -(-len(v) // block)]
    getattr(loops(v.dtype), loop)(read_only(v), scales, block, *more, found)
    return found


def close_to(levels: np.ndarray, most: float) -> np.ndarray:
    """The levels, the middles between them, their neighbours, and others."""
    middles = (levels[1:] + levels[:-1]) / 2
    others = np.random.default_rng(0).normal(0, most / 2, 1000)
    return np.concatenate([levels, middles, np.nextafter(middles, -np.inf), np.nextafter(middles, np.inf),
                           others[np.abs(others) <= most], [0.0, -0.0, 1e-300, -1e-300]])  # fmt: skip


@pytest.mark.parametrize(("loop", "levels", "sign"), [("float8", E4M3, 128), ("powers", PowersOfTwo.LEVELS, 8)])
def test_short_floats_are_the_nearest_level_with_the_sign_of_what_is_not_0(
    loop: str, levels: np.ndarray, sign: int
) -> None:
    x, middles = close_to(levels, levels[-1]), (levels[1:] + levels[:-1]) / 2
    x = np.concatenate([x, -x])
    up = loop == "powers"
    wanted = np.searchsorted(middles, np.abs(x), side="right" if up else "left")
    if not up:  # of two as near the even one
        wanted += (np.abs(x) == middles[np.minimum(wanted, len(middles) - 1)]) & (wanted % 2 == 1)
    assert symbols(loop, x, [1.0], len(x)).tolist() == (wanted + sign * ((wanted > 0) & (x < 0))).tolist()


def test_levels_at_unequal_distances_are_found_as_by_numpy() -> None:
    levels = Dynamic8.LEVELS
    x, middles = np.append(close_to(levels, 1.0), [1.5, -1.5]), (levels[1:] + levels[:-1]) / 2
    wanted = np.searchsorted(middles, x, side="right")
    assert symbols("nearest", x, [1.0], len(x), *dynamic_steps()).tolist() == wanted.tolist()


@given(VALUES, st.integers(1, 45), st.sampled_from([np.float32, np.float64]), SCALES)
def test_blocks_have_their_largest_magnitude_and_whole_multiples_of_their_scale(
    v: Any, block: int, dtype: Any, scales: list[float]
) -> None:
    v = v.astype(dtype)
    count, bits = -(-len(v) // block), v.view(f"u{v.itemsize}")
    most = np.empty(count, bits.dtype)
    loops(v.dtype).largest(read_only(bits), bits.dtype.type(np.iinfo(bits.dtype).max >> 1), block, most)
    assert most.view(dtype).tolist() == [np.abs(v[block * b : block * (b + 1)]).max() for b in range(count)]
    zeros, each = np.arange(count) * 5.0, np.array(scales)[:count]
    found = symbols("linear", v, scales, block, zeros, 254.0)
    own, zero = np.repeat(each, block)[: len(v)], np.repeat(zeros, block)[: len(v)]
    assert found.tolist() == np.clip(np.rint(v.astype(float) / own) + zero, 0, 254).tolist()
    finite = np.where(np.isinf(each), 0.0, each)
    out = np.empty(len(v), dtype)
    loops(v.dtype).leveled(read_only(found), finite, block, zeros, 600.0, out)
    values = np.clip((found - zero) * np.repeat(finite, block)[: len(v)], -600, 600)
    assert out.tobytes() == values.astype(dtype).tobytes()


@given(VALUES, st.integers(2, 8), st.integers(1, 45), SCALES, st.data())
def test_chance_rounds_up_with_the_probability_of_the_fraction(
    v: Any, bits: int, block: int, scales: list[float], data: Any
) -> None:
    u = data.draw(arrays(np.float32, len(v), elements=st.floats(0, 1, exclude_max=True, width=32)))
    top, x = 2 ** (bits - 1) - 1, v / np.repeat(scales, block)[: len(v)]
    exact = top * np.abs(x)
    levels = np.minimum(np.floor(exact) + (u < exact - np.floor(exact)), top).astype(int)
    found = symbols("by_chance", v, scales, block, u, top)
    assert found.tolist() == (levels + (levels > 0) * (v < 0) * 2 ** (bits - 1)).tolist()
    limit, scale = 2.0, 1.5
    ternary, exponents = np.empty(len(v), np.uint8), np.empty(len(v), np.uint8)
    loops(DOUBLE).ternary(read_only(v), u, limit, scale, ternary)
    assert ternary.tolist() == ((u.astype(float) * scale < np.minimum(np.abs(v), limit)) * (1 + (v < 0))).tolist()
    loops(DOUBLE).exponents(read_only(v), u, -6, exponents)
    fraction, power = np.frexp(np.abs(v))
    wanted = np.where(v == 0, 0, np.clip(power + (u < 2 * fraction - 1) + 6, 0, 127))
    assert exponents.tolist() == (wanted + 128 * ((wanted > 0) & (v < 0))).tolist()


@given(VALUES, st.sampled_from([np.float32, np.float64]), st.floats(0, 1))
def test_a_momentum_is_averaged_in_float64_and_rounded_once(v: Any, dtype: Any, share: float) -> None:
    v, kept = v.astype(dtype), np.cos(np.arange(len(v))).astype(dtype)
    wanted = share * kept.astype(float) + (1 - share) * v.astype(float)
    loops(v.dtype).averaged(kept, read_only(v), share)
    assert kept.tobytes() == wanted.astype(dtype).tobytes()


@given(VALUES, st.integers(1, 6))
def test_groups_have_the_sums_and_counts_of_numpy(v: Any, count: int) -> None:
    groups = (np.arange(len(v)) * 7 % count).astype(np.uint8)
    sums, counts = np.zeros(count), np.zeros(count, np.int64)
    loops(DOUBLE).grouped(read_only(v), read_only(groups), sums, counts)
    assert sums.tobytes() == np.bincount(groups, v, count).tobytes()
    assert counts.tolist() == np.bincount(groups, minlength=count).tolist()


@settings(max_examples=300)
@given(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 16]), st.integers(1, 20), st.data())
def test_what_is_packed_lowest_bits_first_is_read_again(width: int, block: int, data: Any) -> None:
    symbols = np.array(data.draw(st.lists(st.integers(0, 2**width - 1), min_size=1, max_size=40)))
    bits = (symbols[:, None] >> np.arange(width)) & 1
    code = packed(symbols, width)
    assert code.tobytes() == np.packbits(bits.astype(np.uint8), bitorder="little").tobytes()
    if width == 16:
        return
    found = unpacked(code, width, len(symbols))
    assert found.tolist() == symbols.tolist()
    scales, out = np.arange(1.0, 2 + len(symbols) // block), np.empty(len(symbols), np.float32)
    table = np.random.default_rng(0).standard_normal(1 << width)
    loops().tabled(found, scales[: -(-len(symbols) // block)], block, table, 3.0, 2.0, out)
    values = np.clip(table[symbols] * np.repeat(scales, block)[: len(symbols)] / 3.0, -2, 2)
    assert out.tobytes() == values.astype(np.float32).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_loop_is_compiled_once_they_are_prepared(dtype: str) -> None:
    """In a process of its own, where no other test has compiled anything."""
    found = subprocess.run([sys.executable, "-c", PREPARED, dtype], check=True, capture_output=True, text=True)
    assert found.stdout.split() == []


PREPARED = """
import sys
import numpy as np
from pslab.config.spec import build
from pslab.config.table import ROWS
from pslab.tensors.codec import Entries
from pslab.tensors.quantize.codes import loops
from pslab.tensors.quantize.push_frames import PushContext, RangeCoding

dtype = np.dtype(sys.argv[1])
loops()
own = loops(dtype)
before = {each.__name__: len(getattr(own, each.__name__).signatures) for each in own.loops.functions}
for name, row in ROWS["quantize"].items():
    if name != "none":
        v = np.arange(1, 40, dtype=dtype)
        coding = RangeCoding(build("quantize", row.example or name), (0,), np.array([0, 39]), dtype,
                             context=PushContext(kept=np.zeros(39, dtype)))
        coding.read(coding.write(Entries(39, None, v)), None, 39)
print(*(name for name, count in before.items() if len(getattr(own, name).signatures) > count))
"""
