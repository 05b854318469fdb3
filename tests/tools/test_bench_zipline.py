"""The section on ZipLine, at sizes that take no time. No speed is judged here."""

from __future__ import annotations

import pytest

from pslab.policies.planning.zipline import ZIPLINES, zipline_sweep
from tools.bench.sections import zipline


def test_power_fits_an_exponent() -> None:
    assert zipline.power([10, 100, 1000], [3e-5, 3e-3, 3e-1]) == pytest.approx(2)
    assert zipline.power([15, 150], [0.5, 5]) == pytest.approx(1)
    assert zipline.power([1, 2, 4], [1, 2, 8]) == pytest.approx(1.5)


def test_instances_are_those_of_the_authors() -> None:
    points = zipline.instance((100, 15))
    assert [len(row) for row in points] == [15] * 100
    intervals = [row[1] - row[0] for row in points]
    assert all(1000 <= interval <= 1500 for interval in intervals)
    assert all(row[14] - row[0] == 14 * interval for row, interval in zip(points, intervals, strict=True))
    start = max(row[0] - interval for row, interval in zip(points, intervals, strict=True))
    assert all(0 <= start - (row[0] - interval) <= 1500 for row, interval in zip(points, intervals, strict=True))
    assert zipline.instance((100, 15)) == points != zipline.instance((100, 15), 1)
    assert 1000 < zipline_sweep(zipline.instance((1000, 150))).spread < 1500  # about one interval


def test_searches_that_take_too_long_are_left_out() -> None:
    assert set(zipline.searched((3, 4), 0.0)) == {*ZIPLINES, "naive", "grid", "fullgrid"}
    assert set(zipline.searched((30, 2), 0.0)) == {*ZIPLINES, "grid", "fullgrid"}


def test_times_are_compared_with_the_published_ones() -> None:
    times = {"zipline": 1e-3, "optbs": 0.07, "sweep": 0.28, "fullgrid": 207.0}
    found = {row.name.split(",")[0]: row for row in zipline.beside({(1000, 150): times})}
    assert (found["zipline"].value, found["zipline"].against) == (1.0, "as published")
    assert found["zipline"].ratio == pytest.approx(1e-3 / 2.38)
    assert (found["optbs"].ratio, found["optbs"].verdict) == (pytest.approx(0.125), "reached")
    assert (found["sweep"].against, found["sweep"].verdict) == ("OptBS as published", "missed")
    assert found["fullgrid"].ratio == pytest.approx(1)
    (other,) = zipline.beside({(7, 7): {"zipline": 0.5}})
    assert (other.against, other.ratio, other.bar) == ("ZipLine here", 1.0, None)


def test_growth_has_a_row_for_each_variant_and_axis() -> None:
    spent = {size: dict.fromkeys(ZIPLINES, 1e-9 * size[0] ** 2 * size[1]) for size in zipline.SIZES}
    found = zipline.growth(spent)
    assert [row.value for row in found] == pytest.approx([2.0] * 5 + [1.0] * 5)
    assert [row.note for row in found][:3] == ["published: 1.66", "published: 1.55", "published: 1.37"]
