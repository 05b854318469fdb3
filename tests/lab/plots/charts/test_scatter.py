"""Points: how they are told apart, and their axes. What they show stands in the gallery."""

from __future__ import annotations

import drawn
import handmade
import pandas as pd
import pytest

from pslab.config.run import Run
from pslab.lab import plots
from pslab.lab.records.frames import where
from pslab.lab.runs.grid import grid

BASE = Run(pushes=8, engine="virtual", cluster="lab")


@pytest.mark.parametrize("count", [1, 5, 9])
def test_long_lines_are_told_apart_by_dash_or_have_markers(count: int):
    rules = ["static:10%", "static:1%", "static:0.1%", "std:1", "std:2", "std:3", "dynamic:5", "dgc:1%", "none"]
    frame = pd.DataFrame([(x, 1.0, rule) for rule in rules[:count] for x in range(200)], columns=["x", "y", "prune"])
    figure = plots.points(frame, "x", "y", by="prune")
    assert drawn.alike(figure) == []
    assert {trace.mode for trace in drawn.lines(figure).values()} == {"lines" if count < 6 else "lines+markers"}


def test_two_names_of_one_legend_differ_though_no_panel_has_both():
    names = [f"rule {number}" for number in range(17)]
    frame = pd.DataFrame({"x": 1.0, "y": range(34), "rule": names * 2, "panel": ["one"] * 17 + ["two"] * 17})
    places = frame.rule + " " + frame.panel
    apart = frame[~places.isin(["rule 5 one", "rule 13 two"])]
    figure = plots.points(apart, "x", "y", by="rule", facet="panel", join=False)
    keys = {trace.name: (trace.marker.symbol, trace.marker.color) for trace in figure.data if trace.showlegend}
    assert len(keys) == len({*keys.values()}) == 17


def test_name_keeps_its_look_where_others_are_left_out():
    rules = {name: {"learning_rate": rate} for name, rate in (("slow", 0.1), ("usual", 0.2), ("fast", 0.4))}
    found = handmade.finished(grid(BASE, rule=rules, workers=[2, 4]), [0.1, 0.5, 0.8, 0.95])
    frame = pd.DataFrame({"rule": pd.Categorical(["fast", "usual"], categories=[*rules]), "x": 1.0, "y": [1.0, 2.0]})
    every, few = (drawn.lines(plots.points(each, "workers", "seconds", by="rule"))["fast"].line
                  for each in (found, where(found, rule=["usual", "fast"])))  # fmt: skip
    facets = plots.curves(where(found, rule=["slow", "fast"]), by="rule", facet="rule", row="workers", behind="slow")
    assert few == every == drawn.lines(plots.points(frame, "x", "y", by="rule"))["fast"].line
    assert drawn.lines(facets)["fast"].line.color == every.color
    assert "grey: slow" in drawn.caption(facets)


@pytest.mark.parametrize("title", ["final accuracy", "final accuracy (%)"])
def test_a_share_is_drawn_in_percent_and_its_axis_says_so_whoever_named_it(title: str):
    figure = plots.points(pd.DataFrame({"x": [1, 2], "accuracy": [0.5, 0.6], "rule": "fast"}), "x", {"accuracy": title})
    assert figure.layout.yaxis.title.text == "final accuracy (%)"
