"""The difference of two clocks, by pings."""

from __future__ import annotations

import random

import pytest

from pslab.engines.processes.fleets.clocks import SAME, offset


@pytest.mark.parametrize("apart_s", [0.01, 1000.0, -1000.0])
def test_the_difference_is_found_within_its_bound_whichever_way_takes_longer(apart_s):
    draw, pings, now = random.Random(7), [], 50.0
    for _ in range(32):
        there_s, back_s = draw.uniform(1e-5, 1e-3), draw.uniform(1e-5, 1e-3)
        pings.append((now, now + there_s + apart_s, now + there_s + back_s))
        now += 0.01
    found = offset(pings)
    assert abs(found.seconds - apart_s) <= found.bound_s + 1e-12
    assert found.bound_s == pytest.approx(min(received - sent for sent, _, received in pings) / 2)


def test_clocks_that_agree_as_far_as_is_known_are_one():
    assert offset([(0.0, 0.3, 1.0)]) == SAME
    assert offset([(0.0, 1.1, 1.0)]).seconds == pytest.approx(0.6)


def test_the_shortest_ping_tells():
    assert offset([(0.0, 105.0, 10.0), (20.0, 121.0, 20.5), (30.0, 139.0, 34.0)]) == (100.75, 0.25)
