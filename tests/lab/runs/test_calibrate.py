"""calibrate: a cluster that virtual runs can use, with what was measured and what was given; how it predicts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny import tiny

from pslab.config.cluster import COSTS, resolve_cluster
from pslab.errors import ConfigError
from pslab.lab.records.record import Result
from pslab.lab.records.summary import summary
from pslab.lab.runs.calibrate import calibrate, calibrated, trace
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run, sweep


def test_costs_are_measured_and_the_rest_is_kept(tmp_path):
    given = {"preset": "lab", "compute_s": 0.005, "slow": {1: 2.0}}
    wanted = tiny(sync="asp", prune="static:5%", pull="changed", cluster=given)
    found = calibrate(wanted, rounds=6)
    cluster = resolve_cluster(found)
    assert (cluster.compute_s, cluster.slow, cluster.bandwidth_bit_s) == (0.005, {1: 2.0}, 1e9)
    assert all(0 < getattr(cluster, name) < 1 for name in COSTS if name not in ("find_s", "search_s"))
    assert cluster.find_s == cluster.search_s == 0  # the means over all pulls, and all messages, have them
    predicted = run(wanted.but(engine="virtual", cluster=found), results=tmp_path, progress=False)
    spent = predicted.phases.assign(spent=predicted.phases.end_s - predicted.phases.begin_s).groupby("phase").spent
    assert abs(spent.max()["select"] - found["select_s"]) < 1e-9


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
    spent = finished.phases[finished.phases.phase == "compute"]
    warm = spent[spent.iteration >= spent.iteration.max() // 2]
    measured_s = (warm.end_s - warm.begin_s).sum() / (4 * len(warm))
    found = calibrated(finished)
    step_s = 0.0 if fields["sync"] == "local:4" else resolve(
        finished.run.but(engine="virtual", cluster=found)).inner_s  # fmt: skip
    assert found["compute_s"] == pytest.approx(max(0.0, measured_s - step_s))
    assert (step_s > 0) == (fields["sync"] != "local:4")


# -- from a finished run ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """BSP and ASP with a worker that is three times slower, on processes, and in virtual time as ASP measured it."""
    results = tmp_path_factory.mktemp("results")
    base = tiny(cluster={"compute_s": 0.004, "slow": {0: 3.0}}, prune="static:10%", pull="changed")
    real = sweep([base, base.but(sync="asp")], results=results, progress=False)
    measured = calibrated(real[1])  # in which no worker has to wait for another
    virtual = [each.run.but(engine="virtual", cluster=measured) for each in real]
    return real + sweep(virtual, results=results, progress=False)


def test_a_twin_applies_the_same_gradients_and_predicts_who_waits(twins: list[Result]):
    assert np.array_equal(twins[0].weights, twins[2].weights)
    table = summary(twins[2:], by="sync", measures=["waiting", "iteration_s"])
    assert table.waiting["bsp"] > 0 == table.waiting["asp"]  # how much, depends on what the server's work took
    assert table.iteration_s["bsp"] > 0.012  # the slow worker's computation alone
    assert table.iteration_s["asp"] < table.iteration_s["bsp"]
    with pytest.raises(ConfigError, match="set engine='local'"):  # a virtual run has measured nothing
        calibrated(twins[2])


@pytest.mark.one_of(3)
@pytest.mark.parametrize("fields", [
    {"rate": "adagrad:server", "prune": "std:1", "pull": "changed"}, {"rate": "adagrad"},
    {"optimizer": "adam", "learning_rate": 0.01, "prune": "static:5%", "pull": "changed"},
], ids=["adagrad at the server", "adagrad at the worker", "adam"])  # fmt: skip
def test_a_twin_is_charged_what_its_own_rule_optimizer_and_rate_took(fields, tmp_path: Path):
    cluster = {"compute_s": 0.002, "slow": {0: 2.0}}
    (real,) = sweep([tiny(sync="asp", pushes=16, cluster=cluster, **fields)], results=tmp_path, progress=False)
    twin = run(real.run.but(engine="virtual", cluster=calibrated(real)), results=tmp_path, progress=False)
    spent = twin.phases.assign(spent=twin.phases.end_s - twin.phases.begin_s).groupby("phase").spent.median()
    assert spent["apply"] == pytest.approx(real.manifest["costs"]["apply_s"])
    ours = real.phases[(real.phases.phase == "select") & (real.phases.iteration >= real.phases.iteration.max() // 2)]
    if real.run.prune != "none" or real.run.rate == "adagrad":
        assert spent["select"] == pytest.approx(float((ours.end_s - ours.begin_s).mean()))


def test_a_recorded_trace_is_a_cluster_of_its_own(twins: list[Result], tmp_path: Path):
    times = trace(twins[1])
    assert set(times) == {0, 1, 2, 3}
    assert min(times[0]) > 0.0119  # three times 4 ms, and whatever a busy machine adds
    assert min(times[1]) < min(times[0])
    (again,) = sweep([tiny(engine="virtual", sync="asp", cluster={"trace": times})], results=tmp_path, progress=False)
    computing = again.phases[(again.phases.phase == "compute") & (again.phases.worker == 1)].sort_values("iteration")
    spent = (computing.end_s - computing.begin_s).to_numpy()
    assert np.allclose(spent[: len(times[1])], times[1][: len(spent)])
