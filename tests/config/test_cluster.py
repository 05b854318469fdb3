"""The cluster: impossible values are refused, presets can be changed."""

from __future__ import annotations

import pytest

from pslab.config.cluster import (
    COSTS,
    MEASURED,
    PRESETS,
    Cluster,
    cluster_fields,
    resolve_cluster,
)
from pslab.config.run import Run
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
        ({"faults": [{"what": "kil", "iteration": 1}]}, "faults.what"),
        ({"faults": [{"what": "kill", "iteration": -1}]}, "faults.iteration"),
        ({"faults": [{"what": "kill", "iteration": 1, "at_s": 1.0}]}, "faults"),
        ({"faults": [{"what": "drop"}]}, "faults"),
        ({"faults": [{"what": "drop", "probability": 2}]}, "faults.probability"),
        ({"faults": [{"what": "stop", "at_s": 1.0, "direction": "up"}]}, "faults.direction"),
        ({"faults": [{"what": "stop", "at": 1.0}]}, "faults.at"),
        ({"faults": {"what": "drop", "probability": 0.1, "for_s": 0}}, "faults.for_s"),
        ({"faults": "drop"}, "faults"),
        ({"faults": [{"wat": "stop", "at_s": 1.0}]}, "faults.wat"),
        ({"preset": "lab", "slow": [2, 1]}, "slow"),
        ({"preset": "lab", "slow": {1.5: 2.0}}, "slow"),
        ({"preset": "lab", "slow": {"a": 2.0}}, "slow"),
        ({"preset": "lab", "trace": {0: []}}, "trace"),
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


def test_costs_of_a_preset_grow_with_the_weights_and_given_ones_do_not():
    lab, half = resolve_cluster("lab"), resolve_cluster({"preset": "lab", "apply_s": 1.0}, MEASURED // 2)
    assert resolve_cluster("lab", MEASURED) == lab == Cluster(**PRESETS["lab"])
    for name in COSTS:
        share = {"apply_s": 1.0 / lab.apply_s, "message_s": 1.0, "search_s": 1.0}.get(name, 0.5)
        assert getattr(half, name) == pytest.approx(share * getattr(lab, name))


def test_faults_are_plain_and_a_wrong_name_is_answered_with_the_nearest():
    given = [{"what": "drop", "probability": 0.01}, {"what": "kill", "worker": 1, "iteration": 3}]
    assert cluster_fields({"preset": "free", "faults": given}) == {"faults": given}
    with pytest.raises(ConfigError, match="did you mean 'kill'"):
        resolve_cluster({"faults": [{"what": "kil", "iteration": 1}]})
    with pytest.raises(ConfigError, match="did you mean 'probability'"):
        resolve_cluster({"faults": [{"what": "drop", "probabilty": 0.1}]})


def test_links_with_faults_are_links():
    assert not resolve_cluster({"faults": [{"what": "delay", "at_s": 1.0}]}).free
    assert resolve_cluster({"faults": [{"what": "stop", "at_s": 1.0}]}).free


@pytest.mark.parametrize(("cluster", "words"), [
    ("labb", "did you mean 'lab'"), ({"preset": "lab", "bandwith_bit_s": 1e8}, "did you mean 'bandwidth_bit_s'"),
    *(({"preset": "lab", name: {4: value}}, f"cluster.{name}.*no worker 4: with workers=4 they are 0 to 3")
      for name, value in (("slow", 2.0), ("trace", [0.1]), ("leave", 1.0), ("join", 1.0))),
    ({"faults": [{"what": "stop", "worker": 7, "at_s": 1.0}]}, "cluster.faults.*no worker 7"),
])  # fmt: skip
def test_a_run_refuses_a_misspelt_field_of_its_cluster_and_a_worker_that_it_does_not_have(cluster, words):
    with pytest.raises(ConfigError, match=words):
        Run(workers=4, cluster=cluster)
