"""Axes: round ticks inside their range, and room for them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from pslab.lab.plots.page.axes import Axis, axis, categories, decades, nice, text_px, wrapped
from pslab.lab.records.units import round_size


@pytest.mark.parametrize(("ticks_of", "low", "high", "ticks"), [
    (nice, 0, 100, [0, 20, 40, 60, 80, 100]), (nice, 34, 83, [40, 50, 60, 70, 80]),
    (nice, -0.5, 0.5, [-0.4, -0.2, 0, 0.2, 0.4]), (nice, 0, 0.0031, [0, 0.001, 0.002, 0.003]),
    (nice, 5, 0, [0, 1, 2, 3, 4, 5]),
    (decades, 0.9, 1100, [1, 10, 100, 1000]), (decades, 1, 60, [1, 3, 10, 30]), (decades, 1, 10, [1, 2, 5, 10]),
    (decades, 2, 3, [2, 2.2, 2.4, 2.6, 2.8, 3]),
])  # fmt: skip
def test_ticks_are_round_and_inside_and_powers_with_multiples_where_few(
    ticks_of: Callable[[float, float], list[float]], low: float, high: float, ticks: list[float]
):
    assert ticks_of(low, high) == pytest.approx(ticks)
    assert len(decades(1e-9, 1e9)) < 10  # many powers are thinned


def test_axis_frames_its_values():
    shown = axis([2, 8, float("nan")], "s", zero=True)
    assert (shown.low, shown.high) == (0, pytest.approx(8.24))
    assert axis([0, 1, 100], log=True).low > 0.8  # 0 has no place on it
    assert axis([3, 3]).low < 3 < axis([3, 3]).high
    assert axis([], log=True).high > 1


def test_share_is_the_place_on_the_axis():
    assert Axis(low=0, high=4).share(1) == 0.25
    assert Axis(low=1, high=100, log=True).share(10) == pytest.approx(0.5)
    assert Axis(low=1, high=100, log=True).share(0) == 0


def test_the_last_tick_of_an_x_axis_has_room_for_its_label():
    ticks = ((0.0, "0 B"), (3.0, "300 MB"))
    assert Axis(low=0, high=3.1, ticks=ticks).last_px == text_px("300 MB") / 2
    assert Axis(low=0, high=4, ticks=ticks).last_px == 0
    assert categories(["a long name"]).last_px == 0


def test_names_in_several_lines_need_as_much_height_on_a_logarithmic_axis():
    ticks = ((1.0, "1"), (10.0, "10"), (100.0, "not<br>reached"))
    equal = Axis(low=0, high=2, ticks=tuple((math.log10(at), name) for at, name in ticks))
    assert Axis(low=1, high=100, log=True, ticks=ticks).names_px == pytest.approx(equal.names_px)


def test_categories_have_a_place_each():
    shown = categories(["a", "b<br>c"], downwards=True)
    assert (shown.range, shown.ticks) == ([1.5, -0.5], ((0, "a"), (1, "b<br>c")))
    assert shown.ticks_px == pytest.approx(text_px("b"), rel=0.2)


def test_room_for_ticks_that_plotly_chooses():
    assert Axis("", 0.0, 2.6).ticks_px >= text_px("0.5")


def test_text_is_wrapped_at_its_width():
    assert wrapped("one two three", text_px("one two")) == ["one two", "three"]
    assert wrapped("an unbreakable", text_px("unbreak")) == ["an", "unbreak", "able"]
    assert wrapped("m", 1) == ["m"]
    assert wrapped("one two three four", text_px("three…"), most=2) == ["one", "two…"]
    assert text_px("<b>iii</b>") == text_px("iii") < text_px("WWW")


def test_sizes_on_one_axis_have_one_unit():
    linear = axis([0, 1.2e9], zero=True, form=round_size)
    assert [text.replace("\u00a0", " ") for _, text in linear.ticks] == ["0", "0.25 GB", "0.5 GB", "0.75 GB", "1 GB"]
    powers = axis([3e7, 2e10], log=True, form=round_size)
    assert [text.replace("\u00a0", " ") for _, text in powers.ticks] == ["0.1 GB", "1 GB", "10 GB"]
