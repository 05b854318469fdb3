"""Where processes are started: a place, a mapping, or a cluster's file; what is wrong in it is said by its name."""

from __future__ import annotations

import pytest

from pslab.config.fleet import Fleet, fields_of, is_file
from pslab.config.run import Run
from pslab.errors import ConfigError

FILE = """
engine: ray
address: head:6379
workers: {count: 8, gpus: 0.5, cpus: 1, per_node: 4}
servers: {count: 2, cpus: 1, apart: true}
data: {network: 10.0.0.0/8, ports: 20000-20100}
on_death: restart
lease_s: 5
checkpoint_every: 200
links: free
"""
FLEET = {"place": "ray", "address": "head:6379", "worker_gpus": 0.5, "worker_cpus": 1, "workers_per_node": 4,
         "server_cpus": 1, "servers_apart": True, "network": "10.0.0.0/8", "ports": "20000-20100"}  # fmt: skip


def test_a_file_says_the_fields_of_a_run_and_its_fleet(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    assert fields_of(str(path)) == {"cluster": "free", "workers": 8, "servers": 2, "on_death": "restart", "lease_s": 5,
                                    "checkpoint_every": 200, "fleet": FLEET}  # fmt: skip
    found = Fleet.of(fields_of(path)["fleet"])
    assert (found.place, found.worker_gpus, found.port_range) == ("ray", 0.5, (20000, 20100))


def test_a_mapping_with_an_engine_is_one_of_hosts_and_one_of_links_is_not():
    assert all(map(is_file, ({"engine": "loopback"}, "hosts.yml")))
    assert not any(map(is_file, ("lab", {"bandwidth_bit_s": 1e9})))
    assert fields_of({"engine": "loopback", "links": {"latency_s": 1e-3}}) == {
        "fleet": "loopback", "cluster": {"latency_s": 1e-3}}  # fmt: skip


def test_a_file_may_be_one_that_the_doctor_wrote(tmp_path):
    path = tmp_path / "predicted.yaml"
    path.write_text("engine: virtual\nworkers: 3\ncluster: {compute_s: 0.02, bandwidth_bit_s: 6240000000.0}\n")
    run = Run(cluster=str(path), pushes=30)
    assert (run.engine, run.workers, run.fleet) == ("virtual", 3, "local")
    assert run.cluster == {"compute_s": 0.02, "bandwidth_bit_s": 6.24e9}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"engine": "virtual", "cluster": {}, "payload": "plain"}, r"cluster.payload.*there is no such entry"),
        ({"engine": "ray", "wokers": {"count": 2}}, r"cluster.wokers.*did you mean 'workers'"),
        ({"engine": "ray", "workers": {"cout": 2}}, r"cluster.workers.cout.*did you mean 'count'"),
        ({"engine": "ray", "workers": 2}, r"cluster.workers=2: must say count, cpus, gpus, per_node"),
        ({"engine": "ray", "data": {"tls": True}}, r"cluster.data.tls.*there is no such entry"),
        ("nowhere.yaml", r"nowhere.yaml'?: cannot be read"),
    ],
)
def test_what_a_file_may_not_say_is_refused_by_its_name(given, problem):
    with pytest.raises(ConfigError, match=problem):
        fields_of(given)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("rey", "did you mean 'ray'"), ({"place": "ray", "network": 3}, r"fleet.network=3: must be a string"),
        ({"worker_gpus": -1}, r"fleet.worker_gpus"), ({"ports": "20100-20000"}, "the first and the last"),
        ({"ports": "80-90"}, "the first and the last"), ({"adress": "auto"}, "did you mean 'address'"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused(given, problem):
    with pytest.raises(ConfigError, match=problem):
        Fleet.of(given)
