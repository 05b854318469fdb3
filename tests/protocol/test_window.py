"""The sliding window: vectors, and equivalence with the clocks that it stands for."""

from __future__ import annotations

import random

import pytest

from pslab.errors import ProtocolError
from pslab.protocol.window import Window


def ring(window: Window) -> tuple[int, list[int]]:
    return window.base, [window.counts.get(window.base + i, 0) for i in range(window.length or 0)]


def test_vector():
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


@pytest.mark.parametrize("seed", range(300))
def test_equals_the_clocks_and_moves_at_most_once_a_push(seed):
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
    """A window without a length into which members have pushed by chance, and their clocks."""
    window, clocks = Window(members, None), [0] * members
    for _ in range(pushes):
        worker = chance.randrange(members)
        window.push(clocks[worker])
        clocks[worker] += 1
    return window, clocks


@pytest.mark.parametrize("seed", range(50))
def test_leaving_equals_never_having_been_there(seed):
    chance = random.Random(seed)
    window, clocks = pushed(chance, chance.randint(2, 5), 40)
    before, gone = window.base, clocks.pop(chance.randrange(len(clocks)))
    moved = window.leave(gone)
    assert window.base == min(clocks)
    assert moved is (window.base > before)
    assert sum(window.counts.values()) == sum(c - min(clocks) for c in clocks)


def test_impossible_windows_are_refused():
    for members, length in ((0, 1), (1, 0)):
        with pytest.raises(ProtocolError):
            Window(members, length)
    window = Window(2, 1)
    window.push(0)
    window.push(0)
    with pytest.raises(ProtocolError, match="below the low bound"):
        window.leave(0)


def test_an_empty_window_begins_where_the_first_one_joins():
    window = Window(2, 3)
    window.push(0)
    assert not window.leave(1)
    assert window.leave(0)  # nobody is left
    window.join(1)
    assert (window.base, window.members, window.counts) == (1, 1, {})
    assert window.push(1)


@pytest.mark.parametrize("seed", range(50))
def test_joining_equals_having_been_there(seed):
    chance = random.Random(seed)
    window, clocks = pushed(chance, chance.randint(1, 4), 30)
    clocks.append(window.base + chance.randint(0, 3))
    window.join(clocks[-1])
    assert window.base == min(clocks)
    assert sum(window.counts.values()) == sum(c - min(clocks) for c in clocks)
    with pytest.raises(ProtocolError, match="below the low bound"):
        window.join(window.base - 1)
