"""Tables of runs and results: what they refuse, what differs, the tables of records, and what is found on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import handmade
import numpy as np
import pandas as pd
import pytest

from pslab import plots
from pslab.config.run import Run
from pslab.errors import ConfigError, RecordError
from pslab.lab.records.frames import labels, levels, unique, where
from pslab.lab.records.results import ROWS, evaluations, load, records, tidy
from pslab.lab.records.summary import summary
from pslab.lab.records.tuning import best, goal
from pslab.lab.runs.grid import alone, grid
from pslab.lab.studies.claims import claim

BASE = Run(pushes=8, workers=2, engine="virtual", cluster="lab")
FAMILIES = {"static": {"prune": ["none", "static:1%"]}, "std": {"prune": ["none"]}}


def finished(runs: pd.DataFrame, folder: Path | None = None) -> pd.DataFrame:
    return handmade.finished(runs, [0.1, 0.5, 0.9], folder)


def test_a_table_of_results_is_pandas_own():
    results = finished(grid(BASE, sync=["bsp", "asp"], push_weight=[None, 1.0], seed=[0, 1]))
    assert [*results.columns] == ["sync", "push_weight", "seed", "run", "result"]
    assert results[(results.sync == "asp") & (results.seed == 1)].push_weight.tolist() == [None, 1.0]
    assert [type(seed) for seed in results.seed] == [int] * 8
    assert results.groupby("sync", sort=False).result.count().to_dict() == {"bsp": 4, "asp": 4}
    assert len(unique(pd.concat([results, results]))) == 8  # a record counts once
    text = str(results.iloc[0])
    assert results.run[0].digest in text
    assert "90.00%, 8 pushes, 2 s" in text
    assert "..." not in str(results)


@pytest.mark.parametrize("take", [
    summary, lambda table: best(table, goal=0.9), goal, tidy, plots.curves, plots.time_budget,
    lambda table: plots.bars(table, "seconds"),
    lambda table: claim("", 1.0, at_least=0, results=table),
], ids=["summary", "best", "goal", "tidy", "curves", "time_budget", "bars", "claim"])  # fmt: skip
def test_a_table_without_results_is_refused_with_the_way_to_them(take: Callable[[Any], Any]):
    runs = grid(BASE, sync=["bsp", "asp"])
    with pytest.raises(ConfigError, match=r"must be a Result, but 2 of 2 rows have none: sweep"):
        take(runs)
    for missing in (None, np.nan):
        partly = finished(runs).assign(result=[finished(runs).result[0], missing])
        with pytest.raises(ConfigError, match=r"must be a Result, but 1 of 2 rows have none: .* dropna\(subset"):
            take(partly)
        take(partly.dropna(subset="result"))
    with pytest.raises(ConfigError, match=r"\[\*table.result\] lists the results"):
        take([*finished(runs)])  # a table iterates over the names of its columns


def test_a_value_that_a_row_lacks_is_that_of_its_run():
    single = finished(grid(alone(BASE), seed=[0])).assign(network="none")
    both = pd.concat([finished(grid(BASE, sync=["asp"], engine=["virtual"])), single])
    assert where(both, sync="bsp").result.tolist() == single.result.tolist()
    assert summary(both, by=["sync", "workers"]).index.tolist() == [("asp", 2), ("bsp", 1)]
    assert summary(both, by="network").index.tolist() == ["none", None]
    assert where(finished(grid(BASE, seed=[0, 1])), workers=2, seed=[1]).seed.tolist() == [1]


def test_levels_have_the_grids_order_and_are_not_read_from_the_run_that_two_points_share():
    results = finished(grid(BASE, checkpoint_every=[None, 8]))  # which is no other run
    assert len(unique(results)) == 1
    assert levels(results, "checkpoint_every") == levels(grid(results, seed=[0, 1]), "checkpoint_every") == [None, 8]
    results = finished(grid(BASE, learning_rate=[0.4, 0.1, 0.2]))
    assert levels(where(results[::-1], learning_rate=[0.1, 0.4]), "learning_rate") == [0.4, 0.1]


def test_what_differs_is_told_by_as_few_columns_as_there_can_be():
    families = {"static": {"prune": ["none", "static:1%"]}, "std": {"prune": ["none", "std:2"]}}
    results = finished(grid(BASE, family=families, sync=["bsp", "asp"], seed=[0, 1]))
    assert labels(results) == ["sync", "prune"]  # the family says nothing that its rule does not say
    assert labels(results[(results.sync == "bsp") & (results.family == "std")]) == ["prune"]
    assert labels(finished(grid(BASE, method={"whole": {"push_weight": 1.0}, "shared": {"learning_rate": 0.2}}))) == [
        "method"]  # fmt: skip
    assert labels(results[:1]) == []


def test_a_tidy_table_has_a_row_for_each_evaluation_at_each_point():
    table = tidy(finished(grid(BASE, family=FAMILIES, seed=[3])), "evaluation")
    assert len(table) == 3 * 3  # dense stands in both families
    row = table.iloc[2]
    assert (row.family, row.prune, row.seed, row.sync) == ("static", "none", 3, "bsp")
    assert (row.pushes, row.iteration, row.seconds, row.accuracy, row.loss) == (8, 4.0, 2.0, 0.9, 0.5)
    assert (row.bytes, row.bytes_up, row.bytes_down) == (8 * 130, 800, 240)
    assert list(evaluations(handmade.curve(None, BASE, [0.1, 0.5, float("nan")])).accuracy) == [0.1, 0.5]
    # a single machine's iteration counts as many pushes as the others'
    table = tidy(finished(pd.concat([grid(BASE, sync=["bsp"]), grid(alone(BASE), seed=[0])])), "evaluation")
    assert table.groupby("workers").iteration.max().to_dict() == {1: 4.0, 2: 4.0}


def test_a_row_for_each_run_says_what_it_was_and_how_it_ended():
    results = finished(grid(BASE, loss=["cross_entropy", "mse"]))
    row, table = tidy(results).iloc[1], tidy(results, "evaluation")
    assert (row.loss, row.sync, row.digest) == ("mse", "bsp", results.result[1].digest)
    assert (row.outcome, row.final, row.pushes, row.seconds, row.emulation_ok) == ("budget", 0.9, 8, 2.0, True)
    assert set(table.loss_of_run) == {"cross_entropy", "mse"}  # an axis that is named like a column of the table
    assert set(table.loss) == {0.5}


def test_every_table_of_a_record_is_tidy_with_the_fields_of_its_run():
    results = [handmade.bsp(), handmade.asp()]
    for each in ROWS:
        table = tidy(results, each)
        assert len(table) == sum(len(ROWS[each](result)) for result in results)
        assert set(table.sync) == {"bsp", "asp"}
        assert table.columns.is_unique


# -- from disk -------------------------------------------------------------------------------------


def test_all_records_are_found_and_those_with_the_asked_fields(tmp_path: Path):
    made = finished(grid(BASE, sync=["bsp", "asp"], seed=[0, 1]), tmp_path)
    assert {run.digest for run in records(results=tmp_path).run} == {run.digest for run in made.run}
    found = records(results=tmp_path, sync="asp", seed=[1, 0])
    assert found[["sync", "seed"]].to_numpy().tolist() == [["asp", 0], ["asp", 1]]
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
        assert [run.digest for run in records(results=tmp_path).run] == [good.digest]
    with pytest.raises(RecordError, match=rf"is not a complete record: {name} missing"):
        load(bad.digest, tmp_path)


def test_a_digest_its_start_and_a_directory_name_a_record_and_what_is_none_lists_the_nearest(tmp_path: Path):
    bsp, asp = handmade.bsp(tmp_path), handmade.asp(tmp_path)
    for name in (asp.digest, asp.digest[:6], asp.digest[:6].upper(), str(asp.path)):
        assert load(name, tmp_path).path == asp.path
    wrong = asp.digest[:5] + ("0" if asp.digest[5] != "0" else "1") + asp.digest[6:]
    with pytest.raises(ConfigError) as caught:
        load(wrong, tmp_path)
    assert str(caught.value).splitlines()[1] == f"  {asp.digest}  Run(workers=2, sync='asp', pushes=3)"
    assert bsp.digest not in str(caught.value)
    for name in ("", "no/such/directory", "zzz"):
        with pytest.raises(ConfigError, match=r"no record in .*/runs has a similar digest: .* lists all 2 records$"):
            load(name, tmp_path)
    with pytest.raises(ConfigError, match="there is no record in"):
        load("abc", tmp_path / "none")
    (tmp_path / "runs" / bsp.digest).rename(tmp_path / "runs" / f"{asp.digest[:4]}aaaa")
    with pytest.raises(ConfigError, match=f"2 digests in .* begin so: give more(.|\\s)*{asp.digest}"):
        load(asp.digest[:4], tmp_path)
