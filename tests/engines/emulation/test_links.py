"""Links: serialization, sharing, order and latency, in exact arithmetic: messages of bytes, links of bytes a second."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest

from pslab.config.cluster import Cluster
from pslab.engines.emulation.links import DOWN, UP, Network


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


def network(choice: Choice | None = None, byte_s: float | None = 1.0, servers: int = 1, **fields: Any) -> Network:
    for name in ("bandwidth_bit_s", "server_bandwidth_bit_s"):
        if fields.get(name):
            fields[name] *= 8
    if byte_s is not None:
        fields["bandwidth_bit_s"] = 8 * byte_s
    return Network(Cluster(**fields), choice, servers)


def arrivals(net: Network) -> list[tuple[float, Any]]:
    """All that arrives, as an engine finds it: choices are made when nothing else happens at their instant."""
    found = []
    while (at := min(net.next_s(), net.choice_s())) < math.inf:
        if net.next_s() <= net.choice_s():
            found += [(round(instant, 9), message) for instant, _, message in net.arrived(at)]
        else:
            net.choose(at)
    return found


HALVED = {"bandwidth_at": {1.0: 4.0}}  # bits a second: half a byte


@pytest.mark.parametrize(
    ("fields", "sent", "expected"),
    [
        pytest.param({"latency_s": 0.5}, [(UP, 0, 2, "big", 0), (UP, 0, 0, "empty", 0), (UP, 0, 1, "small", 0)],
                     [(2.5, "big"), (2.5, "empty"), (3.5, "small")], id="order is kept, latencies overlap"),
        pytest.param({"server_bandwidth_bit_s": 1}, [(DOWN, w, 1, w, 0) for w in range(4)],
                     [(4.0, w) for w in range(4)], id="a shared link is shared equally"),
        # from 1 s on each gets half: both have a byte to go, and end at 3 s
        pytest.param({"server_bandwidth_bit_s": 1}, [(UP, 0, 2, "first", 0), (UP, 1, 1, "second", 1)],
                     [(3.0, "first"), (3.0, "second")], id="a later flow shares what is left"),
        pytest.param({"server_bandwidth_bit_s": 10}, [(DOWN, w, 1, w, 0) for w in range(4)],
                     [(1.0, w) for w in range(4)], id="a wide server link is no limit"),
        pytest.param({"duplex": "full"}, [(UP, 0, 1, "up", 0), (DOWN, 0, 1, "down", 0)],
                     [(1.0, "up"), (1.0, "down")], id="full duplex"),
        pytest.param({"duplex": "half"}, [(UP, 0, 1, "up", 0), (DOWN, 0, 1, "down", 0)],
                     [(1.0, "up"), (2.0, "down")], id="half duplex"),
        pytest.param({"byte_s": None, "latency_s": 0.25}, [(UP, 0, 1e12, "a", 1)], [(1.25, "a")],
                     id="without a limit there is only latency"),
        pytest.param({"overhead_s": 0.5}, [(UP, 0, 1, "a", 0), (UP, 0, 1, "b", 0)], [(1.5, "a"), (3.0, "b")],
                     id="each message costs its overhead"),
        *(pytest.param({"bandwidth_at": changes, "latency_s": 0.25}, [(UP, 0, 2, "first", 0), (UP, 0, 1, "second", 0)],
                       [(first + 0.25, "first"), (second + 0.25, "second")], id=f"bandwidth changes: {changes}")
          for changes, first, second in (({1.0: 4.0}, 3.0, 5.0), ({1.0: 16.0}, 1.5, 2.0), ({5.0: 4.0}, 2.0, 3.0),
                                         ({1.0: 4.0, 2.0: 8.0}, 2.5, 3.5), ({2.0: 4.0}, 2.0, 4.0))),
        pytest.param({"servers": 2, "server_bandwidth_bit_s": 1}, [(UP, w, 1, w, 0, w) for w in range(2)],
                     [(1.0, 0), (1.0, 1)], id="each server has its own link"),
        pytest.param({"servers": 2}, [(UP, 0, 1, "a", 0, 1), (UP, 0, 1, "b", 0, 0), (UP, 0, 1, "c", 0, 1)],
                     [(2.0, "a"), (2.0, "b"), (3.0, "c")], id="a worker's link is shared by its servers"),
        # all get half a byte a second; at 2 s the long one has a byte to go, alone
        pytest.param({"servers": 2, "server_bandwidth_bit_s": 1},
                     [(UP, 1, 2, "long", 0, 1), (UP, 0, 1, "a", 0, 0), (UP, 0, 1, "b", 0, 1)],
                     [(2.0, "a"), (2.0, "b"), (3.0, "long")], id="a link is shared at each of its ends"),
        pytest.param({"servers": 2, "latency_s": 0.5}, [(UP, 0, 1, "noted", 0, 1), (UP, 1, 1, "own", 0, 0)],
                     [(1.5, "own"), (2.0, "noted")], id="a note to the server that decides takes the latency again"),
        pytest.param({"servers": 2, "latency_s": 0.5}, [(DOWN, 0, 1, "a", 0, 1)], [(1.5, "a")],
                     id="weights come from their server at once"),
        pytest.param({"servers": 2, "server_bandwidth_bit_s": 1, "bandwidth_at": {1.0: 4.0}},
                     [(UP, w, 2, w, 0, w) for w in range(2)], [(3.0, 0), (3.0, 1)],
                     id="a changed bandwidth is that of all servers' flows"),
        pytest.param(HALVED, [(UP, 0, 1, "a", 2)], [(4.0, "a")], id="a change while idle holds later"),
        # half a byte each in the first second, then a quarter a second
        pytest.param({"server_bandwidth_bit_s": 1, "bandwidth_at": {1.0: 2.0}}, [(UP, w, 1, w, 0) for w in range(2)],
                     [(3.0, 0), (3.0, 1)], id="a changed bandwidth is shared"),
    ],
)  # fmt: skip
def test_messages_arrive_when_computed_by_hand(fields, sent, expected):
    net = network(**fields)
    assert net.next_s() == math.inf
    for message in sent:
        net.send(*message)
    assert arrivals(net) == expected
    assert net.next_s() == math.inf


def test_a_message_has_not_arrived_before_its_instant():
    net = network(latency_s=0.5)
    net.send(UP, 0, 2, "a", 1.0)
    assert net.next_s() == pytest.approx(3.5)
    assert net.arrived(3.4) == []
    assert arrivals(net) == [(3.5, "a")]


def test_a_shared_link_is_never_idle_while_messages_wait():
    net = network(server_bandwidth_bit_s=3)
    for worker in range(8):
        for _ in range(5):
            net.send(UP, worker, 0.3, worker, 0.0)
    seen = arrivals(net)
    assert len(seen) == 40
    assert seen[-1][0] == pytest.approx(40 * 0.3 / 3)


def shared(messages: list[tuple[float, int, int, float, int]], byte_s: float, server_byte_s: float) -> dict[int, float]:
    """When each of these messages (instant, worker, server, bytes, number) has left, by going from one end or beginning
    to the next and computing all shares anew."""
    ahead, lines, ends, now = sorted(messages, reverse=True), dict[tuple[int, int], list[list[Any]]](), {}, 0.0
    while ahead or lines:
        workers, servers = (Counter(line[end] for line in lines) for end in (0, 1))
        rates = {line: min(byte_s / workers[line[0]], server_byte_s / servers[line[1]]) for line in lines}
        until = min([now + lines[line][0][0] / rate for line, rate in rates.items()] + [at for at, *_ in ahead[-1:]])
        for line, rate in rates.items():
            lines[line][0][0] -= rate * (until - now)
            if lines[line][0][0] < 1e-9:
                ends[lines[line].pop(0)[1]] = until
        lines, now = {line: queue for line, queue in lines.items() if queue}, until
        while ahead and ahead[-1][0] <= now:
            _, worker, server, size, number = ahead.pop()
            lines.setdefault((worker, server), []).append([size, number])
    return ends


@pytest.mark.parametrize(("servers", "server_byte_s"), [(2, 7.0), (5, 3.0), (9, 1.0), (9, math.inf)])
def test_with_several_servers_a_message_gets_the_smaller_of_two_equal_shares(servers: int, server_byte_s: float):
    drawn = random.Random(servers)
    sent = [(drawn.uniform(0, 20), drawn.randrange(12), drawn.randrange(servers), drawn.uniform(0, 5), number)
            for number in range(300)]  # fmt: skip
    limit = {} if math.isinf(server_byte_s) else {"server_bandwidth_bit_s": server_byte_s}
    net = network(byte_s=3.0, servers=servers, **limit)
    for at, worker, server, size, number in sorted(sent):
        net.send(DOWN, worker, size, number, at, server)
    assert {message: at for at, _, message in net.arrived(1e9)} == pytest.approx(shared(sent, 3.0, server_byte_s))


@pytest.mark.parametrize("count", [2, 4, 16])
@pytest.mark.parametrize("apart_s", [0.0, 1e-3])
def test_equal_links_carry_an_exchange_of_all_workers_and_servers_in_the_time_of_its_bytes(count: int, apart_s: float):
    """Servers are ready one after another, to all workers at once: these do not wait for one server's link together."""
    net = network(servers=count, server_bandwidth_bit_s=1)
    for server in range(count):
        for worker in range(count):
            net.send(DOWN, worker, 1 / count, (worker, server), server * apart_s, server)
    last_s = net.arrived(1e9)[-1][0]
    assert 1.0 <= last_s < 1.0 + 2 * count * apart_s + 1e-9


# --- chosen messages --------------------------------------------------------------------------------------------------


def test_an_idle_link_chooses_and_interrupts_nothing():
    net = network(choice := Choice())
    for size, message, at in ((2, "c", 0.0), (1, "b", 0.5), (1, "a", 1.0)):
        net.send(UP, 0, size, message, at)
    assert arrivals(net) == [(2.0, "c"), (3.0, "a"), (4.0, "b")]
    assert choice.asked == [["c"], ["b", "a"], ["b"]]


def test_all_that_becomes_ready_in_an_instant_is_chosen_from():
    net = network(Choice())
    net.send(UP, 0, 1, "c", 0.0)
    net.choose(0.0)
    assert [m for _, _, m in net.arrived(1.0)] == ["c"]
    net.send(UP, 0, 1, "b", 1.0)  # at the instant at which the link became idle
    net.send(UP, 0, 1, "a", 1.0)
    assert arrivals(net) == [(2.0, "a"), (3.0, "b")]


def test_a_late_choice_is_made_as_if_it_had_been_in_time():
    late, exact = (network(Choice(), latency_s=0.25) for _ in range(2))
    for net in (late, exact):
        for message, at in (("c", 0.0), ("b", 0.5), ("a", 1.5)):
            net.send(UP, 0, 1, message, at)
    assert [(at, m) for at, _, m in late.arrived(50.0)] == arrivals(exact) == [(1.25, "c"), (2.25, "b"), (3.25, "a")]


@pytest.mark.parametrize(
    ("choice", "fields", "sent", "expected"),
    [
        pytest.param(Choice(), {"duplex": "half"}, [(UP, 0, 1, "d"), (DOWN, 0, 1, "c"), (UP, 0, 1, "b"),
                     (DOWN, 0, 1, "a")], [(1.0, "a"), (2.0, "b"), (3.0, "c"), (4.0, "d")],
                     id="half duplex: one link chooses for both directions"),
        pytest.param(Choice(), {"server_bandwidth_bit_s": 1}, [(UP, 0, 1, "b"), (UP, 0, 1, "a"), (UP, 1, 1, "d"),
                     (UP, 1, 1, "c")], [(2.0, "a"), (2.0, "c"), (4.0, "b"), (4.0, "d")],
                     id="each worker chooses its own, and all share the server's link"),
        pytest.param(Choice(), {"servers": 2}, [(UP, 0, 1, "b"), (UP, 0, 1, "a"), (UP, 0, 1, "c", 0.0, 1)],
                     [(2.0, "a"), (2.0, "c"), (3.0, "b")], id="each server's messages are chosen by themselves"),
        pytest.param(Choice(2), {}, [(UP, 0, 1, "a"), (UP, 0, 2, "b"), (UP, 0, 1, "c")],
                     [(1.0, "a"), (2.0, "c"), (4.0, "b")], id="a message too large for the credit lets a smaller pass"),
    ],
)  # fmt: skip
def test_chosen_messages_arrive_when_computed_by_hand(choice, fields, sent, expected):
    net = network(choice, **fields)
    for message in sent:
        net.send(*(*message, 0.0)[:5], *message[5:])
    assert arrivals(net) == expected


@pytest.mark.parametrize(
    ("credit", "expected"),
    [(1, [(1.5, "c"), (3.5, "a"), (5.5, "d"), (7.5, "e")]),  # two latencies between one and the next
     (3, [(1.5, "c"), (2.5, "d"), (3.5, "e"), (4.5, "a")])],  # "a" comes behind what was let go
)  # fmt: skip
def test_a_small_credit_waits_for_acknowledgements_and_a_large_one_cannot_choose_late(credit, expected):
    net = network(Choice(credit), latency_s=0.5)
    for message in ("c", "d", "e"):
        net.send(UP, 0, 1, message, 0.0)
    net.choose(0.0)
    net.send(UP, 0, 1, "a", 0.25)
    assert arrivals(net) == expected


def test_a_message_of_no_size_takes_the_latency_alone():
    net = network(Choice(), latency_s=0.25)
    net.send(UP, 0, 9, "large", 0.0)
    net.fly(UP, "asked", 1.0)
    assert arrivals(net) == [(1.25, "asked"), (9.25, "large")]


@pytest.mark.parametrize(("direction", "server", "at"), [(UP, 0, 1.0), (DOWN, 0, 1.0), (DOWN, 1, 1.0), (UP, 1, 1.25)])
def test_what_a_worker_and_the_server_on_its_machine_exchange_passes_no_link(direction, server, at):
    """It waits for no other message, and none for it; server 0 hears of what came to server 1 a latency later."""
    net = network(servers=2, latency_s=0.25)
    net.send(direction, 0, 9, "large", 0.0)
    net.pass_by(direction, "own", 1.0, server)
    assert arrivals(net) == [(at, "own"), (9.25, "large")]
