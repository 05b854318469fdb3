"""Processes on a Ray cluster leave the bits of those of this machine; who has no Ray never meets it."""

from __future__ import annotations

import ast
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from processes import using, wait_for_end
from ray_nodes import number_of
from tiny import tiny

import pslab
from pslab.config.fleet import Fleet
from pslab.engines.execute import execute
from pslab.engines.processes import pool
from pslab.engines.processes.child import SERVER
from pslab.engines.processes.fleets import ray as fleets
from pslab.engines.processes.fleets.placement import Share
from pslab.errors import ConfigError, StartFailed
from pslab.lab.runs.resolve import resolve

PACKAGE = Path(pslab.__file__).parent
FLEET = PACKAGE / "engines" / "processes" / "fleets" / "ray.py"
KILLS, LATEST_S, GONE_LIMIT_S = 10, 12.0, 60.0
HERE = {"place": "ray", "address": "local", "worker_cpus": 0.1, "server_cpus": 0.1}


def test_nothing_but_the_fleet_knows_ray():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            if "ray" in {each.split(".")[0] for each in names}:
                assert path == FLEET
                assert node.col_offset > 0, "only where a run asks for it"


@pytest.mark.usefixtures("small_pool")
def test_without_ray_a_run_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(pool, "_kept", None)
    with pytest.raises(StartFailed, match=r"pip install -e '.*\[ray\]'"):
        execute(resolve(tiny(workers=1, fleet="ray")), lambda news: None)


@pytest.mark.parametrize(("address", "advised"), [("local", False), ("auto", True), ("head:6379", True)])
def test_only_who_joins_a_cluster_is_told_how_to_begin_one(monkeypatch, tmp_path, address, advised):
    def init(**given: object):
        raise ConnectionError("no way")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init, is_initialized=lambda: False))
    monkeypatch.setattr(fleets, "passing_folder", lambda prefix: str(tmp_path))
    monkeypatch.setattr(fleets, "knock", lambda address: None)
    with pytest.raises(StartFailed, match="no way") as error:
        fleets.RayFleet(["worker"], Fleet("ray", address))
    assert ("ray start --head" in str(error.value)) == advised
    assert (address in str(error.value)) == advised


class Cluster:
    """What Ray is to a fleet, with a head that may die: Ray itself would look for it for minutes."""

    def __init__(self, *addresses: str) -> None:
        self.head, self.calls = socket.create_server(("127.0.0.1", 0)), []
        self.gcs_address = f"127.0.0.1:{self.head.getsockname()[1]}"
        self.addresses = addresses or ("127.0.0.1",)

    def nodes(self) -> list[dict[str, object]]:
        return [{"NodeID": f"node {number}", "Alive": True, "NodeManagerAddress": address, "Resources": {"CPU": 1.0}}
                for number, address in enumerate(self.addresses)]  # fmt: skip

    def is_initialized(self) -> bool:
        return self.calls.count("init") > self.calls.count("shutdown")

    def init(self, **given: object) -> None:
        self.calls.append("init")

    def shutdown(self) -> None:
        self.calls.append("shutdown")

    def get_runtime_context(self) -> Cluster:
        return self


@pytest.fixture
def cluster(monkeypatch):
    found = Cluster()
    monkeypatch.setitem(sys.modules, "ray", found)
    yield found
    found.head.close()


def test_a_cluster_whose_head_is_gone_is_left_and_not_asked_for_anything(cluster, monkeypatch, tmp_path):
    monkeypatch.setattr(fleets, "passing_folder", lambda prefix: str(tmp_path))
    first = fleets.RayFleet(["worker"], Fleet("ray", cluster.gcs_address))
    fleets.RayFleet(["worker"], Fleet("ray", cluster.gcs_address)).close()
    assert cluster.calls == ["init"]
    cluster.head.close()
    with pytest.raises(ConnectionError, match=f"nobody listens at {cluster.gcs_address}: Connection refused"):
        first._launched([0], lambda: None)
    first.close()
    assert cluster.calls == ["init"]
    with pytest.raises(StartFailed, match=f"nobody listens at {cluster.gcs_address}.* `ray start --head` begins it"):
        fleets.RayFleet(["worker"], Fleet("ray", cluster.gcs_address))
    assert cluster.calls == ["init", "shutdown"]
    with contextlib.closing(fleets.RayFleet(["worker"], Fleet("ray", "local"))):
        assert cluster.calls == ["init", "shutdown", "init"]


def test_the_address_of_the_environment_is_knocked_at_too(cluster, monkeypatch):
    cluster.head.close()
    monkeypatch.setenv("RAY_ADDRESS", cluster.gcs_address)
    with pytest.raises(StartFailed, match=f"nobody listens at {cluster.gcs_address}"):
        fleets.RayFleet(["worker"], Fleet("ray", "auto"))
    assert not cluster.calls


def test_a_network_that_no_other_host_reaches_is_refused_with_the_addresses_of_the_cluster(cluster):
    cluster.addresses = ("10.0.0.1", "10.0.0.2")
    with pytest.raises(ConfigError, match=r"10\.0\.0\.1, 10\.0\.0\.2: name their network as data\.network"):
        fleets.RayFleet(["worker"], Fleet("ray", "auto"))


def test_what_can_never_fit_is_refused_at_once_with_the_sizes_of_the_cluster(cluster):
    fleet = fleets.RayFleet(["worker"], Fleet("ray", "auto", worker_gpus=1.0))
    words = r"no room for 1 x server .* and 1 x worker with 1 cores and 1 GPUs: it has 127\.0\.0\.1 with 1 cores and 0"
    with contextlib.closing(fleet), pytest.raises(StartFailed, match=words):
        fleet._launched([SERVER, 0], lambda: None)


class Begun:
    """A process of the fleet that is begun at once on hosts that are well, and never on others."""

    ill: ClassVar[set[str]] = set()
    all: ClassVar[list[Begun]] = []

    def __init__(self, ray: object, fleet: Fleet, number: int, share: Share, host: str) -> None:
        self.number, self.share, self.host, self.problem, self.killed, self.served = number, share, host, "", False, 0
        self.all.append(self)

    def begun(self) -> bool:
        return self.host not in self.ill

    def fails(self, answering: Iterable[str]) -> bool:
        self.problem = "it is ill" if self.host in self.ill else "" if self.host in answering else "no answer"
        return bool(self.problem)

    def is_alive(self) -> bool:
        return not self.killed

    def look(self) -> None:
        pass

    def serve(self, way: object) -> None:
        self.served += 1

    def kill(self) -> None:
        self.killed = True


@pytest.fixture
def fleet(cluster, monkeypatch):
    """A fleet of a server and a worker on a cluster of three hosts, with room for both on each."""
    cluster.addresses = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
    free = {"CPU": 2.0}
    state = SimpleNamespace(available_resources_per_node=lambda: {f"node {number}": free for number in range(3)})
    monkeypatch.setitem(sys.modules, "ray._private.state", state)
    monkeypatch.setattr(fleets, "RayProcess", Begun)
    monkeypatch.setattr(fleets, "_answers", lambda node: True)
    monkeypatch.setattr(fleets, "ASK_S", 0.0)
    monkeypatch.setattr(fleets, "LOOK_S", 1e-3)
    monkeypatch.setattr(fleets.RayFleet, "_refuse_network", lambda self: None)
    monkeypatch.setattr(cluster, "nodes", lambda nodes=cluster.nodes: [
        {**node, "Resources": {"CPU": 2.0}} for node in nodes()])  # fmt: skip
    monkeypatch.setattr(Begun, "ill", set())
    monkeypatch.setattr(Begun, "all", [])
    with contextlib.closing(fleets.RayFleet(["worker"], Fleet("ray", "auto"))) as found:
        yield found


def test_processes_begin_on_a_host_that_answers_and_dial_once_all_have_begun(fleet, monkeypatch):
    monkeypatch.setattr(fleets, "_answers", lambda node: node["NodeID"] != "node 0")
    begun = fleet._launched([SERVER, 0], lambda: None)
    assert {process.host for process in begun.values()} == {"node 1"}
    assert [process.served for process in begun.values()] == [1, 1]


def test_a_process_whose_host_does_not_begin_it_is_begun_on_another(fleet):
    Begun.ill.add("node 0")
    begun = fleet._launched([SERVER, 0], lambda: None)
    assert not {process.host for process in begun.values()} & Begun.ill
    assert [process.killed for process in Begun.all if process.host in Begun.ill] == [True, True]


def test_what_no_host_begins_is_refused_with_the_reason_and_none_of_its_processes_stays(fleet):
    Begun.ill |= {"node 0", "node 1", "node 2"}
    with pytest.raises(StartFailed, match=r"Ray has not started server on 10\.0\.0\..: it is ill"):
        fleet._launched([SERVER, 0], lambda: None)
    assert all(process.killed and not process.served for process in Begun.all)


def test_whoever_ends_the_waiting_leaves_no_process(fleet):
    def heed() -> None:
        if Begun.all:
            raise KeyboardInterrupt

    Begun.ill |= {"node 0", "node 1", "node 2"}
    with pytest.raises(KeyboardInterrupt):
        fleet._launched([SERVER, 0], heed)
    assert all(process.killed for process in Begun.all)


def test_room_that_others_have_is_waited_for_no_longer_than_the_limit(fleet, monkeypatch):
    monkeypatch.setattr(fleets, "START_LIMIT_S", 0.0)
    monkeypatch.setattr(fleets, "_answers", lambda node: False)
    words = "has not started server, worker 0: no host that answers had room for 1 x server .*; free: no host"
    with pytest.raises(StartFailed, match=words):
        fleet._launched([SERVER, 0], lambda: None)


@pytest.mark.parametrize("speaks", [True, False])
def test_a_host_answers_when_its_ray_says_something_and_not_when_only_its_system_does(monkeypatch, speaks):
    monkeypatch.setattr(fleets, "ANSWER_LIMIT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        node = dict(zip(("NodeManagerAddress", "NodeManagerPort"), server.getsockname(), strict=True))
        if speaks:
            threading.Thread(target=lambda: server.accept()[0].sendall(b"hello")).start()
        assert fleets._answers(node) == speaks
    assert not fleets._answers(node)


@pytest.mark.parametrize(("words", "said"), [
    ("\x1b[36mray::_Actor.__init__()\x1b[39m\n  File x\nModuleNotFoundError: No module named 'pslab'",
     "ModuleNotFoundError: No module named 'pslab': each host of the cluster needs the same packages as this one"),
    ("\x1b[36mThe actor died.\x1b[39m\n\tpid: 1", "The actor died.\n\tpid: 1"),
])  # fmt: skip
def test_what_ray_says_of_an_end_is_said_without_colours_and_of_a_missing_package_alone(words, said):
    assert fleets._said(RuntimeError(words)) == said


BEGUN = """
import contextlib, os, sys
from pslab.engines.processes.fleets.ray import _Actor
os.nice(15)
sys.modules["torch"] = None
with contextlib.suppress(ImportError):
    _Actor().begun()
print(os.nice(0))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a process more priority")
def test_an_actor_gives_way_to_no_others_from_before_it_loads_torch():
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.check_output([sys.executable, "-c", BEGUN], env=given, text=True).strip() == "0"


@pytest.mark.parametrize("behind", [True, False])
def test_a_token_that_is_missing_is_said(monkeypatch, behind):
    def init(**given: object):
        lacks = RuntimeError("Traceback:\nInvalidAuthToken: Authentication token is missing or incorrect\n")
        if behind:
            raise ConnectionError("Failed to connect") from lacks
        raise lacks

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init, is_initialized=lambda: False))
    with pytest.raises(StartFailed, match=r"(?s)InvalidAuthToken.*need the same token: see docs/many-machines.md"):
        fleets.RayFleet(["worker"], Fleet("ray", "auto"))


@pytest.fixture(scope="module")
def ray():
    found = pytest.importorskip("ray")
    yield found
    pool.release()
    found.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{"sync": "asp", "workers": 1}, {"sync": "bsp", "workers": 2, "prune": "static:5%"}])
def test_a_run_on_a_ray_cluster_has_the_bits_of_one_here(ray, fields):
    here, there = (execute(resolve(tiny(**fields, fleet=fleet)), lambda news: None) for fleet in ("local", HERE))
    np.testing.assert_array_equal(here.weights, there.weights)


def killed_by_the_system(process):
    os.kill(number_of(process), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("kill", [fleets.RayProcess.kill, killed_by_the_system])
def test_a_killed_worker_of_a_ray_cluster_is_replaced_and_changes_no_bit(ray, kill):
    fields = {"sync": "bsp", "workers": 2, "pushes": 200, "on_death": "restart", "lease_s": 5.0,
              "cluster": {"compute_s": 0.02}}  # fmt: skip
    here = execute(resolve(tiny(**fields)), lambda news: None)
    pool.release()
    killed = []

    def look(news):
        if news.get("pushes", 0) >= 40 and not killed:
            killed.append(1)
            kill(pool._kept.processes[1])

    there = execute(resolve(tiny(**fields, fleet=HERE)), look)
    (life,) = there.facts["lives"]
    assert (life["worker"], life["joined"]) == (1, life["iteration"])
    np.testing.assert_array_equal(here.weights, there.weights)


SCRIPT = """
from tiny import tiny
from pslab.engines.execute import execute
from pslab.lab.runs.resolve import resolve
execute(resolve(tiny(workers=1, fleet={here!r})), lambda news: None)
"""


@pytest.mark.slow
def test_a_script_ends_well_and_begins_no_other_cluster_then():
    pytest.importorskip("ray")
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    script = subprocess.run([sys.executable, "-c", SCRIPT.format(here=HERE)], env=given, stderr=subprocess.PIPE,
                            text=True, check=False)  # fmt: skip
    assert (script.returncode, script.stderr.count("Started a local Ray instance")) == (0, 1), script.stderr


@pytest.mark.slow
def test_after_ten_kills_of_a_notebooks_kernel_no_process_and_no_name_is_left(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    from kernels import Kernel

    before, moments = set(os.listdir("/dev/shm")), random.Random(16)
    fields = {"model": "tiny:net", "data": "tiny:digits", "workers": 2, "pushes": 100_000, "fleet": HERE}
    with tempfile.TemporaryDirectory(prefix="pslab-") as folder:  # whose name is short: Ray has sockets there
        monkeypatch.setenv("TMPDIR", folder)
        for _ in range(KILLS):
            kernel = Kernel(tmp_path)
            request = kernel.begin(f"run(Run.of({fields}))")
            assert not kernel.ends_within(request, moments.uniform(0.0, LATEST_S))
            assert using(folder) or not os.listdir(folder)
            kernel.kill()
            for process in using(folder):
                wait_for_end(process, GONE_LIMIT_S)
            assert (using(folder), os.listdir(folder)) == ([], [])
    assert set(os.listdir("/dev/shm")) <= before
