"""Points: each where its row says, what was not reached above the others, ranges beside each other."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import drawn
import handmade
import pandas as pd
import pytest

from pslab.config.run import Run
from pslab.lab import plots
from pslab.lab.plots.page.theme import BEHIND
from pslab.lab.records.results import Results
from pslab.lab.runs.grid import grid

BASE = Run(pushes=8, engine="virtual")
WAYS = {"none": [0.1, 0.5, 0.8, 0.95], "static:1%": [0.1, 0.7, 0.92, 0.94], "std:3": [0.1, 0.2, 0.3, 0.4]}


def results(folder: Path, **axes: Any) -> Results:
    runs = grid(BASE, **axes)
    return runs.finished([handmade.curve(folder, run, WAYS[str(run.prune)], [0, 1, 2, 3 + run.seed]) for run in runs])


def test_points_are_the_summary(tmp_path: Path):
    found = results(tmp_path, prune=["none", "static:1%"], workers=[2, 4])
    figure = plots.points(found, "workers", "seconds_to_goal", by="prune", goal=0.9, log="x")
    lines = drawn.lines(figure)
    assert [*lines] == ["dense", "static 1\u00a0%"]
    assert (list(lines["dense"].x), list(lines["dense"].y)) == ([2, 4], [3, 3])
    assert figure.layout.xaxis.type == "log"
    assert [*figure.layout.xaxis.ticktext] == ["2", "4"]
    assert {"time to 90 % (s)", "workers"} < {*drawn.texts(figure)}
    assert drawn.alike(figure) == []


def test_ranges_stand_side_by_side_in_places(tmp_path: Path):
    found = results(tmp_path, prune=["none", "static:1%"], workers=[4, 2], seed=[0, 1, 2])
    figure = plots.points(found, "workers", "seconds", by="prune")
    dense, static = drawn.lines(figure).values()
    assert [*figure.layout.xaxis.ticktext] == ["2", "4"]  # numbers in their order
    assert dense.x[0] < 0 < static.x[0]
    assert static.x[0] - dense.x[0] < 0.5
    assert (list(dense.y), list(dense.error_y.array), list(dense.error_y.arrayminus)) == ([4, 4], [1, 1], [1, 1])


def test_names_on_x_keep_the_grids_order(tmp_path: Path):
    figure = plots.points(results(tmp_path, sync=["asp", "bsp"], prune=["none"]), "sync", "seconds")
    assert [*figure.layout.xaxis.ticktext] == ["ASP", "BSP"]


def test_what_was_not_reached_stands_above_a_line(tmp_path: Path):
    found = results(tmp_path, prune=["none", "std:3"], workers=[2, 4])
    figure = plots.points(found, "workers", "seconds_to_goal", by="prune", goal=0.9)
    (cross,) = drawn.crosses(figure)
    (level,) = {shape.y0 for shape in figure.layout.shapes}
    assert [name.replace("\u00a0", " ") for name in (cross.name,)] == ["std 3 σ"]
    assert max(drawn.lines(figure)["dense"].y) < level < cross.y[0] < figure.layout.yaxis.range[1]
    assert figure.layout.yaxis.ticktext[-1] == "not<br>reached"
    assert "std 3 σ" in drawn.texts(figure)  # named although it has no point
    all_there = plots.points(found.where(prune="none"), "workers", "seconds_to_goal", by="prune", goal=0.9)
    assert not all_there.layout.shapes


def test_range_reaches_above_the_line_where_one_seed_never_arrives(tmp_path: Path):
    ways = [WAYS["none"], WAYS["none"], WAYS["std:3"]]
    runs = grid(BASE, workers=[2, 4], seed=[0, 1, 2])
    found = runs.finished([handmade.curve(tmp_path, run, ways[run.seed]) for run in runs])
    figure = plots.points(found, "workers", "seconds_to_goal", goal=0.9)
    (line,) = drawn.lines(figure).values()
    assert list(line.y) == [3, 3]
    assert line.y[0] + line.error_y.array[0] == figure.layout.yaxis.tickvals[-1]
    assert figure.layout.yaxis.ticktext[-1] == "not<br>reached"


def test_panels_show_their_own_points(tmp_path: Path):
    found = results(tmp_path, prune=["none", "static:1%"], workers=[2, 4], sync=["bsp", "asp"])
    figure = plots.points(found, "workers", ["seconds", "accuracy"], by="prune", row="sync")
    assert [[*drawn.lines(figure, axis)] for axis in ("x", "x2", "x3", "x4")] == [["dense", "static 1\u00a0%"]] * 4
    assert list(drawn.lines(figure, "x2")["dense"].y) == pytest.approx([95, 95])
    assert {"BSP", "ASP"} < {*drawn.texts(figure)}
    assert drawn.outside(figure) == []


FRAME = pd.DataFrame({
    "n": [1, 10, 100] * 3, "t": [1.0, 2, 3, 2, 3, 4, 9, 9, 9], "search": ["a"] * 3 + ["b"] * 3 + ["limit"] * 3,
})  # fmt: skip


def test_any_table_with_titles_of_its_own():
    figure = plots.points(FRAME, {"n": "workers, n"}, {"t": "time (s)"}, by="search", log="xy", title="Searches")
    assert {"Searches", "workers, n", "time (s)", "a", "b"} < {*drawn.texts(figure)}
    assert (figure.layout.xaxis.type, figure.layout.yaxis.type) == ("log", "log")


def test_join_chooses_what_is_joined():
    chosen = drawn.lines(plots.points(FRAME, "n", "t", by="search", join=["limit"]))
    modes = {name: trace.mode for name, trace in chosen.items()}
    assert modes == {"a": "markers", "b": "markers", "limit": "lines+markers"}
    steps = drawn.lines(plots.points(FRAME, "n", "t", by="search", join="steps"))["a"]
    assert (steps.mode, steps.line.shape) == ("lines+markers", "hv")
    assert drawn.lines(plots.points(FRAME, "n", "t", by="search", join=False))["a"].mode == "markers"


def test_behind_stands_grey_in_every_panel():
    figure = plots.points(FRAME, "n", "t", by="search", facet="search", behind="limit")
    assert [[*drawn.lines(figure, axis)] for axis in ("x", "x2")] == [["limit", "a"], ["limit", "b"]]
    assert drawn.lines(figure)["limit"].line.color == BEHIND


@pytest.mark.parametrize("count", [5, 9])
def test_long_lines_are_told_apart_by_dash_or_have_markers(count: int):
    rules = ["static:10%", "static:1%", "static:0.1%", "std:1", "std:2", "std:3", "dynamic:5", "dgc:1%", "none"]
    rules = rules[:count]
    frame = pd.DataFrame({"x": [*range(200)] * count, "y": 1.0, "prune": [rule for rule in rules for _ in range(200)]})
    figure = plots.points(frame, "x", "y", by="prune")
    assert drawn.alike(figure) == []
    assert {trace.mode for trace in drawn.lines(figure).values()} == {"lines" if count < 6 else "lines+markers"}


def test_marks_alone_are_told_apart_by_their_shapes():
    bounds = [f"ssp:{bound}" for bound in range(4)]
    frame = pd.DataFrame({"x": [1, 2] * 4, "y": 1.0, "sync": [bound for bound in bounds for _ in range(2)]})
    assert drawn.alike(plots.points(frame, "x", "y", by="sync", join=False)) == []


def test_long_lines_have_no_markers():
    frame = pd.DataFrame({"x": range(200), "y": range(200)})
    assert [trace.mode for trace in drawn.lines(plots.points(frame, "x", "y")).values()] == ["lines"]


def test_name_keeps_its_look_where_others_are_left_out(tmp_path: Path):
    rules = {name: {"learning_rate": rate} for name, rate in (("slow", 0.1), ("usual", 0.2), ("fast", 0.4))}
    runs = grid(BASE, rule=rules, workers=[2, 4])
    found = runs.finished([handmade.curve(tmp_path, run, WAYS["none"]) for run in runs])
    frame = pd.DataFrame({"rule": pd.Categorical(["fast", "usual"], categories=[*rules]), "x": 1.0, "y": [1.0, 2.0]})
    every, few = (drawn.lines(plots.points(each, "workers", "seconds", by="rule"))["fast"].line
                  for each in (found, found.where(rule=["usual", "fast"])))  # fmt: skip
    facets = plots.curves(found.where(rule=["slow", "fast"]), by="rule", facet="rule", row="workers", behind="slow")
    assert few == every == drawn.lines(plots.points(frame, "x", "y", by="rule"))["fast"].line
    assert drawn.lines(facets)["fast"].line.color == every.color
    assert "grey: slow" in drawn.caption(facets)


def test_axis_of_values_far_apart_begins_at_0_and_a_range_of_0_has_no_bar():
    frame = pd.DataFrame({"x": [1.0, 2.0], "y": [1.0, 4.0], "y_low": [1.0, 3.0], "y_high": [1.0, 5.0]})
    figure = plots.points(frame, {"x": "x"}, "y", by=[])
    assert figure.layout.yaxis.range[0] == 0
    (line,) = drawn.lines(figure).values()
    assert [math.isnan(each) for each in line.error_y.array] == [True, False]
    assert plots.points(pd.DataFrame({"x": [1.0, 2.0], "y": [4.0, 5.0]}), "x", "y", by=[]).layout.yaxis.range[0] > 3
