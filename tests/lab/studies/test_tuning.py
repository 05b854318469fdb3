"""The best of a grid, for each curve by itself; and what it costs to keep a setting."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from evaluated import Make, maker

from pslab.config.run import Run
from pslab.config.spec import build
from pslab.config.table import ROWS
from pslab.errors import ConfigError
from pslab.lab.studies import tuning, tuning_plots
from pslab.lab.studies.studies import (
    agreement_runs,
    averages,
    every_policy,
    pruning_runs,
    ssp_runs,
    sync_runs,
    tour_runs,
)
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.bsp import BSP

#: Evaluations a second apart, by learning rate: too small, right, better in the end but later, diverging.
WAYS = {0.1: [0.1, 0.5, 0.6, 0.7], 0.2: [0.1, 0.92, 0.92, 0.92], 0.4: [0.1, 0.3, 0.91, 0.96], 0.8: [0.1, 0.1, 0.1, 0.1]}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return maker(tmp_path)


def tuned(make: Make, policies: tuple[str, ...] = ("bsp", "asp"), **parameters) -> list:
    runs = sync_runs(policies=policies, push_weights=[None, 1.0], learning_rate=list(WAYS), pushes=8, **parameters)
    return [make(run, WAYS[run.learning_rate], outcome="diverged" if run.learning_rate == 0.8 else "budget")
            for run in runs]  # fmt: skip


# -- studies ---------------------------------------------------------------------------------------


def test_every_policy_runs_with_every_weight_and_rate():
    runs = sync_runs(policies=["bsp", "asp"], push_weights=[None, 1.0], learning_rate=[0.2, 0.4], seeds=[0, 1])
    crowd = [(r.sync, r.push_weight, r.learning_rate) for r in runs if r.workers > 1 and r.seed == 0]
    assert crowd == [("bsp", None, 0.2), ("bsp", None, 0.4), ("asp", None, 0.2), ("asp", 1.0, 0.2), ("asp", None, 0.4),
                     ("asp", 1.0, 0.4)]  # fmt: skip
    assert [r.learning_rate for r in runs if r.workers == 1 and r.seed == 0] == [0.2, 0.4]  # it is tuned, too
    assert len(runs) == 2 * 8
    with pytest.raises(ConfigError, match="must be a list"):
        sync_runs(learning_rate=[])


def test_every_policy_of_the_table_is_there_and_can_be_built():
    assert len(every_policy()) == len(ROWS["sync"])
    assert [type(build("sync", spec)) for spec in every_policy()] == [row.load() for row in ROWS["sync"].values()]


def test_a_policy_itself_says_whether_its_step_is_a_mean():
    assert [averages(policy) for policy in ("bsp", "ssp:3", "asp", BSP(), ASP())] == [True, False, False, True, False]
    assert not averages("class Mine: ...")  # the source text of a record
    assert not averages("bps")


def test_ssps_study_is_every_bound_with_every_rate_on_every_cluster():
    clusters = {"a": "lab", "b": "straggler"}
    runs = ssp_runs(stalenesses=[0, 2], learning_rates=[0.1, 0.2, 0.3], clusters=clusters, seeds=[5])
    assert len(runs) == 2 * 3 * 2
    assert {(r.sync, r.learning_rate, r.cluster) for r in runs} == {
        (f"ssp:{s}", rate, cluster)
        for s in (0, 2) for rate in (0.1, 0.2, 0.3) for cluster in ("lab", "straggler")}  # fmt: skip
    assert {(r.target_accuracy, r.engine, r.seed) for r in runs} == {(0.8, "virtual", 5)}


@pytest.mark.parametrize(("wrong", "words"), [
    ({"stalenesses": 3}, "must be a list"), ({"learning_rates": []}, "must be a list"),
    ({"clusters": ["lab"]}, "must map names"), ({"clusters": {}}, "must map names"),
    ({"target_accuracy": 85}, "a share, not per cent"),
])  # fmt: skip
def test_ssps_study_refuses(wrong: dict, words: str):
    with pytest.raises(ConfigError, match=words):
        ssp_runs(**wrong)


def test_real_runs_have_fewer_evaluations_than_virtual_ones():
    for runs in (pruning_runs, sync_runs, tour_runs):
        real, virtual = runs(pushes=300)[0], runs(pushes=300, engine="virtual", cluster="lab")[0]
        assert (real.evaluation_period, virtual.evaluation_period) == (20, 15)
    assert pruning_runs(pushes=7)[0].evaluation_period == 1
    assert agreement_runs()[0].digest == tour_runs()[0].digest  # so that the notebooks share their runs


# -- the best rate ---------------------------------------------------------------------------------


def test_the_best_rate_is_the_soonest_there_not_the_highest_in_the_end(make: Make):
    (curve, *_) = tuning.by_curve(tuned(make))
    assert tuning.best_rate(curve, 0.9) == 0.2
    assert tuning.best_rate(curve, 0.95) == 0.4


def test_where_none_gets_there_the_best_is_the_highest_in_the_end(make: Make):
    (curve, *_) = tuning.by_curve(tuned(make))
    assert tuning.best_rate(curve, 0.99) == 0.4


def test_the_median_over_seeds_decides(make: Make):
    """Rate 0.4 is once much sooner, but twice too late."""
    ways = {(0.2, s): [0.1, 0.5, 0.9, 0.9] for s in range(3)} | {
        (0.4, 0): [0.1, 0.9, 0.9, 0.9], (0.4, 1): [0.1, 0.5, 0.5, 0.9], (0.4, 2): [0.1, 0.5, 0.5, 0.5]}  # fmt: skip
    results = [make(Run(pushes=8, learning_rate=rate, seed=seed), way) for (rate, seed), way in ways.items()]
    assert {r.run.learning_rate for r in tuning.best(results, 0.9)} == {0.2}
    assert len(tuning.best(results, 0.9)) == 3


def test_each_curve_has_its_own_best(make: Make):
    results = [make(Run(pushes=8, sync=sync, learning_rate=rate), WAYS[way])
               for sync, rates in (("bsp", {1.0: 0.2, 2.0: 0.1}), ("asp", {1.0: 0.1, 2.0: 0.2}))
               for rate, way in rates.items()]  # fmt: skip
    assert [(r.run.sync, r.run.learning_rate) for r in tuning.best(results, 0.9)] == [("bsp", 1.0), ("asp", 2.0)]


def test_without_a_grid_everything_is_its_own_best(make: Make):
    results = [make(run, [0.1, 0.9]) for run in sync_runs(pushes=8)]
    assert tuning.best(results) == results


def test_the_goal_is_what_half_of_the_curves_reach_at_their_best(make: Make):
    assert tuning.goal(tuned(make)) == 0.96  # which most of the grid does not reach


def test_the_grids_table_shows_all_of_it_and_marks_the_best(make: Make):
    table = tuning.grid(tuned(make), 0.9)
    assert list(table.index) == ["BSP", "ASP, weight 1/W", "ASP, weight 1", "single machine"]
    assert table.loc["BSP"].tolist() == ["(70.0 %)", "1.0 ◀", "2.0", "diverged", "0.2", ""]
    assert table.columns.name == "s to 90 % at learning rate"


def test_a_best_rate_at_the_edge_is_said(make: Make):
    runs = [r for r in tuned(make) if r.run.learning_rate <= 0.2]
    assert set(tuning.grid(runs, 0.9)["note"]) == {"at the edge of the grid"}
    alone = [r for r in runs if r.run.learning_rate == 0.2]
    assert set(tuning.grid(alone, 0.9)["note"]) == {""}


def test_weights_stand_side_by_side_and_means_stand_in_both(make: Make):
    best = tuning.best(tuned(make), 0.9)
    assert tuning.weights(best) == [None, 1.0]
    for weight in (None, 1.0):
        own = tuning.weighted(best, weight)
        assert [(r.run.sync, r.run.push_weight, r.run.workers) for r in own] == [
            ("bsp", None, 4), ("asp", weight, 4), ("bsp", None, 1)]  # fmt: skip
    assert tuning.weights([r for r in best if r.run.sync == "bsp"]) == [None]


# -- pictures --------------------------------------------------------------------------------------


def test_a_column_for_each_push_weight_with_the_rates_in_its_legend(make: Make):
    figure = tuning_plots.accuracy(tuning.best(tuned(make), 0.9))
    legends = {name: [t.name.replace("\u00a0", " ") for t in figure.data if t.legend == name and t.showlegend is None]
               for name in ("legend", "legend2")}  # fmt: skip
    assert legends["legend"] == legends["legend2"] == ["BSP, η = 0.2", "ASP, η = 0.2", "single machine, η = 0.2"]
    assert [a.text for a in figure.layout.annotations] == ["<b>push weight 1/W</b>", "<b>push weight 1</b>"]
    titles = [figure.layout[f"xaxis{n}"].title.text for n in ("", 2, 3, 4)]
    assert titles == ["iteration (4 pushes, 256 samples)"] * 2 + ["training time (s)"] * 2
    assert figure.layout.legend2.x > 0.5


def test_one_push_weight_is_the_usual_pair(make: Make):
    figure = tuning_plots.accuracy([make(run, [0.1, 0.9]) for run in sync_runs(pushes=8)])
    assert "xaxis3" not in figure.layout
    assert "legend2" not in figure.layout


# -- settings --------------------------------------------------------------------------------------

CLUSTERS = {"equal": {"preset": "steady"}, "uneven": "straggler"}
SECONDS = {  # by cluster, bound and rate; None is never
    ("equal", 0, 0.1): 4.0, ("equal", 3, 0.1): 5.0, ("equal", 0, 0.2): 2.0, ("equal", 3, 0.2): None,
    ("uneven", 0, 0.1): 9.0, ("uneven", 3, 0.1): 3.0, ("uneven", 0, 0.2): 6.0, ("uneven", 3, 0.2): 8.0,
}  # fmt: skip


def explored(make: Make, **parameters) -> list:
    runs = ssp_runs(stalenesses=[0, 3], learning_rates=[0.1, 0.2], clusters=CLUSTERS, pushes=8, target_accuracy=0.8,
                    seeds=[0], **parameters)  # fmt: skip
    names = {"straggler": "uneven"}
    found = []
    for run in runs:
        cluster = names.get(run.cluster, "equal") if isinstance(run.cluster, str) else "equal"
        there = SECONDS[cluster, tuning.bound(run.sync), run.learning_rate]
        found.append(make(run, [0.1, 0.5 if there is None else 0.85], seconds=[0.0, there or 10.0]))
    return found


def test_settings_are_the_medians_and_one_cell_of_each_cluster_is_best(make: Make):
    table = tuning.settings(explored(make), CLUSTERS, 0.8)
    seconds = {(r.cluster, r.staleness, r.learning_rate): r.seconds for r in table.itertuples()}
    assert {key: None if math.isnan(value) else value for key, value in seconds.items()} == SECONDS
    best = table[table.best]
    assert list(zip(best.cluster, best.staleness, best.learning_rate, strict=True)) == [
        ("equal", 0, 0.2), ("uneven", 3, 0.1)]  # fmt: skip


def test_of_equal_cells_the_strictest_bound_is_best(make: Make):
    results = explored(make)
    for result in results:
        result.accuracy.loc[1, ["seconds", "accuracy"]] = [1.0, 0.9]
    best = tuning.settings(results, CLUSTERS, 0.8).query("best")
    assert best.staleness.tolist() == [0, 0]
    assert best.learning_rate.tolist() == [0.1, 0.1]


def test_a_setting_costs_elsewhere_what_it_takes_there(make: Make):
    cost = tuning.transfer(tuning.settings(explored(make), CLUSTERS, 0.8))
    assert list(cost.index) == ["equal: s = 0, rate 0.2", "uneven: s = 3, rate 0.1"]
    assert cost.to_numpy().tolist() == [[1.0, 2.0], [2.5, 1.0]]


def test_the_lesson_is_the_worst_of_them(make: Make):
    table = tuning.settings(explored(make), CLUSTERS, 0.8)
    assert tuning.lesson(table).endswith("uneven: s = 3, rate 0.1 takes 2.5 times as long as the best with equal.")
    never = table.assign(seconds=table.seconds.mask((table.cluster == "equal") & (table.staleness == 3)))
    assert tuning.lesson(never).endswith("uneven: s = 3, rate 0.1 does not get there with equal.")
    same = table[table.cluster == "equal"]
    assert tuning.lesson(same) == "Best: equal: s = 0, rate 0.2. None of them costs anything elsewhere."


def test_a_cluster_on_which_nothing_arrives_has_no_best(make: Make):
    table = tuning.settings(explored(make), CLUSTERS, 0.9)
    assert not table.best.any()
    assert list(tuning.transfer(table).index) == ["equal: never there", "uneven: never there"]
    assert "None of them costs anything" in tuning.lesson(table)


def test_the_heat_maps_have_a_panel_for_each_cluster_and_frame_the_best(make: Make):
    figure = tuning_plots.heat(explored(make), CLUSTERS, 0.8)
    maps = [t for t in figure.data if t.type == "heatmap"]
    assert [list(map(list, t.z)) for t in maps][1] == [[3.0, 1.0], [2.0, pytest.approx(8 / 3)]]
    texts = [a.text for a in figure.layout.annotations]
    assert texts[:2] == ["<b>equal</b>", "<b>uneven</b>"]
    assert texts.count("–") == 1
    assert {"<b>2.0</b>", "<b>3.0</b>"} <= set(texts)
    frames = [(s.xref, s.x0 + 0.47, s.y0 + 0.47) for s in figure.layout.shapes]
    assert frames == [("x", 0, 1), ("x2", 1, 0)]  # equal: s = 0, rate 0.2; uneven: s = 3, rate 0.1
    said = figure.layout.title.subtitle.text.replace("\u00a0", " ").replace("<br>", " ")
    assert "η" not in said  # the axis says it
    for words in ("push weight 1", "stops at 8 pushes or 80 % accuracy", "one seed", "uneven: worker 0 ×3 slower",
                  "equal: nothing else", "all clusters: 1 Gbit/s per worker"):  # fmt: skip
        assert words in said
