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


@pytest.mark.parametrize(("asynchronous", "kept"), [(2, True), (4, False)])
def test_names_have_the_colours_of_their_policies_unless_most_would_have_one(asynchronous: int, kept: bool):
    named = {f"rate {rate}": {"sync": "asp", "learning_rate": rate / 10} for rate in range(1, asynchronous + 1)}
    results = handmade.with_results(grid(BASE, way={**named, "in rounds": {"sync": "bsp"}}), one)
    colours = [line.line.color for line in drawn.lines(plots.curves(results, by="way", x="iteration")).values()]
    assert (colours.count(find("sync", "asp").colour) == asynchronous) is kept
    assert len({*colours}) == (2 if kept else asynchronous + 1)


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


@pytest.mark.parametrize("ends", [(0.9, 0.98), (0.95, 0.97), (0.975, 0.98), (0.6, 0.97)])
def test_frame_shows_every_end_and_spreads_them(ends: tuple[float, float]):
    frames = [pd.DataFrame({"y": [10, 100 * end], "high": [10, 100 * end]}) for end in ends]
    low, high = accuracy_range(frames)
    assert low < 100 * ends[0] < 100 * ends[1] < high <= 100
    assert 100 * (ends[1] - ends[0]) / (high - low) > 0.05
    assert high - low <= 60
