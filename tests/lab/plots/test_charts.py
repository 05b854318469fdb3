"""Charts and tables: axes, windows, names and colours, and what they refuse. What they show stands in the gallery."""

from __future__ import annotations

import math
from functools import partial
from random import Random
from typing import Any

import drawn
import grids
import handmade
import pandas as pd
import pytest
from gallery import FEW, WAYS, gaps, made
from refusals import check_refused

from pslab.config.run import Run
from pslab.config.table import find
from pslab.lab import plots
from pslab.lab.plots.charts.curves import accuracy_range
from pslab.lab.plots.charts.tables import show, tabled
from pslab.lab.records import intervals
from pslab.lab.records.frames import where
from pslab.lab.records.summary import cell, summary
from pslab.lab.records.tuning import goal
from pslab.lab.runs.grid import grid

BASE = Run(pushes=8, engine="virtual", cluster="lab")
RULES: dict[str, Any] = {"prune": FEW}
BOTH: dict[str, Any] = {"sync": ["bsp", "asp"], **RULES}


def one(accuracy: Any, seconds: Any = None, run: Run = BASE, **facts: Any) -> Any:
    return handmade.curve(None, run, accuracy, seconds, **facts)


def words(text: str) -> str:
    return text.replace("\u00a0", " ").replace("\u202f", " ")


# -- curves, points and time lines -----------------------------------------------------------------


def test_names_have_the_colours_of_their_policies_unless_most_would_have_one():
    for asynchronous, kept in ((2, True), (4, False)):
        named = {f"rate {rate}": {"sync": "asp", "learning_rate": rate / 10} for rate in range(1, asynchronous + 1)}
        results = made(way={**named, "in rounds": {"sync": "bsp"}})
        colours = [line.line.color for line in drawn.lines(plots.curves(results, by="way", x="iteration")).values()]
        assert (colours.count(find("sync", "asp").colour) == asynchronous) is kept
        assert len({*colours}) == (2 if kept else asynchronous + 1)


def test_time_turns_logarithmic_where_one_curve_is_far_longer():
    for longest, kind in ((8.0, "linear"), (13.0, "log")):
        results = [one([0.1, 0.5, 0.9], [0, end / 2, end], BASE.but(sync=sync))
                   for sync, end in (("bsp", longest), ("ssp:3", 4.0), ("asp", 4.0))]  # fmt: skip
        assert plots.curves(results).layout.xaxis.type == kind
        assert plots.curves(results, log="").layout.xaxis.type == "linear"
        assert plots.curves(results, log="x").layout.xaxis.type == "log"


def test_the_axis_reaches_the_goal_and_a_caption_names_a_goal_outside_the_frame():
    results = made(sync=["bsp", "asp"])  # they end at 95 %
    reaching = plots.curves(results, goal=0.99)
    assert reaching.layout.yaxis.range[1] > 99 == reaching.layout.shapes[0].y0
    assert "the frame" not in drawn.caption(reaching)
    for aim, zoom, said in ((0.99, (80, 96), "above the frame: the goal, 99 %"), (0.5, None, "below the frame: ")):
        outside = plots.curves(results, goal=aim, zoom=zoom)
        assert said in drawn.caption(outside)
        assert not outside.layout.shapes


def test_an_iteration_is_explained_on_its_axis_if_the_panel_is_wide_enough():
    results = made(sync=["bsp", "ssp:3", "asp"])
    for width, title in (("page", "iteration (4 pushes, 256 samples)"), ("column", "iteration")):
        assert plots.curves(results, "iteration", facet="sync", width=width).layout.xaxis.title.text == title


def test_a_logarithmic_axis_begins_where_a_curve_enters_the_frame():
    early = one([0.1, 0.1, 0.1, 0.9, 0.95], [0, 0.01, 1, 4, 8])
    axis = plots.curves([early], zoom=(80, 100), log="x").layout.xaxis
    assert -0.1 < axis.range[0] < 0 < axis.range[1]  # a power of ten: the way up begins at 1 s
    assert plots.curves([early], zoom=(80, 100)).layout.xaxis.range[0] == 0
    assert plots.curves([early], zoom=False, log="x").layout.xaxis.range[0] < -2
    diverged = one([0.1, 0.2], [0.0, 0.1], BASE.but(seed=1), outcome="diverged")
    assert plots.curves([early, diverged], zoom=(80, 100), log="x").layout.xaxis.range[0] < -1  # its cross is shown


@pytest.mark.parametrize("ends", [(0.9, 0.98), (0.95, 0.97), (0.975, 0.98), (0.6, 0.97)])
def test_frame_shows_every_end_and_spreads_them(ends: tuple[float, float]):
    low, high = accuracy_range([pd.DataFrame({"y": [10, 100 * end], "high": [10, 100 * end]}) for end in ends])
    assert low < 100 * ends[0] < 100 * ends[1] < high <= 100
    assert 100 * (ends[1] - ends[0]) / (high - low) > 0.05
    assert high - low <= 60


def test_long_lines_are_told_apart_by_dash_or_have_markers():
    rules = ["static:10%", "static:1%", "static:0.1%", "std:1", "std:2", "std:3", "dynamic:5", "dgc:1%", "none"]
    for count in (1, 5, 9):
        frame = pd.DataFrame([(x, 1.0, rule) for rule in rules[:count] for x in range(200)],
                             columns=["x", "y", "prune"])  # fmt: skip
        figure = plots.points(frame, "x", "y", by="prune")
        assert drawn.alike(figure) == []
        assert {line.mode for line in drawn.lines(figure).values()} == {"lines" if count < 6 else "lines+markers"}


def test_two_names_of_one_legend_differ_though_no_panel_has_both():
    names = [f"rule {number}" for number in range(17)]
    frame = pd.DataFrame({"x": 1.0, "y": range(34), "rule": names * 2, "panel": ["one"] * 17 + ["two"] * 17})
    apart = frame[~(frame.rule + " " + frame.panel).isin(["rule 5 one", "rule 13 two"])]
    figure = plots.points(apart, "x", "y", by="rule", facet="panel", join=False)
    keys = {trace.name: (trace.marker.symbol, trace.marker.color) for trace in figure.data if trace.showlegend}
    assert len(keys) == len({*keys.values()}) == 17


def test_name_keeps_its_look_where_others_are_left_out():
    rules = {name: {"learning_rate": rate} for name, rate in (("slow", 0.1), ("usual", 0.2), ("fast", 0.4))}
    found = made(rule=rules, workers=[2, 4])
    frame = pd.DataFrame({"rule": pd.Categorical(["fast", "usual"], categories=[*rules]), "x": 1.0, "y": [1.0, 2.0]})
    every, few = (drawn.lines(plots.points(each, "workers", "seconds", by="rule"))["fast"].line
                  for each in (found, where(found, rule=["usual", "fast"])))  # fmt: skip
    facets = plots.curves(where(found, rule=["slow", "fast"]), by="rule", facet="rule", row="workers", behind="slow")
    assert few == every == drawn.lines(plots.points(frame, "x", "y", by="rule"))["fast"].line
    assert drawn.lines(facets)["fast"].line.color == every.color
    assert "grey: slow" in drawn.caption(facets)
    banded = plots.curves(found, by="rule", facet="rule", row="workers", behind="slow", banded=found)
    assert drawn.caption(banded).endswith("grey: slow"), "a band has no name"


def test_a_share_is_drawn_in_percent_and_its_axis_says_so_whoever_named_it():
    frame = pd.DataFrame({"x": [1, 2], "accuracy": [0.5, 0.6], "rule": "fast"})
    for title in ("final accuracy", "final accuracy (%)"):
        assert plots.points(frame, "x", {"accuracy": title}).layout.yaxis.title.text == "final accuracy (%)"
    texts = " ".join(str(each.text) for each in plots.time_budget(gaps().result[0]).layout.annotations)
    assert "transferring 0\u00a0%, waiting 25\u00a0%, other 75\u00a0%" in texts


def test_one_instant_alone_gets_the_usual_length():
    result = handmade.bsp()
    low, high = intervals.window([result])
    assert list(plots.timeline(result, begin_s=2.0).layout.xaxis.range) == [2.0, 2.0 + high - low]
    assert plots.timeline(result, end_s=10.6).layout.xaxis.range[1] == 10.6
    assert list(plots.timeline(result).layout.xaxis.range) == [low, high]


# -- tables ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("row", "full", "brief"), [
    ({"seeds": 1, "seconds": 2.5}, "2.50 s", "2.50 s"),
    ({"seeds": 3, "seconds": 2.0, "seconds_low": 1.5, "seconds_high": 150.2}, "2.00 s (1.50 to 150.20)", "2 s"),
    ({"seeds": 3, "accuracy": 0.9712, "accuracy_low": 0.97, "accuracy_high": 0.98},
     "97.12 % (97.00 to 98.00)", "97.12 %"),
    ({"seeds": 3, "bytes_to_goal": 1.5e6, "bytes_to_goal_low": 1.2e6, "bytes_to_goal_high": math.nan, "reached": 2},
     "1.5 MB (1.2 to never)", "1.5 MB (2 of 3)"),
    ({"seeds": 3, "bytes_to_goal": 1.5e6, "bytes_to_goal_low": 900, "bytes_to_goal_high": 2e6, "reached": 3},
     "1.5 MB (900 B to 2.0 MB)", "1.5 MB"),
    ({"seeds": 3, "pushes_to_goal": math.nan, "reached": 1}, "reached by 1 of 3 seeds", "reached by 1 of 3"),
    ({"seeds": 3, "pushes_to_goal": math.nan, "reached": 0}, "not reached", "not reached"),
    ({"seeds": 1, "waiting": math.nan}, "–", "–"), ({"seeds": 1, "waiting": 0.256}, "25.6 %", "25.6 %"),
    ({"seeds": 1, "ratio": 12345.6}, "12 346", "12 346"),
])  # fmt: skip
def test_cell_has_unit_and_range(row: dict, full: str, brief: str):
    column = [*row][1]
    assert words(cell(row, column)) == full
    assert words(cell(row, column, brief=True)) == brief


def test_results_and_tables_become_rows_in_the_grids_order_reduced_over_seeds_and_nothing_else():
    table = tabled(made(prune=["static:1%", "none"], sync=["bsp", "asp"], seed=[0, 1]), "prune", ["sync"],
                   ["seconds_to_goal"], 0.85)  # fmt: skip
    assert (table.names, table.levels("prune")) == (["prune"], ["static:1%", "none"])
    assert [words(text) for text in table.heads("sync")] == ["BSP", "ASP"]
    assert [(row["seconds_to_goal"], row["seeds"]) for row in table.where(sync="asp").rows] == [(2, 2), (3, 2)]
    assert "median and range of 2 seeds" in " ".join(table.caption)
    sizes = pd.DataFrame({"sync": ["bsp", "asp"], "bytes_to_goal": [2.1e9, 340e6]})
    rows = tabled(sizes, "sync", [], ["bytes_to_goal"], None).rows
    assert [words(cell(row, "bytes_to_goal")) for row in rows] == ["2.1 GB", "0.34 GB"], "of one unit"
    frame = pd.DataFrame({"n": [1, 1, 1, 2], "seed": [0, 1, 2, 0], "t": [1.0, 5.0, 3.0, 4.0]})
    first, second = tabled(frame, (), ["n"], ["t"], None).rows
    assert (first["t"], first["t_low"], first["t_high"], first["seeds"]) == (3, 1, 5, 3)
    assert (second["t"], second["seeds"]) == (4, 1)


def test_show_names_rows_and_columns_and_says_what_must_not_be_hidden():
    found = made(prune=["none", "static:1%", "std:3"], seed=[0, 1])
    styler = show(summary(found, by="prune", goal=0.85, measures=["seconds_to_goal", "accuracy"]))
    shown = styler.data
    assert [words(text) for text in shown.index] == ["dense", "static 1 %", "std 3 σ"]
    assert shown.index.name == "pruning rule"
    assert [words(text) for text in shown.columns] == ["time to 85 %", "final test accuracy"]
    assert [words(text) for text in shown.iloc[:, 0]] == ["3 s", "2 s", "not reached"]
    assert (styler.caption, "static" in styler.to_html()) == ("median and range of 2 seeds", True)
    facts = {"emulation_ok": lambda run: run.sync == "asp", "rewinds": lambda run: [{}] * (run.sync == "bsp")}
    ended = handmade.finished(grid(BASE, sync=["bsp", "asp"]), WAYS["none"], **facts)
    shown = show(summary(ended, by=["sync", "prune"], measures=["seconds"])).data
    assert (*shown["machine fast enough"], *shown["recovered"]) == ("no", "yes", "1", "0")
    assert shown.index.names == ["synchronization policy", "pruning rule"]


# -- refusals --------------------------------------------------------------------------------------

METRICS = {"metric": ["accuracy", "loss"]}
NO_RESULT = r"must be a Result, but 1 of 1 rows have none: sweep\(runs\)"
SAME = pd.DataFrame({"n": [1, 1], "seconds": [1.0, 5.0]})


def test_what_cannot_be_drawn_is_refused():
    check_refused((field, lambda chart=chart, axes=axes, more=more: chart(made(**axes), **more), problem)
                  for field, chart, axes, more, problem in (
        ("x", plots.curves, RULES, {"x": "second"}, "did you mean 'seconds'"),
        ("y", plots.curves, RULES, {"y": "acuracy"}, "did you mean 'accuracy'"),
        ("column", plots.curves, RULES, {"by": "prun"}, "did you mean 'prune'"),
        ("x", plots.curves, BOTH, {"facet": "sync", "row": "prune", "x": ["iteration", "seconds"]}, "no direction for"),
        *(("by", chart, RULES, {"by": "sync"}, "differ in prune") for chart in (
            plots.curves, plots.time_budget, plots.timeline, plots.server_states)),
        *(("metric", chart, METRICS, {}, "cannot be compared") for chart in (plots.curves, summary, goal)),
        ("column", plots.time_budget, RULES, {"across": "prun"}, "did you mean 'prune'"),
        ("measure", plots.bars, RULES, {"y": ["waitings"], "by": "prune"}, "did you mean 'waiting'"),
        ("column", plots.bars, {"rate": ["constant", "dynsgd"], "sync": ["bsp", "asp"]}, {"y": ["rate"]}, "in grid"),
        ("goal", plots.curves, RULES, {"goal": 85}, "85 % is 0.85"),
        ("engine", plots.curves, {"engine": ["timing"], "sync": ["bsp", "asp"]}, {}, "use plots.time_budget"),
        *(("width", chart, RULES, {"width": width}, r"must be 'page' \(7.16 in\) or 'column' \(3.5 in\)")
          for chart, width in ((plots.curves, "half"), (plots.time_budget, 3.5))),
        ("by", plots.points, BOTH, {"x": "sync", "y": "seconds", "by": []}, "differ in prune"),
        ("to", plots.dots, RULES, {"y": "seconds", "by": "prune", "to": "nome"}, "did you mean 'none'")))  # fmt: skip
    idle = grids.finished(grid(Run(pushes=8, workers=2)), Random(0), ["at once"])
    check_refused([
        *(("results", partial(chart, given), problem)
          for chart in (plots.curves, plots.timeline, plots.time_budget, plots.server_states)
          for given, problem in (([], "no run to draw"), (Run(), NO_RESULT), ([Run()], NO_RESULT))),
        ("results", partial(plots.time_budget, idle), "there is no time to show"),
        ("table", partial(plots.why, SAME), "'DataFrame': must be .*answer of advise"),
        ("chart", partial(plots.where, SAME), "'DataFrame': must be .*as advise_map"),
        ("column", partial(plots.points, SAME, "second", "seconds", by=[]), "did you mean 'seconds'"),
        ("by", partial(plots.points, SAME, "n", "seconds", by=[]), "several rows have n=1: add a column"),
        ("by", partial(tabled, SAME, (), ["n"], ["seconds"], None), "several rows have n=1: add a"),
    ])  # fmt: skip
