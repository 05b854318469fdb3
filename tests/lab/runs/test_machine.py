"""This machine: what its cores and memory can hold, and the cluster that virtual runs take from what it measured."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tiny import tiny

from pslab.config.cluster import COSTS, resolve_cluster
from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.records.record import Result
from pslab.lab.runs import machine
from pslab.lab.runs.calibrate import calibrate, calibrated, trace
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run


def spent(result: Result, phase: str) -> pd.Series:
    """The seconds of a phase in the second half of a run."""
    rows = result.phases.query("phase == @phase and iteration >= iteration.max() // 2")
    return rows.end_s - rows.begin_s


def test_costs_are_measured_and_the_rest_is_kept(tmp_path):
    given = {"preset": "lab", "compute_s": 0.005, "slow": {1: 2.0}}
    wanted = tiny(sync="asp", prune="static:5%", pull="changed", cluster=given)
    found = calibrate(wanted, rounds=6)
    cluster = resolve_cluster(found)
    assert (cluster.compute_s, cluster.slow, cluster.bandwidth_bit_s) == (0.005, {1: 2.0}, 1e9)
    assert all(0 < getattr(cluster, name) < 1 for name in COSTS if name not in ("find_s", "search_s"))
    assert cluster.find_s == cluster.search_s == 0  # the means over all pulls, and all messages, have them
    predicted = run(wanted.but(engine="virtual", cluster=found), results=tmp_path, progress=False)
    assert spent(predicted, "select").max() == pytest.approx(found["select_s"], abs=1e-9)


def test_computation_is_measured_where_the_cluster_models_none():
    found = calibrate(tiny(workers=2), rounds=6)
    assert 0 < found["compute_s"] < 1
    assert found["compute_sigma"] > 0
    assert "select_s" in found  # a dense gradient is looked at for what is not finite
    assert "decode_s" not in found or found["decode_s"] < 1e-3
    assert resolve_cluster(found).free


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{"sync": "local:4"}, {"sync": "diloco:4", "learning_rate": 0.01}], ids=str)
def test_a_gradient_takes_its_share_of_an_iteration_of_several_without_the_workers_own_steps(tmp_path, fields):
    """By the record: the time of all computations, by the number of gradients."""
    finished = run(tiny(workers=2, pushes=48, **fields), results=tmp_path, progress=False)
    found, measured_s = calibrated(finished), spent(finished, "compute").mean() / 4
    steps = 0.0 if fields["sync"] == "local:4" else 1.0
    step_s = steps and resolve(finished.run.but(engine="virtual", cluster=found)).inner_s
    assert found["compute_s"] == pytest.approx(max(0.0, measured_s - step_s))
    assert (step_s > 0) == bool(steps)


# -- from a finished run ---------------------------------------------------------------------------


@pytest.mark.one_of(3)
@pytest.mark.parametrize("fields", [
    {"rate": "adagrad:server", "prune": "std:1", "pull": "changed"}, {"rate": "adagrad"},
    {"optimizer": "adam", "learning_rate": 0.01, "prune": "static:5%", "pull": "changed"},
], ids=["adagrad at the server", "adagrad at the worker", "adam"])  # fmt: skip
def test_a_twin_is_charged_what_its_own_rule_optimizer_and_rate_took(fields, tmp_path: Path):
    cluster = {"compute_s": 0.002, "slow": {0: 2.0}}
    real = run(tiny(sync="asp", pushes=16, cluster=cluster, **fields), results=tmp_path, progress=False)
    twin = run(real.run.but(engine="virtual", cluster=calibrated(real)), results=tmp_path, progress=False)
    assert spent(twin, "apply").median() == pytest.approx(real.manifest["costs"]["apply_s"])
    if real.run.prune != "none" or real.run.rate == "adagrad":
        assert spent(twin, "select").median() == pytest.approx(spent(real, "select").mean())


def test_a_recorded_trace_is_a_cluster_of_its_own(tmp_path: Path):
    slow = {"cluster": {"compute_s": 0.004, "slow": {0: 3.0}}, "sync": "asp"}
    real = run(tiny(**slow), results=tmp_path, progress=False)
    times, computed = trace(real), real.phases.query("phase == 'compute'").worker
    assert {worker: len(seconds) for worker, seconds in times.items()} == computed.value_counts().to_dict()
    assert min(times[0]) > 0.0119  # three times 4 ms, and whatever a busy machine adds
    again = run(tiny(engine="virtual", sync="asp", cluster={"trace": times}), results=tmp_path, progress=False)
    computing = again.phases.query("phase == 'compute' and worker == 1").sort_values("iteration")
    taken = (computing.end_s - computing.begin_s).to_numpy()
    assert np.allclose(taken[: len(times[1])], times[1][: len(taken)])
    with pytest.raises(ConfigError, match="set engine='local'"):  # a virtual run has measured nothing
        calibrated(again)


# -- what it can hold ------------------------------------------------------------------------------


@pytest.mark.parametrize(("fields", "times"), [
    ({}, 3 + 12 + 22), ({"eval_every": 100}, 3 + 12 + 3), ({"dtype": "float64"}, 2 * (3 + 12 + 22)),
    ({"pushes": None, "seconds": 1.0, "workers": 1}, 3 + 3 + 22), ({"on_death": "restart"}, 3 + 12 + 22 + 2),
    ({"on_death": "restart", "engine": "virtual", "cluster": "lab"}, 3 + 12 + 22), ({"pull": "keys"}, 1),
    ({"engine": "ray"}, 2 + 22),
])  # fmt: skip
def test_memory_is_for_every_worker_and_every_evaluation(fields: dict, times: int, monkeypatch):
    run = Run(**{"pushes": 100, **fields})
    monkeypatch.setattr(machine, "free_memory_bytes", lambda: 1000 * 4 * times)
    machine.check_memory(run, 1000)
    with pytest.raises(ConfigError, match="1,001 weights"):
        machine.check_memory(run, 1001)
    monkeypatch.setattr(machine, "free_memory_bytes", lambda: None)  # the system does not tell
    machine.check_memory(run, 1001)


def test_checkpoints_that_nobody_asks_for_again_are_forgotten_and_that_is_said(tmp_path):
    folder = tmp_path / machine.CHECKPOINTS
    for digest, days in (("old", (31, 31)), ("older", (300, 300)), ("recent", (29, 29)), ("added to", (31, 0))):
        (folder / digest).mkdir(parents=True)
        for number, age in enumerate(days):
            path = folder / digest / f"00000{number}.checkpoint"
            path.write_bytes(bytes(500_000))
            os.utime(path, (time.time() - age * 86400,) * 2)
        os.utime(folder / digest, (time.time() - days[0] * 86400,) * 2)
    words = machine.forget_old_checkpoints(tmp_path)
    assert words.startswith(f"checkpoints of 2 runs were removed from {folder} (2.0 MB")
    assert sorted(path.name for path in folder.iterdir()) == ["added to", "recent"]
    assert machine.forget_old_checkpoints(tmp_path) == machine.forget_old_checkpoints(tmp_path / "none") == ""
