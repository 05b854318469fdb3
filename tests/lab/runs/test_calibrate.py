"""calibrate: a cluster that virtual runs can use, with what was measured and what was given."""

from __future__ import annotations

from tiny import tiny

from pslab.config.cluster import COSTS, resolve_cluster
from pslab.lab.runs.calibrate import calibrate
from pslab.lab.runs.run import run


def test_costs_are_measured_and_the_rest_is_kept(tmp_path):
    given = {"preset": "lab", "compute_s": 0.005, "slow": {1: 2.0}}
    wanted = tiny(sync="asp", prune="static:5%", pull="changed", cluster=given)
    found = calibrate(wanted, rounds=12)
    cluster = resolve_cluster(found)
    assert (cluster.compute_s, cluster.slow, cluster.bandwidth_bit_s) == (0.005, {1: 2.0}, 1e9)
    assert all(0 < getattr(cluster, name) < 1 for name in COSTS if name not in ("find_s", "search_s"))
    assert cluster.find_s == cluster.search_s == 0  # the means over all pulls, and all messages, have them
    predicted = run(wanted.but(engine="virtual", cluster=found), results=tmp_path, progress=False)
    spent = predicted.phases.assign(spent=predicted.phases.end_s - predicted.phases.begin_s).groupby("phase").spent
    assert abs(spent.max()["select"] - found["select_s"]) < 1e-9


def test_computation_is_measured_where_the_cluster_models_none():
    found = calibrate(tiny(workers=2), rounds=12)
    assert 0 < found["compute_s"] < 1
    assert found["compute_sigma"] > 0
    assert "select_s" in found  # a dense gradient is looked at for what is not finite
    assert "decode_s" not in found or found["decode_s"] < 1e-3
    assert resolve_cluster(found).free
