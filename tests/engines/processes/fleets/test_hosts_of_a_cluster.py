"""Hosts of a Ray cluster with Ray's own settings, of which one dies, stands still or cannot be reached any more."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest
from hosts import UNABLE, Host, able, hosts
from processes import living
from ray_hosts import (
    LINE_LIMIT_S,
    NETWORK,
    RayHosts,
    Suffered,
    User,
    befall,
    command_of,
    harm,
    left_behind,
    suffer,
)
from tiny import finished, tiny

pytestmark = pytest.mark.slow

CLUSTER: dict[str, Any] = {"engine": "ray", "workers": {"count": 2}, "data": NETWORK, "on_death": "restart",
                           "lease_s": 5, "checkpoint_every": 50}  # fmt: skip
RUN: dict[str, Any] = {"cluster": CLUSTER, "sync": "bsp", "pushes": 800}
AFTER = 150
SERVER = "-1"
WHATS = ("kill", "stop", "raylet", "link", "power")  # see ray_hosts.harm


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayHosts]:
    pytest.importorskip("ray")
    if not able():
        pytest.skip(UNABLE)
    with hosts(4) as found:
        yield RayHosts(found)


@pytest.fixture(scope="module")
def undisturbed() -> str:
    """The weights of the run if nothing happens."""
    fields = {name: value for name, value in RUN.items() if name != "cluster"}
    return sha256(finished(tiny(workers=2, **fields)).weights.tobytes()).hexdigest()


def test_a_run_waits_for_room_that_another_user_has_and_begins_on_a_host_that_joins(cluster: RayHosts):
    cluster.fill(2)
    first = User(cluster, {**RUN, "pushes": 10_000})
    first.until("pushes", 1)
    second = User(cluster, RUN)
    second.until("waits")
    cluster.join(cluster.hosts[2])
    assert second.outcome()["verdict"] == "valid"
    assert cluster.hosts[2].address in {address for address, _ in second.on.values()}
    first.kill()
    assert not left_behind(cluster)


def test_two_users_at_once_have_their_own_processes_and_bits(cluster: RayHosts, undisturbed: str):
    cluster.fill()
    users = [User(cluster, RUN) for _ in range(2)]
    for found in [user.outcome() for user in users]:
        assert (found["verdict"], found["weights"]) == ("valid", undisturbed)
    places = [tuple(place) for user in users for place in user.on.values()]
    assert len(set(places)) == 6
    assert not left_behind(cluster)
    assert "worker died" not in "".join(user.words for user in users), "Ray takes an end in order for a failure"


def test_a_host_is_sent_the_data_once_however_many_workers_it_has(cluster: RayHosts):
    cluster.fill(0)
    host, sent = cluster.hosts[0], list[int]()
    cluster.join(host, "--num-cpus=5")
    for workers in (1, 3):
        fields = {**RUN, "cluster": {**CLUSTER, "workers": {"count": workers}}, "model": "mlp", "data": "mnist"}
        before = host.sent_bytes()
        found = User(cluster, {**fields, "pushes": 6, "eval_every": 6}).outcome()
        sent.append(host.sent_bytes() - before)
        assert found["verdict"] == "valid"
    print(f"\n{sent[0]:,} bytes to one worker and its server, {sent[1]:,} to three")
    assert sent[0] > 55e6
    assert sent[1] < 1.2 * sent[0]
    cluster.fell(host)  # it has other resources than the tests after these expect


@pytest.mark.parametrize("what", WHATS)
@pytest.mark.parametrize("which", [SERVER, "1"])
def test_a_run_goes_on_to_the_bits_of_an_undisturbed_one(cluster: RayHosts, undisturbed: str, what: str, which: str):
    cluster.fill()
    found = suffer(cluster, what, which, AFTER, RUN)
    assert_went_on(found)
    assert found.outcome["weights"] == undisturbed
    if which == SERVER and what != "raylet":  # whose processes end some seconds later, perhaps after the run
        assert len(found.outcome["rewinds"]) == 1
    if what in ("link", "power"):
        assert found.fell in found.alive, "the run went on before Ray had noticed"


@pytest.mark.parametrize("what", ["link", "power"])
def test_a_second_host_is_lost_while_what_was_on_the_first_begins_there(
    cluster: RayHosts, undisturbed: str, what: str
):  # fmt: skip
    cluster.fill()
    halves = {"workers": {"count": 2, "cpus": 0.5}, "servers": {"cpus": 0.5}}
    user = User(cluster, {**RUN, "cluster": CLUSTER | halves})
    user.until("pushes", AFTER)
    (first,) = {address for address, _ in user.on.values()}
    harm(cluster, user, what, SERVER)
    begins_on(cluster, {host for host in cluster.hosts if host.address != first}, what)
    outcome = user.outcome()
    assert [outcome.get(each) for each in ("outcome", "verdict", "weights")] == ["budget", "valid", undisturbed]
    assert not left_behind(cluster)


def begins_on(cluster: RayHosts, hosts: set[Host], what: str) -> None:
    """Wait until a process of a run begins on one of these hosts, to which something happens then."""
    until_s = time.monotonic() + LINE_LIMIT_S
    while time.monotonic() < until_s:
        for host in hosts:
            if any("Actor" in command_of(process) for process in living(f"HOST_FOLDER={host.folder}")):
                befall(cluster, host, what)
                return
    raise AssertionError("no process begins there")


GPUS = {**CLUSTER, "workers": {"count": 2, "gpus": 1}, "servers": {"count": 2}}


def test_servers_and_the_evaluator_leave_the_gpus_to_workers_and_a_head_has_none(cluster: RayHosts):
    cluster.fill(0)
    host = cluster.hosts[0]
    cluster.join(host, "--num-cpus=5", "--num-gpus=2")
    found = (user := User(cluster, {**RUN, "cluster": GPUS, "evaluate": "beside"})).outcome()
    assert (found["outcome"], found["verdict"]) == ("budget", "valid")
    assert {address for address, _ in user.on.values()} == {host.address}
    assert len(user.on) == 5


def test_a_gpu_that_ray_was_told_of_and_torch_does_not_see_is_said_with_its_host(cluster: RayHosts):
    found = User(cluster, {**RUN, "cluster": GPUS, "device": "cuda"}).outcome()
    assert "torch sees no CUDA device on " in found["words"]
    cluster.fell(cluster.hosts[0])  # it has other resources than the tests after these expect


def test_what_can_never_fit_is_refused_with_the_sizes_of_all_hosts(cluster: RayHosts):
    cluster.fill()
    user = User(cluster, {**RUN, "cluster": {**CLUSTER, "workers": {"count": 2, "gpus": 1}}})
    found = user.outcome()
    assert found["error"] == "StartFailed"
    for host in cluster.hosts:
        assert f"{host.address} with 2 cores and 0 GPUs" in found["words"]


@pytest.mark.parametrize("number", range(20))
def test_a_run_goes_on_whatever_happens_to_it_at_any_moment(cluster: RayHosts, number: int):
    draws = random.Random(f"hosts {number}")
    what, which, after = draws.choice(WHATS), draws.choice([SERVER, "0", "1"]), draws.randrange(1, 600)
    cluster.fill()
    assert_went_on(suffer(cluster, what, which, after, {**RUN, "sync": draws.choice(["bsp", "asp", "ssp:4"])}))


def assert_went_on(found: Suffered) -> None:
    assert "error" not in found.outcome, found.outcome
    facts = [found.outcome[name] for name in ("outcome", "pushes", "verdict")]
    assert facts == ["budget", RUN["pushes"], "valid"]
    assert not found.left
