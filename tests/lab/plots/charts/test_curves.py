"""Curves: their axes, and what they refuse. What they show stands in the gallery."""

from __future__ import annotations

from typing import Any

import drawn
import handmade
import pandas as pd
import pytest

from pslab.config.run import Run
from pslab.config.table import find
from pslab.lab import plots
from pslab.lab.plots.charts.curves import accuracy_range
from pslab.lab.runs.grid import grid

BASE = Run(pushes=8, engine="virtual", cluster="lab")


def one(run: Run = BASE, accuracy: Any = (0.1, 0.5, 0.8, 0.9, 0.95), **facts: Any) -> Any:
    return handmade.curve(None, run, accuracy, **facts)


@pytest.mark.parametrize("sync", ["bsp", "ssp:3", "asp"])
def test_a_curve_alone_has_the_colour_of_its_policy(sync: str):
    figure = plots.curves(one(BASE.but(sync=sync)), x="iteration")
    assert {line.line.color for line in drawn.lines(figure).values()} == {find("sync", sync).colour}


@pytest.mark.parametrize(("asynchronous", "kept"), [(2, True), (4, False)])
def test_names_have_the_colours_of_their_policies_unless_most_would_have_one(asynchronous: int, kept: bool):
    named = {f"rate {rate}": {"sync": "asp", "learning_rate": rate / 10} for rate in range(1, asynchronous + 1)}
    results = handmade.with_results(grid(BASE, way={**named, "in rounds": {"sync": "bsp"}}), one)
    colours = [line.line.color for line in drawn.lines(plots.curves(results, by="way", x="iteration")).values()]
    assert (colours.count(find("sync", "asp").colour) == asynchronous) is kept
    assert len({*colours}) == (2 if kept else asynchronous + 1)


def test_evaluation_that_occurs_twice_counts_once():
    result = one(BASE, [0.1, 0.8, 0.8])
    result.accuracy.loc[2, "pushes"] = 4
    assert list(drawn.lines(plots.curves([result])).popitem()[1].x) == [0, 1]


@pytest.mark.parametrize(("longest", "kind"), [(8.0, "linear"), (13.0, "log")])
def test_time_turns_logarithmic_where_one_curve_is_far_longer(longest: float, kind: str):
    results = [one(BASE.but(sync=sync), [0.1, 0.5, 0.9], seconds=[0, end / 2, end])
               for sync, end in (("bsp", longest), ("ssp:3", 4.0), ("asp", 4.0))]  # fmt: skip
    assert plots.curves(results).layout.xaxis.type == kind
    assert plots.curves(results, log="").layout.xaxis.type == "linear"
    assert plots.curves(results, log="x").layout.xaxis.type == "log"


def test_a_logarithmic_axis_begins_where_a_curve_enters_the_frame():
    early = one(BASE, [0.1, 0.1, 0.1, 0.9, 0.95], seconds=[0, 0.01, 1, 4, 8])
    axis = plots.curves([early], zoom=(80, 100), log="x").layout.xaxis
    assert -0.1 < axis.range[0] < 0 < axis.range[1]  # a power of ten: the way up begins at 1 s
    assert plots.curves([early], zoom=(80, 100)).layout.xaxis.range[0] == 0
    assert plots.curves([early], zoom=False, log="x").layout.xaxis.range[0] < -2
    diverged = one(BASE.but(seed=1), [0.1, 0.2], seconds=[0.0, 0.1], outcome="diverged")
    assert plots.curves([early, diverged], zoom=(80, 100), log="x").layout.xaxis.range[0] < -1  # its cross is shown


def test_what_has_no_place_on_a_logarithmic_axis_is_not_drawn():
    (line,) = drawn.lines(plots.curves(one(), log="x")).values()
    assert list(line.x) == [1, 2, 3, 4]


@pytest.mark.parametrize("ends", [(0.9, 0.98), (0.95, 0.97), (0.975, 0.98), (0.6, 0.97)])
def test_frame_shows_every_end_and_spreads_them(ends: tuple[float, float]):
    frames = [pd.DataFrame({"y": [10, 100 * end], "high": [10, 100 * end]}) for end in ends]
    low, high = accuracy_range(frames)
    assert low < 100 * ends[0] < 100 * ends[1] < high <= 100
    assert 100 * (ends[1] - ends[0]) / (high - low) > 0.05
    assert high - low <= 60


class Claimed:
    title = "ASP is first"


@pytest.mark.parametrize(("title", "words"), [
    ("Own words", "Own words"), (Claimed(), "ASP is first"),
    (None, "Test accuracy against time, by synchronization policy"),
])  # fmt: skip
def test_title_is_the_sentence_or_what_is_shown(title: object, words: str):
    found = [one(), one(BASE.but(sync="asp"))]
    assert drawn.texts(plots.curves(found, by="sync", title=title))[0] == words
