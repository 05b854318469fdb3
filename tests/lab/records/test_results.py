"""Results: points of a grid, what differs, their tables, and what is found on disk."""

from __future__ import annotations

from pathlib import Path

import handmade
import pytest

from pslab.config.run import Run
from pslab.errors import ConfigError, RecordError
from pslab.lab.records.record import Result
from pslab.lab.records.results import EACH, Results, Runs, evaluations, load, records
from pslab.lab.records.summary import summary
from pslab.lab.records.tuning import best
from pslab.lab.runs.grid import alone, grid

BASE = Run(pushes=8, workers=2, engine="virtual", cluster="lab")


def finished(runs: Runs, folder: Path | None = None) -> Results:
    return handmade.finished(runs, [0.1, 0.5, 0.9], folder)


def test_of_no_results_there_is_an_empty_table_and_no_best():
    assert len(summary([], by="sync", goal=0.9)) == 0
    assert (len(best([])), repr(Results([])), repr(Runs([]))) == (0, "0 results", "0 runs")


def test_results_are_a_sequence_with_the_columns_of_their_grid():
    results = finished(grid(BASE, sync=["bsp", "asp"], seed=[0, 1]))
    assert len(results) == 4
    assert isinstance(results[0], Result)
    assert [r.run.seed for r in results[1:3]] == [1, 0]
    assert results.columns[3] == ({"sync": "asp", "seed": 1},)
    assert [r.run.sync for r in results.where(seed=1)] == ["bsp", "asp"]
    assert [r.run.seed for r in results.where(sync=["asp"], seed=[0, 1])] == [0, 1]
    named = results.assign(strict=lambda r: r.run.sync == "bsp", how="x")
    assert [points[0]["strict"] for points in named.columns] == [True, True, False, False]
    assert [r.run.sync for r in named.where(strict=True, how="x", seed=0)] == ["bsp"]
    with pytest.raises(IndexError):
        results[4]


def test_one_result_is_results_and_one_run_is_runs():
    result = handmade.curve(None, BASE, [0.1])
    assert [*Results(result)] == [result]
    assert (repr(Results(result)), repr(Runs([BASE, BASE.but(seed=1)]))) == ("1 result", "2 runs\nseed: 0, 1")
    assert summary(result).seeds.tolist() == [1]


def test_placed_yields_each_run_at_each_of_its_points():
    runs = grid(BASE, family={"static": {"prune": ["none", "static:1%"]}, "std": {"prune": ["none"]}})
    assert [(point, run.prune) for point, run in runs.placed()] == [
        ({"family": "static"}, "none"), ({"family": "std"}, "none"), ({"family": "static"}, "static:1%")]  # fmt: skip


def test_again_makes_the_chosen_runs_with_every_seed():
    results = finished(grid(BASE, policy={"strict": {"sync": "bsp"}, "free": {"sync": "asp"}}, seed=[0]))
    runs = results.where(policy="free").again(seed=[0, 1, 2])
    assert [(run.sync, run.seed) for run in runs] == [("asp", 0), ("asp", 1), ("asp", 2)]
    assert runs.columns[2] == ({"policy": "free", "seed": 2},)
    assert [run.engine for run in results.again(engine="timing")] == ["timing", "timing"]


def test_levels_keep_the_grids_order():
    results = finished(grid(BASE, learning_rate=[0.4, 0.1, 0.2]))
    assert results.levels("learning_rate") == [0.4, 0.1, 0.2]
    assert Results([*results][::-1], results.columns[::-1], {"learning_rate": [0.4, 0.1, 0.2]}).where(
        learning_rate=[0.1, 0.4]).levels("learning_rate") == [0.4, 0.1]  # fmt: skip


def test_what_differs_is_told_by_as_few_columns_as_there_can_be():
    families = {"static": {"prune": ["none", "static:1%"]}, "std": {"prune": ["none", "std:2"]}}
    results = finished(grid(BASE, family=families, sync=["bsp", "asp"], seed=[0, 1]))
    assert results.differing() == ["sync", "prune"]  # the family says nothing that its rule does not say
    assert results.where(sync="bsp", family="std").differing() == ["prune"]
    named = finished(grid(BASE, method={"whole": {"push_weight": 1.0}, "shared": {"learning_rate": 0.2}}))
    assert named.differing() == ["method"]
    assert results[:1].differing() == []


def test_a_frame_has_a_row_for_each_evaluation_at_each_point():
    families = {"static": {"prune": ["none", "static:1%"]}, "std": {"prune": ["none"]}}
    table = finished(grid(BASE, family=families, seed=[3])).frame("evaluation")
    assert len(table) == 3 * 3  # dense stands in both families
    row = table.iloc[2]
    assert (row.family, row.prune, row.seed, row.sync) == ("static", "none", 3, "bsp")
    assert (row.pushes, row.iteration, row.seconds, row.accuracy, row.loss) == (8, 4.0, 2.0, 0.9, 0.5)
    assert (row.bytes, row.bytes_up, row.bytes_down) == (8 * 130, 800, 240)
    assert list(evaluations(handmade.curve(None, BASE, [0.1, 0.5, float("nan")])).accuracy) == [0.1, 0.5]


def test_a_single_machines_iteration_counts_as_many_pushes_as_the_others():
    table = finished(grid(BASE, sync=["bsp"]) + grid(alone(BASE), seed=[0])).frame("evaluation")
    assert table.groupby("workers").iteration.max().to_dict() == {1: 4.0, 2: 4.0}


def test_a_row_for_each_run_says_what_it_was_and_how_it_ended():
    results = finished(grid(BASE, loss=["cross_entropy", "mse"]))
    row, frame = results.frame().iloc[1], results.frame("evaluation")
    assert (row.loss, row.sync, row.digest) == ("mse", "bsp", results[1].digest)
    assert (row.outcome, row.final, row.pushes, row.seconds, row.emulation_ok) == ("budget", 0.9, 8, 2.0, True)
    assert set(frame.loss_of_run) == {"cross_entropy", "mse"}  # an axis that is named like a column of the table
    assert set(frame.loss) == {0.5}


def test_every_table_of_a_record_has_a_frame_with_the_fields_of_its_run():
    results = Results([handmade.bsp(), handmade.asp()])
    for each in EACH:
        frame = results.frame(each)
        assert len(frame) == sum(len(EACH[each](result)) for result in results)
        assert set(frame.sync) == {"bsp", "asp"}
        assert frame.columns.is_unique
    with pytest.raises(ConfigError, match="did you mean 'push'"):
        results.frame("pushs")


# -- from disk -------------------------------------------------------------------------------------


def test_all_records_are_found_and_those_with_the_asked_fields(tmp_path: Path):
    made = finished(grid(BASE, sync=["bsp", "asp"], seed=[0, 1]), tmp_path)
    assert {result.digest for result in records(results=tmp_path)} == {result.digest for result in made}
    found = records(results=tmp_path, sync="asp", seed=[1, 0])
    assert [(result.run.sync, result.run.seed) for result in found] == [("asp", 0), ("asp", 1)]
    with pytest.raises(ConfigError, match="did you mean 'asp'"):
        records(results=tmp_path, sync="asq")
    with pytest.raises(ConfigError, match="did you mean 'sync'"):
        records(results=tmp_path, snyc="asp")
    assert len(records(results=tmp_path / "none")) == 0


@pytest.mark.parametrize("name", ["phases.csv", "manifest.json"])
def test_a_record_that_cannot_be_read_is_left_out_with_a_warning(tmp_path: Path, name: str):
    good, bad = (handmade.curve(tmp_path, BASE.but(seed=seed), [0.1]) for seed in (0, 1))
    (bad.path / name).unlink()
    with pytest.warns(UserWarning, match=rf"1 of 2 records are left out: .*{name}"):
        assert [result.digest for result in records(results=tmp_path)] == [good.digest]
    with pytest.raises(RecordError, match=rf"is not a complete record: {name} missing"):
        load(bad.digest, tmp_path)


@pytest.fixture
def two(tmp_path: Path) -> dict[str, Result]:
    """Two records in one folder, by their policy."""
    return {"bsp": handmade.bsp(tmp_path), "asp": handmade.asp(tmp_path)}


def test_a_digest_its_start_and_a_directory_name_a_record(tmp_path: Path, two: dict[str, Result]):
    result = two["asp"]
    for name in (result.digest, result.digest[:6], result.digest[:6].upper(), str(result.path)):
        assert load(name, tmp_path).path == result.path


def test_an_unknown_digest_lists_the_nearest_first(tmp_path: Path, two: dict[str, Result]):
    digest = two["asp"].digest
    wrong = digest[:5] + ("0" if digest[5] != "0" else "1") + digest[6:]
    with pytest.raises(ConfigError) as caught:
        load(wrong, tmp_path)
    assert str(caught.value).splitlines()[1] == f"  {digest}  Run(workers=2, sync='asp', pushes=3)"
    assert two["bsp"].digest not in str(caught.value)


@pytest.mark.parametrize("name", ["", "no/such/directory", "zzz"])
def test_a_name_that_is_like_no_digest_is_refused_without_others(tmp_path: Path, two: dict[str, Result], name: str):
    with pytest.raises(ConfigError, match=r"no record in .*/runs has this digest, or one like it; .* has all 2$"):
        load(name, tmp_path)
    with pytest.raises(ConfigError, match="there is no record in"):
        load("abc", tmp_path / "none")


def test_the_start_of_several_digests_lists_them(tmp_path: Path, two: dict[str, Result]):
    (tmp_path / "runs" / two["bsp"].digest).rename(tmp_path / "runs" / f"{two['asp'].digest[:4]}aaaa")
    with pytest.raises(ConfigError, match="2 digests start so") as caught:
        load(two["asp"].digest[:4], tmp_path)
    assert two["asp"].digest in str(caught.value)


def test_an_incomplete_record_is_reported(tmp_path: Path, two: dict[str, Result]):
    (two["asp"].path / "phases.csv").unlink()
    with pytest.raises(RecordError, match=r"phases\.csv missing"):
        load(two["asp"].digest, tmp_path)
    with pytest.raises(ConfigError, match=r"\(incomplete\)"):
        load(two["asp"].digest[:8] + "zz", tmp_path)
