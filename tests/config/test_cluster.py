"""The cluster: what no cluster can have is refused, and chance comes from named streams."""

from __future__ import annotations

import numpy as np
import pytest

from pslab.config.cluster import PRESETS, Cluster, resolve_cluster
from pslab.engines.emulation.compute_times import ComputeTimes
from pslab.errors import ConfigError


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"bandwidth_bit_s": 0}, "bandwidth_bit_s"),
        ({"server_bandwidth_bit_s": -1}, "server_bandwidth_bit_s"),
        ({"latency_s": -0.1}, "latency_s"),
        ({"duplex": "both"}, "duplex"),
        ({"compute_s": 0}, "compute_s"),
        ({"stall_probability": 2, "compute_s": 1}, "stall_probability"),
        ({"stall_factor": 0.5, "compute_s": 1}, "stall_factor"),
        ({"slow": {0: 0}, "compute_s": 1}, "slow"),
        ({"trace": {0: []}}, "trace"),
        ({"trace": {0: [0.1, 0.0]}}, "trace"),
        ({"leave": {0: 0}}, "leave"),
        ({"join": {-1: 3}}, "join"),
        ({"join": {0: 3}, "leave": {0: 3}}, "join"),
        ({"compute_sigma": 0.1}, "compute_s"),
        ({"bandwith_bit_s": 1e9}, "bandwith_bit_s"),
        ({"preset": "labs"}, "preset"),
        ({"latency_s": "fast"}, "latency_s"),
    ],
)
def test_impossible_clusters_are_refused(fields, field):
    with pytest.raises(ConfigError) as error:
        resolve_cluster(fields)
    assert error.value.field == f"cluster.{field}"


def test_every_preset_is_a_cluster_and_a_mapping_can_change_it():
    for name in PRESETS:
        resolve_cluster(name)
    assert resolve_cluster({"preset": "lab", "latency_s": 0.1}) == Cluster(**{**PRESETS["lab"], "latency_s": 0.1})
    with pytest.raises(ConfigError, match="did you mean 'lab'"):
        resolve_cluster("labb")


def test_compute_times_follow_the_model():
    cluster = Cluster(compute_s=0.02, compute_sigma=0.1, stall_probability=0.05, stall_factor=5, slow={1: 3})
    times = ComputeTimes(cluster, seed=1, worker=0)
    drawn = np.array([times.draw() for _ in range(20_000)])
    stalled = drawn > 0.05
    assert stalled.mean() == pytest.approx(0.05, abs=0.006)
    assert drawn[~stalled].mean() == pytest.approx(0.02, rel=0.01)
    assert np.log(drawn[~stalled]).std() == pytest.approx(0.1, rel=0.05)
    slow = ComputeTimes(cluster, seed=1, worker=1)
    assert np.mean([slow.draw() for _ in range(20_000)]) == pytest.approx(3 * 0.02 * 1.2, rel=0.03)


def test_a_recorded_trace_is_played_again():
    cluster = Cluster(compute_s=1.0, slow={1: 3.0}, trace={0: [0.1, 0.2, 0.3]})
    recorded, modelled = (ComputeTimes(cluster, 0, worker) for worker in (0, 1))
    assert [recorded.draw() for _ in range(5)] == [0.1, 0.2, 0.3, 0.1, 0.2]
    assert modelled.draw() == 3.0


def test_compute_times_are_the_same_for_the_same_names_only():
    cluster = Cluster(compute_s=0.02, compute_sigma=0.1)

    def five(seed: int, worker: int) -> list[float]:
        times = ComputeTimes(cluster, seed, worker)
        return [times.draw() for _ in range(5)]

    assert five(0, 0) == five(0, 0)
    assert five(0, 0) != five(0, 1)
    assert five(0, 0) != five(1, 0)


def test_computation_that_is_not_modelled_takes_no_modelled_time():
    assert ComputeTimes(Cluster(), 0, 0).draw() == 0
