"""Figures and tables say what the records say, and leave nothing unsaid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from evaluated import Make, maker, study

from pslab.config.run import Run
from pslab.lab.plots import accuracy as plots
from pslab.lab.studies.studies import LAB, caption, curves, describe_cluster, labels, sync_runs


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes records without a run; see `maker`."""
    return maker(tmp_path)


def lines(figure: Any) -> dict[str, Any]:
    """The drawn lines by their names."""
    return {t.name: t for t in figure.data if t.mode == "lines+markers" and t.x[0] is not None}


# -- curves ----------------------------------------------------------------------------------------


def test_runs_that_differ_in_the_seed_are_one_curve(make: Make):
    found = curves(study(make, seeds=[3, 1, 2]))
    assert [c.label for c in found] == ["dense", "static 1\u00a0%", "single machine"]
    assert [[r.run.seed for r in c.results] for c in found] == [[1, 2, 3]] * 3
    assert [c.single for c in found] == [False, False, True]


def test_labels_say_what_differs_and_nothing_else():
    assert labels([Run(sync="ssp:3"), Run(sync="ssp:5")]) == ["SSP, s\u00a0=\u00a03", "SSP, s\u00a0=\u00a05"]
    assert labels([Run(batch_size=32), Run(learning_rate=0.5)]) == [
        "batch 32 each, η\u00a0=\u00a00.1", "batch 64 each, η\u00a0=\u00a00.5"]  # fmt: skip
    assert labels([Run(sync="asp", prune="std:2")]) == ["ASP, std 2\u00a0σ"]
    assert labels([Run(cluster="free"), Run(cluster={"bandwidth_bit_s": 1e8})]) == [
        "none emulated", "100\u00a0Mbit/s per worker, full duplex"]  # fmt: skip


def test_two_spellings_of_one_rule_get_two_labels():
    assert len(set(labels([Run(prune="static:1%"), Run(prune="static:0.01")]))) == 2


@pytest.mark.parametrize("field", ["optimizer", "schedule", "pull", "codec", "dtype", "lease_s", "eval_every", "model"])
def test_every_field_that_differs_is_in_the_label(field: str):
    other = {"optimizer": "adam", "schedule": "linear", "pull": "changed", "codec": "bitmap", "dtype": "float64",
             "lease_s": 5.0, "eval_every": 7, "model": "cnn"}[field]  # fmt: skip
    one, two = labels([Run(prune="std:1"), Run(prune="std:1", **{field: other})])
    assert one != two


def test_every_field_of_run_has_words():
    from pslab.config.run import FIELDS
    from pslab.lab.studies.studies import WORDS

    assert set(WORDS) == set(FIELDS) - {"seed"}


def test_caption_says_seeds_cluster_weight_and_stop_rule(make: Make):
    text = " ".join(caption(curves(study(make, sync="asp", cluster=LAB)))).replace("\u00a0", " ")
    for words in ("one seed", "4 workers", "push weight 1/W", "stops at 8 pushes", "batch 64 each", "learning rate 0.5",
                  "1 Gbit/s per worker, full duplex", "0.5 ms latency", "10 Gbit/s at the server", "computation 20 ms",
                  "stalls ×5 in 5 % of iterations", "single machine: the same computation, no network"):  # fmt: skip
        assert words in text
    assert "median and range of 2 seeds" in " ".join(caption(curves(study(make, seeds=[0, 1]))))


def test_caption_leaves_to_the_labels_what_differs(make: Make):
    results = [make(run, [0.1, 0.9]) for run in sync_runs(push_weights=[None, 1.0], pushes=4)]
    found = curves(results)
    assert [c.label.replace("\u00a0", " ") for c in found] == [
        "BSP", "SSP, s = 3, push weight 1/W", "SSP, s = 3, push weight 1", "ASP, push weight 1/W", "ASP, push weight 1",
        "single machine"]  # fmt: skip
    assert "push weight" not in " ".join(caption(found))


def test_a_slow_worker_and_a_preset_are_described():
    told = describe_cluster({"preset": "lab", "slow": {2: 3.0}}).replace("\u00a0", " ")
    assert told.startswith("1 Gbit/s per worker, full duplex, 0.5 ms latency")
    assert told.endswith("stalls ×5 in 5 % of iterations, worker 2 ×3 slower")
    assert "100 Mbit/s per worker" in describe_cluster("lab-slow-net").replace("\u00a0", " ")
    assert describe_cluster("free") == "none emulated"


@pytest.mark.parametrize(("facts", "mark", "words"), [
    ({"honest": False}, "*", "too slow to emulate"), ({"disturbed": True}, "†", "disturbs"),
    ({"verdict": "invalid"}, "‡", "judged invalid"),
])  # fmt: skip
def test_what_is_wrong_with_a_run_is_marked_and_explained(make: Make, facts: dict, mark: str, words: str):
    results = [make(Run(pushes=4), [0.1, 0.9], **facts), make(Run(pushes=4, prune="std:1"), [0.1, 0.9])]
    figure = plots.accuracy_pair(results)
    assert {"dense" + mark, "std 1\u00a0σ"} == set(lines(figure))
    assert words in figure.layout.title.subtitle.text
    assert words not in plots.accuracy_pair(results[1:]).layout.title.subtitle.text


# -- accuracy --------------------------------------------------------------------------------------


def test_iterations_count_everybodys_pushes(make: Make):
    figure = plots.accuracy_by_iteration(study(make))
    assert list(lines(figure)["dense"].x) == [0, 0.5, 1, 1.5, 2]
    assert list(lines(figure)["single machine"].x) == [0, 0.5, 1, 1.5, 2]  # not 8 iterations of its own
    assert list(lines(figure)["dense"].y) == pytest.approx([10, 50, 80, 90, 95])
    assert "4 pushes, 256 samples" in figure.layout.xaxis.title.text


def test_workers_that_differ_are_compared_by_pushes(make: Make):
    figure = plots.accuracy_by_iteration([make(Run(pushes=8, workers=w), [0.1, 0.9]) for w in (2, 4)])
    assert figure.layout.xaxis.title.text == "pushes"
    assert [t.x[-1] for t in lines(figure).values()] == [8, 8]


def test_seconds_are_the_records(make: Make):
    result = make(Run(pushes=4), [0.1, 0.8, 0.9], seconds=[0.0, 1.25, 7.5])
    assert list(lines(plots.accuracy_by_seconds([result]))["BSP, dense"].x) == [0.0, 1.25, 7.5]


@pytest.mark.parametrize(("direction", "per_push"), [("both", 15), ("up", 10), ("down", 5)])
def test_bytes_are_summed_up_to_each_evaluation(make: Make, direction: str, per_push: int):
    figure = plots.accuracy_by_bytes(study(make), direction)
    assert list(lines(figure)["dense"].x) == [2 * per_push, 4 * per_push, 6 * per_push, 8 * per_push]
    assert "single machine" not in lines(figure)  # it sends nothing: a level tells where it ends
    assert figure.layout.shapes[0].y0 == pytest.approx(97)


def test_bytes_of_several_ranges_belong_to_their_push(make: Make):
    result = make(Run(pushes=4), [0.1, 0.8, 0.9])
    halves = pd.concat([result.pushes, result.pushes.assign(range=1)], ignore_index=True)
    object.__setattr__(result, "__dict__", {**result.__dict__, "pushes": halves})
    assert list(plots.series(result, "bytes").x) == [0, 60, 120]


def test_a_band_is_median_and_range_over_seeds(make: Make):
    ways = {0: [0.1, 0.5, 0.9], 1: [0.1, 0.7, 0.8], 2: [0.1, 0.6, 0.95]}
    results = [make(Run(pushes=4, seed=seed), way) for seed, way in ways.items()]
    middle = plots.band([plots.series(r, "iteration") for r in results], "iteration")
    assert list(middle.x) == [0, 2, 4]
    assert list(middle.y) == pytest.approx([10, 60, 90])
    assert list(middle.low) == pytest.approx([10, 50, 80])
    assert list(middle.high) == pytest.approx([10, 70, 95])
    filled = [t for t in plots.accuracy_by_iteration(results).data if t.fill == "toself"]
    assert len(filled) == 1
    assert max(filled[0].y) == pytest.approx(95)


def test_a_band_in_time_goes_as_far_as_every_seed(make: Make):
    slow = make(Run(pushes=4, seed=1), [0.0, 0.4, 0.8], seconds=[0.0, 2.0, 4.0])
    fast = make(Run(pushes=4, seed=2), [0.0, 0.4, 0.8], seconds=[0.0, 1.0, 2.0])
    middle = plots.band([plots.series(r, "seconds") for r in (slow, fast)], "seconds")
    assert list(middle.x) == [0, 1, 2]
    assert list(middle.y) == pytest.approx([0, 30, 60])


def test_one_seed_has_no_band_and_says_so(make: Make):
    figure = plots.accuracy_pair(study(make))
    assert not [t for t in figure.data if t.fill]
    assert "one seed" in figure.layout.title.subtitle.text


def test_the_pair_shares_an_axis_and_one_legend(make: Make):
    figure = plots.accuracy_pair(study(make))
    assert figure.layout.yaxis2.matches == "y"
    shown = [t.name for t in figure.data if t.showlegend is not False]
    assert shown == ["dense", "static 1\u00a0%", "single machine"]
    assert {t.xaxis for t in figure.data if t.x[0] is not None} == {"x", "x2"}


def test_a_diverged_run_ends_in_a_cross(make: Make):
    good, bad = Run(pushes=8), Run(pushes=8, prune="std:1")
    figure = plots.accuracy_pair([make(good, [0.1, 0.9, 0.95]),
                                  make(bad, [0.1, 0.5, 0.1], seconds=[0.0, 1.0, 1.5], outcome="diverged")])  # fmt: skip
    crosses = [t for t in figure.data if t.marker.symbol == "x"]
    assert [(t.x[0], t.xaxis) for t in crosses] == [(2.0, "x"), (1.5, "x2")]
    assert all(t.y[0] >= figure.layout.yaxis.range[0] for t in crosses)  # at the edge, not outside
    assert crosses[0].name == "std 1\u00a0σ, diverged"
    assert figure.layout.yaxis.range[0] > 80  # and does not spoil the frame


def test_a_seed_that_diverged_is_not_in_the_band(make: Make):
    results = [make(Run(pushes=4, seed=seed), [0.1, 0.9, 0.95]) for seed in (0, 1)]
    results.append(make(Run(pushes=4, seed=2), [0.1, 0.2], outcome="diverged"))
    figure = plots.accuracy_by_iteration(results)
    (filled,) = [t for t in figure.data if t.fill]
    assert list(filled.y) == pytest.approx([10, 90, 95, 95, 90, 10])
    assert list(lines(figure)) == ["BSP, dense, diverged (1 of 3 seeds)"]


@pytest.mark.parametrize("ends", [(0.9, 0.98), (0.95, 0.97), (0.975, 0.98), (0.6, 0.97)])
def test_the_frame_shows_every_end_and_spreads_them(make: Make, ends: tuple[float, float]):
    results = [make(Run(pushes=4, learning_rate=rate), [0.1, end]) for rate, end in zip((0.1, 0.2), ends, strict=True)]
    low, high = plots.accuracy_range(curves(results))
    assert low < 100 * ends[0]
    assert 100 * ends[1] < high <= 100
    assert 100 * (ends[1] - ends[0]) / (high - low) > 0.05
    assert high - low <= 60


def test_an_end_below_the_frame_is_said(make: Make):
    figure = plots.accuracy_pair([make(Run(pushes=4), [0.1, 0.97]), make(Run(pushes=4, prune="std:3"), [0.1, 0.2])])
    assert "std 3\u00a0σ (ends at 20\u00a0%, below)" in lines(figure)


def test_an_evaluation_that_is_there_twice_counts_once(make: Make):
    result = make(Run(pushes=4), [0.1, 0.8, 0.8])
    result.accuracy.loc[2, "pushes"] = 2
    assert list(plots.series(result, "seconds").x) == [0.0, 1.0]


# -- time ------------------------------------------------------------------------------------------


def test_the_parts_of_a_budget_and_the_gap_are_a_workers_time(make: Make):
    table = plots.budget(make(Run(pushes=4), [0.1, 0.9]))
    assert table.groupby("worker").seconds.sum().tolist() == pytest.approx([4.0] * 4)
    assert table.groupby("worker").share.sum().tolist() == pytest.approx([1.0] * 4)
    one = table[table.worker == 1].set_index(["phase", "waits_for"]).seconds.to_dict()
    assert one == pytest.approx({("compute", -1): 2.0, ("wait", 0): 0.5, ("wait", -1): 0.5, ("gap", -1): 1.0})


def test_where_phases_overlap_every_instant_counts_once(make: Make):
    """Computing comes first: a transfer beside it costs what it takes beyond it."""
    result = make(Run(pushes=4, workers=1), [0.1, 0.9])
    result.phases["phase"] = ["pull", "compute", "push"]
    result.phases["waits_for"] = -1
    result.phases.loc[:, ["begin_s", "end_s"]] = [[0.0, 3.0], [1.0, 2.5], [2.0, 4.0]]
    seconds = plots.budget(result).set_index("phase").seconds.to_dict()
    assert seconds == pytest.approx({"compute": 1.5, "pull": 1.5, "push": 1.0, "gap": 0.0})


def test_the_time_budget_stacks_what_the_records_hold(make: Make):
    figure = plots.time_budget(study(make, seeds=[0, 1]))
    names = [t.name for t in figure.data]
    assert names == ["compute", "wait (for worker)", "wait (for worker)", "not measured"]
    assert [t.showlegend for t in figure.data] == [True, True, False, True]
    assert list(figure.data[0].x[1]) == ["0", "1", "2", "3"] * 2 + ["0"]
    assert sum(sum(t.y) for t in figure.data) == pytest.approx(9 * 4.0)  # the mean over seeds, not their sum
    assert set(figure.data[2].text) == {"0"}  # waits for worker 0


def test_a_phase_without_a_colour_is_drawn_all_the_same(make: Make):
    result = make(Run(pushes=4), [0.1, 0.9])
    result.phases.loc[result.phases.phase == "compute", "phase"] = "search"
    assert "search" in [t.name for t in plots.time_budget([result]).data]


def test_waiting_share_shows_the_mean_and_every_worker(make: Make):
    results = [make(run, [0.1, 0.9]) for run in sync_runs(pushes=4)]
    bars = [t for t in plots.waiting_share(results).data if t.type == "bar"]
    dots = [t for t in plots.waiting_share(results).data if t.type == "scatter"]
    assert [list(t.y) for t in bars] == [[25.0]] * 3  # one second of four; no bar for the single machine
    assert [list(t.y) for t in dots] == [[25.0] * 4] * 3


def test_staleness_is_shares_of_pushes(make: Make):
    results = [make(run, [0.1, 0.9]) for run in sync_runs(pushes=8)]
    bars = plots.staleness_distribution(results).data
    assert [list(t.x) for t in bars] == [[0, 1, 2, 3]] * 3
    assert all(sum(t.y) == pytest.approx(100) for t in bars)
    assert bars[0].name == "BSP (mean 1.5, largest 3)"


# -- words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "words"), [(999, "999 B"), (1500, "1.5 kB"), (2.5e6, "2.5 MB"), (7.25e9, "7.2 GB")])
def test_sizes(count: float, words: str):
    assert plots.size(count) == words
