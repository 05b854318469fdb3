"""How fast the ways between processes are: what is measured, and who does not answer."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe

import pytest

from pslab.config.fleet import Fleet
from pslab.engines.processes.channel import limit_waits
from pslab.engines.processes.fleets import link_speed
from pslab.engines.processes.fleets.link_speed import Host, LinkSpeed, LinkSpeeds, measured
from pslab.engines.processes.pool import SERVER, Pool


def way(worker: int = 0, latency_s: float = 1e-4, up_bit_s: float = 1e9, down_bit_s: float = 2e9) -> LinkSpeed:
    return LinkSpeed(worker, 0, latency_s, up_bit_s, down_bit_s)


def test_a_cluster_has_the_median_of_the_ways_and_what_all_of_them_take_together():
    found = LinkSpeeds([], [way(0, 1e-4), way(1, 3e-4, 3e9, 2.5e9), way(2, 2e-4, 9e9, 9e9)], 4e9)
    assert found.cluster() == {"latency_s": 2e-4, "bandwidth_bit_s": 2.5e9, "server_bandwidth_bit_s": 4e9}
    assert found._replace(together_bit_s=1e9).cluster()["server_bandwidth_bit_s"] == 2.5e9  # no less than one of them


def test_every_way_is_measured_and_every_process_says_where_it_is():
    found = measured(2, [2], Fleet("loopback"))
    assert [host.who for host in found.hosts] == ["server", "server 1", "worker 0", "worker 1"]
    assert {host.name for host in found.hosts} == {socket.gethostname()}
    assert all(isinstance(host, Host) and host.cores >= 1 for host in found.hosts)
    assert [(each.worker, each.server) for each in found.ways] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for each in found.ways:
        assert 0 < each.latency_s < 0.1
        assert min(each.up_bit_s, each.down_bit_s) > 1e7  # a loopback without a limit
    assert found.together_bit_s > 1e7


def test_hosts_of_one_name_are_told_apart_by_their_addresses(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Pool, "free", lambda self, numbers: {"10.0.0.2": ([SERVER], None), "10.0.0.3": ([0], None)})
    here = socket.gethostname()
    names = [host.name for host in measured(1, [], Fleet("loopback")).hosts]
    assert names == [f"{here} (10.0.0.2)", f"{here} (10.0.0.3)"]


@pytest.fixture
def lines():
    """A worker's role with one line, and the other end of it."""
    here, there = Pipe()
    limit_waits(here, 0.01)
    found = object.__new__(link_speed.Measures)
    found.called, found.lines = "worker 0", [here]
    with here, there:
        yield found, there


def test_a_request_takes_until_all_its_bytes_have_crossed_the_line_both_ways(lines):
    role, there = lines
    limit_waits(role.lines[0], 60.0)
    with ThreadPoolExecutor() as threads:
        took_s = threads.submit(role._took_s, 0, brings=link_speed.ROOM_BYTES + 7, wants=3)
        assert link_speed.REQUEST.unpack(there.recv_bytes()) == (link_speed.ROOM_BYTES + 7, 3)
        assert [len(there.recv_bytes()) for _ in range(3)] == [link_speed.ROOM_BYTES, 7, 0]
        assert not took_s.done()
        link_speed.send(there, 3)
        assert took_s.result() > 0


@pytest.mark.parametrize("ends", [False, True])
def test_a_server_that_does_not_answer_is_named(lines, ends: bool):
    role, there = lines
    if ends:
        there.close()
    with pytest.raises(TimeoutError, match=r"server 0 has not answered worker 0 .* is there a firewall"):
        role._took_s(0)


def test_an_answer_of_another_length_is_none(lines):
    role, there = lines
    link_speed.send(there, 2)
    with pytest.raises(ConnectionError, match="1 bytes are missing"):
        link_speed.take(role.lines[0], 3)
