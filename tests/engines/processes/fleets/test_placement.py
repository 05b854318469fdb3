"""Each process has its share on one host, as few hosts as possible are used, and none has more workers than allowed."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pslab.config.fleet import Fleet
from pslab.engines.processes.child import SERVER
from pslab.engines.processes.fleets.placement import Room, Share, described, placed, share_of, sizes

ROOMS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), max_size=4).map(
    lambda sizes: [Room(f"host {number}", cpus, gpus) for number, (cpus, gpus) in enumerate(sizes)])  # fmt: skip
KINDS = st.lists(st.sampled_from(["worker", "server", "evaluator"]), max_size=5)
FLEETS = st.builds(Fleet, place=st.just("ray"), worker_cpus=st.sampled_from([0.5, 1.0, 2.0]),
                   worker_gpus=st.sampled_from([0.0, 0.5, 1.0]), server_cpus=st.sampled_from([0.5, 1.0, 3.0]),
                   workers_per_node=st.sampled_from([None, 1, 2]), servers_apart=st.booleans())  # fmt: skip
DRAWN = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def shares_of(kinds: list[str], fleet: Fleet) -> dict[int, Share]:
    return {SERVER: share_of("server", fleet), **{n: share_of(kind, fleet) for n, kind in enumerate(kinds)}}


def fits(found: dict[int, str], shares: dict[int, Share], rooms: list[Room], fleet: Fleet) -> bool:
    """Whether no host has more than it has room for, nor more workers than the fleet allows."""
    workers = Counter(host for number, host in found.items() if shares[number].kind == "worker")
    most = fleet.workers_per_node
    return all(sum(shares[n].cpus for n, host in found.items() if host == room.host) <= room.cpus
               and sum(shares[n].gpus for n, host in found.items() if host == room.host) <= room.gpus
               and (most is None or workers[room.host] <= most) for room in rooms)  # fmt: skip


@DRAWN
@given(ROOMS, KINDS, FLEETS)
def test_a_plan_fits_and_has_every_process(rooms: list[Room], kinds: list[str], fleet: Fleet):
    shares = shares_of(kinds, fleet)
    found = placed(shares, rooms, fleet)
    if found is not None:
        assert found.keys() == shares.keys()
        assert fits(found, shares, rooms, fleet)


@DRAWN
@given(ROOMS, KINDS, FLEETS)
def test_no_plan_is_found_only_where_there_is_none(rooms: list[Room], kinds: list[str], fleet: Fleet):
    shares = shares_of(kinds[:3], fleet)
    if placed(shares, rooms, fleet) is None:
        for hosts in product([room.host for room in rooms], repeat=len(shares)):
            assert not fits(dict(zip(shares, hosts, strict=True)), shares, rooms, fleet)


def test_a_large_server_leaves_the_large_host_to_workers_that_would_not_fit_elsewhere():
    fleet = Fleet("ray", worker_cpus=2.0, server_cpus=3.0)
    shares, rooms = shares_of(["worker"] * 3, fleet), [Room("large", 6, 0), Room("small", 3, 0)]
    assert placed(shares, rooms, fleet) == {SERVER: "small", 0: "large", 1: "large", 2: "large"}


def test_workers_that_run_count_where_only_another_plan_has_room():
    fleet = Fleet("ray", worker_cpus=2.0, server_cpus=3.0, workers_per_node=2)
    shares, rooms = shares_of(["worker"] * 2, fleet), [Room("large", 4, 0), Room("small", 3, 0)]
    assert placed(shares, rooms, fleet) == {SERVER: "small", 0: "large", 1: "large"}
    assert placed(shares, rooms, fleet, [(shares[0], "large")]) is None


def test_workers_of_a_host_each_need_no_other_host_for_the_server():
    fleet = Fleet("ray", workers_per_node=1)
    found = placed(shares_of(["worker", "worker"], fleet), [Room("one", 2, 0), Room("two", 2, 0)], fleet)
    assert found is not None
    assert {found[0], found[1]} == {"one", "two"}


def test_servers_and_the_evaluator_reserve_no_gpu():
    fleet = Fleet("ray", worker_gpus=1.0)
    shares = shares_of(["worker", "worker", "server", "evaluator"], fleet)
    assert placed(shares, [Room("one", 5, 2)], fleet) == dict.fromkeys(shares, "one")
    assert placed(shares, [Room("one", 5, 1)], fleet) is None


def test_a_host_without_gpus_has_the_server_where_the_others_cores_are_taken():
    fleet = Fleet("ray", worker_gpus=1.0)
    found = placed(shares_of(["worker", "worker"], fleet), [Room("head", 2, 0), Room("gpus", 2, 2)], fleet)
    assert found == {SERVER: "head", 0: "gpus", 1: "gpus"}


def test_servers_are_apart_from_each_other_and_from_workers_as_far_as_there_are_hosts():
    fleet, kinds = Fleet("ray", servers_apart=True), ["worker", "worker", "server"]
    rooms = [Room(f"host {number}", 4, 0) for number in range(3)]
    found = placed(shares_of(kinds, fleet), rooms, fleet)
    assert found is not None
    assert found[0] == found[1]
    assert len(set(found.values())) == 3
    assert placed(shares_of(kinds, fleet), rooms[:1], fleet) == dict.fromkeys([SERVER, 0, 1, 2], "host 0")


def test_a_process_that_is_replaced_counts_those_that_are_there():
    fleet = Fleet("ray", workers_per_node=1)
    rooms, worker = [Room("one", 4, 0), Room("two", 4, 0)], share_of("worker", fleet)
    assert placed({1: worker}, rooms, fleet, [(worker, "one")]) == {1: "two"}


@pytest.mark.parametrize(("shares", "words"), [
    ([Share("server", 1, 0), *[Share("worker", 2, 0.5)] * 3],
     "1 x server with 1 cores and 0 GPUs and 3 x worker with 2 cores and 0.5 GPUs"),
    ([], ""),
])  # fmt: skip
def test_shares_and_sizes_are_said(shares: list[Share], words: str):
    assert described(shares) == words
    assert sizes([Room("id", 4, 1, "10.0.0.1")]) == "10.0.0.1 with 4 cores and 1 GPUs"
    assert sizes([]) == "no host"
