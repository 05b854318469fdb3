"""A run replayed on another cluster equals the run that this cluster would give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tiny import Diverges, tiny

from pslab.errors import ConfigError
from pslab.lab.records.results import Results
from pslab.lab.runs.grid import grid
from pslab.lab.runs.replayed import retimed
from pslab.lab.runs.run import run, sweep

SLOW, FAST = {"preset": "lab-slow-net", "bandwidth_bit_s": 1e6}, "lab"


@pytest.mark.parametrize("fields", [
    {"sync": "local:3"}, {"sync": "local:3", "pushes": 25}, {"sync": "average:1", "pushes": 128},
    {"sync": "average:1", "prune": "static:5%", "pull": "changed", "pushes": 128},
    {"prune": "static:5%", "pull": "changed"}, {"prune": "dgc:5%,warm_up=0", "pull": "changed"},
    {"prune": "dynamic:mode=literal", "pull": "changed"}, {"pull": "changed", "workers": 3, "pushes": 39},
    {"target_accuracy": 0.2, "eval_every": 8}, {"target_accuracy": 0.2, "target_held": True, "eval_every": 8},
    {"target_accuracy": 0.2, "eval_every": 7, "pushes": None},
    {"sync": "local:2", "target_accuracy": 0.2, "eval_every": 8}, {}, {"sync": "admm:2"},
])  # fmt: skip
@pytest.mark.one_of(4)
def test_a_replayed_run_equals_the_run_on_that_cluster(tmp_path: Path, fields: dict):
    here = run(tiny(engine="virtual", cluster=SLOW, **fields), results=tmp_path, progress=False)
    there = run(tiny(engine="virtual", cluster=FAST, **fields), results=tmp_path, progress=False)
    told = retimed(here, FAST)
    assert told.run == there.run
    assert told.manifest["seconds"] == there.manifest["seconds"] < here.manifest["seconds"]
    to_target = "target_accuracy" in fields  # the server may have answered somebody before its weights were evaluated
    for name in ("accuracy", "pushes", "phases")[: 2 if to_target else 3]:
        one, other = (getattr(result, name).reset_index(drop=True) for result in (told, there))
        if name == "pushes" and to_target:
            one, other = (table.drop(columns=["bytes_down", "bytes_down_raw"]) for table in (one, other))
        pd.testing.assert_frame_equal(one, other, check_exact=name == "phases", rtol=1e-5)
    np.testing.assert_array_equal(told.accuracy.seconds, there.accuracy.seconds)


@pytest.mark.parametrize("sync", ["bsp", "local:3"])
def test_a_run_that_was_ended_by_its_time_is_replayed_to_its_last_push(tmp_path: Path, sync: str):
    here = run(tiny(engine="virtual", sync=sync, cluster=FAST, pushes=None, seconds=0.3), results=tmp_path,
               progress=False)  # fmt: skip
    count = here.manifest["pushes"]
    assert here.manifest["outcome"] == "seconds"
    there = run(tiny(engine="virtual", sync=sync, cluster=SLOW, pushes=count), results=tmp_path, progress=False)
    told = retimed(here, SLOW)
    assert told.manifest["seconds"] == there.manifest["seconds"]
    pd.testing.assert_series_equal(told.pushes.seconds, there.pushes.seconds)
    pd.testing.assert_series_equal(told.accuracy.accuracy, here.accuracy.accuracy)


def test_a_run_that_diverges_diverges_on_another_cluster_too(tmp_path: Path):
    fields = {"engine": "virtual", "model": Diverges, "pushes": 40}
    here, there = (run(tiny(cluster=each, **fields), results=tmp_path, progress=False) for each in (SLOW, FAST))
    told = retimed(here, FAST)
    assert here.manifest["outcome"] == told.manifest["outcome"] == there.manifest["outcome"] == "diverged"
    assert 0 < len(told.pushes) == len(there.pushes) < 40
    np.testing.assert_array_equal(told.pushes.seconds, there.pushes.seconds)


def test_results_on_another_cluster_keep_their_points(tmp_path: Path):
    base = tiny(engine="virtual", cluster=SLOW)
    here = sweep(grid(base, kind={"dense": {}, "few": {"prune": "static:5%"}}, cluster=[SLOW]), results=tmp_path,
                 progress=False)  # fmt: skip
    there = here.on(FAST)
    assert isinstance(there, Results)
    assert [(point["kind"], point["cluster"]) for point, in there.columns] == [("dense", FAST), ("few", FAST)]
    assert (there.levels("kind"), there.levels("cluster")) == (["dense", "few"], [FAST])
    assert [result.seconds for result in there] == [retimed(result, FAST).seconds for result in here]
    assert [result.seconds for result in there] != [result.seconds for result in here]


@pytest.mark.parametrize(("fields", "cluster", "words"), [
    ({"sync": "asp"}, SLOW, "other gradients"),
    ({"sync": "ssp:0"}, SLOW, "without rounds another cluster means other gradients"),
    ({}, {"preset": "lab", "leave": {1: 0.1}}, "workers that stay"),
    ({"pushes": None, "seconds": 0.001}, FAST, "no push was applied"),
])  # fmt: skip
def test_what_cannot_be_replayed_is_refused(tmp_path: Path, fields: dict, cluster: object, words: str):
    here = run(tiny(engine="virtual", cluster=FAST, **fields), results=tmp_path, progress=False)
    with pytest.raises(ConfigError, match=words):
        here.on(cluster)
