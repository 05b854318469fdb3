"""The server that decides: what is measured of it, and how arithmetic and simulation agree. No speed is judged here."""

from __future__ import annotations

from collections import Counter

import pytest

from pslab.engines.experiment.wire import Frame
from pslab.protocol.messages import Weights
from pslab.protocol.server import Reply, Step
from pslab.protocol.store import Order
from tools.bench import decider


@pytest.mark.parametrize("policy", decider.POLICIES)
@pytest.mark.parametrize("ranges", [1, 2])
def test_the_machine_alone_answers_every_worker_in_every_round(
    monkeypatch: pytest.MonkeyPatch, policy: str, ranges: int
):
    answered = Counter[int]()

    class Counting(decider.Server):
        def answered(self, index: int):
            answered[index] += 1
            return super().answered(index)

    monkeypatch.setattr(decider, "Server", Counting)
    decider.message_s(policy, 4, 24 * ranges, ranges)
    assert answered == dict.fromkeys(range(ranges), 3 * 4)


@pytest.mark.parametrize("policy", decider.POLICIES)
@pytest.mark.parametrize("servers", [1, 3])
def test_every_request_is_answered_and_orders_go_to_the_other_servers(
    monkeypatch: pytest.MonkeyPatch, policy: str, servers: int
):
    sent, ordered, make = Counter[int](), Counter[type](), decider.frame_of

    class Counting(decider.Packing):
        def send(self, worker: int, frame: Frame, now: float) -> None:
            super().send(worker, frame, now)
            sent[worker] += isinstance(frame[-1], Weights)

    def frame_of(order: Order, *work: object) -> Frame:
        ordered[type(order)] += 1
        return make(order, *work)

    monkeypatch.setattr(decider, "Packing", Counting)
    monkeypatch.setattr(decider, "frame_of", frame_of)
    assert decider.server_s(policy, 4, servers, 2 * 4 * servers * 5) > 0
    assert sent == dict.fromkeys(range(4), 5 * servers)
    steps = 5 if policy == "bsp" else 5 * 4
    assert ordered == {} if servers == 1 else {Step: 2 * steps, Reply: 2 * 5 * 4}


def test_a_server_that_decides_too_slowly_is_the_limit_that_arithmetic_says():
    busy, free = (decider.simulated("asp", 8, 4, message_s, 12) for message_s in (0.01, 0.0))
    by_part = decider.limits(8, 4, 0.01, 0.1)
    assert min(by_part, key=by_part.__getitem__) == "the server that decides"
    assert busy.pushes_s == pytest.approx(by_part["the server that decides"], rel=0.06)
    assert busy.busy == pytest.approx(1, rel=0.06)
    assert free.pushes_s == pytest.approx(by_part["the workers"], rel=0.2)
    assert free.computing > 0.9 > 0.4 > busy.computing > 0.25  # 80 iterations a second of 0.1 s would be all


def test_limits_are_those_of_each_part():
    """A push of 932,362 float32 and 24 bytes over 25 Gbit/s, 0.7 ms of work on it, and a message of 0.3 ms."""
    found = decider.limits(4, 1, 0.3e-3, 0.2)
    assert found == pytest.approx({"the workers": 20, "the servers' links": 25e9 / 8 / (4 * 932_362 + 24),
                                   "the work on the weights": 1 / 0.7e-3, "the server that decides": 1000})  # fmt: skip
    many = decider.limits(4, 64, 0.3e-3, 0.2)
    assert many["the server that decides"] == pytest.approx(1 / (64 * 0.3e-3 + 0.7e-3 / 64))
    assert many["the servers' links"] == pytest.approx(64 * found["the servers' links"], rel=2e-3)


def test_rows_say_what_a_message_costs_and_what_follows(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(decider, "CROWDS", (2, 3))
    monkeypatch.setattr(decider, "RANGES", (1, 2))
    monkeypatch.setattr(decider, "LEAST", 4)
    monkeypatch.setattr(decider, "COUNTS", ((8, 1), (8, 1)))
    rows = decider.rows(quick=False)
    measured = [row for row in rows if row.unit == "us"]
    assert len(measured) == len(decider.POLICIES) * 2 * 2
    assert all(row.value > 0 and row.ratio > 0 for row in measured)
    followed = [row.name for row in rows if row.unit == "/s"]
    assert followed[:4] == ["asp, W=3, 1 server: pushes", *(f"{p}, W=3, 2 servers: pushes" for p in decider.POLICIES)]
    assert followed[4:] == [f"asp, W=3, 2 servers, {less}: pushes" for less in decider.LESS]
    assert all("limit: the workers" in row.note for row in rows if row.unit == "/s")
