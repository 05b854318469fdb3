"""A run that another record has gone beyond is that record, cut: to the bit what the run itself would have left."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from tiny import tiny

from pslab.config.run import Run
from pslab.lab.records.prefix import LOST, find_or_cut
from pslab.lab.records.record import Result
from pslab.lab.runs.run import run, sweep

CLUSTER = {"preset": "lab", "slow": {1: 2.0}}
SYNCS = ["bsp", "asp", "ssp:3", "backup:1", "local:8"]
ENDS = {"pushes": {"pushes": 64}, "the middle of a round": {"pushes": 62}, "seconds": {"seconds": 0.6},
        "target": {"target_accuracy": 0.3, "eval_every": 8}, "both": {"target_accuracy": 0.3, "pushes": 64},
        "few evaluations": {"pushes": 96, "eval_every": 32}}  # fmt: skip


def mine(**fields: object) -> Run:
    return tiny(**{"engine": "virtual", "cluster": CLUSTER, "pushes": 160, "eval_every": 1, "keep_weights": False,
                   **fields})  # fmt: skip


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of long runs, under each policy, dense and pruned."""
    place = tmp_path_factory.mktemp("longer")
    kinds = [mine(sync=sync) for sync in [*SYNCS, "dssp", "elastic:15"]]
    sweep([*kinds, mine(sync="asp", prune="static:5%", pull="changed")], results=place, progress=False)
    return place


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("sync", SYNCS)
def test_a_cut_record_is_what_the_run_itself_leaves(longer: Path, tmp_path: Path, sync: str, end: str):
    same(mine(sync=sync, **ENDS[end]), longer, tmp_path)


@pytest.mark.parametrize(("fields", "end"), [
    ({"sync": "asp", "prune": "static:5%", "pull": "changed"}, "pushes"),
    ({"sync": "asp", "prune": "static:5%", "pull": "changed"}, "seconds"), ({"sync": "elastic:15"}, "pushes"),
    ({"sync": "elastic:15"}, "seconds"), ({"sync": "dssp"}, "target"),
])  # fmt: skip
def test_so_it_is_with_pruned_pushes_and_other_policies(longer: Path, tmp_path: Path, fields: dict, end: str):
    same(mine(**fields, **ENDS[end]), longer, tmp_path)


def same(wanted: Run, longer: Path, tmp_path: Path) -> None:
    """The cut record equals that of the run that is executed."""
    cut = find_or_cut(wanted, longer)
    assert cut is not None, "no record is found"
    assert cut.cut_from is not None
    real = run(wanted, results=tmp_path, progress=False)
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
    {"pushes": 200}, {"seconds": 3.0, "pushes": 200}, {"target_accuracy": 0.99, "pushes": 200},
    {"seed": 1, "pushes": 64},
    {"schedule": "linear", "pushes": 64}, {"sync": "average:1", "pushes": 64}, {"sync": "eager", "pushes": 64},
    {"engine": "timing", "pushes": 64}, {"keep_weights": True, "pushes": 64}, {"cluster": "lab", "pushes": 64},
    {"target_accuracy": 0.05, "pushes": 64}, {"pushes": None, "eval_every": None, "seconds": 0.6},
], ids=repr)  # fmt: skip
def test_no_record_is_cut_that_ended_sooner_is_of_another_run_or_does_not_say_it(longer: Path, fields: dict):
    assert find_or_cut(mine(sync="asp").but(**fields), longer) is None


def test_weights_that_were_not_evaluated_are_not_guessed(tmp_path: Path):
    run(mine(eval_every=16), results=tmp_path, progress=False)
    assert find_or_cut(mine(pushes=96, eval_every=48), tmp_path)
    assert find_or_cut(mine(pushes=96, eval_every=24), tmp_path) is None
    assert find_or_cut(mine(pushes=88, eval_every=32), tmp_path) is None
    assert find_or_cut(mine(pushes=88, eval_every=32, target_accuracy=0.3), tmp_path)  # it ends before that


def test_a_sweep_computes_nothing_that_a_longer_run_has(longer: Path):
    before = sorted(path.name for path in (longer / "runs").iterdir())
    runs = [mine(sync=sync, target_accuracy=0.3, eval_every=8) for sync in SYNCS]
    found = sweep(runs, results=longer, progress=False)
    assert all(result.cut_from in before for result in found)
    assert sorted(path.name for path in (longer / "runs").iterdir()) == before


def test_a_record_that_is_gone_or_broken_is_not_cut(tmp_path: Path):
    whole = run(mine(), results=tmp_path, progress=False)
    assert find_or_cut(mine(pushes=64), tmp_path)
    (whole.path / "phases.csv").write_text("changed")
    assert find_or_cut(mine(pushes=64), tmp_path) is None
    whole.path.rename(tmp_path / "elsewhere")
    assert find_or_cut(mine(pushes=64), tmp_path) is None
    (tmp_path / "elsewhere" / "manifest.json").write_text("{")
    (tmp_path / "elsewhere").rename(whole.path)
    assert find_or_cut(mine(pushes=64), tmp_path) is None


def test_each_manifest_is_read_once(longer: Path, monkeypatch: pytest.MonkeyPatch):
    wanted = mine(sync="asp", seed=7)
    assert find_or_cut(wanted, longer) is None
    monkeypatch.setattr(Path, "read_text", None)
    assert find_or_cut(wanted, longer) is None
