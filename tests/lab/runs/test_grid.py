"""grid: every combination once, at all its points; nothing that Run refuses."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import grids
import handmade
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pslab.config.cluster import PRESETS
from pslab.config.run import FIELDS, Run
from pslab.errors import ConfigError
from pslab.lab.records.frames import levels, notes
from pslab.lab.records.tuning import best
from pslab.lab.runs.grid import NETWORK, RefusedCombinations, alone, grid, tuned

LAB = {"bandwidth_bit_s": 1e9, "latency_s": 5e-4, "compute_s": 0.02, "duplex": "full"}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([*FIELDS]), min_size=1, max_size=3, unique=True), st.data())
def test_every_combination_of_any_fields_the_last_axis_fastest(fields: list[str], data: st.DataObject):
    base, few = Run(cluster="lab"), {"min_size": 1, "max_size": 3}
    axes = {field: data.draw(st.lists(st.sampled_from(grids.values_of(field)), **few), field) for field in fields}
    named = {field: {f"value {at}": value for at, value in enumerate(values)} for field, values in axes.items()}
    try:
        wanted = {names: base.but(**{field: named[field][name] for field, name in zip(fields, names, strict=True)})
                  for names in product(*named.values())}  # fmt: skip
    except ConfigError:
        return  # it is none of a run
    plain, by_name = grid(base, **axes), grid(base, **named)
    digests = {names: run.digest for names, run in wanted.items()}
    assert [*dict.fromkeys(run.digest for run in plain.run)] == [*dict.fromkeys(digests.values())]
    rows = by_name[[*fields, "run"]].itertuples(index=False)
    assert [(tuple(names), run.digest) for *names, run in rows] == [*digests.items()]
    assert all(levels(by_name, field) == [*named[field]] for field in fields)


def test_refused_combinations_are_dropped_and_listed_with_their_reasons():
    base, axes = Run(engine="virtual", cluster="lab", pushes=8), {"prune": ["none", "static:1%"],
                                                                  "quantize": ["none", "sign"]}  # fmt: skip
    words = "(?s)1 of 4 combinations are refused:\n.*quantize='sign'.*\n  prune static:1%, quantize sign$"
    with pytest.warns(RefusedCombinations, match=words):
        runs = grid(base, **axes, refused="drop")
    assert [(run.prune, run.quantize) for run in runs.run] == [
        ("none", "none"), ("none", "sign"), ("static:1%", "none")]  # fmt: skip
    assert len(grid(base, **axes)) == 4  # a sweep refuses it
    with pytest.warns(RefusedCombinations, match="batch_size 0"):
        assert len(grid(base, batch_size=[0, 64], refused="drop")) == 1  # what Run itself refuses


def test_a_cluster_inside_is_laid_over_the_bases():
    axis = {"equal": {}, "one slow": {"cluster": {"slow": {0: 3.0}}}, "other": {"cluster": "steady"}}
    assert [run.cluster for run in grid(Run(cluster="lab"), workers_are=axis).run] == [
        "lab", {"preset": "lab", "slow": {0: 3.0}}, "steady"]  # fmt: skip
    slow = grid(Run(cluster={"compute_s": 0.1}), workers_are=axis).run[1]
    assert slow.cluster == {"compute_s": 0.1, "slow": {0: 3.0}}
    assert grid(Run(), x={"a": {"cluster": {"compute_s": 0.1}}}).run[0].cluster == {"compute_s": 0.1}


def test_a_grid_of_a_table_keeps_its_axes_and_gives_each_combination_once():
    runs = grid(Run(), policy={"strict": {"sync": "bsp"}, "free": {"sync": "asp"}}, seed=[0, 1])
    free = grid(runs[runs.policy == "free"], seed=[5, 6], engine=["timing"])
    assert [(run.sync, run.seed, run.engine) for run in free.run] == [("asp", 5, "timing"), ("asp", 6, "timing")]
    assert free.drop(columns="run").to_numpy().tolist() == [["free", 5, "timing"], ["free", 6, "timing"]]
    changed = grid(grid(Run(), sync=["bsp"]), way={"loose": {"sync": "ssp:3"}})
    assert changed.drop(columns="run").to_numpy().tolist() == [["ssp:3", "loose"]]  # a column says what its run has


def test_the_single_machine_keeps_the_computation_and_loses_the_network():
    run = alone(Run(sync="asp", prune="std:1", cluster={**LAB, "slow": {0: 2.0, 3: 4.0}}, push_weight=1.0))
    assert (run.workers, run.sync, run.prune, run.push_weight) == (1, "bsp", "none", None)
    assert run.cluster == {**{k: v for k, v in LAB.items() if k not in NETWORK}, "slow": {0: 2.0}}
    traced = alone(Run(cluster={"trace": {worker: [0.1 * (worker + 1)] for worker in range(4)}}))
    assert traced.cluster == {"trace": {0: [0.1]}}
    assert alone(Run(cluster="free")).cluster == "free"
    preset = alone(Run(cluster="lab")).cluster
    assert preset["apply_s"] == PRESETS["lab"]["apply_s"]  # its optimizer
    assert not {*NETWORK, "select_s"} & set(preset)


# -- a grid grows until the best lies inside it --------------------------------------------------------

BEST = {"bsp": 0.8, "asp": 0.1, "ssp:3": 0.2}  # the learning rate at which each policy is soonest


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Records of every run that is asked for: the nearer its learning rate is to the best one, the sooner it is."""
    rates = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]
    for run in grid(Run(pushes=40), sync=[*BEST], learning_rate=rates, seed=[0, 1]).run:
        ratio = run.learning_rate / BEST[str(run.sync)]
        handmade.curve(tmp_path, run, [0.1] * round(2 * max(ratio, 1 / ratio)) + [0.9])
    return tmp_path


def test_a_grid_grows_beyond_its_ends_until_the_best_lies_inside(results: Path):
    asked = grid(Run(pushes=40), sync=[*BEST], learning_rate=[0.1, 0.2, 0.4], seed=[0, 1])
    found = tuned(asked, goal=0.9, results=results, progress=False)
    assert found.groupby("sync").learning_rate.unique().map(sorted).to_dict() == {
        "bsp": [0.1, 0.2, 0.4, 0.8, 1.6], "asp": [0.05, 0.1, 0.2, 0.4], "ssp:3": [0.1, 0.2, 0.4]}  # fmt: skip
    assert levels(found, "learning_rate") == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]
    chosen = best(found, goal=0.9)
    assert dict(zip(chosen.sync, chosen.learning_rate, strict=True)) == BEST
    assert "at an end" not in notes(chosen)[0]


def test_growing_ends_after_so_many_rounds_and_one_value_is_no_grid(results: Path):
    found = tuned(grid(Run(pushes=40), sync=["bsp"], learning_rate=[0.1, 0.2]), goal=0.9, rounds=1, results=results)
    assert levels(found, "learning_rate") == [0.1, 0.2, 0.4]
    assert "1 of 1 lie at an end of their grid" in notes(best(found, goal=0.9))[0]
    parts = [grid(Run(pushes=40), sync=[sync], learning_rate=[0.1]) for sync in ("bsp", "asp")]
    assert tuned(pd.concat(parts), goal=0.9, results=results).sync.tolist() == ["bsp", "asp"]
