"""The compiled loops over values against NumPy, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pslab.tensors.compiling import read_only
from pslab.tensors.quantize.codes import loops, nearest, packed
from pslab.tensors.quantize.rules import E4M3, Dynamic8, PowersOfTwo

LEVELS = {"E4M3": E4M3, "E3M0": PowersOfTwo.LEVELS, "dynamic": Dynamic8.LEVELS, "two": np.array([-1.0, 2.0])}
VALUES = arrays(np.float64, st.integers(1, 40), elements=st.floats(-500, 500, width=32))


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("up", [True, False])
def test_the_nearest_level_is_that_of_a_search_by_numpy(name: str, up: bool) -> None:
    levels = LEVELS[name]
    middles = (levels[1:] + levels[:-1]) / 2
    rng = np.random.default_rng(0)
    x = np.concatenate([levels, middles, np.nextafter(middles, -np.inf), np.nextafter(middles, np.inf),
                        rng.normal(0, np.abs(levels).max(), 1000)])  # fmt: skip
    wanted = np.searchsorted(middles, x, side="right" if up else "left")
    if not up:  # of two as near the even one
        wanted += (x == middles[np.minimum(wanted, len(middles) - 1)]) & (wanted % 2 == 1)
    assert nearest(x, levels, up).tolist() == wanted.tolist()


@given(VALUES, st.integers(1, 45), st.data())
def test_blocks_have_their_largest_magnitude_and_are_divided_by_their_scale(v: Any, block: int, data: Any) -> None:
    count = -(-len(v) // block)
    found, each = np.empty(count), np.empty(len(v))
    loops().largest(v, block, found)
    assert found.tolist() == [np.abs(v[block * b : block * (b + 1)]).max() for b in range(count)]
    scales = np.array(data.draw(st.lists(st.sampled_from([0.0, 0.3, 7.0]), min_size=count, max_size=count)))
    loops().over(v, scales, block, each)
    own = np.repeat(scales, block)[: len(v)]
    assert each.tobytes() == np.divide(v, own, out=np.zeros(len(v)), where=own > 0).tobytes()


@given(VALUES, st.integers(2, 8), st.data())
def test_chance_rounds_up_with_the_probability_of_the_fraction(v: Any, bits: int, data: Any) -> None:
    u = data.draw(arrays(np.float32, len(v), elements=st.floats(0, 1, exclude_max=True, width=32)))
    top, found = 2 ** (bits - 1) - 1, np.empty(len(v), np.uint8)
    x = v / np.abs(v).max() if v.any() else v
    loops().by_chance(x, u, top, found)
    exact = top * np.abs(x)
    levels = np.minimum(np.floor(exact) + (u < exact - np.floor(exact)), top).astype(int)
    assert found.tolist() == (levels + (levels > 0) * (x < 0) * 2 ** (bits - 1)).tolist()


@settings(max_examples=300)
@given(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 16]), st.integers(1, 20), st.data())
def test_what_is_packed_lowest_bits_first_is_read_again(width: int, block: int, data: Any) -> None:
    symbols = np.array(data.draw(st.lists(st.integers(0, 2**width - 1), min_size=1, max_size=40)))
    bits = (symbols[:, None] >> np.arange(width)) & 1
    code = packed(symbols, width)
    assert code.tobytes() == np.packbits(bits.astype(np.uint8), bitorder="little").tobytes()
    if width == 16:
        return
    scales, found = np.arange(1.0, 2 + len(symbols) // block), np.empty(len(symbols))
    table = np.random.default_rng(0).standard_normal(1 << width)
    highest = loops().read(read_only(code), width, table, scales[: -(-len(symbols) // block)], block, 3.0, found)
    assert highest == symbols.max()
    assert found.tobytes() == (table[symbols] * np.repeat(scales, block)[: len(symbols)] / 3.0).tobytes()
