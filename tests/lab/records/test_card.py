"""What a person reads of one result: a line, a card; and nothing that must not be hidden is."""

from __future__ import annotations

import math
import re
from pathlib import Path
from xml.etree import ElementTree

import handmade
import pytest

from pslab.config.run import Run
from pslab.lab.records.card import WIDTH, sparkline
from pslab.lab.records.record import Result

CURVE = [0.1, 0.5, 0.9712]


def card(result: Result) -> str:
    """Its words; it is well-formed."""
    tree = ElementTree.fromstring(result._repr_html_())
    return " ".join(" ".join(tree.itertext()).split())


def test_a_result_is_a_short_line_with_its_marks():
    cluster = {"compute_s": 0.01, "trace": {str(worker): [0.01] * 100 for worker in range(4)}}
    for facts, end in (({}, "2 s>"), ({"verdict": "invalid"}, "2 s‡>")):
        result = handmade.curve(None, Run(pushes=8, cluster=cluster), CURVE, **facts)
        assert repr(result) == f"<Result {result.digest}: 97.12%, 8 pushes, {end}"


def test_a_card_says_what_ran_how_it_ended_and_where_it_lies(tmp_path: Path):
    result = handmade.curve(tmp_path, Run(sync="ssp:3", pushes=8), CURVE)
    words = card(result)
    assert words.startswith("97.12% after 8 pushes, 2.00 s")
    assert "10.00% to 97.12%" in words
    assert "sync ssp:3 · pushes 8" in words
    assert words.endswith(str(result.path))
    assert "every field at its default" in card(handmade.curve(tmp_path, Run(), CURVE))


@pytest.mark.parametrize(("facts", "words"), [
    ({"emulation_ok": False}, "too slow for the emulated cluster"), ({"verdict": "invalid"}, "judged invalid"),
    ({"outcome": "interrupted"}, "is no result"), ({"rewinds": [1, 2]}, "recovered: its server was replaced 2 times"),
    ({"outcome": "diverged"}, "diverged after 8 pushes"),
    ({"dilation": 2.0, "wall_s": 31.42}, "2.00 s of cluster time; took 31.4 s here"),
])  # fmt: skip
def test_what_must_not_be_hidden_is_on_the_card(facts: dict, words: str):
    assert words not in card(handmade.curve(None, Run(pushes=8), CURVE))
    assert words in card(handmade.curve(None, Run(pushes=8), CURVE, **facts))


def test_a_sparkline_rises_from_left_to_right_and_leaves_out_what_is_not_finite():
    svg = sparkline([0, 4, 8, 12], [0.0, math.nan, 0.5, 1.0], str)
    (line,) = re.findall("points='([^']*)'", svg)
    xs, ys = zip(*(map(float, point.split(",")) for point in line.split()), strict=True)
    assert len(xs) == 3
    assert list(xs) == sorted(xs)
    assert list(ys) == sorted(ys, reverse=True)
    assert max(xs) < WIDTH
    assert "0.0 to 1.0" in svg
    assert sparkline([0], [math.nan], str) == ""
    assert "circle" in sparkline([0], [0.5], str)
