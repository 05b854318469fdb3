"""Whatever grid is drawn, whatever shows it ends in a figure that plotly takes, or in a sentence that says why not."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, product
from random import Random
from typing import Any

import drawn
import grids
import pandas as pd
import plotly.graph_objects as go
import pytest

from pslab import plots
from pslab.config.run import Run
from pslab.lab.runs.grid import grid

COUNT, CHUNK = 1000, 25


@pytest.mark.parametrize("seeds", [[0], *(pytest.param(range(first, first + CHUNK), marks=pytest.mark.slow)
                                          for first in range(1, COUNT, CHUNK))], ids=str)  # fmt: skip
def test_every_grid_is_shown_or_refused_in_a_sentence(seeds: Iterable[int]):
    for random in map(Random, seeds):
        results, problem = grids.refused(lambda: grids.finished(grids.drawn(random), random))  # noqa: B023
        assert results is not None or str(problem)
        for name, draw in grids.shown(results, random) if results is not None else ():
            figure, problem = grids.refused(draw)
            assert problem is None or str(problem), name
            if isinstance(figure, go.Figure):
                go.Figure(figure.to_dict())  # validates every property
                assert not name.startswith(("curves", "points")) or not confused(figure), name


def confused(figure: go.Figure) -> list[tuple[str, str]]:
    """Pairs of curves in one panel that look the same."""
    panels: dict[str, list[Any]] = {}
    for trace in figure.data:
        if trace.type == "scatter" and trace.legendgroup and "diverged" not in (trace.hovertemplate or "diverged"):
            panels.setdefault(trace.xaxis or "x", []).append(trace)
    return [(one.name, other.name) for own in panels.values() for one, other in combinations(own, 2)
            if drawn.shape(one) == drawn.shape(other) and one.line.color == other.line.color]  # fmt: skip


def results(**axes: object) -> pd.DataFrame:
    return grids.finished(grid(Run(pushes=16, engine="virtual", cluster="lab"), **axes), Random(1), ["budget"])


def test_labels_that_are_wider_than_the_page_are_wrapped():
    found = results(cluster={"many long words " * 12 + str(at): "lab" for at in range(3)}, sync=["bsp", "asp"])
    for draw, width in product((plots.bars, plots.dots), ("page", "column")):
        layout = draw(found, ["seconds"], by=["cluster", "sync"], width=width).layout
        assert all("<br>" in text for text in layout.yaxis.ticktext)
        assert layout.xaxis.domain[1] - layout.xaxis.domain[0] > 0.4


def test_a_cluster_of_many_words_goes_by_its_preset_which_the_caption_explains():
    figure = plots.dots(results(cluster=["lab", "steady", {"compute_s": 0.02}]), ["seconds"])
    assert {*figure.layout.yaxis.ticktext} == {"cluster lab", "cluster steady", "computation 20\u00a0ms"}
    assert "cluster lab: 1 Gbit/s per worker" in drawn.caption(figure)


@pytest.mark.parametrize(("field", "values", "names"), [
    ("push_weight", [0.25, None, 1.0], ["push weight 1/W", "0.25", "1"]),
    ("eval_every", [16, None], ["evaluated 20 times", "16"]),
])  # fmt: skip
def test_what_is_not_given_stands_before_the_numbers_of_its_axis(field: str, values: list[object], names: list[str]):
    found = results(**{field: values}, sync=["asp", "ssp:3"])
    for figure in (plots.points(found, field, ["seconds"]), plots.heat(found, field, "sync", "seconds")):
        assert [*figure.layout.xaxis.ticktext] == names
    assert len(plots.bars(found, ["seconds"], by=[field, "sync"]).layout.yaxis.ticktext) == 2 * len(values)
