"""The sliding window is the workers' clocks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pslab.errors import ProtocolError
from pslab.protocol.window import Window

EVENTS = st.lists(st.tuples(st.sampled_from(["push"] * 8 + ["join", "leave"]), st.integers(0, 99)), max_size=80)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), st.sampled_from([1, 2, 4, None]), EVENTS)
def test_the_low_bound_is_the_least_clock_of_the_members(members, length, events):
    """Whatever is pushed, and whoever joins or leaves; a push raises it by at most one."""
    window, clocks = Window(members, length), [0] * members
    for what, number in events:
        which, before = number % len(clocks), window.base
        allowed = length is None or clocks[which] - before <= length - 1  # SSP with s = l - 1
        assert window.valid(clocks[which]) is allowed
        if not allowed:
            with pytest.raises(ProtocolError):
                window.push(clocks[which])
        if what == "push" and allowed:
            moved = window.push(clocks[which])
            clocks[which] += 1
            assert moved is (window.base == before + 1) is (window.base > before)
        elif what == "leave" and len(clocks) > 1:
            assert window.leave(clocks.pop(which)) is (min(clocks) > before)
        elif what == "join":
            clocks.append(before + number % (length or 4))
            window.join(clocks[-1])
        assert (window.base, window.members) == (min(clocks), len(clocks))
        assert sum(window.counts.values()) == sum(c - min(clocks) for c in clocks)
        assert len(window.counts) <= (length or max(clocks) + 1)
        assert not window.valid(window.base - 1)
    with pytest.raises(ProtocolError, match="below the low bound"):
        window.join(window.base - 1)


def test_an_empty_window_starts_where_the_first_member_joins():
    window = Window(2, 3)
    window.push(0)
    assert not window.leave(1)
    assert window.leave(0)  # no member remains
    window.join(1)
    assert (window.base, window.members, window.counts) == (1, 1, {})


def test_invalid_windows_are_refused():
    for members, length in ((0, 1), (1, 0)):
        with pytest.raises(ProtocolError):
            Window(members, length)
    window = Window(1, 1)
    window.push(0)
    with pytest.raises(ProtocolError, match="below the low bound"):
        window.leave(0)
