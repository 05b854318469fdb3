"""The sliding window: a vector by hand, and its equivalence with the workers' clocks."""

from __future__ import annotations

import random

import pytest

from pslab.errors import ProtocolError
from pslab.protocol.window import Window


def ring(window: Window) -> tuple[int, list[int]]:
    return window.base, [window.counts.get(window.base + i, 0) for i in range(window.length or 0)]


def test_window_vector():
    window = Window(2, 3)
    seen = []
    for iteration in (0, 1, 2):  # A
        window.push(iteration)
        seen.append(ring(window))
    assert seen == [(0, [1, 0, 0]), (0, [1, 1, 0]), (0, [1, 1, 1])]
    with pytest.raises(ProtocolError):  # A3
        window.push(3)
    assert ring(window) == (0, [1, 1, 1])
    assert window.push(0) is True  # B0
    assert ring(window) == (1, [1, 1, 0])
    window.push(3)  # A3 again
    assert ring(window) == (1, [1, 1, 1])
    assert window.push(1) is True  # B1
    assert ring(window) == (2, [1, 1, 0])


@pytest.mark.parametrize("seed", range(60))
def test_the_low_bound_is_the_least_clock_and_rises_by_at_most_one_per_push(seed):
    chance = random.Random(seed)
    members, length = chance.randint(1, 6), chance.choice([1, 2, 4, None])
    window, clocks = Window(members, length), [0] * members
    for _ in range(120):
        worker = chance.randrange(members)
        allowed = length is None or clocks[worker] - min(clocks) <= length - 1  # SSP with s = l - 1
        assert window.valid(clocks[worker]) is allowed
        if not allowed:
            continue
        before = window.base
        moved = window.push(clocks[worker])
        clocks[worker] += 1
        assert window.base == min(clocks)
        assert moved is (window.base == before + 1)
        assert sum(window.counts.values()) == sum(c - min(clocks) for c in clocks)
        assert len(window.counts) <= (length or max(clocks) + 1)


def pushed(chance: random.Random, members: int, pushes: int) -> tuple[Window, list[int]]:
    """A window without a length after random pushes, and the clocks of its members."""
    window, clocks = Window(members, None), [0] * members
    for _ in range(pushes):
        worker = chance.randrange(members)
        window.push(clocks[worker])
        clocks[worker] += 1
    return window, clocks


@pytest.mark.parametrize("seed", range(20))
def test_a_member_that_left_has_no_influence(seed):
    chance = random.Random(seed)
    window, clocks = pushed(chance, chance.randint(2, 5), 40)
    before, clock = window.base, clocks.pop(chance.randrange(len(clocks)))
    moved = window.leave(clock)
    assert window.base == min(clocks)
    assert moved is (window.base > before)
    assert sum(window.counts.values()) == sum(c - min(clocks) for c in clocks)


@pytest.mark.parametrize("seed", range(20))
def test_a_member_that_joins_counts_like_the_others(seed):
    chance = random.Random(seed)
    window, clocks = pushed(chance, chance.randint(1, 4), 30)
    clocks.append(window.base + chance.randint(0, 3))
    window.join(clocks[-1])
    assert window.base == min(clocks)
    assert sum(window.counts.values()) == sum(c - min(clocks) for c in clocks)
    with pytest.raises(ProtocolError, match="below the low bound"):
        window.join(window.base - 1)


def test_an_empty_window_starts_where_the_first_member_joins():
    window = Window(2, 3)
    window.push(0)
    assert not window.leave(1)
    assert window.leave(0)  # no member remains
    window.join(1)
    assert (window.base, window.members, window.counts) == (1, 1, {})
    assert window.push(1)


def test_invalid_windows_are_refused():
    for members, length in ((0, 1), (1, 0)):
        with pytest.raises(ProtocolError):
            Window(members, length)
    window = Window(2, 1)
    window.push(0)
    window.push(0)
    with pytest.raises(ProtocolError, match="below the low bound"):
        window.leave(0)
