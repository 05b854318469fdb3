"""Bars and cells say their numbers; accuracies are not drawn as bars that begin elsewhere than at 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import drawn
import handmade
import pandas as pd
import pytest

from pslab.config.run import Run
from pslab.lab import plots
from pslab.lab.plots.charts.bars import BEST, FRAME, WORST
from pslab.lab.records.results import Results
from pslab.lab.runs.grid import grid

BASE = Run(pushes=8, engine="virtual")
WAYS = {"none": [0.1, 0.5, 0.8, 0.95], "static:1%": [0.1, 0.7, 0.92, 0.94], "std:3": [0.1, 0.2, 0.3, 0.4]}


def results(folder: Path, **axes: Any) -> Results:
    runs = grid(BASE, **axes)
    return runs.finished([handmade.curve(folder, run, WAYS[str(run.prune)]) for run in runs])


def blocks(figure: Any, axis: str = "x") -> list[Any]:
    return [trace for trace in figure.data if trace.type == "bar" and (trace.xaxis or "x") == axis]


def test_bars_are_the_summary_with_its_numbers(tmp_path: Path):
    found = results(tmp_path, prune=["none", "static:1%", "std:3"])
    figure = plots.bars(found, ["seconds_to_goal", "bytes_to_goal"], by="prune", goal=0.9)
    assert [(trace.x[0], trace.name) for trace in blocks(figure)] == [(3, "dense"), (2, "static 1\u00a0%")]
    assert [trace.x[0] for trace in blocks(figure, "x2")] == [8 * 130, 5 * 130]
    assert {"3 s", "2 s", "not reached", "1.0 kB"} < {*drawn.texts(figure)}
    assert [*figure.layout.yaxis.ticktext] == ["dense", "static 1\u00a0%", "std 3\u00a0σ"]
    assert figure.layout.yaxis.range[0] > figure.layout.yaxis.range[1]  # the first one above
    assert figure.layout.xaxis.range[0] == 0


def test_accuracies_are_marks(tmp_path: Path):
    figure = plots.bars(results(tmp_path, prune=["none", "static:1%"]), "accuracy", by="prune")
    assert not blocks(figure)
    assert [trace.x[0] for trace in figure.data] == pytest.approx([95, 94])
    assert figure.layout.xaxis.range[0] > 50


def test_groups_stand_together_with_a_legend(tmp_path: Path):
    found = results(tmp_path, prune=["none", "static:1%"], sync=["bsp", "asp"])
    figure = plots.bars(found, "waiting", by="prune", group="sync")
    places = [trace.y[0] for trace in blocks(figure)]
    assert sorted(round(place) for place in places) == [0, 0, 1, 1]
    assert len({*places}) == 4
    assert drawn.legend(figure) == ["BSP", "ASP"]
    assert len({trace.marker.color for trace in blocks(figure)}) == 2


def test_grouped_marks_differ_in_shape_as_well_as_in_colour(tmp_path: Path):
    found = results(tmp_path, prune=["none", "static:1%"], sync=["bsp", "asp"])
    figure = plots.bars(found, "accuracy", by="prune", group="sync")
    shapes = {trace.marker.color: trace.marker.symbol for trace in figure.data if trace.showlegend is not False}
    assert len({*shapes.values()}) == len(shapes) == 2
    drawn_as = {(trace.marker.color, trace.marker.symbol) for trace in figure.data if trace.showlegend is False}
    assert drawn_as == {*shapes.items()}


def test_rows_have_their_own_bars(tmp_path: Path):
    families = {"static": {"prune": ["none", "static:1%"]}, "std": {"prune": ["none", "std:3"]}}
    figure = plots.bars(results(tmp_path, family=families), "seconds", by="prune", row="family")
    assert [*figure.layout.yaxis2.ticktext] == ["dense", "std 3\u00a0σ"]
    assert {"static", "std"} < {*drawn.texts(figure)}
    assert drawn.outside(figure) == []


def test_range_over_seeds_is_drawn_and_the_number_stands_behind_it(tmp_path: Path):
    runs = grid(BASE, seed=[0, 1, 2])
    made = [handmade.curve(tmp_path, run, WAYS["none"], seconds=[0, 1, 2, 3 + run.seed]) for run in runs]
    found = runs.finished(made)
    figure = plots.bars(found, "seconds", by="prune")
    (bar,) = blocks(figure)
    assert (bar.x[0], bar.error_x.array[0], bar.error_x.arrayminus[0]) == (4, 1, 1)
    assert next(note.x for note in figure.layout.annotations if note.text == "4\u00a0s") == 5


def test_heat_has_a_number_in_each_cell_and_frames_the_best(tmp_path: Path):
    found = results(tmp_path, prune=["none", "static:1%", "std:3"], learning_rate=[0.2, 0.1], sync=["bsp", "asp"])
    figure = plots.heat(found, "learning_rate", "prune", "seconds_to_goal", facet="sync", goal=0.9)
    assert [*figure.layout.xaxis.ticktext] == ["0.1", "0.2"]
    cells = [shape for shape in figure.layout.shapes if shape.xref == "x"]
    framed = [shape for shape in cells if shape.line.width]
    assert len(cells) == 6
    assert [(each.fillcolor, each.line.color, (each.y0 + each.y1) / 2) for each in framed] == [(BEST, FRAME, 1)] * 2
    texts = [note.text for note in figure.layout.annotations if note.xref == "x"]
    assert sorted(texts) == ["3", "3", "<b>2</b>", "<b>2</b>", "–", "–"]
    assert {"BSP", "ASP"} < {*drawn.texts(figure)}
    assert "framed: the best of its panel" in drawn.caption(figure)


def test_small_differences_are_seen_where_the_palest_is_near(tmp_path: Path):
    table = pd.DataFrame({"x": [1, 2], "y": [1, 1], "ms": [100.0, 110.0]})
    wide, near = (plots.heat(table, "x", "y", "ms", palest=palest).layout.shapes[1] for palest in (2.5, 1.1))
    assert near.fillcolor == WORST != wide.fillcolor


def test_heat_of_accuracies_frames_the_highest(tmp_path: Path):
    figure = plots.heat(results(tmp_path, prune=["none", "std:3"]), "sync", "prune", "accuracy")
    (framed,) = [shape for shape in figure.layout.shapes if shape.line.width]
    assert (framed.y0 + framed.y1) / 2 == 0
