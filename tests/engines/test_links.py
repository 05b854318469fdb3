"""Links: serialization, sharing, order and latency, in exact arithmetic."""

from __future__ import annotations

import math

import pytest

from pslab.engines.cluster import Cluster
from pslab.engines.links import DOWN, UP, Network

MBIT = 1e6


def network(**fields: object) -> Network:
    return Network(Cluster(**{"bandwidth_bit_s": 8 * MBIT, **fields}))  # 1 MB/s


def arrivals(net: Network, until_s: float = 1e9) -> list[tuple[float, object]]:
    """Everything, by asking again and again for the next instant: as a driver does."""
    seen = []
    while (at := net.next_s()) <= until_s and math.isfinite(at):
        seen += [(round(instant, 9), message) for instant, _, message in net.arrived(at)]
    return seen


def test_one_message_takes_its_size_over_the_bandwidth_and_the_latency():
    net = network(latency_s=0.5)
    net.send(UP, 0, 2e6, "a", 1.0)
    assert net.next_s() == pytest.approx(3.5)
    assert net.arrived(3.4) == []
    assert arrivals(net) == [(3.5, "a")]
    assert net.next_s() == math.inf


def test_messages_of_one_worker_keep_their_order_and_the_latency_overlaps():
    net = network(latency_s=0.5)
    net.send(UP, 0, 2e6, "big", 0.0)
    net.send(UP, 0, 0, "empty", 0.0)
    net.send(UP, 0, 1e6, "small", 0.0)
    assert arrivals(net) == [(2.5, "big"), (2.5, "empty"), (3.5, "small")]


def test_four_pulls_over_the_shared_link_end_together_at_four_times():
    net = network(server_bandwidth_bit_s=8 * MBIT)
    for worker in range(4):
        net.send(DOWN, worker, 1e6, worker, 0.0)
    assert arrivals(net) == [(4.0, worker) for worker in range(4)]


def test_who_comes_later_shares_what_is_left():
    net = network(server_bandwidth_bit_s=8 * MBIT)
    net.send(UP, 0, 2e6, "first", 0.0)
    net.send(UP, 1, 1e6, "second", 1.0)
    # from 1 s on each gets half: both have 1 MB to go, and end at 3 s
    assert arrivals(net) == [(3.0, "first"), (3.0, "second")]


def test_a_wide_server_link_is_no_limit():
    net = network(server_bandwidth_bit_s=80 * MBIT)
    for worker in range(4):
        net.send(DOWN, worker, 1e6, worker, 0.0)
    assert arrivals(net) == [(1.0, worker) for worker in range(4)]


@pytest.mark.parametrize(("duplex", "ends"), [("full", [1.0, 1.0]), ("half", [1.0, 2.0])])
def test_duplex(duplex, ends):
    net = network(duplex=duplex)
    net.send(UP, 0, 1e6, "up", 0.0)
    net.send(DOWN, 0, 1e6, "down", 0.0)
    assert [at for at, _ in arrivals(net)] == ends


def test_a_link_without_limit_only_delays():
    net = Network(Cluster(latency_s=0.25))
    net.send(UP, 0, 1e12, "a", 1.0)
    assert arrivals(net) == [(1.25, "a")]


def test_conservation_over_many_messages():
    net = network(server_bandwidth_bit_s=24 * MBIT)
    for worker in range(8):
        for _ in range(5):
            net.send(UP, worker, 3e5, worker, 0.0)
    seen = arrivals(net)
    assert len(seen) == 40
    assert seen[-1][0] == pytest.approx(40 * 3e5 / 3e6)  # the server's link was never idle


@pytest.mark.parametrize(
    ("changes", "ends"),
    [({1.0: 4 * MBIT}, [3.0, 5.0]), ({1.0: 16 * MBIT}, [1.5, 2.0]), ({5.0: 4 * MBIT}, [2.0, 3.0]),
     ({1.0: 4 * MBIT, 2.0: 8 * MBIT}, [2.5, 3.5]), ({2.0: 4 * MBIT}, [2.0, 4.0])],
)  # fmt: skip
def test_a_bandwidth_that_changes_on_the_way(changes, ends):
    net = network(bandwidth_at=changes, latency_s=0.25)
    net.send(UP, 0, 2e6, "first", 0.0)
    net.send(UP, 0, 1e6, "second", 0.0)
    assert [at - 0.25 for at, _ in arrivals(net)] == ends


def test_a_change_with_nothing_on_its_way_holds_for_what_comes_later():
    net = network(bandwidth_at={1.0: 4 * MBIT})
    assert net.next_s() == math.inf
    net.send(UP, 0, 1e6, "a", 2.0)
    assert arrivals(net) == [(4.0, "a")]


def test_a_changed_bandwidth_is_shared():
    net = network(server_bandwidth_bit_s=8 * MBIT, bandwidth_at={1.0: 2 * MBIT})
    for worker in range(2):
        net.send(UP, worker, 1e6, worker, 0.0)
    assert arrivals(net) == [(3.0, 0), (3.0, 1)]  # half a MB each in the first second, then a quarter a second
