"""The cluster: impossible values are refused, presets can be changed."""

from __future__ import annotations

import pytest

from pslab.config.cluster import PRESETS, Cluster, resolve_cluster
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
        ({"select_factor": {"statik": 2.0}}, "select_factor"),
        ({"select_factor": {"static": (1.0, 2.0)}}, "select_factor"),
        ({"apply_factor": {"squares": -1.0}}, "apply_factor"),
        ({"apply_factor": {"squares": 3.0}}, "apply_factor"),
        ({"apply_factor": {"squares": ["3", 2]}}, "apply_factor"),
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
