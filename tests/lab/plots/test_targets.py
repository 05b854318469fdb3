"""Time to a target says what the records say: first evaluations, nothing interpolated, nobody left out."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from evaluated import Make, maker, study

from pslab.config.run import Run
from pslab.lab.plots import targets


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return maker(tmp_path)


def three(make: Make) -> list:
    """Three seeds of one run; one reaches 90 % at once, one at the end, one never."""
    ways = [[0.1, 0.9, 0.95], [0.1, 0.5, 0.92], [0.1, 0.5, 0.6]]
    return [make(Run(pushes=4, seed=seed), way) for seed, way in enumerate(ways)]


def test_it_is_the_first_evaluation_there(make: Make):
    table = targets.targets(study(make), 0.9)
    rows = table[["seconds", "pushes", "iterations", "bytes"]].to_dict("index")
    assert rows["dense"] == {"seconds": 3.0, "pushes": 6, "iterations": 1.5, "bytes": 90}
    assert rows["static 1\u00a0%"] == {"seconds": 2.0, "pushes": 4, "iterations": 1.0, "bytes": 60}
    assert rows["single machine"]["seconds"] == 1.0
    assert np.isnan(rows["single machine"]["bytes"])  # it has no network
    assert table.reached.tolist() == [1, 1, 1]
    assert table.attrs["accuracy"] == 0.9


def test_nothing_is_interpolated(make: Make):
    result = make(Run(pushes=8), [0.0, 0.8, 1.0])  # 90 % lies between 1 s and 2 s
    assert targets.first(result, 0.9)["seconds"] == 2.0
    assert targets.first(result, 0.8)["seconds"] == 1.0
    assert math.isnan(targets.first(make(Run(pushes=8, seed=1), [0.0, 0.8]), 0.81)["pushes"])


def test_over_seeds_who_never_got_there_counts_as_last(make: Make):
    row = targets.targets(three(make), 0.9).iloc[0]
    assert (row.seconds, row.seconds_low, row.reached, row.seeds) == (2.0, 1.0, 2, 3)
    assert np.isnan(row.seconds_high)
    assert (row.final_accuracy, row.final_accuracy_low, row.final_accuracy_high) == (0.92, 0.6, 0.95)
    assert np.isnan(targets.targets(three(make), 0.93).iloc[0].seconds)  # one of three: the median never got there
    half = targets.targets(three(make)[:2], 0.93).iloc[0]
    assert (half.reached, half.seeds) == (1, 2)
    assert np.isnan(half.seconds)


def test_waiting_is_the_workers_mean_share(make: Make):
    table = targets.targets(study(make), 0.9)
    assert table.waiting["dense"] == pytest.approx(0.25)  # one second of four
    assert np.isnan(table.waiting["single machine"])  # it waits for nobody


def test_one_row_for_each_run_is_tidy_data(make: Make):
    rows = targets.arrivals(three(make), 0.9)
    assert rows.seed.tolist() == [0, 1, 2]
    assert rows.seconds.tolist()[:2] == [1.0, 2.0]
    assert np.isnan(rows.seconds[2])
    assert rows.final_accuracy.tolist() == [0.95, 0.92, 0.6]


def test_the_target_is_what_half_of_the_curves_reach(make: Make):
    ends = {0.1: 0.991, 0.2: 0.951, 0.3: 0.7}
    results = [make(Run(pushes=4, learning_rate=rate), [0.1, end]) for rate, end in ends.items()]
    assert targets.chosen(results) == 0.95
    assert targets.targets(results).attrs["accuracy"] == 0.95
    assert targets.round_below([]) == 0.3


def test_the_readable_table_has_units_ranges_and_what_was_not_reached(make: Make):
    table = targets.readable(targets.targets(study(make, seeds=[0, 1]), 0.945))
    assert table.columns.name == "until 94.5 %"
    assert table.loc["dense"].tolist() == ["4.0 s (4.0 s to 4.0 s)", "8 (8 to 8)", "120 B (120 B to 120 B)",
                                           "95.00 % (95.00 % to 95.00 %)", "25 %"]  # fmt: skip
    assert table.loc["static 1\u00a0%"].tolist() == ["not reached (0 of 2 seeds)", "–", "–",
                                                     "94.00 % (94.00 % to 94.00 %)", "25 %"]  # fmt: skip
    assert table.loc["single machine", ["bytes", "waiting"]].tolist() == ["–", "–"]


def test_a_seed_that_never_arrives_is_said(make: Make):
    runs = three(make)
    assert targets.readable(targets.targets(runs, 0.9)).iloc[0, 0] == "2.0 s (1.0 s to never)"
    assert targets.readable(targets.targets(runs, 0.93)).iloc[0, 0] == "not reached (1 of 3 seeds)"
    assert targets.readable(targets.targets(runs[2:], 0.93)).iloc[0, 0] == "not reached"


def test_findings_say_what_the_table_says(make: Make):
    text = targets.findings(study(make), 0.9).replace("\u00a0", " ")
    assert "static 1 % is the first to 90 % test accuracy, after 2.0 s and 60 B" in text
    assert "1.5 times sooner than dense (3.0 s), with 1.5 times fewer bytes" in text
    assert "the highest is dense at 95.00 %, the lowest static 1 % at 94.00 %" in text
    assert "static 1 % did not get there" in targets.findings(study(make), 0.945).replace("\u00a0", " ")
    assert targets.findings(study(make), 0.99) == "No curve reaches 99 % test accuracy."


# -- the picture -----------------------------------------------------------------------------------


def texts(figure) -> list[str]:
    return [a.text.replace("\u00a0", " ") for a in figure.layout.annotations]


def test_the_picture_shows_every_seed_the_range_the_median_and_its_number(make: Make):
    figure = targets.picture(three(make), 0.9)
    seconds = [t for t in figure.data if t.xaxis == "x"]
    span, dots, median = seconds
    assert list(span.x) == [1.0, 2.0]
    assert sorted(dots.x) == [1.0, 2.0]
    assert list(median.x) == [2.0]
    assert "2.0 s (2 of 3)" in texts(figure)
    assert [t for t in texts(figure) if t.startswith("<b>")] == [
        "<b>seconds to 90 %</b>", "<b>pushes to 90 %</b>", "<b>bytes to 90 %</b>", "<b>final accuracy</b>",
        "<b>time waiting</b>"]  # fmt: skip


def test_the_picture_says_what_was_not_reached(make: Make):
    figure = targets.picture(three(make), 0.93)
    assert "not reached (1 of 3 seeds)" in texts(figure)
    medians = [t for t in figure.data if t.xaxis == "x" and t.marker.size == 11]
    assert [list(t.x) for t in medians] == [[None]]


def test_the_pictures_caption_says_seeds_cluster_weight_and_stop_rule(make: Make):
    figure = targets.picture(study(make, sync="asp", seeds=[0, 1]), 0.9)
    said = figure.layout.title.subtitle.text.replace("\u00a0", " ").replace("<br>", " ")
    for words in ("2 seeds", "1 Gbit/s per worker", "push weight 1/W", "stops at 8 pushes",
                  "first evaluation at or above"):  # fmt: skip
        assert words in said
    assert figure.layout.height > 3 * targets.ROW


def test_dots_lie_left_of_the_numbers(make: Make):
    figure = targets.picture(three(make), 0.9)
    for trace in figure.data:
        low, high = figure.layout["xaxis" + trace.xaxis[1:]].range
        assert all(low < x <= low + targets.DOTS * (high - low) for x in trace.x)


def test_bytes_that_differ_much_are_drawn_by_powers_of_ten(make: Make):
    few, many = make(Run(pushes=4), [0.1, 0.95]), make(Run(pushes=4, prune="std:1"), [0.1, 0.95])
    assert targets.picture([few, many], 0.9).layout.xaxis3.type is None
    many.pushes.loc[:, "bytes_up"] = 10_000
    assert targets.picture([few, many], 0.9).layout.xaxis3.type == "log"
