"""Links: serialization, sharing, order and latency, in exact arithmetic."""

from __future__ import annotations

import math

import pytest

from pslab.config.cluster import Cluster
from pslab.engines.emulation.links import DOWN, UP, Network

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


# --- chosen messages --------------------------------------------------------------------------------------------------


class Choice:
    """Takes the message that comes first in the alphabet; with a credit, as long as that is not used up."""

    def __init__(self, credit: float | None = None) -> None:
        self.credit, self.asked = credit, list[list[str]]()

    def pick(self, worker: int, waiting: list) -> int:
        self.asked.append([message for _, message in waiting])
        return min(range(len(waiting)), key=lambda place: waiting[place][1])

    def admits(self, under_way_bytes: float, size_bytes: float) -> bool:
        return under_way_bytes == 0 if self.credit is None else under_way_bytes + size_bytes <= self.credit

    @property
    def acknowledged(self) -> bool:
        return self.credit is not None


def everything(network: Network, until: float = 100.0) -> list[tuple[float, str]]:
    """Everything that arrives, choices being made when nothing else happens at their instant."""
    found = []
    while (at := min(network.next_s(), network.choice_s())) <= until:
        if network.next_s() <= network.choice_s():
            found += [(round(s, 9), message) for s, _, message in network.arrived(at)]
        else:
            network.choose(at)
    return found


def test_the_link_chooses_when_it_is_idle_and_interrupts_nothing():
    network = Network(Cluster(bandwidth_bit_s=8.0), choice := Choice())
    network.send(UP, 0, 2, "c", 0.0)
    network.send(UP, 0, 1, "b", 0.5)
    network.send(UP, 0, 1, "a", 1.0)
    assert everything(network) == [(2.0, "c"), (3.0, "a"), (4.0, "b")]
    assert choice.asked == [["c"], ["b", "a"], ["b"]]


def test_all_that_becomes_ready_in_an_instant_is_chosen_from():
    network = Network(Cluster(bandwidth_bit_s=8.0), Choice())
    network.send(UP, 0, 1, "c", 0.0)
    network.choose(0.0)
    assert [m for _, _, m in network.arrived(1.0)] == ["c"]
    network.send(UP, 0, 1, "b", 1.0)  # at the instant at which the link became idle
    network.send(UP, 0, 1, "a", 1.0)
    assert everything(network) == [(2.0, "a"), (3.0, "b")]


def test_what_was_not_chosen_in_time_is_chosen_as_if_it_had_been():
    late, exact = (Network(Cluster(bandwidth_bit_s=8.0, latency_s=0.25), Choice()) for _ in range(2))
    for network in (late, exact):
        for message, at in (("c", 0.0), ("b", 0.5), ("a", 1.5)):
            network.send(UP, 0, 1, message, at)
    assert [(at, m) for at, _, m in late.arrived(50.0)] == everything(exact) == [(1.25, "c"), (2.25, "b"), (3.25, "a")]


def test_with_half_duplex_one_link_chooses_for_both_directions():
    network = Network(Cluster(bandwidth_bit_s=8.0, duplex="half"), Choice())
    for direction, message in ((UP, "d"), (DOWN, "c"), (UP, "b"), (DOWN, "a")):
        network.send(direction, 0, 1, message, 0.0)
    assert [m for _, m in everything(network)] == ["a", "b", "c", "d"]


def test_workers_choose_for_themselves_and_share_the_servers_link():
    network = Network(Cluster(bandwidth_bit_s=8.0, server_bandwidth_bit_s=8.0), Choice())
    for worker, message in ((0, "b"), (0, "a"), (1, "d"), (1, "c")):
        network.send(UP, worker, 1, message, 0.0)
    assert everything(network) == [(2.0, "a"), (2.0, "c"), (4.0, "b"), (4.0, "d")]


def test_a_small_credit_waits_for_acknowledgements_and_a_large_one_cannot_choose_late():
    def run(credit: float) -> list[tuple[float, str]]:
        network = Network(Cluster(bandwidth_bit_s=8.0, latency_s=0.5), Choice(credit))
        for message in ("c", "d", "e"):
            network.send(UP, 0, 1, message, 0.0)
        network.choose(0.0)
        network.send(UP, 0, 1, "a", 0.25)
        return everything(network)

    assert run(1) == [(1.5, "c"), (3.5, "a"), (5.5, "d"), (7.5, "e")]  # two latencies between one and the next
    assert run(3) == [(1.5, "c"), (2.5, "d"), (3.5, "e"), (4.5, "a")]  # "a" comes behind what was let go


def test_what_is_too_large_for_what_is_left_lets_a_smaller_one_pass():
    network = Network(Cluster(bandwidth_bit_s=8.0), Choice(2))
    for size, message in ((1, "a"), (2, "b"), (1, "c")):
        network.send(UP, 0, size, message, 0.0)
    assert everything(network) == [(1.0, "a"), (2.0, "c"), (4.0, "b")]


def test_each_message_keeps_the_link_busy_for_its_overhead():
    network = Network(Cluster(bandwidth_bit_s=8.0, overhead_s=0.5))
    network.send(UP, 0, 1, "a", 0.0)
    network.send(UP, 0, 1, "b", 0.0)
    assert [at for at, _ in everything(network)] == [1.5, 3.0]


def test_a_message_of_no_size_takes_the_latency_alone():
    network = Network(Cluster(bandwidth_bit_s=8.0, latency_s=0.25), Choice())
    network.send(UP, 0, 9, "large", 0.0)
    network.fly(UP, "asked", 1.0)
    assert everything(network) == [(1.25, "asked"), (9.25, "large")]
