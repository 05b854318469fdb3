"""The doctor of a cluster: each finding well, and each that is not, with what to do about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pslab.__main__ import main
from pslab.config.run import Run
from pslab.engines.processes.fleets.link_speed import Host, LinkSpeed, LinkSpeeds
from pslab.errors import ConfigError, StartFailed, WorkerFailed
from pslab.lab.commands import doctor_hosts as hosts
from pslab.lab.commands.finding import NOTE, OK, PROBLEM, Finding

COSTS = {"compute_s": 0.0123456, "slow": {}, "layer_shares": [], "latency_s": 1e-4, "bandwidth_bit_s": 1e9}


def host(who: str, name: str = "a", **fields: object) -> Host:
    usual = {"cores": 4.0, "gpus": ["H100"], "python": "3.12.1", "torch": "2.13", "offset_s": 0.0, "bound_s": 0.0,
             "port": 20001}  # fmt: skip
    return Host(who, name, **{**usual, **fields})  # type: ignore[arg-type]


def found(*others: Host, **fields: object) -> LinkSpeeds:
    usual = {"hosts": [host("server"), host("worker 0", "b"), *others], "ways": [LinkSpeed(0, 0, 1e-4, 1e9, 2e9)],
             "together_bit_s": 1e9}  # fmt: skip
    return LinkSpeeds(**{**usual, **fields})  # type: ignore[arg-type]


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch):
    """What is found where these ways were measured, by name."""

    def of(ways: LinkSpeeds | Exception, costs: object = COSTS, fleet: object = "loopback") -> dict[str, Finding]:
        def given(what: object):
            if isinstance(what, Exception):
                raise what
            return what

        monkeypatch.setattr(hosts, "measure_links", lambda run: given(ways))
        monkeypatch.setattr(hosts, "calibrate", lambda run, links: given(costs))
        monkeypatch.setattr(hosts, "Run", lambda **fields: Run(fleet=fleet))
        return {each.name: each for each in hosts.examine("cluster.yaml")}

    return of


def test_a_cluster_that_is_well(examined):
    each = examined(found())
    assert {finding.state for finding in each.values()} == {OK}
    assert each["processes"].found == "2 processes, 1 on a, 1 on b; Python 3.12.1, torch 2.13"
    assert each["links"].found == "latency 0.1 ms one way; 1 to 2 Gbit/s by themselves, 1 Gbit/s all at once"
    assert each["prediction"].found == "cluster: {compute_s: 0.0123, latency_s: 0.0001, bandwidth_bit_s: 1000000000.0}"


@pytest.mark.parametrize(("ways", "name", "state", "words"), [
    (found(host("worker 1", python="3.12.4")), "processes", NOTE, "Python 3.12.1 and 3.12.4"),
    (found(*(host(f"worker {n}", "b") for n in range(1, 5))), "cores", NOTE, "b has 4 for 5"),
    (found(host("worker 1", bound_s=0.002, offset_s=-7.0)), "clocks", NOTE, "up to 7 s apart, known to 2 ms"),
    (found(host("worker 1", bound_s=1e-4, offset_s=-7.0)), "clocks", OK, "up to 7 s apart, known to 0.1 ms"),
    (found(ways=[LinkSpeed(0, 0, 1e-4, 1e9, 1e9), LinkSpeed(1, 0, 1e-4, 1e9, 3e8)]),
     "links", NOTE, "worker 1 and server 0"),
])  # fmt: skip
def test_what_slows_runs_down_is_noted(examined, ways: LinkSpeeds, name: str, state: str, words: str):
    each = examined(ways)[name]
    assert each.state == state
    assert words in each.found + each.advice


def test_a_worker_that_is_promised_a_gpu_and_has_none_is_a_problem(examined):
    each = examined(found(host("worker 1", gpus=[])), fleet={"place": "loopback", "worker_gpus": 1})["gpus"]
    assert (each.state, each.found) == (PROBLEM, "torch sees none at worker 1 on a")
    assert examined(found(host("worker 1", gpus=[])))["gpus"].found == "1 × H100"


@pytest.mark.parametrize(("ports", "state"), [("any", OK), ("20000-20005", OK), ("20000-20003", NOTE)])
def test_ports_are_named_and_are_to_suffice_for_twice_as_many(examined, ports: str, state: str):
    ways = found(host("worker 1", port=20002))  # two processes on a, and perhaps the notebook's
    each = examined(ways, fleet={"place": "loopback", "ports": ports})["ports"]
    assert "in 127.0.0.1, at a: 20001, 20002; b: 20001" in each.found
    assert (each.state, "name 6" in each.advice) == (state, state == NOTE)


@pytest.mark.parametrize(("ways", "costs", "name", "words"), [
    (StartFailed("process 1 cannot take part: it has torch 2.12"), COSTS, "processes", "it has torch 2.12"),
    (found(), WorkerFailed("worker 0", 3, "MemoryError"), "a run", "worker 0 raised"),
])  # fmt: skip
def test_what_ends_the_look_is_its_last_finding(examined, ways: object, costs: object, name: str, words: str):
    *_, (last, finding) = examined(ways, costs).items()
    assert (last, finding.state) == (name, PROBLEM)
    assert words in finding.found
    assert finding.advice


def test_what_is_no_cluster_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="name loopback, or"):
        next(hosts.examine("local"))
    with pytest.raises(ConfigError, match="cannot be read"):
        next(hosts.examine(str(tmp_path / "none.yaml")))


def test_a_file_for_a_prediction_without_a_cluster_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--write", str(tmp_path / "equal.yaml")]) == 2
    assert "is for what --cluster FILE" in capsys.readouterr().err


@pytest.mark.slow
def test_the_prediction_of_a_real_fleet_is_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.setenv("PSLAB_RESULTS", str(tmp_path))
    file, written = tmp_path / "cluster.yaml", tmp_path / "equal.yaml"
    file.write_text("engine: loopback\nworkers: {count: 1}\n")
    assert main(["doctor", "--cluster", str(file), "--write", str(written), "--json"]) == 0
    names = [each["name"] for each in json.loads(capsys.readouterr().out)]
    assert names == ["processes", "ports", "cores", "gpus", "clocks", "links", "prediction"]
    assert main(["run", "--file", str(written), "--pushes", "4"]) == 0
    assert "4 pushes" in capsys.readouterr().out
