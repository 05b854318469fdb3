"""Results: places, what differs, and one row per evaluation."""

from __future__ import annotations

from pathlib import Path

import handmade
import pytest

from pslab.config.run import Run
from pslab.lab.records.record import Result
from pslab.lab.records.results import Results, evaluations, tidy
from pslab.lab.runs.grid import alone, grid

BASE = Run(pushes=8, workers=2, engine="virtual")


def finished(folder: Path, runs) -> Results:
    return runs.finished([handmade.curve(folder, run, [0.1, 0.5, 0.9]) for run in runs])


def test_results_are_a_sequence_with_the_columns_of_their_grid(tmp_path: Path):
    results = finished(tmp_path, grid(BASE, sync=["bsp", "asp"], seed=[0, 1]))
    assert len(results) == 4
    assert isinstance(results[0], Result)
    assert [r.run.seed for r in results[1:3]] == [1, 0]
    assert results.columns[3] == ({"sync": "asp", "seed": 1},)
    assert [r.run.sync for r in results.where(seed=1)] == ["bsp", "asp"]
    assert [r.run.seed for r in results.where(sync=["asp"], seed=[0, 1])] == [0, 1]


def test_placed_yields_each_run_in_each_of_its_places():
    runs = grid(BASE, family={"static": {"prune": ["none", "static:1%"]}, "std": {"prune": ["none"]}})
    assert [(place, run.prune) for place, run in runs.placed()] == [
        ({"family": "static"}, "none"), ({"family": "std"}, "none"), ({"family": "static"}, "static:1%")]  # fmt: skip


def test_assigned_columns_are_columns(tmp_path: Path):
    results = finished(tmp_path, grid(BASE, sync=["bsp", "asp"])).assign(strict=lambda r: r.run.sync == "bsp", how="x")
    assert [places[0]["strict"] for places in results.columns] == [True, False]
    assert [r.run.sync for r in results.where(strict=True, how="x")] == ["bsp"]


def test_again_makes_the_chosen_runs_with_every_seed(tmp_path: Path):
    results = finished(tmp_path, grid(BASE, policy={"strict": {"sync": "bsp"}, "free": {"sync": "asp"}}, seed=[0]))
    runs = results.where(policy="free").again(seed=[0, 1, 2])
    assert [(run.sync, run.seed) for run in runs] == [("asp", 0), ("asp", 1), ("asp", 2)]
    assert runs.columns[2] == ({"policy": "free", "seed": 2},)
    assert [run.engine for run in results.again(engine="timing")] == ["timing", "timing"]


def test_levels_keep_the_grids_order(tmp_path: Path):
    results = finished(tmp_path, grid(BASE, learning_rate=[0.4, 0.1, 0.2]))
    assert results.levels("learning_rate") == [0.4, 0.1, 0.2]
    assert Results([*results][::-1], results.columns[::-1], {"learning_rate": [0.4, 0.1, 0.2]}).where(
        learning_rate=[0.1, 0.4]).levels("learning_rate") == [0.4, 0.1]  # fmt: skip


def test_what_differs_is_told_by_as_few_columns_as_there_can_be(tmp_path: Path):
    families = {"static": {"prune": ["none", "static:1%"]}, "std": {"prune": ["none", "std:2"]}}
    results = finished(tmp_path, grid(BASE, family=families, sync=["bsp", "asp"], seed=[0, 1]))
    assert results.differing() == ["sync", "prune"]  # the family says nothing that its rule does not say
    assert results.where(sync="bsp", family="std").differing() == ["prune"]
    named = finished(tmp_path, grid(BASE, method={"whole": {"push_weight": 1.0}, "shared": {"learning_rate": 0.2}}))
    assert named.differing() == ["method"]
    assert results[:1].differing() == []


def test_a_row_for_each_evaluation_and_place(tmp_path: Path):
    families = {"static": {"prune": ["none", "static:1%"]}, "std": {"prune": ["none"]}}
    table = tidy(finished(tmp_path, grid(BASE, family=families, seed=[3])))
    assert len(table) == 3 * 3  # dense stands in both families
    row = table.iloc[2]
    assert (row.family, row.prune, row.seed, row.sync) == ("static", "none", 3, "bsp")
    assert (row.pushes, row.iteration, row.seconds, row.accuracy, row.loss) == (8, 4.0, 2.0, 0.9, 0.5)
    assert (row.bytes, row.bytes_up, row.bytes_down) == (8 * 130, 800, 240)


def test_a_single_machines_iteration_counts_as_many_pushes_as_the_others(tmp_path: Path):
    runs = grid(BASE, sync=["bsp"]) + grid(alone(BASE), seed=[0])
    table = tidy(finished(tmp_path, runs))
    assert table.groupby("workers").iteration.max().to_dict() == {1: 4.0, 2: 4.0}


def test_evaluations_leave_out_what_is_not_finite(tmp_path: Path):
    result = handmade.curve(tmp_path, BASE, [0.1, 0.5, float("nan")])
    assert list(evaluations(result).accuracy) == [0.1, 0.5]


def test_a_plain_list_of_results_will_do(tmp_path: Path):
    results = [handmade.curve(tmp_path, BASE.but(sync=sync), [0.1]) for sync in ("bsp", "asp")]
    assert Results(results).differing() == ["sync"]
    with pytest.raises(IndexError):
        Results(results)[2]
