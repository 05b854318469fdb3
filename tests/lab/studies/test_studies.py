"""The studies whose notebooks still take their runs from the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from pslab.errors import ConfigError
from pslab.lab.studies import notebook as pages
from pslab.lab.studies.studies import pruning_runs, sync_runs


def test_a_pruning_study_has_dense_each_threshold_and_the_single_machine():
    runs = pruning_runs(family="std", thresholds=[1, 2.5], sync="ssp:3", seeds=[4])
    assert [(run.prune, run.workers, run.sync) for run in runs] == [
        ("none", 4, "ssp:3"), ("std:1", 4, "ssp:3"), ("std:2.5", 4, "ssp:3"), ("none", 1, "bsp")]  # fmt: skip
    assert {run.seed for run in runs} == {4}


def test_one_changed_parameter_is_one_new_run():
    before = {run.digest for run in pruning_runs()}
    after = {run.digest for run in pruning_runs(thresholds=["10%", "1%", "0.2%"])}
    assert len(after - before) == 1


def test_push_weights_only_where_a_push_is_applied_alone():
    runs = sync_runs(push_weights=[None, 1.0])
    assert [(run.sync, run.push_weight) for run in runs] == [
        ("bsp", None), ("ssp:3", None), ("ssp:3", 1.0), ("asp", None), ("asp", 1.0), ("bsp", None)]  # fmt: skip


def test_each_policy_at_its_own_learning_rate():
    runs = sync_runs(policies=["bsp", "asp"], learning_rate={"bsp": 0.5, "asp": 0.2})
    assert [run.learning_rate for run in runs] == [0.5, 0.2, 0.5]
    with pytest.raises(ConfigError, match="no entry for 'asp'"):
        sync_runs(policies=["bsp", "asp"], learning_rate={"bsp": 0.5})


# -- parameters ------------------------------------------------------------------------------------

BAD = [
    ("20_sync_policies", {"family": "static"}, "no such parameter"),
    ("20_sync_policies", {"policies": "bsp"}, "must be a list"),
    ("20_sync_policies", {"push_weights": [0]}, "push_weight"),
    ("20_sync_policies", {"learning_rate": -1}, "learning_rate"),
    ("20_sync_policies", {"learning_rate": []}, "must be a list"),
    ("20_sync_policies", {"learning_rate": [0.1, "fast"]}, "learning_rate"),
    ("25_ssp_tuning", {"clusters": "lab"}, "must map names"),
    ("25_ssp_tuning", {"seeds": []}, "must be a list"),
    ("30_nothing", {}, "20_sync_policies"),
]


@pytest.mark.parametrize(("notebook", "values", "words"), BAD)
def test_wrong_parameters_are_refused(notebook: str, values: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        pages.check_parameters(notebook, values)


def test_a_notebooks_globals_are_checked_for_what_its_cells_of_parameters_assign():
    cells = ["", "# Parameters\nprune = 'std:1'\nworkers = 2", "other = 3", "# Parameters\nprnue = 'x'", "check"]
    found = {"In": cells, "prune": "std:1", "workers": 2, "other": 3, "Out": {}, "images": True}
    assert pages.parameters("20_sync_policies", {**found, "In": [*cells[:3], "check"]}) == {
        "prune": "std:1", "workers": 2}  # fmt: skip
    with pytest.raises(ConfigError, match="did you mean 'prune'"):
        pages.parameters("20_sync_policies", {**found, "prnue": "x"})


def test_names_of_figures():
    assert pages.stem("20_sync_policies", {}) == "20_sync_policies-none"
    assert pages.stem("20_sync_policies", {"prune": "static:0.1%"}) == "20_sync_policies-static0.1"
    assert pages.stem("20_sync_policies", {"learning_rate": [0.1], "workers": 2}) == "20_sync_policies-none-w2-rates"
    assert pages.stem("25_ssp_tuning", {}) == "25_ssp_tuning-none"


def test_save_refuses_figures_that_nobody_expects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PSLAB_RESULTS", str(tmp_path))
    with pytest.raises(ConfigError, match="settings"):
        pages.save("25_ssp_tuning", {}, {"accuracy": go.Figure()})
    assert not list(tmp_path.iterdir())
