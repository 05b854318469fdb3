"""Names beside curves do not overlap, and stay by their curves."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslab.lab.plots.page.page import BEYOND, Key, beside, legend_room, lines_of, pushed_apart
from pslab.lab.plots.page.theme import Look


@given(st.lists(st.tuples(st.floats(0, 115), st.sampled_from([14.0, 28.0])), min_size=1, max_size=5))
def test_pushed_apart_names_never_overlap_and_stay_in_the_column(wanted: list[tuple[float, float]]):
    ends, sizes = zip(*sorted(wanted), strict=True)
    centres = pushed_apart(ends, sizes, 115)
    for (one, first), (other, second) in pairwise(zip(centres, sizes, strict=True)):
        assert other - one >= (first + second) / 2 - 1e-6
    if sum(sizes) <= 115:
        assert centres[0] - sizes[0] / 2 >= -BEYOND - 1e-6
        assert centres[-1] + sizes[-1] / 2 <= 115 + BEYOND + 1e-6


def test_names_with_room_stay_where_their_curves_end():
    assert pushed_apart([20, 60, 100], [14, 14, 14], 115) == pytest.approx([20, 60, 100])


def test_close_names_share_the_way():
    assert pushed_apart([50, 50], [14, 14], 115) == pytest.approx([43, 57])


def test_names_are_ordered_by_the_ends_of_their_curves():
    keys = [(Key(label, Look("#000000")), share) for label, share in (("low", 0.1), ("high", 0.9))]
    assert [(key.label, round(centre)) for key, centre in beside(keys, 100)] == [("high", 10), ("low", 90)]


def test_long_names_take_two_lines():
    assert lines_of("DSSP, s = 3, up to 12 more, literal") == ["DSSP, s = 3, up to 12", "more, literal"]


def test_legend_has_the_rows_that_its_names_need():
    few, many = ([Key(f"a curve number {rank}", Look("#000000")) for rank in range(count)] for count in (2, 12))
    assert legend_room([], 600)[0] == 0
    assert legend_room(few, 600)[0] < legend_room(many, 600)[0] < legend_room(many, 300)[0]


@given(st.integers(1, 30), st.integers(1, 12), st.integers(300, 900))
def test_no_name_of_a_legend_lies_below_its_room(count: int, letters: int, width: int):
    """plotly.js gives each name 30 px of a sample and 10 around, and 5 to the next; what is below, no image has."""
    height, text = legend_room([Key("m" * letters, Look("#000000"))] * count, width)
    assert round((height - 8) / 19) * int(width / (text + 45)) >= count
