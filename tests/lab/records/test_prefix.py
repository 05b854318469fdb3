"""A run that another record has gone beyond is that record, cut: to the bit what the run itself would have left."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from tiny import tiny

from pslab.config.run import Run
from pslab.lab.records.prefix import LOST, find_or_cut
from pslab.lab.records.record import Result, find
from pslab.lab.runs.run import run, sweep

CLUSTER = {"preset": "lab", "slow": {1: 2.0}}
SYNCS = ["bsp", "asp", "ssp:3", "backup:1", "local:8"]
ENDS = {"pushes": {"pushes": 64}, "the middle of a round": {"pushes": 62}, "seconds": {"seconds": 0.6},
        "target": {"target_accuracy": 0.3, "eval_every": 8}, "both": {"target_accuracy": 0.3, "pushes": 64},
        "held": {"target_accuracy": 0.3, "target_held": True, "eval_every": 8},
        "few evaluations": {"pushes": 96, "eval_every": 32}}  # fmt: skip

NEAR = {"cluster": {"compute_s": 0.01, "compute_sigma": 0.1, "message_s": 1e-4, "apply_s": 1e-4, "serve_s": 1e-4}}
PRUNED = {"prune": "static:5%", "pull": "changed"}
UNCUT = {"its rate depends on the budget": {"schedule": "linear"}, "so does its policy": {"sync": "downpour:2,3"},
         "its requests go ahead": {"sync": "eager"}, "its weights are to be kept": {"keep_weights": True},
         "several ranges": {"ranges": "layers"},
         "a worker comes late": {"sync": "bsp", "cluster": {"preset": "lab", "join": {1: 100.0}}},
         "a worker leaves": {"cluster": {"preset": "lab", "leave": {1: 0.3}}},
         "all at one instant": {"cluster": {"compute_s": 0.01}},
         "a fault": {"cluster": {"preset": "lab", "faults": [{"what": "stop", "worker": 1, "iteration": 3}]}}}


def mine(**fields: object) -> Run:
    return tiny(**{"engine": "virtual", "cluster": CLUSTER, "pushes": 104, "eval_every": 1, "keep_weights": False,
                   **fields})  # fmt: skip


CUT = {f"{sync}, {end}": mine(sync=sync, **ENDS[end]) for sync in SYNCS for end in ENDS}
CUT |= {f"pruned, {end}": mine(sync="asp", **PRUNED, **ENDS[end]) for end in ("pushes", "seconds")}
CUT |= {f"no network, {end}": mine(sync="asp", **NEAR, **ENDS[end]) for end in ("pushes", "seconds", "target")}
CUT |= {f"{sync}, {end}": mine(sync=sync, **ENDS[end])
        for sync, end in (("elastic:15", "pushes"), ("elastic:15", "seconds"), ("dssp", "target"))}  # fmt: skip


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of long runs, under each policy, dense and pruned, and of some that are not to be cut."""
    place = tmp_path_factory.mktemp("longer")
    kinds = [mine(sync=sync) for sync in [*SYNCS, "dssp", "elastic:15"]]
    kinds += [mine(**{"sync": "asp", **fields}) for fields in (PRUNED, NEAR, *UNCUT.values())]
    sweep(kinds, results=place, progress=False)
    return place


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of the runs that CUT names, none of which is there when they start."""
    place = tmp_path_factory.mktemp("executed")
    assert not any(result.cut_from for result in sweep(CUT.values(), results=place, progress=False))
    return place


@pytest.mark.parametrize("case", CUT)
def test_a_cut_record_is_what_the_run_itself_leaves(longer: Path, executed: Path, case: str):
    cut, real = find_or_cut(CUT[case], longer), find(CUT[case], executed)
    assert cut is not None, "no record is found"
    assert real is not None
    assert cut.cut_from is not None
    assert (real.cut_from, real.digest, real.run) == (None, cut.digest, cut.run)
    for name in ("accuracy", "pushes", "arrivals"):
        pd.testing.assert_frame_equal(getattr(cut, name), getattr(real, name), check_exact=True, obj=name)
    pd.testing.assert_frame_equal(rows_of(cut), rows_of(real), check_exact=True, obj="phases")
    theirs = {name: value for name, value in real.manifest.items() if name not in {*LOST, "sha256"}}
    ours = {name: value for name, value in cut.manifest.items() if name not in {"cut_from", "sha256"}}
    assert ours == theirs


def rows_of(result: Result) -> pd.DataFrame:
    """The phases in an order of their own: those that begin at one instant have none."""
    return result.phases.sort_values(list(result.phases.columns), ignore_index=True)


@pytest.mark.parametrize("fields", [
    {"pushes": 200}, {"seconds": 30.0, "pushes": 200}, {"target_accuracy": 0.99, "pushes": 200}, {"seed": 1},
    {"learning_rate": 0.3}, {"target_accuracy": 0.05}, {"pushes": None, "eval_every": None, "seconds": 0.6},
], ids=repr)  # fmt: skip
def test_no_record_is_cut_that_ended_sooner_is_of_another_run_or_does_not_say_it(longer: Path, fields: dict):
    assert find_or_cut(mine(sync="asp", **{"pushes": 64, **fields}), longer) is None


@pytest.mark.parametrize("kind", UNCUT)
def test_a_run_whose_tables_or_facts_do_not_say_how_it_would_have_ended_is_not_cut(longer: Path, kind: str):
    assert find(mine(**{"sync": "asp", **UNCUT[kind]}), longer)
    assert find_or_cut(mine(**{"sync": "asp", **UNCUT[kind], "pushes": 64}), longer) is None


def test_weights_that_were_not_evaluated_are_not_guessed(tmp_path: Path):
    run(mine(eval_every=16), results=tmp_path, progress=False)
    assert find_or_cut(mine(pushes=96, eval_every=48), tmp_path)
    assert find_or_cut(mine(pushes=96, eval_every=24), tmp_path) is None
    assert find_or_cut(mine(pushes=88, eval_every=32), tmp_path) is None
    assert find_or_cut(mine(pushes=88, eval_every=32, target_accuracy=0.3), tmp_path)  # it ends before that


def test_a_sweep_computes_nothing_that_a_longer_run_has(longer: Path):
    before = sorted(path.name for path in (longer / "runs").iterdir())
    found = sweep([mine(sync=sync, **ENDS["target"]) for sync in SYNCS], results=longer, progress=False)
    assert all(result.cut_from in before for result in found)
    assert sorted(path.name for path in (longer / "runs").iterdir()) == before


def test_a_lower_target_is_cut_from_the_record_of_a_higher_one_that_was_held(tmp_path: Path):
    higher = mine(sync="asp", target_accuracy=0.5, target_held=True, eval_every=8, pushes=400)
    whole, lower = run(higher, results=tmp_path, progress=False), higher.but(target_accuracy=0.3)
    assert whole.manifest["outcome"] == "target"
    cut, real = find_or_cut(lower, tmp_path), run(lower, results=tmp_path / "elsewhere", progress=False)
    assert cut is not None
    assert (cut.cut_from, cut.manifest["outcome"]) == (whole.digest, "target")
    assert cut.manifest["pushes"] == real.manifest["pushes"] < whole.manifest["pushes"]
    pd.testing.assert_frame_equal(cut.accuracy, real.accuracy, check_exact=True)
    assert find_or_cut(higher.but(target_accuracy=0.99), tmp_path) is None


def test_a_record_that_is_gone_or_broken_is_not_cut(tmp_path: Path):
    whole = run(mine(), results=tmp_path, progress=False)
    assert find_or_cut(mine(pushes=64), tmp_path)
    content = (whole.path / "phases.csv").read_bytes()
    (whole.path / "phases.csv").write_text("changed")
    assert find_or_cut(mine(pushes=64), tmp_path) is None
    (whole.path / "phases.csv").write_bytes(content)
    other = whole.path.rename(whole.path.with_name("0" * 16))
    assert find_or_cut(mine(pushes=64), tmp_path) is None  # of this semantics, and of the user's sources as they are
    other.rename(whole.path)
    assert find_or_cut(mine(pushes=64), tmp_path)
    (whole.path / "manifest.json").write_text("{")
    assert find_or_cut(mine(pushes=64), tmp_path) is None


def test_each_manifest_is_read_once(longer: Path, monkeypatch: pytest.MonkeyPatch):
    wanted = mine(sync="asp", seed=7)
    assert find_or_cut(wanted, longer) is None
    monkeypatch.setattr(Path, "read_text", None)
    assert find_or_cut(wanted, longer) is None
