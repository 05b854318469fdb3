"""summary, goal and best: reduced over seeds and over nothing else."""

from __future__ import annotations

import math
from pathlib import Path

import handmade
import pandas as pd
import pytest

from pslab.config.metric import Metric
from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.records import summary as summaries
from pslab.lab.records.card import recovered
from pslab.lab.records.results import Results
from pslab.lab.records.summary import groups, iteration_s, over_seeds, summary
from pslab.lab.records.tuning import best, goal, rounded
from pslab.lab.runs.grid import alone, grid

BASE = Run(pushes=8, workers=2, engine="virtual")
SLOW, FAST, NEVER = [0.1, 0.2, 0.6, 0.9, 0.95], [0.1, 0.9, 0.92, 0.93, 0.94], [0.1, 0.2, 0.3, 0.3, 0.4]


def made(folder: Path, runs, curves: dict, **facts) -> Results:
    """Results whose evaluations are given by (policy, learning rate, seed), or by a part of it."""
    def of(run: Run):
        keys = [(run.sync, run.learning_rate, run.seed), (run.sync, run.learning_rate), (run.sync, run.seed), run.sync]
        return next(curves[key] for key in keys if key in curves)

    return runs.finished([handmade.curve(folder, run, of(run), **facts.get(f"{run.sync}{run.seed}", {}))
                          for run in runs])  # fmt: skip


# -- measures --------------------------------------------------------------------------------------


def test_an_iteration_is_a_push_of_every_worker_in_the_middle_of_the_run(tmp_path: Path):
    seconds = [0.0, 10.0, *(10.0 + step for step in range(1, 10))]  # a long start
    run = Run(pushes=20, workers=2, engine="virtual")
    assert iteration_s(handmade.curve(tmp_path, run, [0.1] * 11, seconds)) == pytest.approx(1.0)


def test_a_short_run_has_its_whole_time_per_iteration(tmp_path: Path):
    run = Run(pushes=4, workers=4, engine="virtual")
    assert iteration_s(handmade.curve(tmp_path, run, [0.1, 0.2], [0.0, 3.0])) == pytest.approx(3.0)


def test_each_measure_of_a_curve(tmp_path: Path):
    (row,) = summary([handmade.curve(tmp_path, BASE, SLOW)], goal=0.9, measures=list(summaries.MEASURES)).to_dict(
        "records")  # fmt: skip
    expected = {"accuracy": 0.95, "best_accuracy": 0.95, "seconds_to_goal": 3.0, "pushes_to_goal": 6.0,
                "iterations_to_goal": 3.0, "rounds_to_goal": 3.0, "bytes_to_goal": 6 * 130.0, "bytes_up_to_goal": 600.0,
                "bytes_down_to_goal": 180.0, "seconds": 4.0, "pushes": 8.0, "rate": 2.0, "iteration_s": 1.0,
                "waiting": 0.25, "staleness": 1.5, "lead": 0.0, "bytes_up": 800.0, "bytes_down": 240.0,
                "network_bytes": 1040.0}  # fmt: skip
    assert {name: row[name] for name in summaries.MEASURES} == pytest.approx(expected)


def test_what_crossed_the_network_is_what_the_record_says(tmp_path: Path):
    result = handmade.curve(tmp_path, BASE, SLOW, network_bytes=700)
    assert summary([result], measures=["network_bytes"]).network_bytes.tolist() == [700.0]


def test_dropped_pushes_do_not_count(tmp_path: Path):
    result = handmade.curve(tmp_path, BASE, SLOW, accepted=8, dropped=2)
    assert summary([result], measures=["pushes", "rate"]).iloc[0][["pushes", "rate"]].tolist() == [6, 1.5]


# -- over seeds ------------------------------------------------------------------------------------


def test_never_counts_as_infinite():
    assert over_seeds([1.0, math.inf, 3.0]) == (3.0, 1.0, pytest.approx(math.nan, nan_ok=True))
    assert [math.isnan(value) for value in over_seeds([1.0, math.inf])] == [True, False, True]
    assert all(map(math.isnan, over_seeds([])))


def test_a_row_for_each_group_with_raw_values_as_index(tmp_path: Path):
    runs = grid(BASE, sync=["bsp", "asp"], seed=[0, 1, 2])
    results = made(tmp_path, runs, {("bsp", 2): NEVER, "bsp": SLOW, ("asp", 0): FAST, "asp": NEVER})
    table = summary(results, by="sync", goal=0.9)
    assert list(table.index) == ["bsp", "asp"]
    assert table.index.name == "sync"
    assert list(table.seeds) == [3, 3]
    assert list(table.reached) == [2, 1]
    assert table.loc["bsp", ["seconds_to_goal", "seconds_to_goal_low"]].tolist() == [3.0, 3.0]
    assert math.isnan(table.loc["bsp", "seconds_to_goal_high"])
    assert math.isnan(table.loc["asp", "seconds_to_goal"])
    assert table.attrs["goal"] == 0.9
    assert table.equals(summary(results, goal=0.9))  # the label is what differs


def test_a_function_of_a_result_is_a_measure_of_its_name(tmp_path: Path):
    def second(result):
        return result.accuracy.accuracy.iloc[1]

    results = made(tmp_path, grid(BASE, seed=[0, 1, 2]), {("bsp", 0): SLOW, ("bsp", 1): FAST, ("bsp", 2): NEVER})
    row = summary(results, by="sync", measures=["pushes", second]).loc["bsp"]
    assert row[["pushes", "second", "second_low", "second_high"]].tolist() == [8, 0.2, 0.2, 0.9]


def test_several_columns_are_a_multiindex(tmp_path: Path):
    results = made(tmp_path, grid(BASE, sync=["bsp", "asp"], workers=[2, 4]), {"bsp": SLOW, "asp": FAST})
    table = summary(results, by=["sync", "workers"], measures=["accuracy"])
    assert list(table.index) == [("bsp", 2), ("bsp", 4), ("asp", 2), ("asp", 4)]
    assert table.index.names == ["sync", "workers"]


def test_dense_gradients_stand_in_each_familys_row(tmp_path: Path):
    families = {"static": {"prune": ["none", "static:1%"]}, "std": {"prune": ["none", "std:2"]}}
    results = made(tmp_path, grid(BASE, family=families), {"bsp": SLOW})
    table = summary(results, by=["family", "prune"], measures=["accuracy"])
    assert list(table.index) == [("static", "none"), ("static", "static:1%"), ("std", "none"), ("std", "std:2")]
    assert len(summary(results, measures=["accuracy"])) == 3


def test_diverged_seeds_count_in_no_accuracy_unless_all_diverged(tmp_path: Path):
    gone = {"outcome": "diverged"}
    runs = grid(BASE, sync=["bsp", "asp"], seed=[0, 1])
    results = made(tmp_path, runs, {("bsp", 0): NEVER, "bsp": SLOW, "asp": NEVER}, bsp0=gone, asp0=gone, asp1=gone)
    table = summary(results, by="sync", measures=["accuracy"])
    assert list(table.diverged) == [1, 2]
    assert list(table.accuracy) == [0.95, 0.4]


def test_an_emulation_that_was_not_kept_is_marked(tmp_path: Path):
    runs = grid(BASE, sync=["bsp", "asp"], seed=[0, 1])
    results = made(tmp_path, runs, {"bsp": SLOW, "asp": FAST}, asp1={"emulation_ok": False})
    assert summary(results, by="sync").emulation_ok.tolist() == [True, False]


LIVES = [{"worker": worker, "how": "is gone"} for worker in (2, 0, 2)]
SERVER = "its server was replaced once"
WITH_SERVER = [{"worker": worker, "how": "server is gone"} for worker in (0, 1)]


@pytest.mark.parametrize(("facts", "words"), [
    ({}, ""), ({"resumed": [{"pushes": 7, "made": "then"}]}, "went on at push 7 from the checkpoint of then"),
    ({"lives": LIVES[:1]}, "processes of worker 2 were replaced"),
    ({"lives": LIVES}, "processes of workers 0, 2 were replaced"),
    ({"lives": WITH_SERVER, "rewinds": [{}, {}]}, "its server was replaced 2 times"),
    ({"lives": LIVES[:1] + WITH_SERVER, "rewinds": [{}]}, f"{SERVER}; processes of worker 2 were replaced"),
    ({"fallen_starts": ["server is gone"], "rewinds": [{}]}, f"{SERVER}; began again once"),
])  # fmt: skip
def test_what_a_run_went_on_after_is_said_and_counted(tmp_path: Path, facts: dict, words: str):
    results = made(tmp_path, grid(BASE, sync=["bsp", "asp"]), {"bsp": SLOW, "asp": FAST}, asp0=facts)
    assert [recovered(result.manifest) for result in results] == ["", words]
    table = summary(results, by="sync")
    assert table.get("recovered", pd.Series([0, 0])).tolist() == [0, int(bool(words))]
    assert ("recovered" in table) == bool(words)


def test_seconds_of_an_emulation_that_was_not_kept_are_left_out(tmp_path: Path):
    runs = grid(BASE, sync=["bsp", "asp"], seed=[0, 1])
    bad = {"emulation_ok": False, "dilation": 2.0}
    results = made(tmp_path, runs, {"bsp": SLOW, ("asp", 0): FAST, "asp": SLOW}, asp1=bad, bsp0=bad, bsp1=bad)
    table = summary(results, by="sync", goal=0.9, measures=["seconds_to_goal", "pushes_to_goal"])
    alone = summary(results.where(sync="asp", seed=0), by="sync", goal=0.9, measures=["seconds_to_goal"])
    assert math.isnan(table.seconds_to_goal["bsp"])
    assert table.seconds_to_goal["asp"] == table.seconds_to_goal_high["asp"] == alone.seconds_to_goal["asp"]
    assert not table.pushes_to_goal.isna().any()  # accuracy against pushes is as good as ever
    assert list(table.dilation) == [2.0, 2.0]


def test_no_choice_by_time_rests_on_an_emulation_that_was_not_kept(tmp_path: Path):
    runs = grid(BASE, sync=["asp"], learning_rate=[0.1, 0.2])
    results = [handmade.curve(tmp_path, run, [0.1, 0.95], [0.0, run.learning_rate * 10],
                              emulation_ok=run.learning_rate != 0.1) for run in runs]  # fmt: skip
    found = runs.finished(results)
    assert [r.run.learning_rate for r in best(found, goal=0.9)] == [0.2]
    assert [r.run.learning_rate for r in best(found, goal=0.9, measure="pushes_to_goal")] == [0.1]


def test_a_single_machine_exchanges_nothing(tmp_path: Path):
    runs = grid(BASE, sync=["asp"]) + grid(alone(BASE), seed=[0])
    table = summary(made(tmp_path, runs, {"bsp": SLOW, "asp": FAST}), by="workers", goal=0.9)
    assert table.bytes_to_goal.isna().tolist() == [False, True]
    assert table.waiting.isna().tolist() == [False, True]
    assert table.seconds_to_goal.tolist() == [1.0, 3.0]


def test_groups_that_differ_in_more_than_the_seed_are_refused(tmp_path: Path):
    rates = [0.2, 1.0, 100000.0]
    results = made(tmp_path, grid(BASE, sync=["bsp"], learning_rate=rates, seed=[0, 1, 2]), {"bsp": SLOW})
    message = ("by=['sync']: 9 runs of bsp differ in learning_rate (0.2, 1.0, 100000.0): name it in by=, keep one with "
               "results.where(learning_rate=...), or choose with best(results, over='learning_rate')")  # fmt: skip
    with pytest.raises(ConfigError) as refused:
        summary(results, by=["sync"])
    assert str(refused.value) == message
    with pytest.raises(ConfigError, match="name it in by=, facet= or row="):
        groups(results, "sync", facet=None)


def test_unknown_names_are_refused(tmp_path: Path):
    results = [handmade.curve(tmp_path, BASE, SLOW)]
    with pytest.raises(ConfigError, match="did you mean 'sync'"):
        summary(results, by="snyc")
    with pytest.raises(ConfigError, match="did you mean 'waiting'"):
        summary(results, measures=["waitin"])
    with pytest.raises(ConfigError, match=r"such as goal\(results\)"):
        summary(results, measures=["seconds_to_goal"])


# -- goal and best ---------------------------------------------------------------------------------


def test_the_goal_is_the_highest_round_accuracy_that_half_of_the_groups_reach_with_every_seed(tmp_path: Path):
    runs = grid(BASE, sync=["bsp", "asp", "ssp:3"], seed=[0, 1])
    results = made(tmp_path, runs, {"bsp": SLOW, ("asp", 0): FAST, ("asp", 1): [0.1, *[0.86] * 4], "ssp:3": NEVER})
    assert goal(results) == 0.85
    assert goal(results, share=1.0) == 0.4
    assert goal(results, share=0.3) == 0.95
    assert goal(results, within=0.5) == 0.6  # half-way ssp:3 has 0.3, bsp 0.6, asp 0.92
    assert goal([]) == 0.3


def test_a_group_reaches_what_its_best_learning_rate_does(tmp_path: Path):
    runs = grid(BASE, sync=["bsp"], learning_rate=[0.1, 0.2])
    results = made(tmp_path, runs, {("bsp", 0.1): NEVER, ("bsp", 0.2): FAST})
    assert goal(results) == 0.94
    assert goal(results, share=1.0) == 0.94
    assert goal(results, share=1.0, over="sync") == 0.4


def test_the_single_machine_sets_no_goal(tmp_path: Path):
    runs = grid(BASE, sync=["asp"]) + grid(alone(BASE), seed=[0])
    assert goal(made(tmp_path, runs, {"asp": NEVER, "bsp": SLOW})) == 0.4


@pytest.mark.parametrize(("accuracy", "level"), [(0.9749, 0.97), (0.975, 0.975), (0.2, 0.3), (1.0, 0.99)])
def test_round_accuracies(accuracy: float, level: float):
    assert rounded(accuracy) == level


@pytest.mark.parametrize(("value", "lower", "wanted"), [(0.29, False, 0.29), (0.29, True, 0.29), (0.288, False, 0.28),
                                                        (0.288, True, 0.29), (5.7, False, 5.7)])  # fmt: skip
def test_a_round_value_of_another_metric_is_not_better_and_stays_as_it_is(value: float, lower: bool, wanted: float):
    assert rounded(value, Metric("loss", lower, share=False)) == wanted


def test_best_is_the_choice_that_is_soonest_by_the_median(tmp_path: Path):
    runs = grid(BASE, sync=["bsp", "asp"], learning_rate=[0.1, 0.2, 0.4], seed=[0, 1, 2])
    higher = [0.1, 0.2, 0.5, 0.5, 0.45]  # never at the goal either
    curves = {("bsp", 0.1): SLOW, ("bsp", 0.2, 0): NEVER, ("bsp", 0.2): FAST, ("bsp", 0.4, 0): FAST,
              ("bsp", 0.4): NEVER, ("asp", 0.1): NEVER, ("asp", 0.2): higher, ("asp", 0.4): NEVER}  # fmt: skip
    chosen = best(made(tmp_path, runs, curves), goal=0.9)
    assert [(r.run.sync, r.run.learning_rate, r.run.seed) for r in chosen] == [
        (sync, 0.2, seed) for sync in ("bsp", "asp") for seed in (0, 1, 2)]  # fmt: skip
    assert len(summary(chosen, by="sync", goal=0.9)) == 2


def test_of_equals_the_smaller_value_and_a_diverged_run_is_nowhere(tmp_path: Path):
    runs = grid(BASE, sync=["bsp"], learning_rate=[0.4, 0.1])
    assert best(made(tmp_path / "a", runs, {"bsp": FAST}), goal=0.9)[0].run.learning_rate == 0.1
    gone = grid(BASE, sync=["bsp", "asp"], learning_rate=[0.1, 0.2])
    results = [handmade.curve(tmp_path / "b", run, NEVER, outcome="diverged" if run.learning_rate == 0.1 else "budget")
               for run in gone]  # fmt: skip
    assert {r.run.learning_rate for r in best(gone.finished(results), goal=0.9)} == {0.2}


def test_captions_say_how_a_choice_was_made_and_how_many_lie_at_an_end(tmp_path: Path):
    runs = grid(BASE, sync=["bsp", "asp", "ssp:3"], learning_rate=[0.1, 0.2, 0.4])
    curves = {("bsp", 0.2): FAST, "bsp": SLOW, ("asp", 0.4): FAST, "asp": SLOW, ("ssp:3", 0.1): FAST, "ssp:3": SLOW}
    chosen = best(made(tmp_path, runs, curves), goal=0.9)
    assert chosen.notes() == ["each at its best learning rate by seconds to 90 %; 2 of 3 lie at an end of their grid"]
    assert chosen.where(sync="bsp").notes() == ["each at its best learning rate by seconds to 90 %"]
    assert best(made(tmp_path, runs.where(learning_rate=0.2), curves), goal=0.9).notes() == []


def test_best_over_two_fields_and_by_another_measure(tmp_path: Path):
    runs = grid(BASE, sync=["bsp", "asp"], learning_rate=[0.1, 0.2])
    results = made(tmp_path, runs, {("asp", 0.2): FAST, ("bsp", 0.1): SLOW, "bsp": NEVER, "asp": NEVER})
    (soonest,) = best(results, over=["sync", "learning_rate"], goal=0.9)
    assert (soonest.run.sync, soonest.run.learning_rate) == ("asp", 0.2)
    (highest,) = best(results, over=["sync", "learning_rate"], measure="accuracy")
    assert (highest.run.sync, highest.run.learning_rate) == ("bsp", 0.1)
    with pytest.raises(ConfigError, match="did you mean 'learning_rate'"):
        best(results, over="learnign_rate", goal=0.9)


# -- printed ---------------------------------------------------------------------------------------


def lots(folder: Path, seeds: int = 1) -> Results:
    runs = grid(Run(pushes=8000, engine="virtual"), sync=["bsp", "asp"], seed=list(range(seeds)))
    return runs.finished([handmade.curve(folder, run, [0.1, 0.5, 0.95], seconds=[0, 1, 2.0 + run.seed])
                          for run in runs])  # fmt: skip


def test_printed_summary_begins_with_what_was_asked_in_units_and_without_ranges_of_one_seed(tmp_path: Path):
    table = summary(lots(tmp_path), by="sync", goal=0.9)
    head, _, bsp, *_ = repr(table).splitlines()
    assert head.split() == ["seconds_to_goal", "pushes_to_goal", "bytes_to_goal", "accuracy", "waiting"]
    assert bsp.replace("\u00a0", " ").split("  ")[0] == "bsp"
    for words in ("2 s", "1.0 MB", "95.00 %"):
        assert words in bsp.replace("\u00a0", " ")
    assert "to" not in bsp
    assert "1.0\u00a0MB" in table._repr_html_()
    assert {"seeds", "reached", "seconds_to_goal_low", "bytes_to_goal_high", "emulation_ok"} < {*table}
    assert table.seconds_to_goal.tolist() == [2.0, 2.0]


def test_printed_summary_of_several_seeds_has_their_ranges_and_number(tmp_path: Path):
    text = repr(summary(lots(tmp_path, 3), by="sync", goal=0.9)).replace("\u00a0", " ")
    assert "3 s (2 s to 4 s)" in text
    assert "seeds" in text


def test_printed_summary_has_ten_columns_and_names_the_others(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    table = summary(lots(tmp_path), goal=0.9, measures=[*summaries.MEASURES])
    assert len(table.read().columns) == 10
    assert "..." not in repr(table)
    assert f"{[*summaries.MEASURES][10]}, " in repr(table).splitlines()[-1]
    assert max(map(len, repr(table).splitlines()[:-1])) <= 60
    assert type(table[["seconds"]]) is pd.DataFrame
