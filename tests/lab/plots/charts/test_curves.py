"""Curves say what the records say, of the right runs in the right panel, and leave nothing unsaid."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import drawn
import handmade
import pandas as pd
import pytest

from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab import plots
from pslab.lab.plots.charts.curves import accuracy_range
from pslab.lab.plots.page.theme import BEHIND, colour
from pslab.lab.records.results import Results
from pslab.lab.records.summary import summary
from pslab.lab.runs.grid import alone, grid

BASE = Run(pushes=8, engine="virtual", cluster="lab")
WAYS = {"none": [0.1, 0.5, 0.8, 0.9, 0.95], "static:1%": [0.1, 0.7, 0.9, 0.93, 0.94],
        "std:2": [0.1, 0.6, 0.8, 0.9, 0.92]}  # fmt: skip
FAMILIES = {"static": {"prune": ["none", "static:1%"]}, "std": {"prune": ["none", "std:2"]}}
Make = Callable[..., Results]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """The results of a grid whose rules learn as WAYS says, a second between two evaluations."""

    def made(runs: Any, **facts: Any) -> Results:
        return runs.finished([handmade.curve(tmp_path, run, WAYS[str(run.prune)], **facts) for run in runs])

    return made


def one(tmp_path: Path, run: Run, accuracy: list[float], **facts: Any) -> Any:
    return handmade.curve(tmp_path, run, accuracy, **facts)


# -- x and y ---------------------------------------------------------------------------------------


def test_curve_is_the_records(make: Make):
    figure = plots.curves(make(grid(BASE, prune=["none", "static:1%"])), x="seconds", by="prune", zoom=False)
    dense = drawn.lines(figure)["dense"]
    assert list(dense.x) == [0, 1, 2, 3, 4]
    assert list(dense.y) == pytest.approx([10, 50, 80, 90, 95])
    assert "95.00\u00a0%, loss 0.500<br>8 pushes, 4.00\u00a0s<br>800\u00a0B up, 240\u00a0B down" in dense.hovertext[-1]


@pytest.mark.parametrize("sync", ["bsp", "ssp:3", "asp"])
def test_a_curve_alone_has_the_colour_of_its_policy(make: Make, sync: str):
    figure = plots.curves(make(grid(Run(pushes=8, cluster="lab", sync=sync))), x="iteration")
    assert {line.line.color for line in drawn.lines(figure).values()} == {colour("sync", sync)}


def test_the_same_in_virtual_time_is_a_band_behind_its_curve_and_of_one_seed_a_thin_line(make: Make, tmp_path: Path):
    rules = {"prune": ["none", "static:1%"]}
    real = make(grid(Run(pushes=8, cluster="lab"), **rules))
    twins = grid(BASE, **rules, seed=[0, 1, 2]).finished(
        [one(tmp_path, run, [0.1, 0.5 + run.seed / 10, 0.9]) for run in grid(BASE, **rules, seed=[0, 1, 2])])
    figure = plots.curves(real, x="iteration", by="prune", banded=twins, zoom=False)
    assert not [trace for trace in figure.data if trace.name == "" and trace.fill is None]
    bands = [trace for trace in figure.data if trace.name == "" and trace.fill == "toself"]
    assert sorted(bands[0].y)[1:5] == pytest.approx([10, 50, 70, 90])
    own = {name: line for name, line in drawn.lines(figure).items() if name}
    assert len({trace.fillcolor for trace in bands}) == 2
    assert "bands: the same in virtual time, range of 3 seeds" in " ".join(figure.layout.meta["caption"])
    alone = plots.curves(real, x="iteration", by="prune", banded=twins.where(seed=1), zoom=False)
    thin = [trace for trace in alone.data if trace.name == "" and trace.fill is None]
    assert [list(trace.y) for trace in thin] == [pytest.approx([10, 60, 90])] * 2
    assert {trace.line.color for trace in thin} == {line.line.color for line in own.values()}
    assert max(trace.line.width for trace in thin) < min(line.line.width for line in own.values())
    assert "thin: the same in virtual time" in " ".join(alone.layout.meta["caption"])
    assert {"dense", "static 1\u00a0%"} == {*own}


def test_names_of_a_readers_own_wear_the_colours_of_their_policies(make: Make):
    ways = {"no wait": {"sync": "asp"}, "no wait, modulated": {"sync": "asp", "rate": "modulated"},
            "all": {"sync": "bsp"}}  # fmt: skip
    found = make(grid(BASE, way=ways))
    figure = plots.curves(found, x="iteration", by="way")
    colours = {name: line.line.color for name, line in drawn.lines(figure).items()}
    assert colours == {"no wait": colour("sync", "asp"), "no wait, modulated": colour("sync", "asp"),
                       "all": colour("sync", "bsp")}  # fmt: skip
    assert not drawn.alike(figure)
    bars = [trace for trace in plots.bars(found, "seconds", by="way").data if trace.type == "bar"]
    assert {trace.name: trace.marker.color for trace in bars} == colours


def test_legend_is_in_the_grids_order_whatever_the_results_are(make: Make):
    found = make(grid(BASE, sync=["bsp", "ssp:3", "asp"], prune=["none", "static:1%", "std:2"]))
    mixed = Results([*found][::-1], found.columns[::-1], found.orders)
    figure = plots.curves(mixed, x="iteration", by=["sync", "prune"], facet="sync")
    first = [label.partition(", ")[0] for label in drawn.legend(figure)]
    assert first == sorted(first, key=["BSP", "SSP", "ASP"].index)
    assert summary(mixed).index.tolist()[0] == ("bsp", "none")


def test_iterations_count_everybodys_pushes(make: Make):
    figure = plots.curves(make(grid(BASE, prune=["none"])), x="iteration")
    assert list(drawn.lines(figure)["BSP, dense"].x) == [0, 0.5, 1, 1.5, 2]
    assert "iteration (4 pushes, 256 samples)" in drawn.texts(figure)


def test_worker_counts_that_differ_are_compared_by_pushes(make: Make):
    figure = plots.curves(make(grid(BASE, workers=[2, 4])), x="iteration", by="workers")
    assert "pushes" in drawn.texts(figure)
    assert [trace.x[-1] for trace in drawn.lines(figure).values()] == [8, 8]


@pytest.mark.parametrize(("axis", "each"), [("bytes", 130), ("bytes_up", 100), ("bytes_down", 30)])
def test_bytes_are_summed_up_to_each_evaluation(make: Make, axis: str, each: int):
    figure = plots.curves(make(grid(BASE)), x=axis)
    assert list(drawn.lines(figure)["BSP, dense"].x) == [0, 2 * each, 4 * each, 6 * each, 8 * each]


def test_rounds_are_the_pushes_of_each_worker(make: Make):
    assert list(drawn.lines(plots.curves(make(grid(BASE)), x="rounds"))["BSP, dense"].x) == [0, 0.5, 1, 1.5, 2]


def test_several_x_share_one_y_axis(make: Make):
    figure = plots.curves(make(grid(BASE, prune=["none", "static:1%"])), x=["iteration", "seconds"], by="prune")
    assert figure.layout.yaxis2.matches == "y"
    assert [*drawn.lines(figure, "x2")] == ["dense", "static 1\u00a0%"]
    assert figure.layout.xaxis2.matches is None


def test_several_y_have_axes_of_their_own(make: Make):
    results = make(grid(BASE, prune=["none", "static:1%"]))
    results[1].pushes.loc[:, "density"] = [0.5, 0.5, *[0.01] * 6]
    figure = plots.curves(results, x="iteration", y=["density", "accuracy"], by="prune", log="y")
    assert list(drawn.lines(figure)["static 1\u00a0%"].y) == pytest.approx([50, 1, 1, 1])
    assert figure.layout.yaxis.type == "log"
    assert figure.layout.yaxis2.type == "linear"  # accuracies are framed, not spread over decades


def test_evaluation_that_occurs_twice_counts_once(tmp_path: Path):
    result = one(tmp_path, BASE, [0.1, 0.8, 0.8])
    result.accuracy.loc[2, "pushes"] = 4
    assert list(drawn.lines(plots.curves([result])).popitem()[1].x) == [0, 1]


@pytest.mark.parametrize(("changes", "words"), [
    ({"x": "second"}, "did you mean 'seconds'"), ({"y": "acuracy"}, "did you mean 'accuracy'"),
    ({"by": "prun"}, "did you mean 'prune'"), ({"by": "sync"}, "differ in prune"),
    ({"facet": "sync", "row": "prune", "x": ["iteration", "seconds"]}, "a panel each"),
])  # fmt: skip
def test_wrong_names_and_mixed_curves_are_refused(make: Make, changes: dict, words: str):
    with pytest.raises(ConfigError, match=words):
        plots.curves(make(grid(BASE, prune=["none", "static:1%"])), **changes)


# -- seeds -----------------------------------------------------------------------------------------


def test_band_is_median_and_range_over_seeds(tmp_path: Path):
    ways = {0: [0.1, 0.5, 0.9], 1: [0.1, 0.7, 0.8], 2: [0.1, 0.6, 0.95]}
    results = [one(tmp_path, BASE.but(seed=seed), way) for seed, way in ways.items()]
    figure = plots.curves(results, x="pushes", zoom=False)
    (line,), (band,) = drawn.lines(figure).values(), drawn.bands(figure)
    assert list(line.y) == pytest.approx([10, 60, 90])
    assert list(band.y) == pytest.approx([10, 70, 95, 80, 50, 10])
    assert "median and range of 3 seeds" in drawn.caption(figure)


def test_band_in_time_goes_as_far_as_every_seed(tmp_path: Path):
    slow = one(tmp_path, BASE.but(seed=1), [0.0, 0.4, 0.8], seconds=[0.0, 2.0, 4.0])
    fast = one(tmp_path, BASE.but(seed=2), [0.0, 0.4, 0.8], seconds=[0.0, 1.0, 2.0])
    (line,) = drawn.lines(plots.curves([slow, fast])).values()
    assert (list(line.x), list(line.y)) == ([0, 1, 2], pytest.approx([0, 30, 60]))


def test_one_seed_has_no_band(make: Make):
    figure = plots.curves(make(grid(BASE)))
    assert not drawn.bands(figure)
    assert "one seed" in drawn.caption(figure)


def test_diverged_seed_leaves_the_band_and_ends_in_a_cross(tmp_path: Path):
    results = [one(tmp_path, BASE.but(seed=seed), [0.1, 0.9, 0.95]) for seed in (0, 1)]
    results.append(one(tmp_path, BASE.but(seed=2), [0.1, 0.2], seconds=[0.0, 1.5], outcome="diverged"))
    figure = plots.curves(results, zoom=(50, 100))
    assert [list(trace.y) for trace in drawn.lines(figure).values()] == [pytest.approx([10, 90, 95])]
    (cross,) = drawn.crosses(figure)
    assert (cross.x[0], cross.y[0]) == (1.5, 50)  # at the edge of the frame, not outside it
    assert "BSP, dense ✖1/3" in drawn.texts(figure)
    assert "✖ diverged" in drawn.caption(figure)


def test_where_all_diverged_they_are_drawn(tmp_path: Path):
    figure = plots.curves([one(tmp_path, BASE, [0.1, 0.5, 0.1], outcome="diverged")], zoom=False)
    assert list(drawn.lines(figure).popitem()[1].y) == pytest.approx([10, 50, 10])


# -- panels ----------------------------------------------------------------------------------------


def test_family_by_policy_page_has_each_run_in_its_panels(make: Make):
    results = make(grid(BASE, family=FAMILIES, sync=["bsp", "asp"], seed=[0, 1]))
    figure = plots.curves(results, by="prune", facet="sync", row="family")
    names = [[*drawn.lines(figure, axis)] for axis in ("x", "x2", "x3", "x4")]
    assert names == [["dense", "static 1\u00a0%"]] * 2 + [["dense", "std 2\u00a0σ"]] * 2
    for text in ("BSP", "ASP", "static", "std"):
        assert text in drawn.texts(figure)
    assert "dense gradients" not in drawn.caption(figure)
    assert drawn.alike(figure) == []
    assert drawn.outside(figure) == []


def test_facet_that_is_the_curve_needs_no_names(make: Make):
    results = make(grid(BASE, prune=["none", "static:1%", "std:2"]))
    figure = plots.curves(results, by="prune", facet="prune", behind="none")
    assert [*drawn.lines(figure)] == ["dense", "static 1\u00a0%"]
    assert [*drawn.lines(figure, "x2")] == ["dense", "std 2\u00a0σ"]
    assert drawn.lines(figure)["dense"].line.color == BEHIND
    assert not figure.layout.showlegend
    assert drawn.texts(figure).count("static 1 %") == 1  # its heading


def test_single_machine_stands_in_every_panel_and_sends_nothing(make: Make):
    runs = grid(BASE, sync=["bsp", "asp"])
    results = make(runs) + make(type(runs)([alone(BASE)]))
    figure = plots.curves(results, x="iteration", by="sync", facet="sync")
    assert [*drawn.lines(figure)] == ["single machine", "BSP"]
    assert [*drawn.lines(figure, "x2")] == ["single machine", "ASP"]
    assert list(drawn.lines(figure)["single machine"].x) == [0, 0.5, 1, 1.5, 2]  # as many samples at the same place
    assert "single machine" not in drawn.lines(plots.curves(results, x="bytes", by="sync"))
    assert "single machine" in drawn.caption(figure)


def test_labels_say_what_differs(make: Make):
    figure = plots.curves(make(grid(BASE.but(sync="asp"), prune=["none", "static:1%"], push_weight=[None, 1.0])))
    rules, weights = ("dense", "static 1\u00a0%"), ("1/W", "1")
    assert [*drawn.lines(figure)] == [f"{rule}, push weight {weight}" for rule in rules for weight in weights]
    assert drawn.alike(figure) == []


def test_labels_leave_to_the_panels_what_they_show(make: Make):
    results = make(grid(BASE, prune=["none", "static:1%"], sync=["bsp", "asp"]))
    assert [*drawn.lines(plots.curves(results, facet="sync"), "x2")] == ["dense", "static 1\u00a0%"]
    only = plots.curves(make(grid(BASE, sync=["bsp", "asp"])), facet="sync")
    assert drawn.texts(only).count("BSP") == 1  # the heading is enough


def test_names_of_an_axis_are_used_as_they_are(make: Make):
    methods = {"SSP-SGD": {"sync": "ssp:3", "push_weight": 1.0}, "CONSGD": {"sync": "ssp:3"}}
    assert [*drawn.lines(plots.curves(make(grid(BASE, method=methods)), by="method"))] == ["SSP-SGD", "CONSGD"]


# -- axes and words --------------------------------------------------------------------------------


@pytest.mark.parametrize(("longest", "kind"), [(8.0, "linear"), (13.0, "log")])
def test_time_turns_logarithmic_where_one_curve_is_far_longer(tmp_path: Path, longest: float, kind: str):
    results = [one(tmp_path, BASE.but(sync=sync), [0.1, 0.5, 0.9], seconds=[0, end / 2, end])
               for sync, end in (("bsp", longest), ("ssp:3", 4.0), ("asp", 4.0))]  # fmt: skip
    assert plots.curves(results).layout.xaxis.type == kind
    assert plots.curves(results, log="").layout.xaxis.type == "linear"
    assert plots.curves(results, log="x").layout.xaxis.type == "log"


def test_a_logarithmic_axis_begins_where_a_curve_enters_the_frame(tmp_path: Path):
    early = one(tmp_path, BASE, [0.1, 0.1, 0.1, 0.9, 0.95], seconds=[0, 0.01, 1, 4, 8])
    axis = plots.curves([early], zoom=(80, 100), log="x").layout.xaxis
    assert -0.1 < axis.range[0] < 0 < axis.range[1]  # a power of ten: the way up begins at 1 s
    assert plots.curves([early], zoom=(80, 100)).layout.xaxis.range[0] == 0
    assert plots.curves([early], zoom=False, log="x").layout.xaxis.range[0] < -2
    diverged = one(tmp_path, BASE.but(seed=1), [0.1, 0.2], seconds=[0.0, 0.1], outcome="diverged")
    assert plots.curves([early, diverged], zoom=(80, 100), log="x").layout.xaxis.range[0] < -1  # its cross is shown


def test_what_has_no_place_on_a_logarithmic_axis_is_not_drawn(make: Make):
    (line,) = drawn.lines(plots.curves(make(grid(BASE)), log="x")).values()
    assert list(line.x) == [1, 2, 3, 4]


@pytest.mark.parametrize("ends", [(0.9, 0.98), (0.95, 0.97), (0.975, 0.98), (0.6, 0.97)])
def test_frame_shows_every_end_and_spreads_them(ends: tuple[float, float]):
    frames = [pd.DataFrame({"y": [10, 100 * end], "high": [10, 100 * end]}) for end in ends]
    low, high = accuracy_range(frames)
    assert low < 100 * ends[0] < 100 * ends[1] < high <= 100
    assert 100 * (ends[1] - ends[0]) / (high - low) > 0.05
    assert high - low <= 60


def test_end_below_the_frame_is_said(tmp_path: Path):
    figure = plots.curves([one(tmp_path, BASE, [0.1, 0.97]), one(tmp_path, BASE.but(prune="std:3"), [0.1, 0.2])])
    assert "below the frame: std 3 σ ends at 20 %" in drawn.caption(figure)


def test_goal_is_a_dotted_line(make: Make):
    figure = plots.curves(make(grid(BASE, sync=["bsp", "asp"])), facet="sync", goal=0.93)
    assert [shape.y0 for shape in figure.layout.shapes] == [pytest.approx(93)] * 2
    assert "93 %" in drawn.texts(figure)


class Claimed:
    title = "ASP is first"


@pytest.mark.parametrize(("title", "words"), [
    ("Own words", "Own words"), (Claimed(), "ASP is first"),
    (None, "Test accuracy against time, by synchronization policy"),
])  # fmt: skip
def test_title_is_the_sentence_or_what_is_shown(make: Make, title: object, words: str):
    assert drawn.texts(plots.curves(make(grid(BASE, sync=["bsp", "asp"])), by="sync", title=title))[0] == words


def test_emulation_that_was_not_kept_is_marked_at_its_own_end(make: Make):
    results = make(grid(BASE, sync=["bsp"]), emulation_ok=False) + make(grid(BASE, sync=["asp"]))
    figure = plots.curves(results, by="sync")
    assert {"BSP*", "ASP"} <= {*drawn.texts(figure)}
    assert "* the machine was too slow" in drawn.caption(figure)
    facets = plots.curves(results, by="prune", facet="sync")
    assert [trace.xaxis for trace in facets.data if trace.mode == "text"] == ["x"]
    assert "dense" in drawn.texts(facets)


def test_notes_and_how_runs_were_chosen_are_in_the_caption(make: Make):
    from pslab.lab.records.tuning import best

    results = make(grid(BASE, learning_rate=[0.1, 0.2, 0.4], sync=["bsp", "asp"]))
    figure = plots.curves(best(results, goal=0.9), by="sync", notes=["dotted: by hand"])
    assert "each at its best learning rate" in drawn.caption(figure)
    assert drawn.caption(figure).endswith("dotted: by hand")
