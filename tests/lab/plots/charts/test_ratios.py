"""A row for each policy, a mark for each measure: how many times the reference's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import drawn
import handmade
import pytest

from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab import plots
from pslab.lab.records.results import Results
from pslab.lab.runs.grid import grid

BASE = Run(pushes=8, engine="virtual")
WAYS = {"none": [0.1, 0.5, 0.8, 0.95], "static:1%": [0.1, 0.7, 0.92, 0.94], "std:3": [0.1, 0.2, 0.3, 0.4]}
MEASURES = ["seconds_to_goal", "bytes_to_goal"]


def results(folder: Path, **axes: Any) -> Results:
    runs = grid(BASE, **axes)
    return runs.finished([handmade.curve(folder, run, WAYS[str(run.prune)]) for run in runs])


def marks(figure: Any, axis: str = "x") -> dict[str, list[tuple[float, float]]]:
    """Of each measure its marks: how many times, and in which row."""
    found: dict[str, list[tuple[float, float]]] = {}
    for trace in figure.data:
        if trace.error_x.array is not None and (trace.xaxis or "x") == axis:
            found.setdefault(trace.name, []).append((trace.x[0], round(trace.y[0])))
    return found


def test_a_mark_is_how_many_times_the_references_median_it_is(tmp_path: Path):
    figure = plots.dots(results(tmp_path, prune=["static:1%", "none"]), MEASURES, by="prune", to="none", goal=0.9)
    assert marks(figure) == {"time to 90\u00a0%": [(pytest.approx(2 / 3), 0)],
                             "bytes sent to 90\u00a0%": [(pytest.approx(5 / 8), 0)]}  # fmt: skip
    assert [*figure.layout.yaxis.ticktext] == ["static 1\u00a0%"]  # the reference is 1, and has no row
    assert "times dense" in drawn.texts(figure)
    assert "dense: time to 90 % 3 s, bytes sent to 90 % 1.0 kB" in drawn.caption(figure)
    assert drawn.legend(figure) == ["time to 90\u00a0%", "bytes sent to 90\u00a0%"]
    assert drawn.outside(figure) == []


def test_marks_of_a_row_differ_in_shape_as_well_as_in_colour(tmp_path: Path):
    figure = plots.dots(results(tmp_path, prune=["none", "static:1%"]), MEASURES, by="prune", to="none", goal=0.9)
    one, other = (trace for trace in figure.data if trace.error_x.array is not None)
    assert one.marker.symbol != other.marker.symbol
    assert one.y[0] < other.y[0]  # and never hide each other


def test_what_never_reaches_the_goal_is_said(tmp_path: Path):
    found = results(tmp_path, prune=["none", "static:1%", "std:3"])
    figure = plots.dots(found, MEASURES, by="prune", to="none", goal=0.9)
    assert {row for each in marks(figure).values() for _, row in each} == {0}
    assert drawn.texts(figure).count("not reached") == len(MEASURES)  # each in its own line, in its colour
    nothing = plots.dots(found, MEASURES, by="prune", to="std:3", goal=0.9)
    assert not marks(nothing)
    assert "std 3 σ: time to 90 % not reached" in drawn.caption(nothing)


def test_without_a_reference_the_least_of_each_measure_is_one(tmp_path: Path):
    figure = plots.dots(results(tmp_path, prune=["none", "static:1%"]), ["seconds_to_goal", "accuracy"], by="prune",
                        goal=0.9)  # fmt: skip
    times = {name: sorted(value for value, _ in each) for name, each in marks(figure).items()}
    assert times["time to 90\u00a0%"] == pytest.approx([1, 1.5])
    assert [*figure.layout.yaxis.ticktext] == ["dense", "static 1\u00a0%"]
    assert "the least: time to 90 % 2 s" in drawn.caption(figure)


def test_each_panel_has_a_reference_of_its_own(tmp_path: Path):
    runs = grid(BASE, sync=["bsp", "asp"], prune=["none", "static:1%"])
    slow = {"bsp": 1.0, "asp": 2.0}
    made = [handmade.curve(tmp_path, run, [0.1, 0.95], seconds=[0, slow[run.sync] * (1 if run.prune == "none" else 3)])
            for run in runs]  # fmt: skip
    figure = plots.dots(runs.finished(made), "seconds", by="prune", to="none", facet="sync")
    for axis in ("x", "x2"):
        assert [times for times, _ in marks(figure, axis)["training time"]] == [pytest.approx(3)]
    assert {"BSP", "ASP"} < {*drawn.texts(figure)}
    assert "BSP, dense: training time 1 s" in drawn.caption(figure)


def test_far_values_are_on_a_logarithmic_axis_and_seeds_have_a_range(tmp_path: Path):
    runs = grid(BASE, prune=["none", "static:1%"], seed=[0, 1])
    made = [handmade.curve(tmp_path, run, [0.1, 0.95], seconds=[0, 1.0 if run.prune == "none" else 20.0 + run.seed])
            for run in runs]  # fmt: skip
    figure = plots.dots(runs.finished(made), "seconds", by="prune", to="none")
    assert figure.layout.xaxis.type == "log"
    (mark,) = (trace for trace in figure.data if trace.error_x.array is not None)
    assert (mark.x[0], mark.error_x.array[0], mark.error_x.arrayminus[0]) == pytest.approx((20.5, 0.5, 0.5))


def test_a_reference_that_is_none_of_the_values_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="did you mean 'none'"):
        plots.dots(results(tmp_path, prune=["none", "static:1%"]), "seconds", by="prune", to="nome")
